"""Failed allocations on the time axis, by cause."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from simulator.showing.plots import style
from simulator.showing.plots.style import GREY, MUTED, PINK, RED
from simulator.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.showing.report_data import ReportData, RunData

COLOURS = {"capacity": RED, "fragmentation": PINK, "too large": GREY}
_BINS = 90


def event_counts(
    run: "RunData", end_s: float, bins: int = _BINS
) -> "tuple[npt.NDArray[np.float64], dict[str, npt.NDArray[np.int64]]]":
    """Edges of equal intervals up to ``end_s`` and, by cause, failed allocations in each (``too large``: requests that
    an empty pool could not hold, when they were turned away).

    Of very many failed allocations not each has a row, but each row tells how many there were until then.
    """
    edges = np.linspace(0.0, max(end_s, 1e-9), bins + 1)
    counts = {cause: _counted(run, cause, edges) for cause in ("capacity", "fragmentation")}
    too_large = run.requests["finish_s"][run.requests["outcome"] == "too_large"]
    return edges, {**counts, "too large": np.histogram(too_large, edges)[0]}


def _counted(run: "RunData", cause: str, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    so_far, total = run.oom_events[f"{cause}_so_far"], run.summary["oom_events"][cause]
    before = np.searchsorted(run.oom_events["time_s"], edges, side="left")
    before[-1] = len(so_far)
    # What came after the last row is counted where that row is.
    found: npt.NDArray[np.int64] = np.diff(np.concatenate([[0], so_far[:-1], [total]])[before])
    return found if len(so_far) else np.zeros(len(edges) - 1, np.int64)


def oom_events(data: "ReportData", words: style.Words) -> "style.Figure | None":
    """One panel an allocator: events in each interval, stacked by cause."""
    runs = [run for run in data.shown if "time_s" in run.oom_events][: style.MAX_SHOWN]
    if not any(count.any() for run in runs for count in event_counts(run, data.axis_end_s(run))[1].values()):
        return None
    title = words("When do allocations fail, and why?")
    height_in = style.top_in(title, legend_rows=1) + 0.66 + (0.85 if data.shares_time else 1.05) * len(runs)
    drawn = style.figure(title, height_in=height_in)
    axes = style.panels(drawn, title, len(runs), legend_rows=1, share_x=data.shares_time, share_y=True)
    for panel, run in zip(axes, runs, strict=True):
        total = _draw(panel, run, data.axis_end_s(run), style.time_scale(data.end_s)[0])
        style.panel_title(panel, run.name, f"{total:,} {words('events')}" if total else "")
        if not total:
            panel.text(0.5, 0.4, words("none"), transform=panel.transAxes, ha="center", color=MUTED, fontsize=9)
        panel.locator_params(axis="y", nbins=3, integer=True)
    axes[0].set_ylim(0, max(1.0, axes[0].get_ylim()[1]))
    style.time_axes(axes, [data.axis_end_s(run) for run in runs], words)
    drawn.supylabel(_interval(data, runs, words), fontsize=9, x=0.015)
    style.legend(drawn, title, [(words(name), style.patch(colour)) for name, colour in COLOURS.items()], columns=3)
    return drawn


def _interval(data: "ReportData", runs: "Sequence[RunData]", words: style.Words) -> str:
    """What the height of a bar counts: the bars of runs that ended at different times are not equally wide."""
    if not data.shares_time:
        return words("events in {share} of the run").format(share=f"1/{_BINS}")
    return words("events in each {time}").format(time=format_seconds(data.axis_end_s(runs[0]) / _BINS))


def _draw(panel: "style.Axes", run: "RunData", end_s: float, scale: float) -> int:
    edges, counts = event_counts(run, end_s)
    below = np.zeros(len(edges) - 1)
    for cause, count in counts.items():
        if count.any():
            panel.stairs(below + count, edges / scale, baseline=below, fill=True, color=COLOURS[cause], linewidth=0)
            below = below + count
    return int(sum(count.sum() for count in counts.values()))
