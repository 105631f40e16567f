"""Rows of a sweep, put together over replications: one cell a combination of values and allocator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.planning.statistics import mean, share
from simulator.showing.answer_folder import AnswerData
from simulator.showing.pages import shared
from simulator.showing.report_rows import DASH

_LOST = tuple(f"requests.{name}" for name in ("oom_admission", "oom_decode", "too_large"))
#: columns that are shares, shown in percent
_PERCENT = (
    "oom_rate",
    "kv.mean_utilization",
    "kv.prefix_hit_rate",
    "kv.shared_saving",
    "kv.waste.",
    "kv.fragmentation.",
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of one cell, with its interval where it has one."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of values under one allocator; ``figures`` by column."""

    values: tuple[Any, ...]
    allocator: str
    figures: Mapping[str, Figure]


def cells(data: AnswerData, columns: Sequence[str]) -> list[Cell]:
    """The cells of the grid, in its order; the OOM rate is always among the figures."""
    table = data.table("sweep")
    keys = [axis["key"] for axis in data.document["axes"]]
    places: dict[tuple[Any, ...], list[int]] = {}
    for place, label in enumerate(table["label"]):
        values = tuple(table[f"parameter.{key}"][place] for key in keys)
        places.setdefault((*values, label), []).append(place)
    wanted = dict.fromkeys(["oom_rate", *columns])
    return [
        Cell(tuple(key[:-1]), key[-1], {name: _figure(table, name, rows) for name in wanted if name in table})
        for key, rows in places.items()
    ]


def _figure(table: Mapping[str, Sequence[Any]], name: str, rows: Sequence[int]) -> Figure:
    if name == "oom_rate":
        return _oom_rate(table, rows)
    values = [table[name][row] for row in rows]
    if any(value is None for value in values):
        return Figure(None)
    found = mean([float(value) for value in values], confidence=0.95)
    # None of these figures can be negative; Student's interval does not know that.
    return Figure(found.value, max(0.0, found.low), found.high) if len(rows) > 1 else Figure(found.value)


def _oom_rate(table: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> Figure:
    if len(rows) == 1:
        row = rows[0]
        return Figure(table["oom_rate"][row], table["oom_rate_ci.low"][row], table["oom_rate_ci.high"][row])
    lost = [sum(table[name][row] for name in _LOST) for row in rows]
    found = share(lost, [table["requests.arrived"][row] for row in rows])
    return Figure(found.value, found.low, found.high)


def is_percent(column: str) -> bool:
    """Whether a column is a share."""
    return column.startswith(_PERCENT)


def is_seconds(column: str) -> bool:
    """Whether a column is a time."""
    return column.endswith("_s") or "_s." in column


def text(column: str, figure: Figure) -> str:
    """A figure as a reader would write it."""
    interval = (figure.low, figure.high)
    if is_percent(column):
        return shared.share(figure.value, interval)
    if is_seconds(column):
        return shared.seconds(figure.value, interval)
    return DASH if figure.value is None else f"{figure.value:,.5g}"
