"""KV memory over time, split into what is used and the kinds of waste."""

from typing import TYPE_CHECKING

import numpy as np

from simulator.showing.plots import style
from simulator.showing.plots.style import BLUE, INK, MUTED, ORANGE, PINK, RED, SKY

if TYPE_CHECKING:
    from simulator.showing.report_data import Columns, ReportData, RunData

COLOURS = {
    "used": BLUE,
    "reserved": ORANGE,
    "internal": RED,
    "leaked": INK,
    "cached": SKY,
    "scattered free": PINK,
}
#: a pool this many times larger than ever used is not drawn to its end
_FAR_TOO_LARGE = 50
#: width of the line of what was held at most
_THIN = 0.7
_COLUMNS = 3


def layers(run: "RunData") -> "Columns":
    """Bytes over time by state; the rest of the pool is free in one piece."""
    table = run.timeline
    allocated, cached = table["allocated_bytes"], table["cached_bytes"]
    # What the timeline calls used counts a shared page once a reader less what sharing saves, never more than is held.
    leaked = table.get("leaked_bytes", np.zeros_like(allocated))
    held = allocated - leaked
    internal = np.minimum(table["internal_bytes"], held)
    used = np.clip(table["used_bytes"], 0, held - internal)
    free = run.summary["kv_capacity_bytes"] - allocated
    return {
        "used": used,
        "reserved": held - used - internal,
        "internal": internal,
        **({"leaked": leaked} if leaked.any() else {}),
        "cached": cached,
        "scattered free": np.maximum(0, free - cached - np.maximum(0, table["largest_free_bytes"] - cached))
        if run.summary["max_pages"] == 0
        else np.maximum(0, free - np.maximum(cached, table["largest_free_bytes"])),
    }


def memory_over_time(data: "ReportData", words: style.Words) -> "style.Figure | None":
    """One panel an allocator: a stack of bytes against time, the most held and the pool as lines."""
    runs = [run for run in data.shown if len(run.timeline.get("time_s", ()))][: style.MAX_SHOWN]
    if not runs:
        return None
    title = words("How full is the KV pool, and how much of it is waste?")
    shown = {name for run in runs for name in layers(run)}
    entries = [(words(name), style.patch(colour)) for name, colour in COLOURS.items() if name in shown]
    fullest = any(run.summary.get("instances") for run in runs)
    most = words("most held, fullest instance" if fullest else "most held at once")
    entries += [(most, _line(MUTED, _THIN)), (words("pool"), _line(INK, 1.0))]
    rows = -(-len(entries) // _COLUMNS)
    drawn = style.figure(title, height_in=style.top_in(title, legend_rows=rows) + 0.66 + 1.15 * len(runs))
    axes = style.panels(drawn, title, len(runs), legend_rows=rows, share_x=data.shares_time)
    for panel, run in zip(axes, runs, strict=True):
        _draw(panel, run, data.end_s)
        panel.set_ylabel("GiB")
        style.panel_title(panel, run.name, _aside(run, words))
    style.time_axes(axes, [data.axis_end_s(run) for run in runs], words)
    style.legend(drawn, title, entries, columns=_COLUMNS)
    return drawn


def _draw(panel: "style.Axes", run: "RunData", end_s: float) -> None:
    scale, _ = style.time_scale(end_s)
    time = style.thinned(run.timeline["time_s"], "first") / scale
    parts = layers(run)
    stack = [style.thinned(values, "mean") / 2**30 for values in parts.values()]
    panel.stackplot(time, *stack, colors=[COLOURS[name] for name in parts], linewidth=0)
    most = style.thinned(run.timeline["peak_allocated_bytes"], "max") / 2**30
    panel.plot(time, most, color=MUTED, linewidth=_THIN)
    capacity = run.summary["kv_capacity_bytes"] / 2**30
    top = max(float(np.sum(stack[:4], axis=0).max()), float(most.max()))
    if capacity <= _FAR_TOO_LARGE * max(top, 1e-9):
        panel.axhline(capacity, color=INK, linewidth=1.0)
        top = capacity
    panel.set_ylim(0, top * 1.06 or 1)
    panel.locator_params(axis="y", nbins=4)


def _aside(run: "RunData", words: style.Words) -> str:
    kv = run.summary["kv"]
    used, waste = 100 * kv["mean_utilization"], 100 * sum(kv["waste"].values())
    return words("mean: {used} % used, {waste} % waste").format(used=f"{used:.3g}", waste=f"{waste:.3g}")


def _line(colour: str, width: float) -> object:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, linewidth=width)
