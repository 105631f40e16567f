"""What all pictures share: size, colours, time axes, thinning of long series, bytes of SVG and PNG.

A picture is 5.6 inches wide with 10-point text, so that it can be read on a phone (390 px) and in a column of a page.
Files have a white ground; in the report the same SVG takes its text, grid and ground colours from the page, which
makes it fit a light and a dark theme. The data colours are those of Okabe and Ito (2008), told apart by
colour-blind readers; lines differ in their dashes, too.
"""

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Axes", "Figure", "Words"]

#: a text in English to the same text in the language of the report
Words = Callable[[str], str]
Floats = npt.NDArray[np.float64]

WIDTH_IN = 5.6
PNG_DPI = 120
#: allocators that get a panel or a line of their own; tables list all
MAX_SHOWN = 8
MAX_POINTS = 240

INK, MUTED, GRID, GROUND = "#1f2328", "#59636e", "#d1d9e0", "#ffffff"
BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PINK, SKY, YELLOW, GREY = "#cc79a7", "#56b4e9", "#e3d026", "#8c959f"
LINES = (BLUE, RED, GREEN, PINK, ORANGE, SKY, GREY, YELLOW)
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (2, 1)), (0, (1, 1)))
_THEMED = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--line)", GROUND: "var(--card)"}
_LONG_FRACTION = re.compile(rb"(\.\d\d)\d+")


def figure(title: str, *, height_in: float) -> "Figure":
    """An empty figure with its question at the top left."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(WIDTH_IN, height_in))
    lines = _wrapped(title)
    made.text(0.015, 1 - 0.09 / height_in, lines, fontsize=11, fontweight="bold", va="top", linespacing=1.15)
    return made


def top_in(title: str, *, legend_rows: int = 0) -> float:
    """Inches at the top of a figure that its title and legend take."""
    return 0.16 + 0.19 * (_wrapped(title).count("\n") + 1) + 0.2 * legend_rows


def _wrapped(title: str) -> str:
    # A CJK letter is as wide as two others.
    width = 58 if title.isascii() else 32
    return "\n".join(textwrap.wrap(title, width)) or title


def panels(
    drawn: "Figure",
    title: str,
    rows: int,
    *,
    columns: int = 1,
    legend_rows: int = 0,
    left_in: float = 0.62,
    heading_in: float = 0.2,
    share_x: bool = False,
    share_y: "bool | Literal['col']" = False,
) -> "list[Axes]":
    """``rows`` axes below one another, under the title and the legend; ``heading_in`` is room for a panel's heading.

    With ``columns`` there are so many in a row, and they are given row by row.
    """
    height_in = float(drawn.get_size_inches()[1])
    above_in, below_in, gap_in = top_in(title, legend_rows=legend_rows) + heading_in, 0.46, 0.3 if share_x else 0.45
    panel_in = (height_in - above_in - below_in - gap_in * (rows - 1)) / rows
    axes = drawn.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y).ravel().tolist()
    drawn.subplots_adjust(
        left=left_in / WIDTH_IN,
        right=1 - 0.14 / WIDTH_IN,
        top=1 - above_in / height_in,
        bottom=below_in / height_in,
        hspace=gap_in / panel_in,
        wspace=0.2,
    )
    found: list[Axes] = axes
    return found


def legend(drawn: "Figure", title: str, entries: Sequence[tuple[str, Any]], *, columns: int) -> None:
    """A legend under the title: names and the artists that stand for them."""
    height_in = float(drawn.get_size_inches()[1])
    drawn.legend(
        [artist for _, artist in entries],
        [plain(name) for name, _ in entries],
        loc="upper left",
        bbox_to_anchor=(0.0, 1 - (top_in(title) - 0.06) / height_in),
        ncols=columns,
        frameon=False,
        fontsize=9,
        handlelength=1.5,
        columnspacing=1.2,
        labelspacing=0.25,
        borderpad=0.2,
    )


def name_columns(names: Sequence[str]) -> int:
    """Columns of a legend in which names of this length do not run into each other."""
    longest = max(map(len, names), default=0)
    return 3 if longest <= 17 else 2 if longest <= 30 else 1


def patch(colour: str, *, edge: str = "none") -> Any:
    """A filled square for a legend."""
    from matplotlib.patches import Patch

    return Patch(facecolor=colour, edgecolor=edge, linewidth=0.8)


def stroke(colour: str, dashes: Any) -> Any:
    """A line for a legend, thin and without a mark on it, so that its dashes can be told."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, linestyle=dashes, linewidth=1.0)


