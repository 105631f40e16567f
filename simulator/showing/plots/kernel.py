"""The attention kernel by page size: its cost and what bounds it, what a page size serves, where a step's time goes.

``document`` is what a kernel's results folder has in ``summary.json``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.showing.plots import style
from simulator.showing.plots.curves import Across, Curve, Panel, curves
from simulator.showing.plots.style import BLUE, DASHES, GREEN, GREY, GROUND, INK, LINES, RED

Document = Mapping[str, Any]

_MODES = (
    ("hbm", "page ids from HBM each time", RED),
    ("dcache", "through the data cache", BLUE),
    ("l1", "rows copied to L1", GREEN),
)
#: a colour for each thing that can bound a launch, the same on all pages
_BOUNDS = ("bandwidth", "table", "issue", "latency", "compute", "host", "tile overflow")


def kernel_costs(document: Document, words: style.Words) -> "style.Figure":
    """Three panels over page size: time by what bounds it, share of peak bandwidth, time for the page table."""
    pages = document["pages"]
    title = words("What does the page size cost, and what bounds it?")
    bounds = list(dict.fromkeys(one["bound"] for one in pages))
    entries = len(bounds) + len(_MODES) + 1
    height_in = style.top_in(title, legend_rows=-(-entries // 2)) + 6.3
    drawn = style.figure(title, height_in=height_in)
    took, used, looked_up = style.panels(drawn, title, 3, legend_rows=-(-entries // 2), share_x=True)
    sizes = [one["page_size"] for one in pages]
    legend = _draw_time(took, pages, bounds, words)
    used.plot(sizes, [100 * one["bandwidth_utilization"] for one in pages], color=BLUE, marker="o", markersize=4)
    used.set_ylim(0, 100)
    used.set_ylabel("%")
    style.panel_title(used, words("share of the peak HBM bandwidth used"))
    for index, (mode, name, colour) in enumerate(_MODES):
        micros = [1e6 * one["lookup_seconds"][mode] for one in pages]
        looked_up.plot(sizes, micros, color=colour, linestyle=DASHES[index], marker="o", markersize=3)
        legend.append((words(name), style.stroke(colour, DASHES[index])))
    looked_up.set_yscale("log")
    looked_up.set_ylabel("us")
    style.panel_title(looked_up, words("time for page ids on the busiest core"))
    best = next(one["page_size"] for one in pages if one["recommended"])
    marks = [axes.axvline(best, color=INK, linewidth=1, linestyle="--") for axes in (took, used, looked_up)]
    _page_axis(looked_up, sizes, words)
    style.legend(drawn, title, [*legend, (words("recommended"), marks[0])], columns=2)
    return drawn


def _draw_time(
    axes: "style.Axes", pages: Sequence[Document], bounds: Sequence[str], words: style.Words
) -> list[tuple[str, Any]]:
    """The launch's time, a colour for what bounds it."""
    axes.plot(
        [one["page_size"] for one in pages], [1e6 * one["seconds"] for one in pages], color=GREY, linewidth=1, zorder=1
    )
    entries = []
    for bound in bounds:
        bounded = [one for one in pages if one["bound"] == bound]
        place = _BOUNDS.index(bound) if bound in _BOUNDS else len(_BOUNDS)
        (dots,) = axes.plot(
            [one["page_size"] for one in bounded],
            [1e6 * one["seconds"] for one in bounded],
            color=LINES[place % len(LINES)],
            marker="so^vDPX*"[place],
            markersize=6,
            linestyle="",
        )
        entries.append((f"{words('bound by')} {words(bound)}", dots))
    axes.set_ylim(0, 1.1e6 * max(one["seconds"] for one in pages))
    axes.set_ylabel("us")
    style.panel_title(axes, words("time of one launch"))
    return entries


def _page_axis(axes: "style.Axes", sizes: Sequence[int], words: style.Words) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size}" for size in sizes])
    axes.set_xlabel(f"{words('page size')} [{words('tokens')}]")


def page_choice(document: Document, words: style.Words) -> "style.Figure":
    """What a page size serves: tokens a second, and memory left unused in last pages."""
    pages = document["pages"]
    sizes = [one["page_size"] for one in pages]
    panels = [
        Panel(
            heading=words("output of a full decode step"),
            unit=words("tokens/s"),
            curves=[Curve(name="", places=sizes, values=[one["tokens_per_s"] for one in pages])],
        ),
        Panel(
            heading=words("unused in last pages"),
            unit="%",
            curves=[Curve(name="", places=sizes, values=[100 * one["internal_waste"] for one in pages])],
        ),
    ]
    best = next(one["page_size"] for one in pages if one["recommended"])
    across = Across(
        label=f"{words('page size')} [{words('tokens')}]",
        marks=[(words("recommended"), float(best), "--")],
        powers=sizes,
    )
    return curves(words("Which page size serves the most tokens?"), panels, across)


def decode_step(document: Document, words: style.Words) -> "style.Figure":
    """A stacked bar a page size: the stages of a decode step."""
    pages = document["pages"]
    names = [stage["name"] for stage in pages[0]["stages"]]
    title = words("Where does the time of a decode step go?")
    rows = -(-len(names) // 2)
    drawn = style.figure(title, height_in=style.top_in(title, legend_rows=rows) + 0.66 + 0.3 * len(pages))
    (axes,) = style.panels(drawn, title, 1, legend_rows=rows, left_in=0.75, heading_in=0.06)
    for row, one in enumerate(pages):
        start = 0.0
        for place, stage in enumerate(one["stages"]):
            millis = 1e3 * stage["seconds"]
            axes.barh(row, millis, left=start, height=0.7, color=LINES[place], edgecolor=GROUND, linewidth=0.5)
            start += millis
    axes.set_yticks(range(len(pages)), [f"{one['page_size']}" for one in pages])
    axes.set_ylim(len(pages) - 0.5, -0.5)
    axes.set_ylabel(words("page size"))
    axes.grid(False, axis="y")
    axes.grid(True, axis="x")
    axes.set_xlabel(f"{words('time of a step')} [ms]")
    entries = [(words(name.replace("_", " ")), style.patch(LINES[place])) for place, name in enumerate(names)]
    style.legend(drawn, title, entries, columns=2)
    return drawn


def mechanism_costs(best: Document, words: style.Words) -> "style.Figure | None":
    """A bar for each choice of each mechanism, time on a logarithmic axis."""
    found = [one for one in best["mechanisms"] if one["seconds"] > 0]
    if not found:
        return None
    title = words("What do the choices of each mechanism take?")
    drawn = style.figure(title, height_in=style.top_in(title) + 0.6 + 0.24 * len(found))
    (axes,) = style.panels(drawn, title, 1, left_in=2.6, heading_in=0.06)
    mechanisms = list(dict.fromkeys(one["mechanism"] for one in found))
    for row, one in enumerate(found):
        colour = LINES[mechanisms.index(one["mechanism"]) % len(LINES)]
        axes.plot([1e6 * one["seconds"]], [row], color=colour, marker="o", markersize=6, linestyle="")
        axes.hlines(row, 0, 1e6 * one["seconds"], color=colour, linewidth=2)
    axes.set_xscale("log")
    names = [style.plain(f"{words(one['mechanism'])}: {words(one['choice'])}") for one in found]
    axes.set_yticks(range(len(found)), names)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.grid(True, axis="x")
    axes.set_xlabel(f"{words('time in a decode step')} [us]")
    return drawn
