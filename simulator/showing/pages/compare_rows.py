"""The figures of an allocator in a comparison, and how they are written."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simulator.showing.pages import shared
from simulator.units import format_percent as percent

Row = Mapping[str, Any]
#: a cell of an allocator
Cell = Callable[[Row], str]


def labels_of(points: Sequence[Row]) -> list[str]:
    """The allocators, which are the same at every value."""
    return [one["label"] for one in points[0]["allocators"]]


def of_label(point: Row, label: str) -> Row:
    """The figures of one allocator at one value."""
    return next(one for one in point["allocators"] if one["label"] == label)


def rate_text(one: Row) -> str:
    """The OOM rate with its interval."""
    return shared.share(one["oom_rate"], one["oom_rate_ci"])


def _latency(name: str) -> Cell:
    return lambda one: shared.seconds(one["latency_s"][name]["mean"], one["latency_s"][name]["ci"])


ROWS: tuple[tuple[str, Cell], ...] = (
    ("OOM rate", rate_text),
    ("preemptions a request", lambda one: shared.count(one["preemption_rate"])),
    ("timed out", lambda one: percent(one["timed_out_rate"])),
    ("TTFT p50", _latency("ttft_p50")),
    ("TTFT p95", _latency("ttft_p95")),
    ("TTFT p99", _latency("ttft_p99")),
    ("TPOT, mean", _latency("tpot_mean")),
    ("end to end, p95", _latency("e2e_p95")),
    ("requests arrived", lambda one: f"{one['arrived']:,}"),
)
ROWS_BY_NAME = dict(ROWS)


def points_text(one: Row) -> str:
    """A difference in percentage points, with its interval."""
    ends = shared.bracketed([f"{100 * end:+.3g}" for end in one["ci"] or ()])
    return f"{100 * one['oom_rate_difference']:+.3g}{ends}"
