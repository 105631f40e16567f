"""A trace of the simulated time for ui.perfetto.dev (Chrome's JSON trace format), gzipped.

Each run of the results is a process. Its requests lie on as few tracks as they need: a slice from the arrival to
the first chunk (``queue``), to the first token (``prefill``) and to the end (``decode``), failures as instants.
Counters follow the memory timeline. Times are microseconds of the simulated clock.

Format: "Trace Event Format", phases X (slice), i (instant), C (counter), M (names).
"""

import gzip
import heapq
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from simulator.showing.report_data import RunData, read_folder

#: a viewer gets slow beyond; the first ones are kept
MAX_REQUESTS = 50_000
_COUNTERS = {
    "KV bytes": ("used_bytes", "reserved_bytes", "internal_bytes", "cached_bytes"),
    "largest free bytes": ("largest_free_bytes",),
    "sequences": ("running", "waiting", "swapped"),
}
_NAMED_OUTCOMES = ("oom_admission", "oom_decode", "too_large", "timed_out")

Event = dict[str, Any]


def trace_bytes(folder: Path) -> bytes:
    """The trace of the results in ``folder``. Raises ``InputError``."""
    data = read_folder(folder, command="")
    events = [event for process, run in enumerate(data.runs, start=1) for event in run_events(run, process)]
    text = json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":"))
    return gzip.compress(text.encode(), mtime=0)


def run_events(run: RunData, process: int) -> Iterator[Event]:
    """The events of one run as process number ``process``."""
    yield _name("process_name", run.name, process)
    yield from _counters(run, process)
    yield from _requests(run, process)


def _name(kind: str, name: str, process: int, track: int = 0) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": name}}


def _counters(run: RunData, process: int) -> Iterator[Event]:
    table = run.timeline
    if not table:
        return
    times = (table["time_s"] * 1e6).tolist()
    capacity = run.summary["kv_capacity_bytes"]
    for counter, columns in _COUNTERS.items():
        series = [table[column].tolist() for column in columns]
        for at, values in zip(times, zip(*series, strict=True), strict=True):
            yield _counter(counter, process, at, dict(zip(columns, values, strict=True)))
    free = capacity - table["allocated_bytes"]
    ratio = 1.0 - np.minimum(table["largest_free_bytes"], free) / np.maximum(free, 1)
    for at, value in zip(times, np.where(free > 0, ratio, 0.0).tolist(), strict=True):
        yield _counter("fragmentation of free bytes", process, at, {"ratio": round(value, 6)})


def _counter(name: str, process: int, at_us: float, values: dict[str, Any]) -> Event:
    return {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": at_us, "args": values}


def _requests(run: RunData, process: int) -> Iterator[Event]:
    columns = {name: values[:MAX_REQUESTS].tolist() for name, values in run.requests.items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    end_s = run.summary["simulated_s"]
    tracks = _tracks([(row["arrival_s"], _end(row, end_s)) for row in rows])
    for track in range(1, max(tracks, default=0) + 1):
        yield _name("thread_name", f"requests {track}", process, track)
    for row, track in zip(rows, tracks, strict=True):
        yield from _slices(row, process, track, end_s)


def _end(row: dict[str, Any], end_s: float) -> float:
    return float(row["finish_s"]) if row["finish_s"] == row["finish_s"] else end_s


def _tracks(spans: list[tuple[float, float]]) -> list[int]:
    """A track from 1 for each span (sorted by start), so that no two on a track overlap: as few as possible."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    chosen = []
    for start, end in spans:
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        track = heapq.heappop(free) if free else len(busy) + 1
        heapq.heappush(busy, (end, track))
        chosen.append(track)
    return chosen


def _slices(row: dict[str, Any], process: int, track: int, end_s: float) -> Iterator[Event]:
    end = _end(row, end_s)
    marks = [row["arrival_s"], row["start_s"], row["first_token_s"]]
    arguments = {
        name: row[name]
        for name in ("request_id", "class", "prompt_tokens", "output_tokens", "outcome", "preemptions", "oom_cause")
    }
    place = {"pid": process, "tid": track}
    for name, start, stop in zip(("queue", "prefill", "decode"), marks, [*marks[1:], end], strict=True):
        if start == start:
            stop = stop if stop == stop else end
            span = {"ts": start * 1e6, "dur": max(0.0, stop - start) * 1e6}
            yield {"ph": "X", "name": name, "cat": "request", **place, **span, "args": arguments}
    if row["outcome"] in _NAMED_OUTCOMES:
        yield {"ph": "i", "name": row["outcome"], "s": "t", **place, "ts": end * 1e6, "args": arguments}
