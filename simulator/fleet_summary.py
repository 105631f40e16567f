"""The figures of a fleet: those of each instance, and one entry for all of them together.

Counts are added up. Shares and means are over the memory and the time of the whole fleet. What is compared with a pool
(pages, peaks, the batch) is of one instance: the mean one, or the fullest. So every figure of the whole means what it
means for a single instance, and ``max_pages`` beside it is what each instance has.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from simulator.allocators.base import Allocator, Totals
from simulator.engine import EndedBecause, EngineRun
from simulator.fleet import FleetRun
from simulator.metrics import RunResult, summarise
from simulator.serving.ledger import Ledger
from simulator.serving.recorder import COLUMNS, Integral, Recorder
from simulator.traffic.requests import Requests

_INTEGRALS = (
    *("allocated", "tail", "unavailable", "dead", "entries", "free", "scattered"),
    *("leaked", "leaked_discount", "leaked_tail"),
)
_SUMS = ("used_byte_ns", "steps", "sequence_steps", "busy_ns", "output_tokens", "prompt_tokens")
_PEAKS = ("peak_used_bytes", "peak_sequences")
#: columns of the timeline that are added up; bytes are those of the mean instance, the peak that of the fullest
_ADDED = ("running", "requeued", "swapped")
_LARGEST = ("peak_allocated_bytes",)
#: the worst of several ends names the end of the fleet
_ENDS: tuple[EndedBecause, ...] = ("completed", "horizon", "livelock", "interrupted")
#: figures whose spread over the instances is told
_SPREAD = (("requests", "arrived"), ("oom_rate",), ("kv", "mean_utilization"), ("latency", "ttft_s", "p95"))


def summarise_fleet(
    fleet: FleetRun,
    requests: Requests,
    allocators: Sequence[Allocator],
    *,
    label: str,
    page_size: int,
    warmup_s: float,
    wall_s: float,
) -> RunResult:
    """Everything about a finished fleet; ``instances`` in the summary has an entry for each instance."""
    single: dict[str, Any] = {"label": label, "page_size": page_size, "warmup_s": warmup_s}
    instances = []
    for place, allocator in enumerate(allocators):
        mine = own_run(fleet, place)
        served = requests.keep(fleet.instance == place)
        summary = summarise(mine, served, allocator, wall_s=0.0, **single).summary
        instances.append({"instance": place} | {key: value for key, value in summary.items() if key != "wall_s"})
    together = merged_run(fleet)
    whole = summarise(
        together,
        requests,
        allocators[0],
        wall_s=wall_s,
        totals=_added([allocator.totals for allocator in allocators]),
        instances=len(allocators),
        **single,
    )
    whole.requests["instance"] = fleet.instance[whole.requests["request_id"]]
    whole.summary.update(replicas=len(allocators), spread=_spread(instances), instances=instances)
    return whole


def own_run(fleet: FleetRun, place: int) -> EngineRun:
    """The run of one instance, as if there were no other: with rows for its own requests only."""
    run = fleet.runs[place]
    rows = np.nonzero(fleet.instance == place)[0]
    return EngineRun(run.ledger.only(rows), run.recorder, run.ended_because, run.ended_ns, run.detail)


def merged_run(fleet: FleetRun) -> EngineRun:
    """One run that has the facts of all instances."""
    runs = fleet.runs
    ended_ns = max(run.ended_ns for run in runs)
    worst = max(runs, key=lambda run: _ENDS.index(run.ended_because))
    details = [f"instance {place}: {run.detail}" for place, run in enumerate(runs) if run.detail]
    recorder = _merged_recorder([run.recorder for run in runs])
    return EngineRun(
        Ledger.merged([run.ledger for run in runs]), recorder, worst.ended_because, ended_ns, "; ".join(details)
    )


def _merged_recorder(recorders: Sequence[Recorder]) -> Recorder:
    made = Recorder(recorders[0].allocator)
    for name in _INTEGRALS:
        parts: list[Integral] = [getattr(one, name) for one in recorders]
        setattr(made, name, Integral(total=sum(part.total for part in parts), peak=max(part.peak for part in parts)))
    for name in _SUMS:
        setattr(made, name, sum(getattr(one, name) for one in recorders))
    for name in _PEAKS:
        setattr(made, name, max(getattr(one, name) for one in recorders))
    tables = [np.array(one.rows, np.int64).reshape(-1, len(COLUMNS)) for one in recorders]
    columns = [_merged_column(name, [table[:, at] for table in tables]) for at, name in enumerate(COLUMNS)]
    # Continued to one end on one first grid, so as coarse as each other.
    made.interval_ns = max(one.interval_ns for one in recorders)
    made.rows = [tuple(row) for row in np.stack(columns, axis=1).tolist()]
    return made


def _merged_column(name: str, parts: list[np.ndarray]) -> np.ndarray:
    rows = np.stack(parts)
    if name in _ADDED:
        return np.asarray(rows.sum(axis=0))
    return np.asarray(rows.max(axis=0) if name in (*_LARGEST, "time_ns") else rows.sum(axis=0) // len(rows))


def _added(totals: Sequence[Totals]) -> Totals:
    return Totals(**{field.name: sum(getattr(one, field.name) for one in totals) for field in fields(Totals)})


def _spread(instances: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The smallest and the largest over the instances; ``None`` where no instance has the figure."""
    found = {}
    for path in _SPREAD:
        values = [_at(one, path) for one in instances]
        known = [value for value in values if value is not None]
        found["_".join(path)] = {"min": min(known, default=None), "max": max(known, default=None)}
    return found


def _at(summary: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = summary
    for key in path:
        value = value[key]
    return value
