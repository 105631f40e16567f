"""A trace of the simulated time for ui.perfetto.dev and Perfetto's trace processor (Chrome's JSON format), gzipped.

Each run of the results is a process with

* a track a request: a slice from arrival to end, and in it ``queue``, ``prefill``, ``decode`` and the stretches in
  which it had lost its memory (``preempted``, ``swapped out``); failed allocations and the outcome as instants;
* a track of engine steps (of a fleet: for each instance): a slice a scheduling point, with the steps of a leap as one;
* a track of instants for what happens to memory: preemptions, swaps, stalls;
* counters from the memory timeline: free pages (or bytes), fragmentation, KV bytes by state, sequences.

Times are microseconds of the simulated clock. Format: "Trace Event Format", phases M (names), X (slice), i (instant),
C (counter), and the nestable asynchronous b, e and n, which share a track when category and id are the same.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simulator.serving.step_log import StepLog
from simulator.showing.report_data import RunData, read_folder

#: a viewer gets slow beyond; the first ones are kept
MAX_REQUESTS = 50_000
#: of the first instance; the others follow in pairs
STEPS_TRACK, MEMORY_TRACK = 1, 2
_COUNTERS = {
    "KV bytes": ("used_bytes", "reserved_bytes", "internal_bytes", "cached_bytes"),
    "largest free bytes": ("largest_free_bytes",),
    "sequences": ("running", "waiting", "swapped"),
}
#: what a stretch without memory is called, by what began it
_AWAY = {"preempted": "preempted", "swapped_out": "swapped out"}
_BACK = ("resumed", "swapped_in")

Event = dict[str, Any]


def trace_bytes(folder: Path, logs: Sequence[StepLog]) -> bytes:
    """The trace of the results in ``folder``, whose runs left ``logs`` (in order). Raises ``InputError``."""
    data = read_folder(folder, command="")
    pairs = zip(data.runs, logs, strict=True)
    events = [event for process, (run, log) in enumerate(pairs, 1) for event in run_events(run, log, process)]
    left_out = {run.name: _left_out(run, log) for run, log in zip(data.runs, logs, strict=True)}
    content = {"displayTimeUnit": "ms", "otherData": {"left_out": left_out}, "traceEvents": events}
    return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0)


def _left_out(run: RunData, log: StepLog) -> dict[str, int]:
    """What there was no room for."""
    requests = max(0, len(run.requests.get("request_id", ())) - MAX_REQUESTS)
    return {"requests": requests, "steps": log.dropped_steps, "moves": log.dropped_moves}


def run_events(run: RunData, log: StepLog, process: int) -> Iterator[Event]:
    """The events of one run as process number ``process``."""
    yield _name("process_name", run.name, process)
    for place in range(log.instances):
        of_fleet = f", instance {place}" if log.instances > 1 else ""
        yield _name("thread_name", f"engine steps{of_fleet}", process, STEPS_TRACK + 2 * place)
        yield _name("thread_name", f"memory{of_fleet}", process, MEMORY_TRACK + 2 * place)
    yield from _counters(run, process)
    yield from _steps(log, process)
    yield from _moves(log, process)
    yield from _requests(run, log, process)


def _name(kind: str, name: str, process: int, track: int = 0) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": name}}


# ---- counters


def _counters(run: RunData, process: int) -> Iterator[Event]:
    table = run.timeline
    if not table:
        return
    times = (table["time_s"] * 1e6).tolist()
    for counter, columns in _COUNTERS.items():
        series = [table[column].tolist() for column in columns]
        for at, values in zip(times, zip(*series, strict=True), strict=True):
            yield _counter(counter, process, at, dict(zip(columns, values, strict=True)))
    capacity, pages = run.summary["kv_capacity_bytes"], run.summary["max_pages"]
    free = capacity - table["allocated_bytes"]
    name, unit = ("free pages", capacity // pages) if pages else ("free bytes", 1)
    for at, value in zip(times, (free // unit).tolist(), strict=True):
        yield _counter(name, process, at, {"free": value})
    ratio = 1.0 - np.minimum(table["largest_free_bytes"], free) / np.maximum(free, 1)
    for at, value in zip(times, np.where(free > 0, ratio, 0.0).tolist(), strict=True):
        yield _counter("fragmentation of free bytes", process, at, {"ratio": round(value, 6)})


def _counter(name: str, process: int, at_us: float, values: dict[str, Any]) -> Event:
    return {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": at_us, "args": values}


# ---- the engine


def _steps(log: StepLog, process: int) -> Iterator[Event]:
    for row in _rows(log.steps()):
        place = {"pid": process, "tid": STEPS_TRACK + 2 * row["instance"]}
        prompts, outputs, steps = row["prompt_tokens"], row["output_tokens"], row["steps"]
        name = ("mixed" if outputs else "prefill") if prompts else "decode"
        arguments = {
            "steps": steps,
            "mean_sequences": round(row["sequence_steps"] / steps, 3),
            "prompt_tokens": prompts,
            "output_tokens": outputs,
        }
        start, end = row["start_s"] * 1e6, row["end_s"] * 1e6
        yield {"ph": "X", "name": name, "cat": "step", **place, "ts": start, "dur": end - start, "args": arguments}


def _moves(log: StepLog, process: int) -> Iterator[Event]:
    for row in _rows(log.moves()):
        place = {"pid": process, "tid": MEMORY_TRACK + 2 * row["instance"]}
        name, arguments = row["kind"].replace("_", " "), {"request_id": row["request_id"]}
        yield {
            "ph": "i",
            "name": name,
            "cat": "memory",
            "s": "t",
            **place,
            "ts": row["time_s"] * 1e6,
            "args": arguments,
        }


def _rows(columns: dict[str, Any]) -> Iterator[dict[str, Any]]:
    plain = [values.tolist() for values in columns.values()]
    for row in zip(*plain, strict=True):
        yield dict(zip(columns, row, strict=True))


# ---- requests


def _requests(run: RunData, log: StepLog, process: int) -> Iterator[Event]:
    kept = {name: values[:MAX_REQUESTS] for name, values in run.requests.items()}
    end_s = float(run.summary["simulated_s"])
    away, failed = _stretches(log), _failures(run)
    for row in _rows(kept):
        request = row["request_id"]
        yield from _request(row, process, end_s, away=away.get(request, []), failed=failed.get(request, []))


def _stretches(log: StepLog) -> dict[int, list[tuple[str, float, float]]]:
    """Stretches in which a request was without memory, by request; an infinite end: it never got any again.

    A request with several samples is away from the first of them that loses its memory to the last that has it again.
    """
    found: dict[int, list[tuple[str, float, float]]] = {}
    since: dict[int, tuple[str, float]] = {}
    out: dict[int, int] = {}
    for row in _rows(log.moves()):
        request, kind, time = row["request_id"], row["kind"], row["time_s"]
        if kind in _AWAY:
            since.setdefault(request, (_AWAY[kind], time))
            out[request] = out.get(request, 0) + 1
        elif kind in _BACK and out.get(request):
            out[request] -= 1
            if not out[request]:
                name, began = since.pop(request)
                found.setdefault(request, []).append((name, began, time))
    for request, (name, began) in since.items():
        found.setdefault(request, []).append((name, began, float("inf")))
    return found


def _failures(run: RunData) -> dict[int, list[tuple[str, float]]]:
    """Failed allocations by request: cause and time."""
    found: dict[int, list[tuple[str, float]]] = {}
    for row in _rows({name: run.oom_events[name] for name in ("request_id", "cause", "time_s")}):
        found.setdefault(row["request_id"], []).append((row["cause"], row["time_s"]))
    return found


def _request(
    row: dict[str, Any],
    process: int,
    end_s: float,
    *,
    away: Sequence[tuple[str, float, float]],
    failed: Sequence[tuple[str, float]],
) -> Iterator[Event]:
    """A request's track, its events in the order of time, inner slices closed before outer ones."""
    end = row["finish_s"] if row["finish_s"] == row["finish_s"] else end_s
    place = {"cat": "request", "id": f"{process}.{row['request_id']}", "pid": process, "tid": 0}
    arguments = {
        name: row[name]
        for name in ("request_id", "class", "prompt_tokens", "output_tokens", "outcome", "preemptions", "oom_cause")
    }

    def event(phase: str, name: str, time_s: float, **more: Any) -> Event:
        return {"ph": phase, "name": name, **place, "ts": min(time_s, end) * 1e6, **more}

    whole = f"request {row['request_id']}"
    yield event("b", whole, row["arrival_s"], args=arguments)
    for name, start, stop in _phases(row, end):
        yield event("b", name, start)
        for inner, began, ended in away:
            if start <= began < stop:
                yield event("b", inner, began)
                yield event("e", inner, min(ended, stop))
        yield event("e", name, stop)
    for cause, time in failed:
        yield event("n", f"OOM: {cause}", time)
    yield event("n", row["outcome"], end)
    yield event("e", whole, end)


def _phases(row: dict[str, Any], end: float) -> Iterator[tuple[str, float, float]]:
    """``queue``, ``prefill`` and ``decode``, as far as the request came."""
    marks = [row["arrival_s"], row["start_s"], row["first_token_s"]]
    for name, start, stop in zip(("queue", "prefill", "decode"), marks, [*marks[1:], end], strict=True):
        if start == start:
            yield name, start, stop if stop == stop else end
