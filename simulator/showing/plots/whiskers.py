"""Figures side by side with their intervals: a row each, the single observations as faint dots."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from simulator.showing.plots import style
from simulator.showing.plots.style import BLUE, GREY, GROUND, INK


@dataclass(frozen=True, slots=True, kw_only=True)
class Whisker:
    """One row: a figure with its interval (``None``: not known), and what it was averaged over."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    dots: Sequence[float] = ()
    text: str = ""


def whiskers(
    title: str, rows: Sequence[Whisker], label: str, *, zero: Literal["start", "line", "away"]
) -> "style.Figure":
    """``zero``: the axis starts there, or it is a line that an interval has to leave out, or it does not matter."""
    shown = rows[: 2 * style.MAX_SHOWN]
    drawn = style.figure(title, height_in=style.top_in(title) + 0.55 + 0.46 * len(shown))
    (axes,) = style.panels(drawn, title, 1, left_in=0.2, heading_in=0.06)
    for place, row in enumerate(shown):
        axes.plot(row.dots, [place] * len(row.dots), color=GREY, marker="o", markersize=3, linestyle="", alpha=0.6)
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [place, place], color=INK, linewidth=1.6, marker="|", markersize=8)
        if row.value is not None:
            axes.plot([row.value], [place], color=BLUE, marker="D", markersize=6, linestyle="")
        text: dict[str, Any] = {"fontsize": 9, "va": "bottom", "transform": axes.get_yaxis_transform()}
        text["bbox"] = {"facecolor": GROUND, "linewidth": 0, "pad": 0.5}
        axes.text(0, place - 0.22, style.plain(row.name), fontweight="bold", **text)
        axes.text(1, place - 0.22, row.text, ha="right", **text)
    if zero == "line":
        axes.axvline(0, color=INK, linewidth=1, zorder=0)
    elif zero == "start":
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes.set_ylim(len(shown) - 0.6, -0.75)
    axes.set_yticks([])
    axes.grid(False, axis="y")
    axes.grid(True, axis="x")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(label)
    return drawn
