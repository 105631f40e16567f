"""What a planner keeps of one run: a few numbers, small enough to send between processes.

``Trial`` says which run; ``observe`` makes it. All trials of a scenario with the same replication meet the same
requests, whatever the allocator and the size of its pool (common random numbers).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from simulator.config import AllocatorConfig
from simulator.metrics import Columns, RunResult
from simulator.planning.warmup import mser5
from simulator.quantiles import quantiles
from simulator.scenario import Scenario
from simulator.serving.pool import build_allocator
from simulator.serving.pool_parts import PoolParts
from simulator.simulation import pool_parts, run_one
from simulator.traffic.requests import BoolArray, Requests

#: KV bytes in place of the budget's, for pools that are larger than a device can hold
_NO_BUDGET = 1 << 62

RANKS = ("mean", "p50", "p95", "p99")
#: latency figures that can be targets
LATENCIES = tuple(f"{group}_{rank}" for group in ("ttft", "tpot", "e2e", "queue") for rank in RANKS)
#: arrivals that have no steady state, or end it themselves: nothing of such a run is warm-up
_TERMINATING = ("trace", "closed", "diurnal")
_LOST = ("oom_admission", "oom_decode", "too_large")


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One run: allocator ``index`` of ``scenario`` with ``max_pages`` pages, or as the scenario says for ``None``.

    ``max_pages`` may be more than the memory budget leaves: planning asks what would be enough. Requests that arrive
    before ``warmup_s`` are not counted. ``requests`` are served in place of the scenario's own.
    """

    scenario: Scenario
    index: int
    replication: int
    max_pages: int | None = None
    warmup_s: float = 0.0
    requests: Requests | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Counts over the requests that arrived after the warm-up.

    ``lost``, ``timed_out`` and ``waited`` (those for whom an allocation failed, whatever came of it) are requests,
    ``preemptions`` events; ``latency`` has the names of ``LATENCIES``, in
    seconds, of completed requests. ``peak_pages`` is the largest number of pages in use at once, over the whole run.
    ``thrashing``: more was computed again than for the first time, or nothing could be produced any more; the figures
    of such a run are not to be trusted.
    """

    arrived: int
    lost: int
    timed_out: int
    waited: int
    preemptions: int
    latency: Mapping[str, float]
    peak_pages: int
    thrashing: bool


def observe(trial: Trial) -> Observation:
    """Run a trial. Raises ``InputError`` when its workload or pool cannot be had."""
    return observed(run_trial(trial), trial.warmup_s)


def run_trial(trial: Trial) -> RunResult:
    """The run of a trial, with everything about it."""
    scenario = trial.scenario
    requests = trial.requests or scenario.requests(replication=trial.replication)
    config, parts = scenario.allocators[trial.index], pool_parts(scenario, requests)
    if trial.max_pages is not None:
        config, parts = sized(config, parts, trial.max_pages)
    allocator = build_allocator(config, parts, key=f"allocators.{trial.index}")
    return run_one(scenario, requests, allocator, label=scenario.labels[trial.index])


def sized(config: AllocatorConfig, parts: PoolParts, max_pages: int) -> tuple[AllocatorConfig, PoolParts]:
    """The same allocator with a pool of so many pages, whether or not the device has room for it."""
    changed = config.model_copy(update={"max_pages": max_pages, "safety_factor": None, "kv_capacity_bytes": None})
    return changed, replace(parts, kv_bytes=_NO_BUDGET)


def observed(result: RunResult, warmup_s: float) -> Observation:
    """The counts of a finished run."""
    table, summary = result.requests, result.summary
    counted = table["arrival_s"] >= warmup_s
    outcome = table["outcome"][counted]
    started = ~np.isnan(table["start_s"])
    computed = int(table["generated_tokens"].sum()) + int(table["prompt_tokens"][started].sum())
    return Observation(
        arrived=int(np.count_nonzero(counted)),
        lost=int(np.isin(outcome, _LOST).sum()),
        timed_out=int((outcome == "timed_out").sum()),
        waited=int((table["oom_cause"][counted] != "").sum()),
        preemptions=int(table["preemptions"][counted].sum()),
        latency=_latencies(table, counted),
        peak_pages=summary["kv"]["peak_pages"],
        thrashing=summary["ended_because"] == "livelock" or summary["recomputed_tokens"] > computed,
    )


def given_warmup_s(scenario: Scenario) -> float | None:
    """The scenario's warm-up; ``None`` when it is to be found (``auto``, arrivals in a steady stream)."""
    warmup = scenario.workload.warmup
    if warmup == "auto":
        return 0.0 if scenario.workload.arrivals.process in _TERMINATING else None
    return warmup


def warmup_of(result: RunResult) -> float:
    """MSER-5 on allocated memory over time: seconds, at most until half of the requests have come."""
    time_s, arrival_s = result.timeline["time_s"], result.requests["arrival_s"]
    # After the last arrival the pool drains: that is no steady state either.
    steady = result.timeline["allocated_bytes"][time_s <= arrival_s[-1:].sum()]
    if not len(steady):
        return 0.0
    return float(min(time_s[mser5(steady)], arrival_s[len(arrival_s) // 2]))


def _latencies(table: Columns, counted: BoolArray) -> dict[str, float]:
    """Seconds by the names of ``LATENCIES``; not a number, and so below no limit, when no request was completed."""
    done = counted & (table["outcome"] == "completed")
    arrival, finish = table["arrival_s"][done], table["finish_s"][done]
    first, outputs = table["first_token_s"][done], table["generated_tokens"][done]
    several = outputs > 1
    groups = {
        "ttft": first - arrival,
        "tpot": (finish - first)[several] / (outputs[several] - 1),
        "e2e": finish - arrival,
        "queue": table["start_s"][done] - arrival,
    }
    found: dict[str, float] = {}
    for group, times in groups.items():
        figures = [float(times.mean()), *quantiles(times, (0.50, 0.95, 0.99))] if len(times) else [math.nan] * 4
        found |= {f"{group}_{rank}": figure for rank, figure in zip(RANKS, figures, strict=True)}
    return found
