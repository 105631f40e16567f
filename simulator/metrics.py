"""From facts to figures: the ``run`` entry of the JSON, and the request, timeline and event tables.

Latencies are over completed requests that arrived after the warm-up. The OOM rate counts every request that
arrived; its interval is Wilson's for one run (see ``interval``), over replications it is Student's t.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.allocators.base import Allocator, Totals
from simulator.engine import EngineRun
from simulator.quantiles import quantiles
from simulator.serving.ledger import CAUSES, NEVER
from simulator.serving.sequence import Outcome
from simulator.traffic.requests import Requests
from simulator.units import NS_PER_S

Columns = dict[str, npt.NDArray[Any]]
#: standard normal quantile of a two-sided 95 % interval
Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class RunResult:
    """One allocator's run: ``summary`` is the JSON entry; the tables are columns of equal length."""

    summary: dict[str, Any]
    requests: Columns
    timeline: Columns
    oom_events: Columns
    detail: str


def wilson_interval(successes: int, trials: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927): honest near 0 and 1, unlike the normal one."""
    if trials == 0:
        return 0.0, 1.0
    rate = successes / trials
    centre = rate + z * z / (2 * trials)
    spread = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    low = (centre - spread) / scale if successes else 0.0
    high = (centre + spread) / scale if successes < trials else 1.0
    return low, high


def request_table(run: EngineRun, requests: Requests) -> Columns:
    """One row a request that arrived; seconds, NaN where something never happened."""
    ledger = run.ledger
    arrived = np.array(ledger.arrived_ns)
    here = arrived != NEVER
    names = np.array([outcome.name for outcome in Outcome], dtype=object)
    causes = np.array([*CAUSES, ""], dtype=object)
    return {
        "request_id": np.nonzero(here)[0],
        "class": np.array(requests.class_names, dtype=object)[requests.class_id[here]],
        "arrival_s": _seconds(arrived[here]),
        "prompt_tokens": requests.prompt_tokens[here],
        "output_tokens": requests.output_tokens[here],
        "generated_tokens": np.array(ledger.output_tokens)[here],
        "outcome": names[np.array(ledger.outcome)[here]],
        "oom_cause": causes[np.array(ledger.cause)[here]],
        "start_s": _seconds(np.array(ledger.started_ns)[here]),
        "first_token_s": _seconds(np.array(ledger.first_token_ns)[here]),
        "finish_s": _seconds(np.array(ledger.finished_ns)[here]),
        "preemptions": np.array(ledger.preemptions)[here],
        "prefix_hit_tokens": np.array(ledger.hit_tokens)[here],
    }


def timeline_table(run: EngineRun) -> Columns:
    """The memory timeline in bytes; ``waiting`` counts arrived sequences that do not run."""
    rows = run.recorder.timeline()
    ledger, times = run.ledger, rows["time_ns"]
    arrived, started = np.array(ledger.arrived_ns), np.array(ledger.started_ns)
    finished = np.array(ledger.finished_ns)
    left = np.where(started == NEVER, finished, started)
    came = np.searchsorted(np.sort(arrived[arrived != NEVER]), times, side="right")
    gone = np.searchsorted(np.sort(left[left != NEVER]), times, side="right")
    table: Columns = {"time_s": times / NS_PER_S}
    for name in ("used_bytes", "allocated_bytes", "cached_bytes", "largest_free_bytes", "peak_allocated_bytes"):
        table[name] = rows[name]
    table["internal_bytes"] = rows["tail_bytes"]
    held = rows["allocated_bytes"] - rows["leaked_bytes"]
    table["reserved_bytes"] = np.maximum(0, held - rows["used_bytes"] - rows["tail_bytes"])
    table["leaked_bytes"] = rows["leaked_bytes"]
    table["running"] = rows["running"]
    table["waiting"] = came - gone + rows["requeued"]
    table["swapped"] = rows["swapped"]
    return table


def summarise(
    run: EngineRun,
    requests: Requests,
    allocator: Allocator,
    *,
    label: str,
    page_size: int,
    warmup_s: float,
    wall_s: float,
    totals: Totals | None = None,
    instances: int = 1,
) -> RunResult:
    """Everything about one finished run.

    For a fleet, ``run`` has the facts of all ``instances``, ``totals`` what their allocators did, and ``allocator`` is
    one of them.
    """
    table = request_table(run, requests)
    summary = {
        "allocator": allocator.kind,
        "label": label,
        "kv_capacity_bytes": allocator.capacity_bytes,
        "max_pages": allocator.max_pages,
        "page_size": page_size,
        **_outcomes(run),
        "oom_events": dict(run.ledger.oom_events),
        "preemptions": run.ledger.preemption_count,
        "recomputed_tokens": run.ledger.recomputed_tokens,
        "swapped_bytes": run.ledger.swapped_bytes,
        "swap_refusals": run.ledger.swap_refusals,
        "stalls": run.ledger.stalls,
        "padding_tokens": run.ledger.padding_tokens,
        "kv": _memory(run, allocator, allocator.totals if totals is None else totals, instances),
        "latency": _latency(table, warmup_s),
        "throughput": _throughput(run, table),
        "batch": {
            "mean": _ratio(run.recorder.sequence_steps, run.recorder.steps),
            "max": run.recorder.peak_sequences,
        },
        "timeline": {"rows": len(run.recorder.rows), "interval_s": run.recorder.interval_ns / NS_PER_S},
        "first_oom_s": run.ledger.events[0][0] / NS_PER_S if run.ledger.events else None,
        "ended_because": run.ended_because,
        "ended_detail": run.detail,
        "steps": run.recorder.steps,
        "simulated_s": run.ended_ns / NS_PER_S,
        "wall_s": wall_s,
    }
    return RunResult(summary, table, timeline_table(run), run.ledger.event_columns(), run.detail)


def _outcomes(run: EngineRun) -> dict[str, Any]:
    counts = np.bincount(np.array(run.ledger.outcome, dtype=np.int64), minlength=len(Outcome)).tolist()
    arrived = run.ledger.arrived
    never_came = len(run.ledger.outcome) - arrived
    requests = {"arrived": arrived}
    for outcome in (
        Outcome.completed,
        Outcome.oom_admission,
        Outcome.oom_decode,
        Outcome.too_large,
        Outcome.timed_out,
        Outcome.unfinished,
    ):
        requests[outcome.name] = counts[outcome] - (never_came if outcome is Outcome.unfinished else 0)
    assert sum(requests.values()) == 2 * arrived, "a request has no outcome or two"
    lost = requests["oom_admission"] + requests["oom_decode"] + requests["too_large"]
    return {
        "requests": requests,
        "oom_rate": _ratio(lost, arrived),
        "oom_rate_ci": list(wilson_interval(lost, arrived)),
    }


def _memory(run: EngineRun, allocator: Allocator, totals: Totals, instances: int) -> dict[str, Any]:
    recorder, span = run.recorder, run.ended_ns * instances
    capacity_ns = allocator.capacity_bytes * span
    allocated, tail = recorder.allocated.total, recorder.tail.total + recorder.dead.total
    # what a leaked sequence shares is not saved for those that live, and what it would not have filled is not theirs
    used = recorder.used_byte_ns + recorder.leaked_discount.total
    tail, leaked = tail - recorder.leaked_tail.total, recorder.leaked.total
    reserved = allocated - used - tail - leaked
    page_bytes = allocator.capacity_bytes // allocator.max_pages if allocator.max_pages else 0
    return {
        "mean_utilization": _ratio(used, capacity_ns),
        "peak_used_bytes": recorder.peak_used_bytes,
        "peak_allocated_bytes": recorder.allocated.peak,
        "waste": {
            "reserved": _ratio(reserved, capacity_ns),
            "internal": _ratio(tail, capacity_ns),
            "external": _ratio(recorder.unavailable.total, capacity_ns),
            "leaked": _ratio(leaked, capacity_ns),
        },
        "fragmentation": _fragmentation(run),
        "mean_pages": _ratio(allocated, page_bytes * span) if page_bytes else 0.0,
        "peak_pages": recorder.allocated.peak // page_bytes if page_bytes else 0,
        "cow_copies": totals.cow_copies,
        "shared_saving": _shared_saving(recorder.entries.total, allocated // page_bytes if page_bytes else 0),
        "prefix_hit_rate": _ratio(totals.prefix_hit_tokens, totals.prefix_query_tokens),
        "prefix_hit_rate_recent": _ratio(totals.recent_hit_tokens, totals.recent_query_tokens),
        "prefix_look_ups": {"first": totals.look_ups, "resumed": totals.resumed_look_ups},
        "evictions": totals.evictions,
        "moved_bytes": totals.moved_bytes,
    }


def _fragmentation(run: EngineRun) -> dict[str, float]:
    """How far free memory was in pieces, as ``1 - largest / free``, and GMLake's measure of a whole run.

    ``mean`` is over time, weighted by the free bytes (so an instant with little free counts little); ``at_oom`` is the
    plain mean over the failed allocations that found any free byte (those that have a row); ``gmlake`` is 1 - peak
    used / peak allocated.
    """
    recorder, events = run.recorder, run.ledger.events
    at_oom = [1.0 - event[6] / event[5] for event in events if event[5]]
    peak = recorder.allocated.peak
    return {
        "mean": _ratio(recorder.scattered.total, recorder.free.total),
        "at_oom": _ratio(sum(at_oom), len(at_oom)),
        "gmlake": 1.0 - recorder.peak_used_bytes / peak if peak else 0.0,
    }


def _shared_saving(entry_ns: int, page_ns: int) -> float:
    """Share of the page-table entries that needed no page of their own, averaged over time."""
    return 1.0 - page_ns / entry_ns if entry_ns else 0.0


def _latency(table: Columns, warmup_s: float) -> dict[str, Any]:
    counted = (table["outcome"] == Outcome.completed.name) & (table["arrival_s"] >= warmup_s)
    arrival, start = table["arrival_s"][counted], table["start_s"][counted]
    first, finish = table["first_token_s"][counted], table["finish_s"][counted]
    outputs = table["generated_tokens"][counted]
    several = outputs > 1
    tpot = (finish - first)[several] / (outputs[several] - 1)
    return {
        "ttft_s": _spread(first - arrival),
        "tpot_s": _spread(tpot),
        "e2e_s": _spread(finish - arrival),
        "queue_s": _spread(start - arrival),
    }


def _spread(values: npt.NDArray[Any]) -> dict[str, float | None]:
    if not len(values):
        # A time that nobody has is no time of 0.
        return {"p50": None, "p95": None, "p99": None, "mean": None}
    p50, p95, p99 = quantiles(values, (0.50, 0.95, 0.99))
    return {"p50": p50, "p95": p95, "p99": p99, "mean": float(np.mean(values))}


def _throughput(run: EngineRun, table: Columns) -> dict[str, float]:
    span = run.ended_ns / NS_PER_S
    completed = int(np.count_nonzero(table["outcome"] == Outcome.completed.name))
    return {
        "requests_per_s": _ratio(completed, span),
        "output_tokens_per_s": _ratio(run.recorder.output_tokens, span),
        "prompt_tokens_per_s": _ratio(run.recorder.prompt_tokens, span),
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _seconds(ns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.where(ns == NEVER, np.nan, ns / NS_PER_S)
