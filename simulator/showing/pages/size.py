"""The page of a size: how large the pool must be; or how far one key, or two, may go with the pool there is."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from simulator.showing import size_words
from simulator.showing.answer_folder import AnswerData
from simulator.showing.page import Figures, Formula, Line, Page, Picture, Translate
from simulator.showing.pages import shared
from simulator.showing.pages.size_pictures import cost_curve, figure_text, short_name, size_curve, targets_of
from simulator.showing.pages.size_sensitivity import sensitivity_figures
from simulator.showing.pages.solve import solve_page
from simulator.showing.report_rows import DASH
from simulator.showing.report_tables import Table
from simulator.units import format_percent as percent

Document = Mapping[str, Any]

KIND = "Pool size"
ASSUMPTIONS = (
    *shared.ASSUMPTIONS,
    "The recommended size is shown on replications that the search for it has not seen; a band is the interval of the "
    "replications at that size.",
)
_FORMULAS = (
    Formula(
        "safety factor",
        "max_pages x page_size / (max_num_seqs x mean tokens of a request)",
        "recommended.safety_factor",
    ),
    Formula(
        "OOM rate",
        "(oom_admission + oom_decode + too_large) / arrived after the warm-up, all replications together; the wider of "
        "Student's t over replications and Clopper and Pearson's exact interval",
        "curve[].oom_rate, oom_rate_ci",
    ),
    Formula("preemptions a request", "preemptions / arrived requests", "curve[].preemption_rate"),
    Formula("TTFT p99", "first token - arrival, completed requests; mean over replications", "curve[].ttft_p99_s"),
    Formula("room", "whether the memory budget leaves so many pages", "curve[].fits, hbm_limit_max_pages"),
)


def size_page(data: AnswerData, words: Translate) -> Page:
    """The page of ``simulate size``, whichever of its questions was asked."""
    document = data.document
    if "recommended" not in document:
        return solve_page(data, words)
    pages = document["recommended"]["max_pages"]
    needed_bytes = None if pages is None else pages * document["page_bytes"]
    return Page(
        kind=KIND,
        title=data.basis.scenario["name"],
        description=data.basis.scenario["description"],
        bases=(data.basis,),
        answer=[size_words.verdict(document, words), *_settings(document, words)],
        warnings=[_sentence(one) for one in (*size_words.notes(document, words), *_ways(document, words))],
        figures=[
            _recommended(document, words),
            _curve(document, words),
            *_interval(document, words),
            *sensitivity_figures(document, words),
        ],
        pictures={
            "size_curve": Picture(
                partial(size_curve, document),
                "Bands are the intervals of each size tried; the red line is the target.",
                partial(_curve_tables, document),
            ),
            "cost_curve": Picture(
                partial(cost_curve, document),
                "Sizes at which the engine thrashes or stands still have no time that could be trusted.",
                partial(_curve_tables, document),
            ),
            "hbm_budget": shared.budget_picture(data, needed_bytes=needed_bytes),
        },
        assumptions=ASSUMPTIONS,
    )


def _sentence(note: str) -> str:
    """A note of the terminal, as it stands on a page."""
    return note[:1].upper() + note[1:]


def _settings(document: Document, words: Translate) -> list[str]:
    """What to tell the engine."""
    found = document["recommended"]
    if found["max_pages"] is None:
        return []
    text = "Settings: max_pages {pages}, page_size {tokens}, max_num_seqs {seqs}, safety_factor {factor}."
    return [
        words(text).format(
            pages=found["max_pages"],
            tokens=found["page_size"],
            seqs=found["max_num_seqs"],
            factor=f"{found['safety_factor']:.4g}",
        )
    ]


def _ways(document: Document, words: Translate) -> list[str]:
    ways = size_words.ways(document, words)
    return [words("Ways out") + words(": ") + words("; ").join(ways)] if ways else []


def _recommended(document: Document, words: Translate) -> Figures:
    found = document["recommended"]
    pages, limit = found["max_pages"], document["hbm_limit_max_pages"]
    lines = [
        Line("pages recommended", (DASH if pages is None else f"{pages:,}",), strong=True),
        Line("pages that the memory budget leaves", (f"{limit:,}",)),
        Line("largest size tried that does not do", (f"{document['smaller_max_pages_that_fails']:,}",)),
        Line("most pages ever in use, without a limit", (f"{document['demand']['peak_pages']:,}",)),
        Line("tokens lost to whole pages", (percent(document["page_rounding_ratio"]),)),
    ]
    for target in document["targets"]:
        name = size_words.target_words(target, words)
        lines.append(Line(name, (figure_text(target["name"], target["value"], target["ci"]),), strong=True))
    note = "–: no size was found." if pages is None else ""
    return Figures(
        title="The answer in figures",
        headings=("", document["allocator"]),
        lines=tuple(lines),
        note=words(note) if note else "",
        formulas=_FORMULAS,
    )


def _curve(document: Document, words: Translate) -> Figures:
    return Figures(
        title="Sizes tried",
        headings=("pages", "safety factor", "OOM rate", *map(short_name, _others(document)), *_ENDINGS),
        lines=tuple(_line(document, one, words) for one in document["curve"]),
        note=_curve_note(document, words),
        upright=True,
    )


def _curve_note(document: Document, words: Translate) -> str:
    said = []
    if document["recommended"]["max_pages"] is not None:
        said.append(
            words(
                "Bold: recommended, on replications that the search has not seen, so it compares with its targets and "
                "not with its neighbours."
            )
        )
    if any(one["thrash"] for one in document["curve"]):
        said.append(words("–: the engine thrashes or stands still, so that no time could be trusted."))
    return words(" ").join(said)


_ENDINGS = ("preemptions a request", "TTFT p99", "runs", "")


def _others(document: Document) -> list[str]:
    return [name for name in targets_of(document) if name not in ("oom", "preemption", "ttft_p99")]


def _line(document: Document, one: Document, words: Translate) -> Line:
    chosen = one["max_pages"] == document["recommended"]["max_pages"]
    room = "recommended" if chosen else "" if one["fits"] else "no room"
    figures = {target["name"]: target for target in one["targets"]}
    others = (DASH if one["thrash"] else _figure(figures[name]) for name in _others(document))
    return Line(
        f"{one['max_pages']:,}",
        (
            f"{one['safety_factor']:.3g}",
            shared.share(one["oom_rate"], one["oom_rate_ci"]),
            *others,
            f"{one['preemption_rate']:.3g}",
            shared.seconds(one["ttft_p99_s"]),
            str(one["replications"]),
            words(room) if room else "",
        ),
        strong=chosen,
    )


def _figure(figure: Document) -> str:
    return figure_text(figure["name"], figure["value"], figure["ci"])


def _curve_tables(document: Document) -> list[Table]:
    rows = [[line.name, *line.cells] for line in _curve(document, str).lines]
    return [
        Table(
            "",
            ("pages", "safety factor", "OOM rate", *map(short_name, _others(document)), *_ENDINGS),
            tuple(map(tuple, rows)),
        )
    ]


def _interval(document: Document, words: Translate) -> Sequence[Figures]:
    found = document["pool_interval"]
    if found is None:
        return []
    names = [target["name"] for target in document["targets"] if target["name"] != "oom"]
    lines = [
        Line(name, _interval_cells(found[key], names, pages=key != "expected"), strong=key == "expected")
        for key, name in (("low", "low end"), ("middle", "middle"), ("high", "high end"), ("expected", "expected"))
    ]
    chance = words("The pool is enough with probability {chance}.").format(chance=f"{found['probability_enough']:.2g}")
    text = words("{low_to_high}, any size as likely as any other.").format(
        low_to_high=size_words.interval_words(found, words)
    )
    return [
        Figures(
            title="A pool that is not known exactly",
            headings=("pool", "pages", "OOM rate", *map(short_name, names)),
            lines=tuple(lines),
            note=text + words(" ") + chance,
        )
    ]


def _interval_cells(one: Document, names: Sequence[str], *, pages: bool) -> tuple[str, ...]:
    figures = {target["name"]: target for target in one["targets"]}
    shown = f"{one['max_pages']:,}" if pages else ""
    return (shown, shared.share(one["oom_rate"], one["oom_rate_ci"]), *(_figure(figures[name]) for name in names))
