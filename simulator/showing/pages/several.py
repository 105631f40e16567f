"""Several answers of one kind on one page: each with its sentences, tables and pictures, named after its folder."""

from collections.abc import Sequence
from dataclasses import replace

from simulator.showing.answer_folder import AnswerData
from simulator.showing.page import Figures, Line, Page, Picture


def side_by_side(answers: Sequence[AnswerData], pages: Sequence[Page]) -> Page:
    """One page: figures of the same shape become one table with a column a folder, everything else comes in turn."""
    named = list(zip((one.name for one in answers), pages, strict=True))
    bases = tuple(replace(answer.basis, folder=answer.name) for answer in answers)
    return Page(
        kind=pages[0].kind,
        title=" | ".join(name for name, _ in named),
        description="",
        bases=bases,
        answer=[f"{name}: {line}" for name, page in named for line in page.answer],
        warnings=[f"{name}: {line}" for name, page in named for line in page.warnings],
        figures=[figures for place in range(_most(pages)) for figures in _joined(named, place)],
        pictures=_pictures(named),
        assumptions=pages[0].assumptions,
    )


def _most(pages: Sequence[Page]) -> int:
    return max(len(page.figures) for page in pages)


def _joined(named: Sequence[tuple[str, Page]], place: int) -> list[Figures]:
    """The tables at one place: one table if their rows are the same figures, else one after another."""
    found = [(name, page.figures[place]) for name, page in named if place < len(page.figures)]
    first = found[0][1]
    rows = [tuple(line.name for line in figures.lines) for _, figures in found]
    if first.upright or len(set(rows)) > 1:
        return [replace(figures, headings=(name, *figures.headings[1:])) for name, figures in found]
    headings = [f"{name}: {heading}" for name, figures in found for heading in figures.headings[1:]]
    lines = []
    for number, line in enumerate(first.lines):
        cells = tuple(cell for _, figures in found for cell in figures.lines[number].cells)
        lines.append(Line(line.name, cells, line.strong))
    return [replace(first, headings=("", *headings), lines=tuple(lines))]


def _pictures(named: Sequence[tuple[str, Page]]) -> dict[str, Picture]:
    """Pictures of one name stand beside each other; the folder's number tells their files apart."""
    names = dict.fromkeys(name for _, page in named for name in page.pictures)
    return {
        f"{name}_{number}": replace(page.pictures[name], heading=folder)
        for name in names
        for number, (folder, page) in enumerate(named, 1)
        if name in page.pictures
    }
