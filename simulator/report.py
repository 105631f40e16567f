"""The page for people: one HTML file with everything in it, made from a results folder.

It opens with the answer in words and the table of allocators; each picture has its data under it; each figure has
its formula, each device figure its source. Texts of the user appear as text, whatever they contain.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.showing import words
from simulator.showing.plots import PICTURES, style
from simulator.showing.report_data import ReportData, RunData, read_folder, read_folders
from simulator.showing.report_rows import ROWS, telling_rows
from simulator.showing.report_tables import Table, tables
from simulator.showing.terminal import cause_shares
from simulator.units import format_bytes, format_seconds
from simulator.units import format_percent as percent

if TYPE_CHECKING:
    from simulator.showing.manifest import Outputs

_TEMPLATES = Path(__file__).parent / "templates"
_SLIDER_INSTANTS = 100
#: how much more room the pool map takes, with the slider under it
_WITH_SLIDER = 1.6


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture as two files, and as the SVG that goes into the page."""

    svg: bytes
    png: bytes
    inline: bytes


def write_report(folder: Path, outputs: "Outputs", *, command: str, language: str = "en") -> None:
    """Draw the pictures of ``folder`` and write its ``report.html``. Raises ``InputError``."""
    _write(read_folder(folder, command=command), outputs, language)


def write_comparison(folders: Sequence[Path], outputs: "Outputs", *, language: str = "en") -> None:
    """One page for several result folders, side by side. Raises ``InputError``."""
    _write(read_folders(tuple(folders)), outputs, language)


def _write(data: ReportData, outputs: "Outputs", language: str) -> None:
    drawings = draw(data, words.translator(language))
    for name, drawing in drawings.items():
        outputs.write(f"{name}.svg", drawing.svg)
        outputs.write(f"{name}.png", drawing.png)
    outputs.write("report.html", page(data, drawings, language).encode())


def draw(data: ReportData, translate: Callable[[str], str] = str) -> dict[str, Drawing]:
    """Every picture that has something to show; only those on the page are translated."""
    found: dict[str, Drawing] = {}
    with style.styled():
        for name, picture in PICTURES.items():
            drawn = picture(data, str)
            if drawn is None:
                continue
            svg = inline = style.svg_bytes(drawn)
            translated = None if translate is str else picture(data, translate)
            if translated is not None:
                inline = style.svg_bytes(translated)
            found[name] = Drawing(svg, style.png_bytes(drawn), inline)
    return found


def page(data: ReportData, drawings: Mapping[str, Drawing], language: str = "en") -> str:
    """The HTML of a report."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    translate = words.translator(language)
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["_"] = translate
    environment.filters["bytes"] = format_bytes
    pictures = [
        {
            "name": name,
            "position": position,
            "height": style.height_of(drawing.inline) * (_WITH_SLIDER if name == "pool_map" else 1.0),
            # Made by Matplotlib, which escapes the texts in it.
            "svg": Markup(style.inline_svg(drawing.inline, f"p{position}", translate(name.replace("_", " ")))),
            "caption": CAPTIONS[name],
            "tables": tables(name, data),
        }
        for position, (name, drawing) in enumerate(drawings.items())
    ]
    compared = data.pooled
    telling, idle = telling_rows(list(compared.values()))
    template = environment.get_template("report.html.j2")
    return template.render(
        data=data,
        language=words.html_tag(language),
        answer=answer(data, translate),
        warnings=warnings(data, translate),
        compared=compared,
        rows=telling,
        idle_rows=idle,
        all_rows=ROWS,
        columns=two_columns(pictures),
        slider=Markup(_slider_json(data)),
        figures=[_figures(basis.device, translate) for basis in data.bases],
        assumptions=ASSUMPTIONS,
        scenarios=[_yaml(basis.scenario) for basis in data.bases],
        budgets=[_budget(basis.memory) for basis in data.bases],
        css=Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8")),
        script=Markup((_TEMPLATES / "report.js").read_text(encoding="utf-8")),
    )


def two_columns(pictures: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The pictures in two columns of about the same height, each in order: the next goes where there is more room."""
    columns: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    heights = [0.0, 0.0]
    for picture in pictures:
        side = heights.index(min(heights))
        columns[side].append(picture)
        heights[side] += picture["height"]
    return columns


# ---- words


def answer(data: ReportData, translate: Callable[[str], str] = str) -> list[str]:
    """The answer: who loses least, if somebody does, then one sentence a run."""
    if not data.runs:
        return [translate("Nothing was simulated.")]
    pooled = data.pooled
    clauses = [_clause(name, summary, translate) for name, summary in pooled.items()]
    rates = [summary["oom_rate"] for summary in pooled.values()]
    if len(rates) == 1:
        return clauses
    if len(set(rates)) == 1:
        return [_all_alike(rates[0], translate), *clauses]
    best = [name for name, rate in zip(pooled, rates, strict=True) if rate == min(rates)]
    worst = [name for name, rate in zip(pooled, rates, strict=True) if rate == max(rates)]
    lead = translate("Fewest requests run out of memory under {best} ({low}), most under {worst} ({high}).")
    shown = {"best": ", ".join(best), "worst": ", ".join(worst)}
    return [lead.format(low=percent(min(rates)), high=percent(max(rates)), **shown), *clauses]


