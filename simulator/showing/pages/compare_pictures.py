"""The pictures of a comparison, with their data."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from simulator.showing.answer_folder import AnswerData
from simulator.showing.page import Picture, Translate
from simulator.showing.pages import shared
from simulator.showing.pages.compare_rows import ROWS, ROWS_BY_NAME, labels_of, of_label, points_text, rate_text
from simulator.showing.plots.curves import Across, Curve, Panel, curves
from simulator.showing.plots.whiskers import Whisker, whiskers
from simulator.showing.report_tables import Table
from simulator.units import format_percent as percent

if TYPE_CHECKING:
    from simulator.showing.plots.style import Figure

Row = Mapping[str, Any]


def pictures(data: AnswerData, document: Row, points: Sequence[Row]) -> dict[str, Picture]:
    """The pictures of one comparison, or of one for each value of a key."""
    budget = {"hbm_budget": shared.budget_picture(data)}
    if "vary" in document:
        key = document["vary"]["key"]
        return {
            "oom_rate": Picture(
                partial(_rates_against, key, points),
                "Bands are the intervals; all allocators meet the same requests.",
                partial(_rates_table, key, points),
            ),
            "cost": Picture(
                partial(_cost_against, key, points),
                "Only completed requests have a time to the first token; a break in a line: nobody was completed.",
                partial(_cost_table, key, points),
            ),
            **budget,
        }
    allocators, differences = document["allocators"], document["differences"]
    return {
        "oom_rate": Picture(
            partial(_rates, allocators),
            "Diamonds: all replications together, with the interval; dots: single replications.",
            partial(_replications, allocators),
        ),
        "differences": Picture(
            partial(_difference_picture, differences),
            "An interval that leaves out 0 is more than chance.",
            partial(_difference_table, differences),
        ),
        "ttft": Picture(
            partial(_first_tokens, allocators),
            "Only completed requests count: an allocator that turns many away serves the others sooner.",
            partial(_latency_table, allocators),
        ),
        **budget,
    }


def _rates(allocators: Sequence[Row], words: Translate) -> "Figure":
    rows = [
        Whisker(
            name=one["label"],
            value=100 * one["oom_rate"],
            low=100 * one["oom_rate_ci"][0],
            high=100 * one["oom_rate_ci"][1],
            dots=[100 * rate for rate in one["oom_rates"]],
            text=rate_text(one),
        )
        for one in allocators
    ]
    return whiskers(words("Which allocator loses the fewest requests?"), rows, f"{words('OOM rate')} [%]", zero="start")


def _replications(allocators: Sequence[Row]) -> list[Table]:
    rows = [[str(place), *map(percent, rates)] for place, rates in enumerate(zip(*_all_rates(allocators), strict=True))]
    return [shared.table(["replication", *(one["label"] for one in allocators)], rows)]


def _all_rates(allocators: Sequence[Row]) -> list[Sequence[float]]:
    return [one["oom_rates"] for one in allocators]


def _difference_picture(differences: Sequence[Row], words: Translate) -> "Figure | None":
    if not differences:
        return None
    rows = [
        Whisker(
            name=f"{one['label']} - {one['than']}",
            value=100 * one["oom_rate_difference"],
            low=100 * one["ci"][0] if one["ci"] else None,
            high=100 * one["ci"][1] if one["ci"] else None,
            text=points_text(one),
        )
        for one in differences
    ]
    label = words("difference of OOM rates [percentage points]")
    return whiskers(words("Is the difference more than chance?"), rows, label, zero="line")


def _difference_table(differences: Sequence[Row]) -> list[Table]:
    rows = [[f"{one['label']} - {one['than']}", points_text(one)] for one in differences]
    return [shared.table(["difference", "percentage points"], rows)]


def _first_tokens(allocators: Sequence[Row], words: Translate) -> "Figure | None":
    found = [(one, one["latency_s"]["ttft_p95"]) for one in allocators]
    if all(figures["mean"] is None for _, figures in found):
        return None
    rows = [
        Whisker(
            name=one["label"],
            value=figures["mean"],
            low=(figures["ci"] or (None, None))[0],
            high=(figures["ci"] or (None, None))[1],
            text=ROWS_BY_NAME["TTFT p95"](one),
        )
        for one, figures in found
    ]
    return whiskers(
        words("How long do those who are served wait for the first token?"), rows, "TTFT p95 [s]", zero="away"
    )


def _latency_table(allocators: Sequence[Row]) -> list[Table]:
    names = [name for name, _ in ROWS if "T" in name or "end" in name]
    cells = ROWS_BY_NAME
    rows = [[one["label"], *(cells[name](one) for name in names)] for one in allocators]
    return [shared.table(["", *names], rows)]


def _rates_against(key: str, points: Sequence[Row], words: Translate) -> "Figure":
    places, names = shared.places([point["value"] for point in points])
    lines = []
    for label in labels_of(points):
        rows = [of_label(point, label) for point in points]
        lines.append(
            Curve(
                name=label,
                places=places,
                values=[100 * row["oom_rate"] for row in rows],
                low=[100 * row["oom_rate_ci"][0] for row in rows],
                high=[100 * row["oom_rate_ci"][1] for row in rows],
            )
        )
    title = words("How does the OOM rate depend on {key}?").format(key=key)
    panel = Panel(heading=words("OOM rate"), unit="%", curves=lines)
    return curves(title, [panel], Across(label=_axis(key, points, words), names=names))


def _axis(key: str, points: Sequence[Row], words: Translate) -> str:
    return shared.key_label(key, [point["value"] for point in points], words)


def _rates_table(key: str, points: Sequence[Row]) -> list[Table]:
    labels = labels_of(points)
    rows = [
        [shared.number(point["value"]), *(rate_text(of_label(point, label)) for label in labels)] for point in points
    ]
    return [shared.table([key, *labels], rows)]


def _cost_against(key: str, points: Sequence[Row], words: Translate) -> "Figure":
    places, names = shared.places([point["value"] for point in points])

    def lines(figure: Callable[[Row], float | None]) -> list[Curve]:
        return [
            Curve(name=label, places=places, values=[figure(of_label(point, label)) for point in points])
            for label in labels_of(points)
        ]

    panels = [
        Panel(
            heading=words("time to first token (TTFT), p95"),
            unit="s",
            curves=lines(lambda row: row["latency_s"]["ttft_p95"]["mean"]),
        )
    ]
    if any(one["preemption_rate"] for point in points for one in point["allocators"]):
        preempted = lines(lambda row: row["preemption_rate"])
        panels.append(Panel(heading=words("preemptions a request"), unit=words("a request"), curves=preempted))
    title = words("What does {key} cost those who are served?").format(key=key)
    return curves(title, panels, Across(label=_axis(key, points, words), names=names))


def _cost_table(key: str, points: Sequence[Row]) -> list[Table]:
    return [_against(key, points, ROWS_BY_NAME[name], name) for name in ("TTFT p95", "preemptions a request")]


def _against(key: str, points: Sequence[Row], cell: Callable[[Row], str], title: str = "") -> Table:
    """A row for each value, a column for each allocator."""
    labels = labels_of(points)
    rows = [[shared.number(point["value"]), *(cell(of_label(point, label)) for label in labels)] for point in points]
    return shared.table([key, *labels], rows, title)
