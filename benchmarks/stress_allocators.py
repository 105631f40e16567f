"""Random small scenarios under observation: every allocator, policy, profile, scheduler; memory always short.

Each run is watched by a shadow memory that knows who wrote what in every slot (``--verify``): every table touched is
read back after every operation, all tables and all invariants every 256 operations. A violation ends the script with a
traceback and the seed that shows it again.

    python benchmarks/stress_allocators.py --seconds 120 --seed 1
"""

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from simulator.allocators.base import Allocator
from simulator.allocators.sharing import RULES
from simulator.errors import InputError
from simulator.scenario import Scenario, parse_scenario
from simulator.serving.pool import build_allocator
from simulator.simulation import pool_parts, run_one

_CALLS = ("admit", "grow", "release", "fork", "swap_out", "swap_in")
_TOTALS = ("pages_taken", "cow_copies", "moves", "evictions", "defrag_runs", "prefix_hit_tokens")
_PROFILES = ("generic", "vllm-0.33", "vllm-0.11", "vllm-0.6", "sglang", "cann-recipes")


def random_scenario(rng: np.random.Generator) -> dict[str, Any]:
    """A scenario as plain data: some twenty to two hundred requests on a pool that holds a few of them."""

    def one_of(*options: Any) -> Any:
        return options[int(rng.integers(len(options)))]

    page_size = one_of(1, 4, 16, 16, 16, 128)
    # every token slot touched is read back, so small pages come with short sequences
    longest = int(rng.integers(20, 40 + 20 * page_size))
    outputs = int(rng.integers(4, 100))
    on_oom = one_of("fail", "wait", "preempt_recompute", "preempt_swap")
    scheduler = one_of("continuous", "continuous", "prefill_first", "static")
    beams = on_oom in ("fail", "preempt_swap") and scheduler != "static" and rng.random() < 0.15
    pages = max(4, int(rng.uniform(1.0, 4.0) * (longest + outputs) / page_size))
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
            "requests": int(rng.integers(20, 200)),
            **({"beam_width": one_of(2, 4)} if beams else {"samples": one_of(1, 1, 3)}),
        },
        "engine": {
            "profile": profile,
            "scheduling_policy": one_of("fcfs", "fcfs", "priority"),
            "long_prefill_token_threshold": one_of(0, 0, 50),
            "adaptive_long_prefill_threshold": bool(rng.random() < 0.5),
            "scheduler": scheduler,
            "on_oom": on_oom,
            "max_num_seqs": int(rng.integers(4, 24)),
            "max_num_batched_tokens": int(rng.integers(64, 2048)),
            "max_model_len": longest + outputs,
            "swap_bytes": capacity // one_of(1, 2, 8),
            "num_lookahead_tokens": one_of(0, 0, 3),
        },
        "allocators": allocators[:1] if beams else allocators,
        "seed": int(rng.integers(1 << 31)),
    }


def counted(allocator: Allocator, counts: Counter[str]) -> Allocator:
    """``allocator``, whose calls are counted."""

    def count(name: str) -> None:
        method = getattr(allocator, name)

        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return method(*arguments, **options)

        setattr(allocator, name, call)

    for name in _CALLS:
        count(name)
    return allocator


def stress(scenario: Scenario, counts: Counter[str]) -> None:
    """Every allocator of ``scenario`` under observation. Raises ``AssertionError`` at the first violation."""
    requests = scenario.requests()
    parts = pool_parts(scenario, requests)
    for index, (label, config) in enumerate(zip(scenario.labels, scenario.allocators, strict=True)):
        try:
            allocator = counted(build_allocator(config, parts, key=f"allocators.{index}"), counts)
        except InputError:
            counts["pools smaller than their windows"] += 1
            continue
        summary = run_one(scenario, requests, allocator, label=label, verify=True).summary
        counts["runs"] += 1
        counts[f"runs {allocator.kind}"] += 1
        counts[f"ended {summary['ended_because']}"] += 1
        counts["requests"] += summary["requests"]["arrived"]
        counts["lost"] += round(summary["oom_rate"] * summary["requests"]["arrived"])
        counts["failed allocations"] += sum(summary["oom_events"].values())
        counts["preemptions"] += summary["preemptions"]
        for name in _TOTALS:
            counts[name] += getattr(allocator.totals, name)


def main() -> None:
    """Run until the time is up and print the counts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    started = time.monotonic()
    number = 0
    while time.monotonic() - started < options.seconds:
        seed = options.seed * 1_000_000 + number
        number += 1
        text = json.dumps(random_scenario(np.random.default_rng(seed)))
        try:
            scenario = parse_scenario(text, Path())
            stress(scenario, counts)
        except InputError:
            counts["scenarios that contradict themselves"] += 1
        except Exception:
            print(f"seed {seed}: {text}")
            raise
    counts["operations"] = sum(counts[name] for name in _CALLS)
    # every page that was taken is given back
    counts["page operations"] = 2 * counts["pages_taken"] + counts["moves"] + counts["cow_copies"] + counts["evictions"]
    counts["violations"] = 0
    counts["processor seconds"] = round(time.process_time())
    print(
        json.dumps({"seconds": round(time.monotonic() - started), "scenarios": number, **dict(sorted(counts.items()))})
    )


if __name__ == "__main__":
    main()
