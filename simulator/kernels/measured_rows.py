"""Measured step times or transfer bandwidths, read from a CSV file."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simulator.errors import InputError, Problem
from simulator.loading.text_source import decoded, read_bytes

LIMIT_BYTES = 16 * 2**20
STEP_COLUMNS = ("batch", "context_tokens", "step_ms")
TRANSFER_COLUMNS = ("transfer_bytes", "gb_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A measured decode step: ``batch`` sequences with ``context_tokens`` each took ``step_ms``."""

    batch: int
    context_tokens: int
    step_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRow:
    """A measured copy by all cores: transfers of ``transfer_bytes`` reached ``gb_per_s`` together."""

    transfer_bytes: int
    gb_per_s: float


def read_measured(path: Path) -> list[StepRow] | list[TransferRow]:
    """Rows of a CSV with columns batch, context_tokens, step_ms, or transfer_bytes, gb_per_s; others are ignored.

    Raises ``InputError`` naming file, line and column.
    """
    name = str(path)
    text = decoded(read_bytes(path, name, limit_bytes=LIMIT_BYTES), name)
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        columns = [column.strip() for column in reader.fieldnames or ()]
        reader.fieldnames = columns
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise _problem(name, f"is not a CSV file: {error}", line=reader.line_num) from None
    wanted = next((names for names in (STEP_COLUMNS, TRANSFER_COLUMNS) if set(names) <= set(columns)), None)
    if wanted is None:
        choice = f"{', '.join(STEP_COLUMNS)} or {', '.join(TRANSFER_COLUMNS)}"
        raise _problem(name, f"expected columns {choice}; found {', '.join(columns) or 'nothing'}")
    if not rows:
        raise _problem(name, "no measured rows")
    if wanted == STEP_COLUMNS:
        return [
            StepRow(
                batch=_whole(name, line, row, "batch"),
                context_tokens=_whole(name, line, row, "context_tokens"),
                step_ms=_number(name, line, row, "step_ms"),
            )
            for line, row in rows
        ]
    return [
        TransferRow(
            transfer_bytes=_whole(name, line, row, "transfer_bytes"), gb_per_s=_number(name, line, row, "gb_per_s")
        )
        for line, row in rows
    ]


def _whole(name: str, line: int, row: Mapping[str, str | None], column: str) -> int:
    value = _number(name, line, row, column)
    if not value.is_integer():
        raise _problem(name, f"{value} must be a whole number", line=line, column=column)
    return int(value)


def _number(name: str, line: int, row: Mapping[str, str | None], column: str) -> float:
    try:
        value = float(row[column] or "")
    except ValueError:
        raise _problem(name, f"{row[column]!r} is not a number", line=line, column=column) from None
    if not 0 < value < float("inf"):
        raise _problem(name, f"{value} must be positive and finite", line=line, column=column)
    return value


def _problem(name: str, message: str, *, line: int | None = None, column: str = "") -> InputError:
    return InputError([Problem(file=name, line=line, key=column, message=message)])
