"""A page of a report: what it is made of, and how it becomes one HTML file with everything in it.

Every page opens with the answer in words and a table of figures; each picture has its data under it; each figure has
its formula, each device figure its source. Texts of the user appear as text, whatever they contain.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.showing import words
from simulator.showing.plots import style
from simulator.showing.report_tables import Table
from simulator.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from simulator.showing.manifest import Outputs
    from simulator.showing.report_data import Basis

_TEMPLATES = Path(__file__).parents[1] / "templates"
#: how much more room the pool map takes, with the slider under it
_WITH_SLIDER = 1.6

#: the space between a number and its unit
_UNIT = re.compile(r"(?<=\d) (?=(?:%|[KMGT]iB|B|[mun]?s|min|h)(?!\w))")

#: an English text of the page to the same text in its language
Translate = Callable[[str], str]


def _nothing(words: Translate) -> str:
    del words
    return ""


@dataclass(frozen=True, slots=True)
class Formula:
    """Where a figure comes from: its formula, and its place in ``summary.json``."""

    figure: str
    formula: str
    source: str


@dataclass(frozen=True, slots=True)
class Line:
    """A row of figures. ``strong`` marks answers; a cell's part in brackets does not break."""

    name: str
    cells: tuple[str, ...]
    strong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The table that answers. ``source`` is what the places of the formulas start from; ``note`` is said under it.

    With ``upright`` the rows are results rather than figures, and their first column stays as it is.
    """

    title: str
    headings: tuple[str, ...]
    lines: tuple[Line, ...]
    formulas: tuple[Formula, ...] = ()
    source: str = "summary.json"
    note: str = ""
    upright: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a page: how to draw it in some words (``None``: nothing to show), what to know, its data.

    ``remark`` is what to know of these data, in the page's words; ``heading`` tells the picture from others of the same
    kind on the page.
    """

    draw: "Callable[[style.Words], style.Figure | None]"
    caption: str
    tables: Callable[[], list[Table]] = list
    heading: str = ""
    remark: Callable[[Translate], str] = field(default=_nothing)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture as two files, and as the SVG that goes into the page."""

    svg: bytes
    png: bytes
    inline: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything that a page says. ``answer`` and ``warnings`` are in its language, all else in English.

    ``stands_on`` is said of each basis; ``slider`` has the pool maps of runs, for the script.
    """

    kind: str
    title: str
    description: str
    bases: "tuple[Basis, ...]"
    stands_on: str = "{model} on {count} x {device}, {size} for KV on each device, seed {seed}, on_oom: {policy}"
    answer: Sequence[str]
    figures: Sequence[Figures]
    pictures: Mapping[str, Picture]
    assumptions: Sequence[str]
    warnings: Sequence[str] = ()
    slider: Sequence[Mapping[str, Any]] = field(default=())


def write_page(page: Page, outputs: "Outputs", language: str) -> None:
    """Draw the page's pictures, and write them and ``report.html``. Raises ``InputError``."""
    drawings = draw(page.pictures, words.translator(language))
    for name, drawing in drawings.items():
        outputs.write(f"{name}.svg", drawing.svg)
        outputs.write(f"{name}.png", drawing.png)
    outputs.write("report.html", html(page, drawings, language).encode())


def draw(pictures: Mapping[str, Picture], translate: Translate = str) -> dict[str, Drawing]:
    """Every picture that has something to show; only those on the page are translated."""
    found: dict[str, Drawing] = {}
    with style.styled():
        for name, picture in pictures.items():
            drawn = picture.draw(str)
            if drawn is None:
                continue
            svg = inline = style.svg_bytes(drawn)
            translated = None if translate is str else picture.draw(translate)
            if translated is not None:
                inline = style.svg_bytes(translated)
            found[name] = Drawing(svg, style.png_bytes(drawn), inline)
    return found


def html(page: Page, drawings: Mapping[str, Drawing], language: str = "en") -> str:
    """The page's text, with the pictures in it."""
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
    environment.filters["unbroken"] = unbroken
    pictures = [
        {
            "name": name,
            "position": position,
            "height": style.height_of(drawing.inline) * (_WITH_SLIDER if name == "pool_map" else 1.0),
            # Made by Matplotlib, which escapes the texts in it.
            "svg": Markup(style.inline_svg(drawing.inline, f"p{position}", translate(name.replace("_", " ")))),
            "heading": page.pictures[name].heading,
            "caption": page.pictures[name].caption,
            "remark": page.pictures[name].remark(translate),
            "tables": page.pictures[name].tables(),
        }
        for position, (name, drawing) in enumerate(drawings.items())
    ]
    return environment.get_template("report.html.j2").render(
        page=page,
        language=words.html_tag(language),
        columns=two_columns(pictures),
        # Safe inside a script element.
        slider=Markup(json.dumps(page.slider, separators=(",", ":")).replace("<", "\\u003c")),
        figures=[_device_figures(basis.device, translate) for basis in page.bases],
        scenarios=[_yaml(basis.scenario) for basis in page.bases],
        budgets=[_budget(basis.memory) for basis in page.bases],
        css=Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8")),
        script=Markup((_TEMPLATES / "report.js").read_text(encoding="utf-8")),
    )


def unbroken(text: str) -> str:
    """``text`` that does not break between a number and its unit."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


def two_columns(pictures: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The pictures in two columns of about the same height, each in order: the next goes where there is more room."""
    columns: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    heights = [0.0, 0.0]
    for picture in pictures:
        side = heights.index(min(heights))
        columns[side].append(picture)
        heights[side] += picture["height"]
    return columns


def _device_figures(device: Mapping[str, Any], translate: Translate) -> list[dict[str, str]]:
    return [{**figure, "text": _quantity(figure["name"], figure["value"], translate)} for figure in device["figures"]]


def _quantity(name: str, value: float, translate: Translate) -> str:
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
