"""Random small scenarios under observation: every allocator, policy, profile, scheduler; memory always short.

Each run is watched by a shadow memory that knows who wrote what in every slot (``--verify``): every table touched is
read back after every operation, all tables and all invariants every 256 operations and at the end. A violation ends
the script with a traceback and the scenario that shows it again.

One scenario in twelve has a mistake planted; there, not to notice it ends the script. Its operations are counted apart.

    python benchmarks/stress_allocators.py --seconds 120 --seed 1
    python benchmarks/stress_allocators.py --page-operations 1e8 --journal stress.jsonl    # goes on where it stopped
    python benchmarks/stress_allocators.py --journal stress.jsonl --table                  # what is known, as Markdown
    python benchmarks/stress_allocators.py --journal stress.jsonl --table --page docs/reliability.md
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from marked import put

from simulator.allocators.base import Allocator
from simulator.allocators.sharing import RULES
from simulator.errors import InputError
from simulator.scenario import Scenario, parse_scenario
from simulator.serving.pool import build_allocator
from simulator.simulation import pool_parts, run_one

_TOTALS = ("pages_taken", "cow_copies", "moves", "evictions", "defrag_runs", "prefix_hit_tokens")
_FAULTS = ("missed_end_of_sequence", "forgotten_decrement", "stale_page_table", "double_release")
_PROFILES = ("generic", "vllm-0.33", "vllm-0.11", "vllm-0.6", "sglang", "cann-recipes")


def random_scenario(rng: np.random.Generator) -> dict[str, Any]:
    """A scenario as plain data: some twenty to six hundred requests on a pool that holds a few of them."""

    def one_of(*options: Any) -> Any:
        return options[int(rng.integers(len(options)))]

    page_size = one_of(1, 1, 4, 4, 16, 16, 16, 128)
    # every page of a table that is touched is read back, so small pages come with short sequences
    longest = int(rng.integers(20, 60 + 30 * page_size))
    outputs = int(rng.integers(4, 100))
    on_oom = one_of("fail", "wait", "preempt_recompute", "preempt_swap")
    scheduler = one_of("continuous", "continuous", "prefill_first", "static")
    beams = on_oom in ("fail", "preempt_swap") and scheduler != "static" and rng.random() < 0.15
    pages = max(4, int(rng.uniform(1.0, 4.0) * (longest + outputs) / page_size))
    faulty = not beams and rng.random() < 1 / 12
    paged = {"page_size": page_size, "max_pages": pages}
    own_order = {"free_order": one_of("lifo", "fifo", "address_ordered", "first_fit_scan")}
    profile = one_of(*_PROFILES)
    sharing = {"kind": "paged_cow", **paged, "enable_prefix_caching": bool(rng.random() < 0.8)}
    if RULES[profile].free_order != "fifo":
        sharing["eviction_policy"] = one_of("lru", "lru", "lfu", "fifo", "mru", "filo", "priority")
    trigger = one_of({"on_failure": True}, {"fragmentation": 0.3}, {"period": "50ms"}, {"on_failure": False})
    runs = {"run_length": one_of(2, 4, 8), "trigger": trigger, "grow_by": one_of("page", "run")}
    capacity = pages * page_size * 131_072
    ranges = {
        "reserve": one_of("max_model_len", "pow2", "exact", "grow"),
        "fit": one_of("first", "best", "next", "worst"),
    }
    allocators: list[dict[str, Any]] = [
        sharing,
        {"kind": "contiguous", "kv_capacity_bytes": capacity, "grow_tokens": one_of(1, 16, 128), **ranges},
        {
            "kind": "paged",
            **paged,
            **own_order,
            "null_page": bool(rng.random() < 0.5),
            "pools": one_of("shared", "per_group"),
        },
        {"kind": "paged_defrag", **paged, **runs, "strict_runs": bool(rng.random() < 0.7)},
    ]
    return {
        "name": "stress",
        "device": {"preset": "910B3"},
        "model": {"preset": one_of("llama-3.1-8b", "llama-3.1-8b", "gpt-oss-20b")},
        "workload": {
            "arrivals": one_of(
                {"process": "poisson", "rate": float(rng.uniform(5, 500))}, {"process": "closed", "users": 6}
            ),
            "prompt_tokens": {"dist": "uniform", "min": 1, "max": longest},
            "output_tokens": {"dist": "uniform", "min": 1, "max": outputs},
            "shared_prefix": {"groups": int(rng.integers(1, 5)), "tokens": int(rng.integers(1, longest + 1))},
            "classes": [{"name": "chat"}, {"name": "batch", "priority": int(rng.integers(-1, 2))}],
            "requests": int(rng.integers(20, 600)),
            **({"beam_width": one_of(2, 4)} if beams else {"samples": one_of(1, 1, 3)}),
        },
        "engine": {
            "profile": profile,
            "scheduling_policy": one_of("fcfs", "fcfs", "priority"),
            "long_prefill_token_threshold": one_of(0, 0, 50),
            "adaptive_long_prefill_threshold": bool(rng.random() < 0.5),
            "scheduler": scheduler,
            "on_oom": on_oom,
            "max_num_seqs": int(rng.integers(4, 48)),
            "max_num_batched_tokens": int(rng.integers(64, 2048)),
            "max_model_len": longest + outputs,
            "swap_bytes": capacity // one_of(1, 2, 8),
            "num_lookahead_tokens": one_of(0, 0, 3),
            # what a step costs matters little to memory
            **({"step_time": one_of("5ms", "30ms")} if rng.random() < 0.8 else {}),
        },
        "allocators": allocators[:1] if beams else allocators,
        **({"faults": [{"kind": one_of(*_FAULTS), "every": int(rng.integers(2, 40))}]} if faulty else {}),
        "seed": int(rng.integers(1 << 31)),
    }


def stress(scenario: Scenario, counts: Counter[str]) -> None:
    """Every allocator of ``scenario`` under observation. Raises ``AssertionError`` at the first violation."""
    requests = scenario.requests()
    parts = pool_parts(scenario, requests)
    for index, (label, config) in enumerate(zip(scenario.labels, scenario.allocators, strict=True)):
        try:
            allocator = build_allocator(config, parts, key=f"allocators.{index}")
            summary = run_one(scenario, requests, allocator, label=label, verify=True).summary
        except InputError:
            counts["pools smaller than their windows, faults without pages"] += 1
            continue
        if scenario.faults:
            _expect_noticed(summary["faults"], allocator, counts)
        else:
            _add_up(summary, allocator, counts)


def _expect_noticed(found: dict[str, Any], allocator: Allocator, counts: Counter[str]) -> None:
    planted = found["planted"]
    assert not planted or found["noticed"], f"{allocator.kind}: nothing of {planted} planted mistakes was noticed"
    counts["runs with mistakes planted"] += bool(planted)
    counts["mistakes planted"] += planted
    counts["page operations beside mistakes"] += _page_operations(allocator)


def _add_up(summary: dict[str, Any], allocator: Allocator, counts: Counter[str]) -> None:
    requests = summary["requests"]
    counts["runs"] += 1
    counts[f"runs {allocator.kind}"] += 1
    counts[f"ended {summary['ended_because']}"] += 1
    counts["requests"] += requests["arrived"]
    counts["lost"] += sum(requests[name] for name in ("oom_admission", "oom_decode", "too_large"))
    counts["failed allocations"] += sum(summary["oom_events"].values())
    counts["preemptions"] += summary["preemptions"]
    counts["swapped bytes"] += summary["swapped_bytes"]
    counts["calls"] += summary["verified"]["operations"]
    counts["tables read"] += summary["verified"]["tables_read"]
    counts["page operations"] += _page_operations(allocator)
    counts[f"page operations {allocator.kind}"] += _page_operations(allocator)
    for name in _TOTALS:
        counts[name] += getattr(allocator.totals, name)


def _page_operations(allocator: Allocator) -> int:
    """Pages taken and, as none is held at the end, given back; copied, moved, evicted."""
    totals = allocator.totals
    return 2 * totals.pages_taken + totals.moves + totals.cow_copies + totals.evictions


def try_scenario(number: int, counts: Counter[str]) -> None:
    """The scenario of that number, under all its allocators."""
    text = json.dumps(random_scenario(np.random.default_rng(number)))
    counts["scenarios"] += 1
    try:
        stress(parse_scenario(text, Path()), counts)
    except InputError:
        counts["scenarios that contradict themselves"] += 1
    except Exception:
        print(f"scenario {number}: {text}", file=sys.stderr)
        raise


# ---- the journal


def read_journal(path: Path | None) -> tuple[Counter[str], int]:
    """What all lines count together, and how many scenarios they cover."""
    counts: Counter[str] = Counter()
    if path is not None and path.is_file():
        for line in path.read_text().splitlines():
            counts.update(json.loads(line))
    return counts, counts["scenarios"]


def note(path: Path | None, counts: Counter[str]) -> None:
    """One more line."""
    if path is not None:
        with path.open("a") as journal:
            journal.write(json.dumps(counts) + "\n")


def table(counts: Counter[str]) -> str:
    """What was done, as Markdown."""
    rows = [
        ("scenarios (four allocators each, as far as they allow)", "scenarios"),
        ("runs", "runs"),
        ("requests", "requests"),
        ("calls that move memory", "calls"),
        ("page tables read back", "tables read"),
        ("**page operations** (taken, given back, copied, moved, evicted)", "page operations"),
        *((f"of them under `{kind}`", f"page operations {kind}") for kind in ("paged", "paged_cow", "paged_defrag")),
        ("pages copied on write", "cow_copies"),
        ("pages moved by compaction", "moves"),
        ("cached pages evicted", "evictions"),
        ("bytes swapped", "swapped bytes"),
        ("refused allocations", "failed allocations"),
        ("preemptions", "preemptions"),
        ("runs that ended in a named standstill", "ended livelock"),
        ("**violations** (the first would have ended the run, and no line been written)", "violations"),
        ("runs with mistakes planted, all of them noticed", "runs with mistakes planted"),
        ("page operations a second of processor time", "speed"),
    ]
    counts["speed"] = round(counts["page operations"] / max(1, counts["processor seconds"]))
    return "\n".join(["| | |", "|---|---:|", *(f"| {text} | {counts[name]:,} |" for text, name in rows)])


#: scenarios a line of the journal
_BATCH = 20


def main() -> None:
    """Run until the time is up or enough is done, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--page-operations", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--page", type=Path, help="put the table there")
    options = parser.parse_args()
    counts, done = read_journal(options.journal)
    started = time.monotonic()
    while (
        not options.table
        and counts["page operations"] < options.page_operations
        and time.monotonic() - started < options.seconds
    ):
        batch: Counter[str] = Counter()
        processor_s = time.process_time()
        for number in range(done, done + _BATCH):
            try_scenario(options.seed * 1_000_000 + number, batch)
        batch["processor milliseconds"] = round((time.process_time() - processor_s) * 1e3)
        note(options.journal, batch)
        counts += batch
        done += _BATCH
    counts["processor seconds"] = counts["processor milliseconds"] // 1000
    print(table(counts) if options.table else json.dumps(dict(sorted(counts.items()))))
    if options.page is not None:
        put(options.page, "stress", table(counts))


if __name__ == "__main__":
    main()
