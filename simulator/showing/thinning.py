"""What the timeline of a run leaves out, and how far that can lead astray.

``serving.recorder`` samples the state on a grid and makes the grid coarser as a run gets longer. Every row is exact at
its instant, and keeps the most that was held between rows; so what lies between two rows is bounded from above.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.serving.recorder import FIRST_INTERVAL_NS
from simulator.showing.plots.style import MAX_POINTS
from simulator.units import NS_PER_S, format_bytes, format_seconds
from simulator.units import format_percent as percent

Translate = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinning:
    """The timeline of one run against all instants of its first grid.

    ``hidden_bytes`` is the most that was held between two rows beyond the larger of them (``None``: not kept, as for
    fleets, whose rows are of the mean instance); ``mean_error`` is how far the mean use of the rows is from the exact
    integral, as a share of the pool.
    """

    name: str
    rows: int
    instants: int
    interval_s: float
    hidden_bytes: int | None
    capacity_bytes: int
    mean_error: float

    @property
    def is_whole(self) -> bool:
        """Whether no instant of the grid was dropped."""
        return self.rows >= self.instants

    @property
    def hidden_share(self) -> float:
        """``hidden_bytes`` as a share of the pool."""
        return (self.hidden_bytes or 0) / self.capacity_bytes


def thinning(name: str, summary: Mapping[str, Any], timeline: Mapping[str, Any]) -> Thinning:
    """What the ``timeline`` of the run ``summary`` leaves out."""
    rows = len(timeline["time_s"])
    # A grid has an instant at its start, and those that lie before the end.
    step_s = FIRST_INTERVAL_NS / NS_PER_S
    instants = max(rows, int(np.ceil(summary["simulated_s"] / step_s)))
    mean_bytes = float(np.mean(timeline["used_bytes"]))
    return Thinning(
        name=name,
        rows=rows,
        instants=instants,
        interval_s=summary["timeline"]["interval_s"],
        capacity_bytes=summary["kv_capacity_bytes"],
        hidden_bytes=None if summary.get("instances") else _hidden_bytes(timeline),
        mean_error=abs(mean_bytes / summary["kv_capacity_bytes"] - summary["kv"]["mean_utilization"]),
    )


def _hidden_bytes(timeline: Mapping[str, Any]) -> int:
    """A row's peak is of the time around it, so what is between two rows is below the larger of their peaks."""
    peaks, held = timeline["peak_allocated_bytes"], timeline["allocated_bytes"]
    if len(held) < 2:
        return 0
    between = np.maximum(peaks[:-1], peaks[1:]) - np.maximum(held[:-1], held[1:])
    return max(0, int(between.max()))


def memory_remark(found: Sequence[Thinning], words: Translate) -> str:
    """How many rows were kept of how many, and the bound of the error, for all runs of a picture together."""
    said = [_rows_remark(found, words)]
    hidden, share, most = max((one.hidden_bytes or 0, one.hidden_share, one.name) for one in found)
    if hidden:
        text = "Between two rows up to {size} more was held ({share} of the pool, under {name}): the thin line has it."
        said.append(words(text).format(size=format_bytes(hidden), share=percent(share), name=most))
    error = percent(max(one.mean_error for one in found))
    said.append(words("The mean use of the rows is within {error} of the pool of the exact one.").format(error=error))
    return words(" ").join(said)


def counts_remark(found: Sequence[Thinning], words: Translate) -> str:
    """The same for what is counted, of which nothing is kept between rows."""
    said = [_rows_remark(found, words)]
    if not all(one.is_whole for one in found):
        text = "What comes and goes between two rows is not seen; batch.max in summary.json is exact."
        said.append(words(text))
    return words(" ").join(said)


def _rows_remark(found: Sequence[Thinning], words: Translate) -> str:
    fewest = min(found, key=lambda one: one.rows / one.instants)
    shown = {
        "rows": f"{fewest.rows:,}",
        "instants": f"{fewest.instants:,}",
        "interval": format_seconds(fewest.interval_s),
        "points": min(MAX_POINTS, fewest.rows),
        "first": format_seconds(FIRST_INTERVAL_NS / NS_PER_S),
    }
    if fewest.is_whole:
        return words("The timeline has all its {rows} rows, one every {interval}, drawn as {points} points.").format(
            **shown
        )
    text = (
        "The timeline keeps {rows} rows, one every {interval}, of {instants} instants {first} apart, drawn as {points} "
        "points. A row is exact at its instant."
    )
    return words(text).format(**shown)


def failures_remark(kept: int, total: int, words: Translate) -> str:
    """That not each failed allocation has a row, where that is so."""
    if kept >= total:
        return ""
    stride = 1 << (-(-total // kept) - 1).bit_length()
    text = (
        "Of {total} failed allocations {kept} have a row of their own; their number is exact to {stride} in an "
        "interval."
    )
    return words(text).format(total=f"{total:,}", kept=f"{kept:,}", stride=stride)


HEADINGS = ("", "rows kept", "of", "one every", "most held beyond two rows", "mean of the rows - exact mean")


def table_rows(found: Sequence[Thinning]) -> list[tuple[str, ...]]:
    """A row a run, under ``HEADINGS``."""
    return [
        (
            one.name,
            f"{one.rows:,}",
            f"{one.instants:,}",
            format_seconds(one.interval_s),
            "–" if one.hidden_bytes is None else format_bytes(one.hidden_bytes),
            percent(one.mean_error),
        )
        for one in found
    ]
