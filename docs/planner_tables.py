"""The tables of docs/planner.md: sizes against Erlang's formula, coverage, routers, an instance that turns away."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from docs.table_text import runs, table
from simulator import planner
from simulator.planning.size import SizeAnswer
from simulator.planning.statistics import share
from simulator.planning.target import Goal, Target
from simulator.planning.tasks import in_order, processes, usable_processes
from simulator.planning.trial import Trial, observe
from simulator.scenario import Scenario, parse_scenario
from simulator.units import format_percent as percent
from simulator.units import format_seconds

#: pages that each request of the loss system holds for its whole life
_PAGES = 4


def erlang_b(load: float, servers: int) -> float:
    """Share of the requests that find all ``servers`` busy (Erlang 1917)."""
    blocking = 1.0
    for number in range(1, servers + 1):
        blocking = load * blocking / (number + load * blocking)
    return blocking


def loss_system(load: float, requests: int) -> Scenario:
    """Requests that hold four pages of 16 tokens for one second; who finds no page is lost."""
    text = f"""
name: erlang
device: {{preset: 910B3}}
model: {{preset: llama-3.1-8b}}
workload:
  arrivals: {{process: poisson, rate: {load}}}
  prompt_tokens: {{dist: fixed, value: {16 * (_PAGES - 1) + 1}}}
  output_tokens: {{dist: fixed, value: 10}}
  requests: {requests}
engine: {{scheduler: replay, on_oom: fail, step_time: 100ms, max_num_seqs: 64, max_model_len: 4096}}
allocators: [{{kind: paged, page_size: 16}}]
"""
    return parse_scenario(text, Path())


def _sized(load: float, limit: float, *, requests: int, most: int) -> SizeAnswer:
    question = planner.Question(
        index=0,
        goal=Goal((Target("oom", limit),)),
        confidence=0.95,
        most_replications=most,
        jobs=usable_processes(None),
    )
    return planner.sized_answer(loss_system(load, requests), question)


def erlang_sizes() -> str:
    """Sizes of loss systems beside the right ones."""
    rows = []
    for load, right in ((5, 10), (12, 20), (30, 42), (60, 75)):
        limit = math.sqrt(erlang_b(load, right) * erlang_b(load, right - 1))
        rows.append(_erlang_row(load, f"{limit:.3g}", right, _sized(load, limit, requests=4000, most=64), ""))
    rare = next(number for number in range(1, 100) if erlang_b(5, number) < 1e-5)
    answer = _sized(5, 1e-5, requests=2000, most=16)
    rows.append(_erlang_row(5, "1e-5, too rare to count", rare, answer, ", extrapolated"))
    return table(("load", "limit", "right", "`size`", "true loss there", "replications"), rows)


def _erlang_row(load: float, limit: str, right: int, answer: SizeAnswer, remark: str) -> Sequence[str]:
    found = answer.recommended
    assert found is not None
    slots = found.max_pages / _PAGES
    loss = erlang_b(load, math.floor(slots))
    return (f"{load}", limit, f"{right}", f"{slots:g}", f"{loss:.2g}", f"{found.replications}{remark}")


def coverage() -> str:
    """How many intervals hold what Erlang's formula says."""
    repetitions, replications, slots = 500, 8, 7
    scenario, true = loss_system(5, 400), erlang_b(5, slots)
    trials = [Trial(scenario, 0, number, slots * _PAGES, warmup_s=5.0) for number in range(repetitions * replications)]
    with processes(usable_processes(None)) as runner:
        seen = in_order(runner, observe, trials)
    held = 0
    for start in range(0, len(seen), replications):
        row = seen[start : start + replications]
        held += not share([one.lost for one in row], [one.arrived for one in row]).excludes(true)
    cells = (f"B(5, 7) = {true:.4f}", str(repetitions), percent(held / repetitions))
    return table(("true value", "intervals", "of them hold it"), [cells])


def routers() -> str:
    """The fleet of 64 cards behind each router."""
    rows = []
    for policy in ("round_robin", "least_loaded", "prefix_affinity"):
        (run,) = runs("fleet_64_cards", _COW, f"router={{policy: {policy}}}")
        counts = [one["requests"]["arrived"] for one in run["instances"]]
        spread = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{counts[0]}"
        times = run["latency"]["ttft_s"]
        rows.append(
            (
                f"`{policy}`",
                percent(run["kv"]["prefix_hit_rate"]),
                *(format_seconds(times[rank]) for rank in ("p50", "p95")),
                f"{run['kv']['mean_pages']:.0f}",
                spread,
            )
        )
    heads = (
        "router",
        "prompt tokens found in cache",
        "TTFT p50",
        "TTFT p95",
        "pages in use, mean",
        "requests an instance",
    )
    return table(heads, rows)


_COW = "allocators=[{kind: paged_cow, page_size: 128, enable_prefix_caching: true}]"


def affinity_without_a_cache() -> str:
    """The same fleet under ``paged``, which shares nothing."""
    rows = []
    for policy in ("round_robin", "prefix_affinity"):
        (run,) = runs("fleet_64_cards", "allocators=[{kind: paged, page_size: 128}]", f"router={{policy: {policy}}}")
        rows.append((f"`{policy}`", format_seconds(run["latency"]["ttft_s"]["p95"]), f"{run['preemptions']}"))
    return table(("router, `paged`", "TTFT p95", "preemptions"), rows)


def black_hole() -> str:
    """Four instances of 300 pages under 20 chats a second, behind two routers."""
    rows = []
    for policy in ("round_robin", "least_loaded"):
        (run,) = runs(
            "chat_burst",
            "device={preset: 910B3, replicas: 4}",
            "workload.arrivals={process: poisson, rate: 20}",
            "allocators=[{kind: paged, page_size: 128, max_pages: 300}]",
            f"router={{policy: {policy}}}",
        )
        rows.append((f"`{policy}`", percent(run["oom_rate"])))
    return table(("router, `on_oom: fail`", "OOM rate"), rows)


TABLES: dict[str, Callable[[], str]] = {
    each.__name__: each for each in (erlang_sizes, coverage, routers, affinity_without_a_cache, black_hole)
}
