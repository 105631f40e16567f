"""The page of ``size --solve``: how far one key may go with the pool there is, or how two keys trade."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from simulator.showing.answer_folder import AnswerData
from simulator.showing.page import Figures, Line, Page, Picture, Translate
from simulator.showing.pages import shared
from simulator.showing.pages.size_pictures import figure_text, short_name, target_panel, targets_of
from simulator.showing.plots.curves import Across, Curve, Panel, curves
from simulator.showing.report_tables import Table
from simulator.showing.size_words import goal_words
from simulator.showing.solve_document import solve_verdict
from simulator.showing.trade_document import extent, trade_verdict

if TYPE_CHECKING:
    from simulator.showing.plots.style import Figure

Document = Mapping[str, Any]


def solve_page(data: AnswerData, words: Translate) -> Page:
    """The page of one solved key, or of two that trade."""
    document = data.document
    traded = "keys" in document
    picture = Picture(
        partial(_trade_curve if traded else _solve_curve, document),
        "Each point is the farthest value that holds." if traded else _BANDS,
        lambda: [_frontier_table(document) if traded else _table(document)],
    )
    return Page(
        kind="How far settings may go",
        title=data.basis.scenario["name"],
        description=data.basis.scenario["description"],
        bases=(data.basis,),
        answer=[(trade_verdict if traded else solve_verdict)(document, words)],
        figures=[_frontier(document, words) if traded else _tried(document, words)],
        pictures={"trade" if traded else "solve": picture, "hbm_budget": shared.budget_picture(data)},
        assumptions=shared.ASSUMPTIONS,
    )


_BANDS = "Bands are the intervals of each value tried; the red line is the target."


def _rows(document: Document) -> list[list[str]]:
    names = targets_of(document)
    return [
        [
            shared.number(one["value"]),
            *(figure_text(*each) for each in zip(names, one["figures"], one["cis"], strict=True)),
            str(one["replications"]),
        ]
        for one in document["curve"]
    ]


def _headings(document: Document) -> tuple[str, ...]:
    return (document["key"], *map(short_name, targets_of(document)), "runs")


def _table(document: Document) -> Table:
    return shared.table(_headings(document), _rows(document))


def _tried(document: Document, words: Translate) -> Figures:
    best = shared.number(document["value"]) if document["feasible"] else None
    lines = tuple(Line(row[0], tuple(row[1:]), strong=row[0] == best) for row in _rows(document))
    return Figures(
        title="Values tried",
        headings=_headings(document),
        lines=lines,
        note=words("Averages over the replications of each value, [interval]. Bold: the answer."),
        upright=True,
    )


def _frontier_table(document: Document) -> Table:
    figures = _frontier(document, str)
    return shared.table(figures.headings, [[line.name, *line.cells] for line in figures.lines])


def _frontier(document: Document, words: Translate) -> Figures:
    first, second = document["keys"]
    lines = []
    for one in document["frontier"]:
        solved = one["solve"]
        figures = solved["figures"] or [None] * len(targets_of(document))
        cells = [figure_text(*each, None) for each in zip(targets_of(document), figures, strict=True)]
        best = shared.number(one[second]) if solved["feasible"] else words("none holds")
        lines.append(Line(shared.number(one[first]), (best, *cells, words(extent(solved)))))
    return Figures(
        title="How far one may go for each value of the other",
        headings=(first, second, *map(short_name, targets_of(document)), ""),
        lines=tuple(lines),
        note=words("–: no value in the range is shown to keep the targets."),
        upright=True,
    )


def _solve_curve(document: Document, words: Translate) -> "Figure | None":
    tried = document["curve"]
    if not tried:
        return None
    places, names = shared.places([one["value"] for one in tried])
    panels = []
    for place, target in enumerate(document["targets"]):
        figures = [{"value": one["figures"][place], "ci": one["cis"][place]} for one in tried]
        panels.append(target_panel(target, places, figures, words))
    marks = []
    if document["feasible"]:
        at = next(place for place, one in zip(places, tried, strict=True) if one["value"] == document["value"])
        marks.append((words("answer"), at, "--"))
    title = words("How far may {key} go?").format(key=document["key"])
    label = shared.key_label(document["key"], [one["value"] for one in tried], words)
    return curves(title, panels, Across(label=label, names=names, marks=marks, target=words("target")))


def _trade_curve(document: Document, words: Translate) -> "Figure | None":
    first, second = document["keys"]
    held = [one for one in document["frontier"] if one["solve"]["feasible"]]
    if not held or shared.places([one[second] for one in held])[1]:
        return None
    places, names = shared.places([one[first] for one in held])
    line = Curve(name="", places=places, values=[one[second] for one in held])
    title = words("How do {first} and {second} trade?").format(first=first, second=second)
    across, up = (shared.key_label(key, [one[key] for one in held], words) for key in (first, second))
    panel = Panel(heading=goal_words(document["targets"], words), unit=up, curves=[line])
    return curves(title, [panel], Across(label=across, names=names))
