"""The planner's pictures: figures against the size of the pool or a key, and how two margins trade."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simulator.showing.plots import style
from simulator.showing.plots.style import BLUE, GREY, RED

if TYPE_CHECKING:
    from simulator.planning.frontier import Trade
    from simulator.planning.grid import Axis
    from simulator.planning.size import SizeAnswer
    from simulator.planning.solve import Solved
    from simulator.planning.statistics import Estimate
    from simulator.planning.target import Goal, Target

_PANEL_IN = 2.2


def size_curve(answer: "SizeAnswer") -> "style.Figure":
    """Each target's figure against pages, with the limit, the recommended size and what the budget leaves."""
    label = answer.scenario.labels[answer.index]
    title = f"How large must the pool of {label} be? {answer.scenario.name}"
    chosen = None if answer.recommended is None else answer.recommended.max_pages
    shown = [one for one in answer.curve if not one.thrash]
    panels, drawn = _panels(title, answer.goal)
    for place, (panel, target) in enumerate(zip(panels, answer.goal.targets, strict=True)):
        _curve(panel, [one.max_pages for one in shown], [one.targets[place] for one in shown], target)
        panel.axvline(answer.limit_pages, color=GREY, linestyle=":", linewidth=1)
        if chosen is not None:
            panel.axvline(chosen, color=BLUE, linestyle="--", linewidth=1)
    panels[-1].set_xlabel("pages; dashed: recommended, dotted: what there is for sure")
    return drawn


def solve_curve(found: "Solved", axis: "Axis", goal: "Goal", *, name: str) -> "style.Figure":
    """Each target's figure against the key."""
    panels, drawn = _panels(f"How far may {axis.key} go? {name}", goal)
    places = _places(axis, [one.value for one in found.tried])
    for place, (panel, target) in enumerate(zip(panels, goal.targets, strict=True)):
        _curve(panel, places, [one.estimates[place] for one in found.tried], target)
        if found.best is not None:
            panel.axvline(_places(axis, [found.best.value])[0], color=BLUE, linestyle="--", linewidth=1)
    _name_axis(panels[-1], axis, "x")
    return drawn


def trade_curve(trades: "Sequence[Trade]", axes: "tuple[Axis, Axis]", goal: "Goal", *, name: str) -> "style.Figure":
    """The farthest value of the second key against the first."""
    first, second = axes
    title = f"How do {first.key} and {second.key} trade? {name}"
    height_in = style.top_in(title) + 3.4
    drawn = style.figure(title, height_in=height_in)
    (panel,) = style.panels(drawn, title, 1)
    held = [(one.value, one.solved.best.value) for one in trades if one.solved.best is not None]
    panel.plot(_places(first, [x for x, _ in held]), _places(second, [y for _, y in held]), color=BLUE, marker="o")
    missing = [one.value for one in trades if one.solved.best is None]
    bottom = _places(second, second.values[:1])[0]
    panel.plot(_places(first, missing), [bottom] * len(missing), color=RED, marker="x", linestyle="")
    style.panel_title(panel, f"{goal}", "cross: none holds" if missing else "")
    _name_axis(panel, first, "x")
    _name_axis(panel, second, "y")
    return drawn


def _panels(title: str, goal: "Goal") -> "tuple[list[style.Axes], style.Figure]":
    count = len(goal.targets)
    drawn = style.figure(title, height_in=style.top_in(title) + 0.7 + _PANEL_IN * count)
    panels = style.panels(drawn, title, count, share_x=True)
    for panel, target in zip(panels, goal.targets, strict=True):
        style.panel_title(panel, str(target))
    return panels, drawn


def _curve(panel: "style.Axes", places: Sequence[float], figures: "Sequence[Estimate]", target: "Target") -> None:
    """A line with its intervals, and the target's limit; the scale is that of the figures, not of the intervals."""
    scale = 100.0 if target.name in ("oom", "timeout") else 1.0
    values = [scale * one.value for one in figures]
    top = 1.15 * max([*values, 2 * scale * target.limit])
    low = [max(0.0, scale * one.low) for one in figures]
    high = [min(top, scale * one.high) for one in figures]
    panel.fill_between(places, low, high, color=BLUE, alpha=0.15, linewidth=0)
    panel.plot(places, values, color=BLUE, marker="o", markersize=3)
    panel.axhline(scale * target.limit, color=RED, linewidth=1)
    panel.set_ylim(0, top)
    panel.set_ylabel("%" if scale != 1 else "a request" if target.is_share else "s")


def _places(axis: "Axis", values: Sequence[Any]) -> list[float]:
    """Where values stand on an axis: numbers at themselves, others at their number in the list."""
    if _numeric(axis):
        return [float(value) for value in values]
    return [float(axis.values.index(value)) for value in values]


def _numeric(axis: "Axis") -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in axis.values)


def _name_axis(panel: "style.Axes", axis: "Axis", side: str) -> None:
    name = style.plain(axis.key)
    if side == "x":
        panel.set_xlabel(name)
    else:
        panel.set_ylabel(name)
    if not _numeric(axis):
        ticks = {f"{side}ticks": range(len(axis.values)), f"{side}ticklabels": [str(one) for one in axis.values]}
        panel.set(**ticks)
