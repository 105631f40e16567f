"""The page of a comparison: who loses fewer requests, at one load or against it."""

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.planning.verdict import verdict
from simulator.showing.answer_folder import AnswerData
from simulator.showing.compare_command import comparison_points
from simulator.showing.page import Figures, Formula, Line, Page, Translate
from simulator.showing.pages import shared
from simulator.showing.pages.compare_pictures import pictures
from simulator.showing.pages.compare_rows import ROWS, labels_of, of_label, points_text, rate_text
from simulator.units import format_percent as percent

Row = Mapping[str, Any]

_FORMULAS = (
    Formula(
        "OOM rate",
        "(oom_admission + oom_decode + too_large) / arrived, all replications together; the wider of Student's t over "
        "replications and Clopper and Pearson's exact interval",
        "oom_rate, oom_rate_ci",
    ),
    Formula("preemptions a request", "preemptions / arrived requests", "preemption_rate"),
    Formula("timed out", "requests that waited longer than queue_timeout / arrived requests", "timed_out_rate"),
    Formula("TTFT p95", "first token - arrival, completed requests; mean over replications", "latency_s.ttft_p95"),
    Formula(
        "difference",
        "OOM rate of one less that of the other in each replication; mean, with Student's t interval",
        "differences[].oom_rate_difference, ci",
    ),
)


def compare_page(data: AnswerData, words: Translate) -> Page:
    """The page of one comparison, or of one for each value of a key."""
    document = data.document
    points = comparison_points(dict(document))
    return Page(
        kind="Allocators compared",
        title=data.basis.scenario["name"],
        description=data.basis.scenario["description"],
        bases=(data.basis,),
        answer=_answer(document, points, words),
        warnings=[*shared.interrupted(document, words), *_thrashing(points, words)],
        figures=_figures(document, points, words),
        pictures=pictures(data, document, points),
        assumptions=shared.ASSUMPTIONS,
    )


def _answer(document: Row, points: Sequence[Row], words: Translate) -> list[str]:
    said = words("{count} replications; every allocator meets the same requests in each.")
    basis = said.format(count=document["replications"])
    if "vary" not in document:
        return [verdict(document["allocators"], document["differences"], words), basis]
    key = document["vary"]["key"]
    lines = [_course(label, points, words) for label in labels_of(points)]
    return [lead(key, points, words), *lines, basis]


def lead(key: str, points: Sequence[Row], words: Translate) -> str:
    """Who loses the fewest over the whole range, or that it depends on the value."""
    shown = {"key": key, "first": shared.number(points[0]["value"]), "last": shared.number(points[-1]["value"])}
    rates = {label: [of_label(point, label)["oom_rate"] for point in points] for label in labels_of(points)}
    fewest = [min(each) for each in zip(*rates.values(), strict=True)]
    if len(rates) == 1:
        text = "From {key} {first} to {last} the OOM rate of {best} goes from {low} to {high}."
        ((best, course),) = rates.items()
        return words(text).format(**shown, best=best, low=percent(course[0]), high=percent(course[-1]))
    if all(len(set(each)) == 1 for each in zip(*rates.values(), strict=True)):
        return words("From {key} {first} to {last} all lose the same share of the requests.").format(**shown)
    best = words(", ").join(label for label, course in rates.items() if course == fewest)
    if best:
        text = "From {key} {first} to {last} no other loses fewer requests than {best}: at most {high}."
        return words(text).format(**shown, best=best, high=percent(max(fewest)))
    text = "Which allocator loses the fewest requests depends on {key}: {first_best} at {first}, {last_best} at {last}."
    ends = [
        words(", ").join(label for label, course in rates.items() if course[place] == fewest[place])
        for place in (0, -1)
    ]
    return words(text).format(**shown, first_best=ends[0], last_best=ends[1])


def _course(label: str, points: Sequence[Row], words: Translate) -> str:
    """How one allocator's rate goes along the key."""
    rates = [of_label(point, label)["oom_rate"] for point in points]
    lossless = [point["value"] for point, rate in zip(points, rates, strict=True) if not rate]
    shown = {"label": label, "low": percent(min(rates)), "high": percent(max(rates))}
    if not any(rates):
        return words("{label}: no request was lost at any value.").format(label=label)
    if not lossless:
        return words("{label}: {low} to {high}, some loss at every value.").format(**shown)
    text = words("{label}: {low} to {high}; nothing was lost at {values}.")
    return text.format(**shown, values=words(", ").join(map(shared.number, lossless)))


def _thrashing(points: Sequence[Row], words: Translate) -> list[str]:
    names = dict.fromkeys(one["label"] for point in points for one in point["allocators"] if one["thrashing"])
    text = (
        "{names}: more was computed again than for the first time, or nothing could go on; its times cannot be trusted."
    )
    return [words(text).format(names=words(", ").join(names))] if names else []


def _figures(document: Row, points: Sequence[Row], words: Translate) -> list[Figures]:
    if "vary" in document:
        return [_series(document["vary"]["key"], points, words)]
    allocators = document["allocators"]
    side_by_side = Figures(
        title="Allocators side by side",
        headings=("", *labels_of(points)),
        lines=tuple(Line(name, tuple(map(cell, allocators)), name == "OOM rate") for name, cell in ROWS),
        formulas=_FORMULAS,
        source="summary.json: allocators[]",
        note=_unserved(allocators, words),
    )
    differences = Figures(
        title="Differences",
        headings=("difference", "OOM rate", "settled"),
        lines=tuple(
            Line(f"{one['label']} - {one['than']}", (points_text(one), words("yes" if one["settled"] else "no")))
            for one in document["differences"]
        ),
        note=words("In percentage points, [interval]. Settled: the interval leaves out 0."),
        upright=True,
    )
    return [side_by_side, differences] if document["differences"] else [side_by_side]


def _unserved(allocators: Sequence[Row], words: Translate) -> str:
    names = [one["label"] for one in allocators if one["latency_s"]["ttft_p95"]["mean"] is None]
    text = "–: in some replication no request was completed under {names}, so there is no latency to speak of."
    return words(text).format(names=words(", ").join(names)) if names else ""


def _series(key: str, points: Sequence[Row], words: Translate) -> Figures:
    labels = labels_of(points)
    return Figures(
        title="OOM rate against the key",
        headings=(key, *labels),
        lines=tuple(
            Line(shared.number(point["value"]), tuple(rate_text(of_label(point, label)) for label in labels))
            for point in points
        ),
        formulas=_FORMULAS,
        source="summary.json: vary.points[].allocators[]",
        note=words("allocators.parquet has every figure of every value."),
        upright=True,
    )
