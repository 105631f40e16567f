"""The Parquet tables of a results folder: one file a table, the rows of all runs one after another.

Columns ``allocator`` and ``replication`` say which run a row belongs to. Words are stored as dictionaries.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

Columns = dict[str, npt.NDArray[Any]]
TABLES = ("requests", "timeline", "oom_events", "pool_map")
_KEYS = ("allocator", "replication")


def write_table(stream: IO[bytes], runs: Sequence[tuple[str, int, Mapping[str, Any]]]) -> None:
    """Write ``(label, replication, columns)`` of every run, one row group each, in the order given."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [_arrow(label, replication, columns) for label, replication, columns in runs]
    with pq.ParquetWriter(stream, tables[0].schema if tables else pa.schema([]), compression="zstd") as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, table.num_rows))


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
    if file is None or position >= file.num_row_groups:
        return {}
    table = file.read_row_group(position)
    return {name: _numpy(table.column(name)) for name in table.column_names if name not in _KEYS}


def _numpy(column: Any) -> npt.NDArray[Any]:
    """Numbers as numbers, words as objects."""
    values: npt.NDArray[Any] = column.to_numpy()
    return values


def _arrow(label: str, replication: int, columns: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    rows = len(next(iter(columns.values()))) if columns else 0
    names = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array([label], pa.string()))
    made = {"allocator": names, "replication": pa.array(np.full(rows, replication, np.int32))}
    made.update({name: _array(values) for name, values in columns.items()})
    return pa.table(made)


def _array(values: Any) -> Any:
    import pyarrow as pa

    if values.dtype.kind == "O":
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(values)