def panel_title(axes: "Axes", text: str, aside: str = "") -> None:
    """A small heading over one panel, with a remark at its right end."""
    # With a height of its own a title is not moved about, which takes as long as drawing the panel.
    axes.set_title(plain(text), loc="left", fontsize=9.5, fontweight="bold", pad=3, y=1.0)
    if aside:
        axes.set_title(plain(aside), loc="right", fontsize=9, color=MUTED, pad=3, y=1.0)


def plain(text: str) -> str:
    """``text`` on one line as it stands: no mathematics, no control characters, at most 48 characters."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    line = (line if len(line) <= 48 else line[:47] + "…").replace("$", r"\$")
    # Matplotlib leaves out of legends what begins with an underscore.
    return f" {line}" if line.startswith("_") else line


def time_scale(end_s: float) -> tuple[float, str]:
    """Seconds per unit of a time axis that ends at ``end_s``, and the unit's name."""
    if end_s <= 300:
        return 1.0, "s"
    return (60.0, "min") if end_s <= 4 * 3600 else (3600.0, "h")


def time_axes(axes: "Sequence[Axes]", ends_s: Sequence[float], words: Words) -> None:
    """Ranges of the time axes of panels, and the label of the lowest. All are in one unit."""
    scale, unit = time_scale(max(ends_s))
    for panel, end_s in zip(axes, ends_s, strict=True):
        panel.set_xlim(0, max(end_s, 1e-9) / scale)
    axes[-1].set_xlabel(f"{words('simulated time')} [{unit}]")


def seconds_axis(axes: "Axes") -> None:
    """A logarithmic axis of seconds, with ticks such as 0.02, 0.05, 0.1."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    wide = high / low > 300
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def thinned(values: npt.NDArray[Any], how: Literal["first", "mean", "max"], points: int = MAX_POINTS) -> Floats:
    """At most ``points`` values of a regular series: each stands for as many neighbours as needed."""
    count = len(values)
    width = -(-count // points) if count else 1
    if width == 1:
        return np.asarray(values, dtype=np.float64)
    padded = np.concatenate([values, np.repeat(values[-1:], -count % width)]).astype(np.float64).reshape(-1, width)
    found: Floats = padded[:, 0] if how == "first" else padded.mean(axis=1) if how == "mean" else padded.max(axis=1)
    return found


# ---- bytes


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib's settings while pictures are drawn and written: equal data give equal bytes."""
    import matplotlib

    settings: dict[Any, Any] = {
        "font.family": ["sans-serif"],
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 10.0,
        "svg.fonttype": "none",
        "svg.hashsalt": "ascend-kv-sim",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.titlecolor": INK,
        "axes.facecolor": "none",
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.labelsize": 9.0,
        "axes.unicode_minus": False,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "text.color": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "xtick.labelsize": 9.0,
        "ytick.labelsize": 9.0,
        "figure.facecolor": GROUND,
        "savefig.facecolor": GROUND,
        "lines.linewidth": 1.5,
        "path.simplify": True,
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # Matplotlib's own font, the same everywhere, lacks Chinese; browsers find another one for the SVG.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def svg_bytes(drawn: "Figure") -> bytes:
    """The figure as SVG, without date or program version, paths to a hundredth of a point."""
    stream = io.BytesIO()
    drawn.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(rb'\bd="[^"]*"', lambda path: _LONG_FRACTION.sub(rb"\1", path[0]), stream.getvalue())


def png_bytes(drawn: "Figure") -> bytes:
    """The figure as PNG, without program version."""
    stream = io.BytesIO()
    drawn.savefig(stream, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return stream.getvalue()


def height_of(svg: bytes) -> float:
    """Height of a picture in points."""
    found = re.search(rb'<svg\b[^>]* height="([\d.]+)pt"', svg)
    assert found is not None
    return float(found[1])


def inline_svg(svg: bytes, prefix: str, label: str) -> str:
    """The ``<svg>`` element for a page: themed by the page's colours, its ids made unique by ``prefix``."""
    from html import escape

    text = svg.decode()
    text = text[text.index("<svg") :]
    for colour, variable in _THEMED.items():
        text = text.replace(colour, variable)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(url\(#|xlink:href="#)', rf"\g<1>{prefix}-", text)
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    # Without a size of its own it grows to the width of its column.
    text = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(label, quote=True)}"', 1)