def _all_alike(rate: float, translate: Callable[[str], str]) -> str:
    if not rate:
        return translate("No request runs out of memory under any of them.")
    return translate("Under all of them {share} of the requests run out of memory.").format(share=percent(rate))


def _clause(name: str, summary: Mapping[str, Any], translate: Callable[[str], str]) -> str:
    lost = translate("{name}: {share} of {count} requests ran out of memory").format(
        name=name, share=percent(summary["oom_rate"]), count=f"{summary['requests']['arrived']:,}"
    )
    causes = [f"{translate(cause)} {percent(share)}" for cause, share in cause_shares(summary).items() if share > 0]
    if causes:
        lost += translate(" ({causes})").format(causes=translate(", ").join(causes))
    if summary["preemptions"]:
        lost += translate("; {count} preemptions").format(count=f"{summary['preemptions']:,}")
    return lost + translate(".")


def warnings(data: ReportData, translate: Callable[[str], str] = str) -> list[str]:
    """What a reader must know before trusting the answer."""
    found, colon = [], translate(": ")
    for run in data.runs:
        ended, counts = run.summary["ended_because"], run.summary["requests"]
        if ended in ("livelock", "interrupted"):
            detail = f"{colon}{run.summary['ended_detail']}" if run.summary.get("ended_detail") else ""
            found.append(f"{run.name}{colon}{translate('the run ended early')} ({translate(ended)}){detail}")
        if counts["unfinished"]:
            text = translate("{count} requests were unfinished at the end and count as not lost")
            found.append(f"{run.name}{colon}{text.format(count=format(counts['unfinished'], ','))}")
        if not counts["arrived"]:
            found.append(f"{run.name}{colon}{translate('no request arrived')}")
    return found


CAPTIONS = {
    "outcomes": "Losses first, from the left. The whisker is the 95 % interval of the OOM rate.",
    "memory_over_time": "Used: tokens with KV. Reserved: held for tokens that come later. Internal: held for tokens "
    "that never come. Cached: held by nobody, kept for a possible hit. Scattered free: free, but not in one piece. "
    "The line is the size of the pool. Each point is the mean of its interval.",
    "oom_events": "Failed allocations. Capacity: fewer bytes were free than needed. Fragmentation: enough bytes were "
    "free, but no placement exists. Too large: an empty pool could not hold the request. An engine that preempts makes "
    "room and goes on.",
    "pool_map": "One address in every few is looked at, so shares are right and single pages may be missing.",
    "queue_and_batch": "Each point is the most in its interval.",
    "latency": "Only completed requests count: an allocator that turns many away serves the others sooner.",
    "hbm_budget": "What the KV pool is left with.",
}

ASSUMPTIONS = (
    "The time of a step comes from modelled traffic (weights, KV, page tables, compute, collectives, host work), not "
    "from measurement of this model on this device.",
    "All devices of an instance run in step; one device is shown for all.",
    "Lengths of requests are known to the workload, not to the allocators, except where a reservation is meant to know "
    "the future (reserve: exact).",
    "Requests that come after the end, or that never come, are not counted.",
)


# ---- parts


def _figures(device: Mapping[str, Any], translate: Callable[[str], str]) -> list[dict[str, str]]:
    return [{**figure, "text": _quantity(figure["name"], figure["value"], translate)} for figure in device["figures"]]


def _quantity(name: str, value: float, translate: Callable[[str], str]) -> str:
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_s"):
        return format_seconds(value)
    for ending, scale, unit in (
        ("_bandwidth", 1e9, "GB/s"),
        ("_hz", 1e9, "GHz"),
        ("_flops", 1e12, "TFLOPS"),
        ("_cycles", 1, "cycles"),
    ):
        if name.endswith(ending):
            return f"{value / scale:,.5g} {translate(unit)}"
    return f"{value:g}"


def _budget(memory: Mapping[str, Any]) -> Table:
    rows = [
        (name, format_bytes(value) if name.endswith("bytes") or "bytes_" in name else f"{value:,}", f"{value:,}")
        for name, value in memory.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    return Table("", ("", "value", "exactly"), tuple(rows))


def _yaml(scenario: Mapping[str, Any]) -> str:
    from simulator.showing.output import scenario_yaml

    return scenario_yaml(scenario)


def _slider_json(data: ReportData) -> str:
    """Snapshots for the slider, a run-length code over time for each address; safe inside a script element."""
    maps = [_slider_map(run) for run in data.shown[: style.MAX_SHOWN] if len(run.pool_map.get("time_s", ()))]
    return json.dumps(maps, separators=(",", ":")).replace("<", "\\u003c")


def _slider_map(run: RunData) -> dict[str, Any]:
    from simulator.serving.pool_map import grid

    times, owners = grid(run.pool_map)
    step = -(-len(times) // _SLIDER_INSTANTS)
    times, owners = times[::step], owners[::step]
    return {
        "name": run.name,
        "end": run.summary["simulated_s"],
        "times": [round(time, 3) for time in times.tolist()],
        "addresses": owners.shape[1],
        "runs": _run_lengths(owners.T.ravel().tolist()),
    }


def _run_lengths(values: Sequence[int]) -> list[int]:
    """``[value, count, value, count, ...]``."""
    from itertools import groupby

    return [number for value, group in groupby(values) for number in (value, sum(1 for _ in group))]
