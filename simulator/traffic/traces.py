"""Recorded traffic as arrivals: find the file, read it, cut it, speed it up."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from simulator.errors import InputError, Problem, nearest_name
from simulator.fields import Config, Seconds
from simulator.rng import stream
from simulator.traffic.requests import MAX_REQUESTS, MAX_SEGMENTS, MAX_TIME_S, BoolArray, IntArray
from simulator.traffic.text_lines import complaint, text_lines
from simulator.traffic.trace_rows import TraceRows, joined
from simulator.units import NS_PER_S, to_ns

_FOLDER = Path(__file__).parents[1] / "presets" / "traces"
_SHIPPED = {
    "azure_code": "azure_llm_2023_code.csv.gz",
    "azure_conv": "azure_llm_2023_conv.csv.gz",
    "mooncake_conversation": "mooncake_fast25_conversation.jsonl.gz",
}


class TraceFile(Config):
    """A trace: the name of a shipped one (``trace_names``) or a path, relative to the scenario."""

    path: str = Field(min_length=1)
    block_tokens: int = Field(512, ge=1, le=1_000_000, description="prompt tokens a hash id covers (JSONL traces)")
    skip_empty_output: bool = Field(False, description="leave out rows with 0 output tokens instead of refusing them")


class TraceArrivals(TraceFile):
    """Requests as recorded, cut and sped up.

    In this order: ``window`` keeps start <= t < end (seconds since the trace's first request) and moves start to 0;
    ``sample`` keeps each request with that probability; ``limit`` keeps the first ones; ``scale`` divides the times
    (2 = twice as fast). With ``times_only`` the lengths come from the workload's laws instead.
    """

    process: Literal["trace"]
    scale: float = Field(1.0, ge=1e-6, le=1e6)
    window: tuple[Seconds, Seconds] | None = None
    sample: float = Field(1.0, gt=0, le=1)
    limit: int | None = Field(None, ge=1)
    times_only: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> "TraceArrivals":
        if self.window and not self.window[0] < self.window[1] <= MAX_TIME_S:
            raise ValueError(
                f"window [{self.window[0]:g}, {self.window[1]:g}] must have start < end <= {MAX_TIME_S:g} s"
            )
        return self


def trace_names() -> list[str]:
    """The names of the traces that ship with the program."""
    return list(_SHIPPED)


def trace_path(text: str, base_dir: Path | None = None) -> Path:
    """The file of a shipped trace or of a path relative to ``base_dir``. Raises ``InputError`` for a wrong name."""
    if text in _SHIPPED:
        return _FOLDER / _SHIPPED[text]
    path = Path(base_dir or ".") / text
    near = nearest_name(text, _SHIPPED)
    if near and "\0" not in text and not path.exists():
        raise InputError([Problem(message="no such file or shipped trace", file=str(path), nearest=near)])
    return path


def read_trace(path: Path, *, block_tokens: int = 512, skip_empty_output: bool = False) -> Iterator[TraceRows]:
    """The requests of a trace file, run by run, in file order; JSONL when its first character is ``{``, else CSV.

    Raises ``InputError`` naming file and line; only what is consumed is checked.
    """
    from simulator.traffic.trace_csv import csv_trace
    from simulator.traffic.trace_jsonl import jsonl_trace

    first = next((line for line in text_lines(path) if line.strip()), "")
    if first.lstrip().startswith("{"):
        return jsonl_trace(path, block_tokens=block_tokens, skip_empty_output=skip_empty_output)
    return csv_trace(path, skip_empty_output=skip_empty_output)


def load_pairs(file: TraceFile, base_dir: Path | None) -> TraceRows:
    """All requests of a file, for their lengths. Raises ``InputError``."""
    path = trace_path(file.path, base_dir)
    rows = _collected(path, read_trace(path, block_tokens=file.block_tokens, skip_empty_output=file.skip_empty_output))
    if not len(rows):
        raise complaint(path, None, "holds no request")
    return rows


def load_arrivals(config: TraceArrivals, *, seed: int, replication: int = 0, base_dir: Path | None = None) -> TraceRows:
    """The chosen part of a trace, times in nanoseconds from the start of the window.

    Which requests ``sample`` keeps depends on the seed and the replication, not on ``window`` or ``limit``; a larger
    share holds every request of a smaller one. Raises ``InputError`` also when nothing is left.
    """
    path = trace_path(config.path, base_dir)
    runs = read_trace(path, block_tokens=config.block_tokens, skip_empty_output=config.skip_empty_output)
    rows = _collected(path, _selected(config, path, runs, stream(seed, "trace", replication)))
    if not len(rows) or rows.time_ns is None:
        raise complaint(path, None, "no request is left after window, sample and limit")
    start_ns = to_ns(config.window[0]) if config.window else 0
    return TraceRows(
        time_ns=_rescaled(rows.time_ns - start_ns, config.scale, path),
        prompt_tokens=rows.prompt_tokens,
        output_tokens=rows.output_tokens,
        prefix=rows.prefix,
        skipped=rows.skipped,
    )


def _selected(
    config: TraceArrivals, path: Path, runs: Iterator[TraceRows], rng: np.random.Generator
) -> Iterator[TraceRows]:
    """The wanted requests, times from the trace's first request; stops reading when no more can come."""
    origin_ns: int | None = None
    room = config.limit
    for run in runs:
        if run.time_ns is None:
            raise complaint(path, None, "has lengths but no arrival times; use it as token_pairs")
        if not len(run):
            yield run
            continue
        origin_ns = int(run.time_ns[0]) if origin_ns is None else origin_ns
        times = run.time_ns - origin_ns
        mask = rng.random(len(run)) < config.sample
        ended = _mask_window(config, times, mask)
        if room is not None:
            mask &= np.cumsum(mask) <= room
            room -= int(np.count_nonzero(mask))
        chosen = run.keep(mask)
        yield TraceRows(
            time_ns=times[mask],
            prompt_tokens=chosen.prompt_tokens,
            output_tokens=chosen.output_tokens,
            prefix=chosen.prefix,
            skipped=run.skipped,
        )
        if ended or room == 0:
            return


def _mask_window(config: TraceArrivals, times_ns: IntArray, mask: BoolArray) -> bool:
    """Clears the flags outside the window; whether the window ends within this run."""
    if config.window is None:
        return False
    start_ns, end_ns = map(to_ns, config.window)
    mask &= (times_ns >= start_ns) & (times_ns < end_ns)
    return bool(times_ns[-1] >= end_ns)


def _collected(path: Path, runs: Iterator[TraceRows]) -> TraceRows:
    taken: list[TraceRows] = []
    requests = segments = 0
    for run in runs:
        taken.append(run)
        requests += len(run)
        segments += 0 if run.prefix is None else len(run.prefix.ids)
        if requests > MAX_REQUESTS or segments > MAX_SEGMENTS:
            raise complaint(
                path,
                None,
                f"more than {MAX_REQUESTS} requests or {MAX_SEGMENTS} hash ids; cut it with window, limit or sample",
            )
    return joined(taken)


def _rescaled(times_ns: IntArray, scale: float, path: Path) -> IntArray:
    if scale == 1.0:
        return times_ns
    scaled = times_ns / scale
    if len(scaled) and scaled[-1] > MAX_TIME_S * NS_PER_S:
        raise complaint(path, None, f"scale {scale:g} stretches the trace beyond the clock's {MAX_TIME_S:g} s")
    return np.rint(scaled).astype(np.int64)
