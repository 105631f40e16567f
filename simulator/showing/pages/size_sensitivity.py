"""The table of what a size depends on most."""

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.showing.page import Figures, Formula, Line, Translate
from simulator.showing.report_rows import DASH
from simulator.showing.size_words import change_felt
from simulator.units import format_percent as percent

Document = Mapping[str, Any]

_FORMULAS = (
    Formula(
        "pages needed",
        "pages exceeded during the target's share of the time, the assumption changed, over those with nothing changed",
        "sensitivity.assumptions[].pages_needed_ratio",
    ),
    Formula(
        "pages available",
        "pages that the memory budget leaves, the assumption changed, over those with nothing changed",
        "sensitivity.assumptions[].pages_available_ratio",
    ),
)


def sensitivity_figures(document: Document, words: Translate) -> Sequence[Figures]:
    """What a tenth of each assumption does to the pages needed and to those there; nothing when that was not asked."""
    found = document["sensitivity"]
    if found is None:
        return []
    felt = [one for one in found["assumptions"] if change_felt(one) >= found["felt"]]
    rest = [one["name"] for one in found["assumptions"] if one not in felt]
    note = words("Each assumption {change} more and less, all else equal.").format(change=percent(found["change"]))
    if rest:
        text = "The answer hardly depends on: {rest}."
        note += words(" ") + words(text).format(rest=words(", ").join(map(words, rest)))
    return [
        Figures(
            title="What the answer depends on most",
            headings=("assumption", "pages needed: more", "less", "pages available: more", "less", "confidence"),
            lines=tuple(_line(one, words) for one in felt),
            formulas=_FORMULAS,
            note=note,
            upright=True,
        )
    ]


def _line(one: Document, words: Translate) -> Line:
    needed, there = one["pages_needed_ratio"], one["pages_available_ratio"]
    cells = [_change(ratio[way]) for ratio in (needed, there) for way in ("up", "down")]
    return Line(words(one["name"]), (*cells, words(one["confidence"]) if one["confidence"] else DASH))


def _change(ratio: float) -> str:
    return DASH if ratio == 1.0 else f"{100 * (ratio - 1.0):+.2g} %"
