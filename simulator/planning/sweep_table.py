"""Rows of a sweep as one Parquet file."""

from collections.abc import Mapping, Sequence
from typing import IO, Any


def write_rows(stream: IO[bytes], rows: Sequence[Mapping[str, Any]]) -> None:
    """All columns that any row has, in the order in which they appear."""
    import pyarrow
    import pyarrow.parquet

    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    pyarrow.parquet.write_table(pyarrow.table(columns), stream, compression="zstd")


def _column(values: Sequence[Any]) -> Any:
    """Whole numbers become floats beside floats; values of different kinds, or lists, become text."""
    import pyarrow

    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return pyarrow.array([None if value is None else float(value) for value in values], pyarrow.float64())
    if len(kinds) > 1 or kinds & {list, dict}:
        return pyarrow.array([None if value is None else str(value) for value in values], pyarrow.string())
    return pyarrow.array(values)
