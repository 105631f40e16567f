"""Was compaction worth it in a run: what the moves cost, what a run of adjacent pages saves, how long one must last.

The gain is the step-cost model's own answer to the mean batch of the run, once with pages read one by one and once in
whole runs, shared out among the runs that the mean batch consists of. The price of a run is what it took: the pages
moved for each run made whole, read and written once.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from simulator.allocators.compaction import BreakEven
from simulator.allocators.paged_defrag import PagedDefragAllocator
from simulator.cost import StepCost
from simulator.engine import EngineRun
from simulator.units import NS_PER_S


def compaction_worth(
    run: EngineRun,
    allocator: PagedDefragAllocator,
    costs: Callable[[float], StepCost],
    *,
    copy_bandwidth: float,
    lifetime_s: float,
) -> dict[str, Any]:
    """Plain data for the summary. ``copy_bandwidth`` in bytes/s; ``lifetime_s`` is how long a request holds its pages
    on average, which is how long a layout stays good.

    ``break_even_s``: how long a run made whole must be read to repay its moves, ``None`` where no run was made whole
    or where adjacency saves nothing. ``pays`` is ``None`` if nothing was moved.
    """
    totals, recorder = allocator.totals, run.recorder
    moved_pages = totals.moved_bytes // allocator.layout.page_bytes
    moves_per_run = moved_pages / totals.defrag_runs if totals.defrag_runs else 0.0
    single_s, runs_s, pages = _mean_steps(run, allocator, costs)
    price_s = 2 * moves_per_run * allocator.layout.page_bytes / copy_bandwidth
    gain_s = (single_s - runs_s) * allocator.run_length / pages if pages else 0.0
    mean_step_s = recorder.busy_ns / recorder.steps / NS_PER_S if recorder.steps else 0.0
    steps = price_s / gain_s if gain_s > 0 else float("inf")
    found = BreakEven(price_s, gain_s, steps, steps * mean_step_s)
    known = bool(totals.defrag_runs) and gain_s > 0
    return {
        "moved_pages": moved_pages,
        "runs_gained": totals.defrag_runs,
        "cost_s": 2 * totals.moved_bytes / copy_bandwidth,
        "step_s_single_pages": single_s,
        "step_s_whole_runs": runs_s,
        **{f"run_{name}": value if known else None for name, value in asdict(found).items() if name != "period_s"},
        "break_even_s": found.period_s if known else None,
        "lifetime_s": lifetime_s,
        "pays": found.pays(lifetime_s=lifetime_s) if known else (False if moved_pages else None),
    }


def _mean_steps(
    run: EngineRun, allocator: PagedDefragAllocator, costs: Callable[[float], StepCost]
) -> tuple[float, float, float]:
    """Seconds of the run's mean decode step with single pages and with whole runs, and the pages it reads."""
    recorder = run.recorder
    if not recorder.steps or not recorder.busy_ns:
        return 0.0, 0.0, 0.0
    sequences = max(1, round(recorder.sequence_steps / recorder.steps))
    # every sequence has at least a token and an entry in its tables
    tokens = max(sequences, round(recorder.used_byte_ns / recorder.busy_ns / allocator.bytes_per_token))
    pages = recorder.allocated.total / recorder.busy_ns / allocator.layout.page_bytes
    entries = max(sequences, round(pages / allocator.layout.row_pages))
    windows = [group.window_tokens for group in allocator.layout.groups if group.window_tokens is not None]
    windowed = min(tokens, sequences * max(windows)) if windows else 0
    single, runs = (
        costs(length).decode_ns(sequences, tokens, entries, windowed) / NS_PER_S
        for length in (1.0, float(allocator.run_length))
    )
    return single, runs, float(round(pages))
