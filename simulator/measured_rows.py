"""Measured step times or transfer bandwidths, read from a CSV file."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


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
    """Rows of a CSV with columns batch, context_tokens, step_ms, or transfer_bytes, gb_per_s.

    Raises ``ValueError`` naming file, line and column.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        columns = set(reader.fieldnames or ())
        lines = [(reader.line_num, row) for row in reader]
    if not lines:
        raise ValueError(f"{path}: no measured rows")
    if {"batch", "context_tokens", "step_ms"} <= columns:
        return [
            StepRow(
                batch=int(_number(path, line, row, "batch")),
                context_tokens=int(_number(path, line, row, "context_tokens")),
                step_ms=_number(path, line, row, "step_ms"),
            )
            for line, row in lines
        ]
    if {"transfer_bytes", "gb_per_s"} <= columns:
        return [
            TransferRow(
                transfer_bytes=int(_number(path, line, row, "transfer_bytes")),
                gb_per_s=_number(path, line, row, "gb_per_s"),
            )
            for line, row in lines
        ]
    found = ", ".join(sorted(columns)) or "nothing"
    raise ValueError(
        f"{path}: expected columns batch, context_tokens, step_ms or transfer_bytes, gb_per_s; found {found}"
    )


def _number(path: Path, line: int, row: Mapping[str, str | None], column: str) -> float:
    try:
        value = float(row[column] or "")
    except ValueError:
        raise ValueError(f"{path}:{line}: {column}: {row[column]!r} is not a number") from None
    if not 0 < value < float("inf"):
        raise ValueError(f"{path}:{line}: {column}: {value} must be positive and finite")
    return value
