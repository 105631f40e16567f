"""Where lines and tables for people go: a terminal, or a pipe.

On a terminal headings are bold (unless ``NO_COLOR`` is set) and cells fold to its width. What is piped is plain text of
unlimited width, laid out alike; rich, which is slow to start, is not needed for that.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Protocol
from unicodedata import combining, east_asian_width

if TYPE_CHECKING:
    from rich.console import Console

#: between two columns
_GAP = "  "
#: what a terminal would act on: bell, backspace, vertical tab, form feed, carriage return
_ACTIONS = dict.fromkeys((7, 8, 11, 12, 13))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; all columns but the first are aligned to the right if ``right``."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: bool = True


class Outlet(Protocol):
    """Takes what people are to see, on stdout."""

    def line(self, text: str = "", *, heading: bool = False) -> None: ...
    def table(self, table: Table) -> None: ...


def outlet() -> Outlet:
    """The terminal or the pipe that stdout is."""
    return _Terminal() if sys.stdout.isatty() else _Pipe()


class _Pipe:
    def line(self, text: str = "", *, heading: bool = False) -> None:
        del heading
        print(_inert(text), flush=True)

    def table(self, table: Table) -> None:
        print("\n".join(plain_lines(table)), flush=True)


class _Terminal:
    def __init__(self) -> None:
        self._console = _console()

    def line(self, text: str = "", *, heading: bool = False) -> None:
        self._console.print(text, soft_wrap=True, style="bold" if heading else None)

    def table(self, table: Table) -> None:
        from rich.table import Table as RichTable

        shown = RichTable(box=None, pad_edge=False, header_style="bold")
        for place, heading in enumerate(table.headings):
            # A cell that does not fit goes on below: no figure is ever cut off.
            shown.add_column(heading, justify="right" if table.right and place else "left", overflow="fold")
        for row in table.rows:
            shown.add_row(*row)
        self._console.print(shown)


def _console() -> "Console":
    from rich.console import Console

    class Listened(Console):
        """Leaves it to the command line what becomes of a program to which nobody listens any more."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    colour = None if os.environ.get("NO_COLOR") else "auto"
    return Listened(color_system=colour, highlight=False, markup=False, emoji=False)  # type: ignore[arg-type]


def plain_lines(table: Table) -> Iterator[str]:
    """The table as text, every column as wide as its widest cell; a cell with line ends takes several lines."""
    rows = [[_inert(cell).split("\n") for cell in row] for row in (table.headings, *table.rows)]
    widths = [max(_cells(line) for cell in column for line in cell) for column in zip(*rows, strict=True)]
    for row in rows:
        for lines in zip_longest(*row, fillvalue=""):
            padded = enumerate(zip(lines, widths, strict=True))
            yield _GAP.join(_padded(text, width, right=table.right and place > 0) for place, (text, width) in padded)


def _padded(text: str, width: int, *, right: bool) -> str:
    blanks = " " * (width - _cells(text))
    return blanks + text if right else text + blanks


def _cells(text: str) -> int:
    """Columns that a text takes on a terminal: Chinese characters take two, accents none."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(one) in "WF" else not combining(one) for one in text)


def _inert(text: str) -> str:
    """``text`` with tabs spelled out and without characters that make a terminal act."""
    return text.translate(_ACTIONS).expandtabs()
