"""CSV columns to integer arrays, with errors that name file, line, column, what was found and what is allowed."""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np

from simulator.errors import shown
from simulator.traffic.requests import MAX_TIME_S, MAX_TOKENS, IntArray
from simulator.traffic.text_lines import complaint, text_lines
from simulator.units import NS_PER_S

_ROWS = 16_384


class CsvReader(Protocol):
    """What ``csv.reader`` returns; its class has no public name."""

    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...


_WALL_CLOCK = re.compile(
    r"^ *((?:19[7-9]\d|2[01]\d\d)-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:Z|\+00:00)? *$",
    re.ASCII | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Column:
    """How one column is read: ``parse`` turns texts into integers (``ValueError`` when it cannot)."""

    parse: Callable[[Sequence[str]], IntArray]
    low: int
    high: int
    allowed: str


def _whole(texts: Sequence[str]) -> IntArray:
    try:
        return np.array(list(map(int, texts)), np.int64)
    except ValueError:
        return np.array([_whole_number(text) for text in texts], np.int64)


def _whole_number(text: str) -> int:
    """Programs that know missing values write whole numbers as ``12.0``."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise ValueError(text) from None
        return int(number)


def _seconds(texts: Sequence[str]) -> IntArray:
    seconds = np.array(list(map(float, texts)), np.float64)
    if not bool(np.all(np.abs(seconds) <= 2 * MAX_TIME_S)):
        raise ValueError("out of range")
    return np.rint(seconds * NS_PER_S).astype(np.int64)


def _wall_clock(texts: Sequence[str]) -> IntArray:
    """Nanoseconds since 1970, exact to the last digit."""
    joined = "\n".join(texts)
    plain = _WALL_CLOCK.findall(joined)
    if not len(plain) == len(texts) == joined.count("\n") + 1:
        raise ValueError("not a time")
    return np.array(plain, "datetime64[ns]").astype(np.int64)


TOKENS = Column(_whole, 1, MAX_TOKENS, f"a whole number of tokens from 1 to {MAX_TOKENS}")
TOKENS_OR_ZERO = Column(_whole, 0, MAX_TOKENS, f"a whole number of tokens from 0 to {MAX_TOKENS}")
SECONDS = Column(_seconds, 0, int(MAX_TIME_S) * NS_PER_S, f"seconds from 0 to {MAX_TIME_S:g}")
WALL_CLOCK = Column(_wall_clock, 0, 2**63 - 1, "a UTC time such as 2023-11-16 18:17:03.9799600")


@dataclass(frozen=True, slots=True)
class CsvRows:
    """A run of CSV rows, all as wide as the header, and the file line each one ends on."""

    path: Path
    header: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]

    def texts(self, name: str) -> list[str]:
        """The cells of a column, as written."""
        position = self.header.index(name)
        return [row[position] for row in self.rows]

    def read(self, name: str, column: Column) -> IntArray:
        """The values of a column. Raises ``InputError`` at the first cell that is not allowed."""
        texts = self.texts(name)
        if not texts:
            return np.zeros(0, np.int64)
        try:
            values = column.parse(texts)
        except (ValueError, OverflowError):
            wrong = next(row for row, text in enumerate(texts) if not _readable(text, column))
            raise self.error(wrong, name, column.allowed) from None
        wrong_rows = np.flatnonzero((values < column.low) | (values > column.high))
        if len(wrong_rows):
            raise self.error(int(wrong_rows[0]), name, column.allowed)
        return values

    def error(self, row: int, name: str, allowed: str) -> ValueError:
        """The complaint about the cell of ``row`` in column ``name``."""
        found = shown(self.rows[row][self.header.index(name)])
        return complaint(self.path, self.lines[row], f"found {found}", key=name, allowed=(allowed,))


def _readable(text: str, column: Column) -> bool:
    try:
        column.parse([text])
    except (ValueError, OverflowError):
        return False
    return True


def csv_runs(path: Path) -> Iterator[CsvRows]:
    """The rows of a CSV file in runs of bounded size, header names stripped of blanks; at least one run.

    Raises ``InputError`` for an empty file, a header that repeats a name, broken quotes, or a ragged row.
    """
    # A line break inside quotes belongs to the cell; without it "1<break>0" would read as 10.
    reader = csv.reader((f"{line}\n" for line in text_lines(path)), strict=True)
    try:
        header = next((row for row in reader if row), None)
        if header is None:
            raise complaint(path, 1, "the file is empty; a header line with column names is needed")
        names = tuple(name.strip() for name in header)
        if len(set(names)) < len(names):
            raise complaint(path, reader.line_num, "the header names a column twice: " + ", ".join(names))
        yield from _runs(path, names, reader)
    except csv.Error as error:
        raise complaint(path, reader.line_num, f"not a readable CSV row: {error}") from None


def _runs(path: Path, names: tuple[str, ...], reader: CsvReader) -> Iterator[CsvRows]:
    start = -1
    while start < reader.line_num:
        start = reader.line_num
        run = CsvRows(path, names, [], [])
        for row in islice(reader, _ROWS):
            if row:
                run.rows.append(row)
                run.lines.append(reader.line_num)
        _check_widths(run)
        yield run


def _check_widths(run: CsvRows) -> None:
    widths = list(map(len, run.rows))
    wanted = len(run.header)
    if widths.count(wanted) < len(widths):
        wrong = next(row for row, width in enumerate(widths) if width != wanted)
        raise complaint(run.path, run.lines[wrong], f"found {widths[wrong]} cells, the header has {wanted}")
