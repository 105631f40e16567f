"""Running and waiting sequences over time."""

from typing import TYPE_CHECKING

from simulator.showing.plots import style
from simulator.showing.plots.style import BLUE, GREEN, RED

if TYPE_CHECKING:
    from simulator.showing.report_data import ReportData, RunData

PANELS = {"running": "sequences in the batch", "waiting": "sequences waiting", "swapped": "sequences in host memory"}
_COLOURS = {"running": BLUE, "waiting": RED, "swapped": GREEN}
_PANEL_IN = 0.95


def queue_and_batch(data: "ReportData", words: style.Words) -> "style.Figure | None":
    """A row of panels an allocator, a column a count on one scale; each point is the most in its interval."""
    runs = [run for run in data.shown if len(run.timeline.get("time_s", ()))][: style.MAX_SHOWN]
    if not runs:
        return None
    names = [name for name in PANELS if name != "swapped" or any(run.timeline["swapped"].any() for run in runs)]
    title = words("How many sequences run, and how many wait?")
    drawn = style.figure(title, height_in=style.top_in(title, legend_rows=1) + 0.66 + _PANEL_IN * len(runs))
    axes = style.panels(
        drawn, title, len(runs), columns=len(names), legend_rows=1, share_x=data.shares_time, share_y="col"
    )
    for row, run in enumerate(runs):
        style.panel_title(axes[row * len(names)], run.name)
    for place, name in enumerate(names):
        column = axes[place :: len(names)]
        most = max(_draw(panel, run, name, data.end_s) for panel, run in zip(column, runs, strict=True))
        column[0].set_ylim(0, 1.05 * most or 1)
        style.time_axes(column, [data.axis_end_s(run) for run in runs], words)
    entries = [(words(PANELS[name]), style.patch(_COLOURS[name])) for name in names]
    style.legend(drawn, title, entries, columns=len(names))
    return drawn


def _draw(panel: "style.Axes", run: "RunData", name: str, end_s: float) -> float:
    """The most there were."""
    scale, _ = style.time_scale(end_s)
    time = style.thinned(run.timeline["time_s"], "first") / scale
    most = style.thinned(run.timeline[name], "max")
    panel.fill_between(time, most, color=_COLOURS[name], linewidth=0)
    panel.locator_params(axis="x", nbins=6)
    panel.locator_params(axis="y", nbins=3, integer=True)
    return float(most.max())
