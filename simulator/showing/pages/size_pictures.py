"""Pictures of a size: the targets, and what a smaller pool costs, against the pages of the pool."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simulator.planning.target import PROPORTIONS, SHARES
from simulator.showing import size_words
from simulator.showing.page import Translate
from simulator.showing.pages import shared
from simulator.showing.plots.curves import Across, Curve, Panel, curves

if TYPE_CHECKING:
    from simulator.showing.plots.style import Figure

Document = Mapping[str, Any]


def targets_of(document: Document) -> list[str]:
    """Names of the targets."""
    return [target["name"] for target in document["targets"]]


def short_name(target: str) -> str:
    """A target as the heading of a column."""
    return {"oom": "OOM rate", "preemption": "preemptions a request", "timeout": "timed out"}.get(target, target)


def figure_text(name: str, value: float | None, interval: Sequence[float | None] | None) -> str:
    """A target's figure, with its interval."""
    if name in PROPORTIONS:
        return shared.share(value, interval)
    return shared.count(value, interval) if name in SHARES else shared.seconds(value, interval)


def unit_of(name: str, words: Translate) -> str:
    """The unit of a target's axis."""
    return "%" if name in PROPORTIONS else words("a request") if name in SHARES else "s"


def target_panel(
    target: Document, places: Sequence[float], figures: Sequence[Document], words: Translate, *, curve: str = ""
) -> Panel:
    """A target's figure (``value``, ``ci``) at ``places``, its limit marked."""
    name = target["name"]
    scale = 100.0 if name in PROPORTIONS else 1.0

    def scaled(value: float | None) -> float | None:
        return None if value is None else scale * value

    return Panel(
        heading=size_words.target_words(target, words),
        unit=unit_of(name, words),
        limit=scale * target["limit"],
        curves=[
            Curve(
                name=curve,
                places=places,
                values=[scaled(one["value"]) for one in figures],
                low=[scaled(one["ci"][0]) for one in figures],
                high=[scaled(one["ci"][1]) for one in figures],
            )
        ],
    )


def size_curve(document: Document, words: Translate) -> "Figure | None":
    """Each target's figure against pages, with its limit, the recommended size, and what there is for sure."""
    points = document["curve"]
    if not points:
        return None
    panels = []
    for place, target in enumerate(document["targets"]):
        told = [one for one in points if target["name"] in SHARES or not one["thrash"]]
        parts = []
        for name, group in _apart(document, told, words):
            figures = [one["targets"][place] for one in group]
            parts.append(target_panel(target, [one["max_pages"] for one in group], figures, words, curve=name))
        panels.append(replace(parts[0], curves=[curve for part in parts for curve in part.curves]))
    title = words("How large must the pool of {name} be?").format(name=document["allocator"])
    return curves(title, panels, across_pages(document, words))


def _apart(document: Document, points: Sequence[Document], words: Translate) -> list[tuple[str, list[Document]]]:
    """The sizes that the search looked at, and the recommended one, which stands on replications of its own."""
    pages = document["recommended"]["max_pages"]
    chosen = [one for one in points if one["max_pages"] == pages]
    others = [one for one in points if one["max_pages"] != pages]
    named = [(words("sizes tried"), others), (words("on unseen replications"), chosen)]
    return [(name, group) for name, group in named if group] or named[:1]


def across_pages(document: Document, words: Translate) -> Across:
    """The axis of pages, with the recommended size and what the budget leaves if that is not far away."""
    pages, sure = document["recommended"]["max_pages"], document["sure_pages"]
    marks = [] if pages is None else [(words("recommended"), float(pages), "--")]
    if sure <= 2 * max(one["max_pages"] for one in document["curve"]):
        marks.append((words("what there is for sure"), float(sure), ":"))
    return Across(label=words("pages of the pool"), marks=marks, target=words("target"))


def cost_curve(document: Document, words: Translate) -> "Figure | None":
    """Preemptions and the time to the first token against pages."""
    points = document["curve"]
    trusted = [one for one in points if not one["thrash"]]
    if not trusted:
        return None

    def lines(figure: str, shown: Sequence[Document]) -> list[Curve]:
        return [
            Curve(name=name, places=[one["max_pages"] for one in group], values=[one[figure] for one in group])
            for name, group in _apart(document, shown, words)
        ]

    first_token = lines("ttft_p99_s", trusted)
    panels = [Panel(heading=words("time to first token (TTFT), p99"), unit="s", curves=first_token)]
    if any(one["preemption_rate"] for one in points):
        preempted = lines("preemption_rate", points)
        panels.append(Panel(heading=words("preemptions a request"), unit=words("a request"), curves=preempted))
    title = words("What does a smaller pool cost those who are served?")
    return curves(title, panels, across_pages(document, words))
