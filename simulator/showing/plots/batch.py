"""Running and waiting sequences over time."""

from typing import TYPE_CHECKING, Any

from simulator.showing.plots import style

if TYPE_CHECKING:
    from simulator.showing.report_data import ReportData, RunData

PANELS = {"running": "sequences in the batch", "waiting": "sequences waiting", "swapped": "sequences in host memory"}


def queue_and_batch(data: "ReportData", words: style.Words) -> "style.Figure | None":
    """One panel a count, one line an allocator; each point is the most in its interval."""
    runs = [run for run in data.shown if len(run.timeline.get("time_s", ()))][: style.MAX_SHOWN]
    if not runs:
        return None
    names = [name for name in PANELS if name != "swapped" or any(run.timeline["swapped"].any() for run in runs)]
    title = words("How many sequences run, and how many wait?")
    columns = style.name_columns([run.name for run in runs])
    legend_rows = -(-len(runs) // columns)
    drawn = style.figure(title, height_in=style.top_in(title, legend_rows=legend_rows) + 0.66 + 1.35 * len(names))
    axes = style.panels(drawn, title, len(names), legend_rows=legend_rows, share_x=True)
    for panel, name in zip(axes, names, strict=True):
        entries = [(run.name, _draw(panel, run, name, data.end_s, line)) for line, run in enumerate(runs)]
        style.panel_title(panel, words(PANELS[name]))
        panel.set_ylim(bottom=0)
        panel.locator_params(axis="y", nbins=4, integer=True)
    style.time_axes(axes, [data.end_s] * len(axes), words)
    style.legend(drawn, title, entries, columns=columns)
    return drawn


def _draw(panel: "style.Axes", run: "RunData", name: str, end_s: float, line: int) -> Any:
    scale, _ = style.time_scale(end_s)
    time = style.thinned(run.timeline["time_s"], "first") / scale
    colour, dash = style.LINES[line], style.DASHES[line]
    return panel.plot(time, style.thinned(run.timeline[name], "max"), color=colour, linestyle=dash, linewidth=1.2)[0]
