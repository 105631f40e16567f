"""The page of a sweep: a row a combination of values, and the chosen columns against them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from simulator.showing.answer_folder import AnswerData
from simulator.showing.page import Figures, Formula, Line, Page, Picture, Translate
from simulator.showing.pages import shared
from simulator.showing.pages.sweep_rows import Cell, Figure, cells, is_percent, is_seconds, text
from simulator.showing.plots.curves import Across, Curve, Panel, curves
from simulator.showing.plots.heat import heat_maps
from simulator.showing.plots.style import MAX_SHOWN
from simulator.showing.report_rows import DASH, ROWS
from simulator.showing.report_tables import Table
from simulator.units import format_percent as percent

if TYPE_CHECKING:
    from simulator.showing.plots import style

#: rows that a page shows; the Parquet file has all
_MOST_ROWS = 200


def sweep_page(data: AnswerData, words: Translate) -> Page:
    """The page of ``simulate sweep``."""
    document = data.document
    columns = [name for name in document["plots"] if name != "oom_rate"]
    found = cells(data, columns)
    idle = [name for name in columns if not any(_telling(cell.figures.get(name)) for cell in found)]
    columns = [name for name in columns if name not in idle]
    return Page(
        kind="Sweep over a grid",
        title=data.basis.scenario["name"],
        description=data.basis.scenario["description"],
        bases=(data.basis,),
        answer=_answer(document, found, words),
        figures=[_table(document, found, columns, words, idle=idle)],
        pictures=_pictures(data, found, columns),
        assumptions=shared.ASSUMPTIONS,
    )


def _telling(figure: Figure | None) -> bool:
    """Whether there is more to see than nothing."""
    return figure is not None and bool(figure.value)


def _answer(document: Mapping[str, Any], found: Sequence[Cell], words: Translate) -> list[str]:
    axes = document["axes"]
    keys = words(", ").join(axis["key"] for axis in axes)
    extent = words("{points} points over {keys}, {rows} rows.").format(
        points=f"{document['points']:,}", keys=keys, rows=f"{document['rows']:,}"
    )
    groups = {
        label: [cell for cell in found if cell.allocator == label]
        for label in dict.fromkeys(cell.allocator for cell in found)
    }
    courses = [_course(axes, group, words) for group in groups.values()]
    return [*_lead(groups, words), *courses, extent]


def _lead(groups: Mapping[str, Sequence[Cell]], words: Translate) -> list[str]:
    """Who loses the most and the fewest anywhere in the grid; nothing where there is one allocator."""
    most = {
        label: max((cell.figures["oom_rate"].value or 0.0 for cell in group), default=0.0)
        for label, group in groups.items()
    }
    if len(most) < 2:
        return []
    low, high = min(most.values()), max(most.values())
    if low == high:
        text = "At their worst points all allocators lose the same share of the requests, {high}."
        return [words(text).format(high=percent(high))]
    best, worst = (words(", ").join(name for name, rate in most.items() if rate == end) for end in (low, high))
    text = "Fewest requests are lost under {best} (at most {low} at any point), most under {worst} (up to {high})."
    return [words(text).format(best=best, low=percent(low), worst=worst, high=percent(high))]


def _course(axes: Sequence[Mapping[str, Any]], found: Sequence[Cell], words: Translate) -> str:
    """Where one allocator loses the fewest and the most requests."""
    known = [cell for cell in found if cell.figures["oom_rate"].value is not None]
    rates = [cell.figures["oom_rate"].value or 0.0 for cell in known]
    name = found[0].allocator
    if not any(rates):
        return words("{label}: no request was lost at any point.").format(label=name)
    low, high = (known[rates.index(end(rates))] for end in (min, max))
    return words("{label}: from {low} ({where_low}) to {high} ({where_high}).").format(
        label=name,
        low=percent(min(rates)),
        high=percent(max(rates)),
        where_low=_where(axes, low, words),
        where_high=_where(axes, high, words),
    )


def _where(axes: Sequence[Mapping[str, Any]], cell: Cell, words: Translate) -> str:
    pairs = zip(axes, cell.values, strict=True)
    return words(", ").join(f"{axis['key']} {shared.number(value)}" for axis, value in pairs)


def _table(
    document: Mapping[str, Any], found: Sequence[Cell], columns: Sequence[str], words: Translate, *, idle: Sequence[str]
) -> Figures:
    """A row a cell; ``idle`` are the columns in which there is nothing to see."""
    keys = [axis["key"] for axis in document["axes"]]
    lines = []
    for cell in found[:_MOST_ROWS]:
        first, *others = map(shared.number, cell.values)
        figures = [text(name, cell.figures[name]) for name in ("oom_rate", *columns)]
        lines.append(Line(first, (*others, cell.allocator, *figures)))
    more = len(found) - len(lines)
    note = words("{count} more rows are in sweep.parquet.").format(count=f"{more:,}") if more else ""
    dashes = any(DASH in line.cells for line in lines)
    why = words("–: no request was completed, so there is no such figure.") if dashes else ""
    nothing = words("Nothing at any point: {names}.").format(names=words(", ").join(idle)) if idle else ""
    return Figures(
        title="Points of the grid",
        headings=(*keys, "allocator", "OOM rate", *columns),
        lines=tuple(lines),
        formulas=tuple(Formula(row.name, row.formula, row.source) for row in ROWS),
        source="sweep.parquet",
        note=words(" ").join(filter(None, [note, why, nothing])),
        upright=True,
    )


# ---- pictures


def _pictures(data: AnswerData, found: Sequence[Cell], columns: Sequence[str]) -> dict[str, Picture]:
    axes = data.document["axes"]
    made = {}
    for name in ("oom_rate", *columns):
        made[name.replace(".", "_")] = Picture(
            partial(_lines, axes, found, name),
            "A panel an allocator, in it a line for each combination of the other keys; at most eight of each are "
            "drawn, the table has all. Bands are intervals: over replications, or Wilson's for the OOM rate of a "
            "single one.",
            partial(_data, axes, found, name),
        )
    if len(axes) == 2 and all(len(axis["values"]) > 2 for axis in axes):
        made["oom_map"] = Picture(
            partial(_map, axes, found), "Darker: more requests are lost.", partial(_data, axes, found, "oom_rate")
        )
    made["hbm_budget"] = shared.budget_picture(data)
    return made


def _along(axes: Sequence[Mapping[str, Any]]) -> int:
    """Which axis lines run along: the first with the most values that are numbers."""
    lengths = [len(axis["values"]) if not shared.places(axis["values"])[1] else 0 for axis in axes]
    return lengths.index(max(lengths))


def _lines(
    axes: Sequence[Mapping[str, Any]], found: Sequence[Cell], column: str, words: "style.Words"
) -> "style.Figure":
    """A panel an allocator; in it a line for each combination of the other keys."""
    along = _along(axes)
    key, values = axes[along]["key"], axes[along]["values"]
    unit = "%" if is_percent(column) else "s" if is_seconds(column) else words("count")
    labels = list(dict.fromkeys(cell.allocator for cell in found))
    panels = [
        Panel(heading=label, unit=unit, curves=_curves(axes, [one for one in found if one.allocator == label], column))
        for label in labels[:MAX_SHOWN]
    ]
    shown = column if column != "oom_rate" else words("OOM rate")
    title = words("How does {figure} depend on {key}?").format(figure=shown, key=key)
    return curves(
        title,
        panels,
        Across(label=shared.key_label(key, values, words), names=shared.places(values)[1]),
        one_scale=True,
    )


def _curves(axes: Sequence[Mapping[str, Any]], found: Sequence[Cell], column: str) -> list[Curve]:
    """The lines of one allocator, named after the other keys."""
    along = _along(axes)
    values = axes[along]["values"]
    places, _ = shared.places(values)
    scale = 100.0 if is_percent(column) else 1.0
    groups: dict[str, list[Cell]] = {}
    for cell in found:
        others = [
            f"{axis['key'].rpartition('.')[2]} {shared.number(value)}"
            for place, (axis, value) in enumerate(zip(axes, cell.values, strict=True))
            if place != along
        ]
        groups.setdefault(", ".join(others), []).append(cell)
    lines = []
    for name, group in groups.items():
        figures = [cell.figures[column] for cell in group]
        banded = any(figure.low is not None for figure in figures)
        lines.append(
            Curve(
                name=name,
                places=[places[values.index(cell.values[along])] for cell in group],
                values=[_scaled(figure.value, scale) for figure in figures],
                low=[_scaled(figure.low, scale) for figure in figures] if banded else (),
                high=[_scaled(figure.high, scale) for figure in figures] if banded else (),
            )
        )
    return lines


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else scale * value


def _data(axes: Sequence[Mapping[str, Any]], found: Sequence[Cell], column: str) -> list[Table]:
    rows = [
        [*map(shared.number, cell.values), cell.allocator, text(column, cell.figures[column])]
        for cell in found[:_MOST_ROWS]
    ]
    return [shared.table([*(axis["key"] for axis in axes), "allocator", column], rows)]


def _map(axes: Sequence[Mapping[str, Any]], found: Sequence[Cell], words: "style.Words") -> "style.Figure":
    labels = dict.fromkeys(cell.allocator for cell in found)
    grids = {label: [[0.0 for _ in axes[1]["values"]] for _ in axes[0]["values"]] for label in labels}
    for cell in found:
        row, column = (axis["values"].index(value) for axis, value in zip(axes, cell.values, strict=True))
        grids[cell.allocator][row][column] = 100 * (cell.figures["oom_rate"].value or 0.0)
    title = words("Where in the grid do requests run out of memory?")
    down, across = ({**axis, "key": shared.key_label(axis["key"], axis["values"], words)} for axis in axes)
    return heat_maps(title, grids, down, across, f"{words('OOM rate')} [%]")
