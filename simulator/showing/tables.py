"""The Parquet tables of a results folder: one file a table, the rows of all runs one after another.

Columns ``allocator`` and ``replication`` say which run a row belongs to. Words are stored as dictionaries.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

Columns = dict[str, npt.NDArray[Any]]
TABLES = ("requests", "timeline", "oom_events", "pool_map")
_KEYS = ("allocator", "replication")
#: key of the file's metadata: rows of each run
_ROWS = b"rows_of_runs"


def write_table(stream: IO[bytes], runs: Sequence[tuple[str, int, Mapping[str, Any]]]) -> None:
    """Write ``(label, replication, columns)`` of every run, each in row groups of its own, in the order given."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [_arrow(label, replication, columns) for label, replication, columns in runs]
    schema = tables[0].schema if tables else pa.schema([])
    rows = json.dumps([table.num_rows for table in tables])
    with pq.ParquetWriter(stream, schema.with_metadata({_ROWS: rows}), compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)


def run_rows(
    summaries: Sequence[Mapping[str, Any]], columns: Sequence[Mapping[str, Any]]
) -> list[tuple[str, int, Mapping[str, Any]]]:
    """The rows of one table of every run, as ``write_table`` wants them."""
    return [
        (summary["label"], summary.get("replication", 0), each)
        for summary, each in zip(summaries, columns, strict=True)
    ]


def read_tables(folder: Path) -> "_RunTables":
    """The tables of every run in ``folder``, by the run's position. Raises ``InputError``."""
    return _RunTables(folder)


class _RunTables:
    """Row groups of the files of a folder; each is read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._files = {name: _opened(folder / f"{name}.parquet") for name in TABLES}

    def __getitem__(self, position: int) -> dict[str, Columns]:
        return {name: _columns(file, position) for name, file in self._files.items()}


def _opened(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from simulator.errors import InputError, Problem

    if path.name == "pool_map.parquet" and not path.exists():
        return None
    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError([Problem(file=str(path), message=f"cannot be read: {error}")]) from None


def _columns(file: Any, position: int) -> Columns:
    if file is None:
        return {}
    table = file.read_row_groups(_row_groups(file, position))
    return {name: _numpy(table.column(name)) for name in table.column_names if name not in _KEYS}


def _row_groups(file: Any, position: int) -> list[int]:
    """The row groups of the run at ``position``."""
    rows = json.loads(file.schema_arrow.metadata[_ROWS])
    first, end = sum(rows[:position]), sum(rows[: position + 1])
    found, row = [], 0
    for group in range(file.num_row_groups):
        if first <= row < end:
            found.append(group)
        row += file.metadata.row_group(group).num_rows
    return found


def _numpy(column: Any) -> npt.NDArray[Any]:
    """Numbers as numbers, words as objects. (pyarrow's own way would import pandas first, a third of a second.)"""
    import pyarrow as pa

    if not len(column):
        return np.zeros(0, np.dtype(object if pa.types.is_dictionary(column.type) else column.type.to_pandas_dtype()))
    pieces = []
    for array in column.chunks:
        if pa.types.is_dictionary(array.type):
            pieces.append(np.array(array.dictionary.to_pylist(), dtype=object)[_plain(array.indices)])
        else:
            pieces.append(_plain(array))
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _plain(array: Any) -> npt.NDArray[Any]:
    kind = np.dtype(array.type.to_pandas_dtype())
    values: npt.NDArray[Any] = np.frombuffer(array.buffers()[1], kind)
    return values[array.offset : array.offset + len(array)]


def _arrow(label: str, replication: int, columns: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    rows = len(next(iter(columns.values()))) if columns else 0
    made = {
        "allocator": _words(np.full(rows, label, dtype=object), (label,)),
        "replication": np.full(rows, replication),
    }
    made.update(columns)
    return pa.Table.from_arrays([_array(values) for values in made.values()], names=list(made))


def _array(values: Any) -> Any:
    import pyarrow as pa

    if not isinstance(values, np.ndarray):
        return values
    if values.dtype.kind == "O":
        return _words(values, tuple(dict.fromkeys(values.tolist())))
    assert values.dtype.kind in "if", f"a column of {values.dtype}"
    numbers = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)])


def _words(values: npt.NDArray[Any], distinct: tuple[str, ...]) -> Any:
    """A dictionary-encoded column."""
    import pyarrow as pa

    code = {word: index for index, word in enumerate(distinct)}
    codes = np.fromiter((code[word] for word in values.tolist()), np.int32, len(values))
    encoded = [word.encode() for word in distinct]
    ends = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    words = pa.StringArray.from_buffers(len(distinct), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))
    return pa.DictionaryArray.from_arrays(_array(codes), words)
