"""Figures against a size, a load or a page size: lines with their intervals, panels below one another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.showing.plots import style
from simulator.showing.plots.style import DASHES, GREY, INK, LINES, RED

_PANEL_IN = 2.0
#: more points than this get no markers, which would run into each other
_MARKED = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line: values at ``places``, with intervals where ``low`` and ``high`` have them (``None``: not known)."""

    name: str
    places: Sequence[float]
    values: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One figure. ``limit`` is a target it has to stay below; ``unit`` goes on the axis."""

    heading: str
    unit: str
    curves: Sequence[Curve]
    limit: float | None = None
    log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Across:
    """The common axis: its label, names of places that are no numbers, and lines to mark: ``(name, place, dash)``.

    ``powers`` are places to name on a scale of powers of two; ``target`` is the name of panels' limits.
    """

    label: str
    names: Sequence[str] = ()
    marks: Sequence[tuple[str, float, str]] = ()
    powers: Sequence[int] = ()
    target: str = "target"


def curves(title: str, panels: Sequence[Panel], across: Across, *, one_scale: bool = False) -> "style.Figure":
    """All panels over one axis; lines of one name look alike in all of them. ``one_scale``: up the side, too."""
    names = list(dict.fromkeys(curve.name for panel in panels for curve in panel.curves if curve.name))
    shown = names[: style.MAX_SHOWN]
    entries = len(shown) + len(across.marks) + any(panel.limit is not None for panel in panels)
    columns = style.name_columns([*shown, *(name for name, _, _ in across.marks)])
    rows = -(-entries // columns)
    drawn = style.figure(title, height_in=style.top_in(title, legend_rows=rows) + 0.66 + _PANEL_IN * len(panels))
    axes = style.panels(drawn, title, len(panels), legend_rows=rows, share_x=True)
    found: dict[str, Any] = {}
    for axis, panel in zip(axes, panels, strict=True):
        for curve in panel.curves:
            if curve.name in shown or not curve.name:
                line = shown.index(curve.name) if curve.name else 0
                found.setdefault(curve.name, _draw(axis, curve, line, dotted=bool(across.names)))
        _finish(axis, panel, across, panels if one_scale else [panel])
        if panel.limit is not None:
            found[across.target] = axis.axhline(panel.limit, color=RED, linewidth=1)
    _label(axes[-1], across)
    marks = [(name, axes[0].axvline(place, **_mark(dash))) for name, place, dash in across.marks]
    style.legend(drawn, title, [*((name, line) for name, line in found.items() if name), *marks], columns=columns)
    return drawn


def _mark(dash: str) -> dict[str, Any]:
    return {"color": INK if dash == "--" else GREY, "linestyle": dash, "linewidth": 1.1}


def _draw(axis: "style.Axes", curve: Curve, line: int, *, dotted: bool) -> Any:
    """``dotted``: places are names, between which no line leads."""
    colour, values = LINES[line % len(LINES)], _floats(curve.values)
    places = np.asarray(curve.places, float)
    if dotted:
        places = places + 0.08 * (line - 2)
        if curve.low:
            axis.vlines(places, _floats(curve.low), _floats(curve.high), color=colour, linewidth=1.4)
        return axis.plot(places, values, color=colour, marker="o", markersize=4, linestyle="")[0]
    if len(places) == 1 and line:
        # A point beside a line, such as the answer: not in the colour of a limit.
        colour = INK
    if curve.low and len(places) == 1:
        axis.vlines(places, _floats(curve.low), _floats(curve.high), color=colour, linewidth=1.4)
    elif curve.low:
        axis.fill_between(places, _floats(curve.low), _floats(curve.high), color=colour, alpha=0.18, linewidth=0)
    marker = "D" if len(places) == 1 else "o" if len(places) <= _MARKED else ""
    dash = DASHES[line % len(DASHES)]
    return axis.plot(places, values, color=colour, linestyle=dash, marker=marker, markersize=3)[0]


def _floats(values: Sequence[float | None]) -> Any:
    return np.array([np.nan if value is None else value for value in values], float)


def _finish(axis: "style.Axes", panel: Panel, across: Across, together: Sequence[Panel]) -> None:
    """The range is that of the figures and the target, not of the intervals, which may be far wider.

    ``together``: the panels that have one range.
    """
    style.panel_title(axis, panel.heading)
    axis.set_ylabel(panel.unit)
    for _, place, dash in across.marks:
        axis.axvline(place, **_mark(dash))
    lines = [curve for one in together for curve in one.curves]
    seen = [value for curve in lines for value in curve.values if value is not None]
    ends = [value for curve in lines for value in curve.high if value is not None]
    highest = max(seen, default=0.0)
    top = max(highest, min(max(ends, default=highest), 2 * highest), 2 * (panel.limit or 0.0))
    if panel.log and min(seen, default=0.0) > 0:
        axis.set_yscale("log")
    else:
        axis.set_ylim(0, 1.1 * top or 1.0)


def _label(axis: "style.Axes", across: Across) -> None:
    axis.set_xlabel(style.plain(across.label))
    if across.powers:
        axis.set_xscale("log", base=2)
        axis.set_xticks(across.powers, [f"{size:g}" for size in across.powers])
    if across.names:
        axis.set_xticks(range(len(across.names)), [style.plain(name) for name in across.names])
        axis.margins(x=0.1)


if TYPE_CHECKING:
    from simulator.showing.plots.style import Axes, Figure

    __all__ = ["Across", "Axes", "Curve", "Figure", "Panel", "curves"]
