"""Files of measured lengths for an empirical law."""

from pathlib import Path

import numpy as np

from simulator.traffic.columns import TOKENS, CsvRows, csv_runs
from simulator.traffic.requests import MAX_REQUESTS, IntArray
from simulator.traffic.text_lines import complaint, text_lines


def read_lengths(path: Path, column: str | None) -> IntArray:
    """Lengths in tokens from one ``column`` of a CSV file or, without a name, from a file with one number a line.

    Raises ``InputError`` naming file, line, column, what was found and what is allowed.
    """
    runs = [_lines_as_run(path)] if column is None else csv_runs(path)
    parts: list[IntArray] = []
    for run in runs:
        name = column or "length"
        if name not in run.header:
            raise complaint(path, 1, f"no column {name!r}", allowed=run.header)
        parts.append(run.read(name, TOKENS))
    lengths = np.concatenate(parts)
    if not len(lengths):
        raise complaint(path, None, "holds no length; at least one is needed")
    return lengths


def _lines_as_run(path: Path) -> CsvRows:
    rows, lines = [], []
    for number, line in enumerate(text_lines(path), 1):
        if text := line.strip():
            rows.append([text])
            lines.append(number)
        if len(rows) > MAX_REQUESTS:
            raise complaint(path, number, f"more than {MAX_REQUESTS} lengths")
    return CsvRows(path, ("length",), rows, lines)
