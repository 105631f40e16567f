"""The journal of a sweep: one line a finished point, on the disk before the next one counts.

A line is written whole, then flushed through to the disk. After a ``kill -9`` at any moment the file holds the
finished points and at most a part of one more line, which is cut off when the journal is opened again.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from simulator.errors import InputError, Problem
from simulator.files import make_folder

Rows = list[dict[str, Any]]


class Journal:
    """Finished points by key, in ``rows``. A context manager; one process at a time. Raises ``InputError``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Rows] = {}
        self._file: IO[bytes] | None = None

    def __enter__(self) -> "Journal":
        make_folder(self.path.parent)
        try:
            self._file = self.path.open("a+b")
        except OSError as error:
            raise self._problem(f"cannot be written: {error.strerror}") from None
        try:
            self._lock()
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        with suppress(OSError):  # what is still in its buffer could not be written before, and add() has said so
            self._file.close()
        self._file = None

    def add(self, key: str, rows: Rows) -> None:
        """Keep the rows of a finished point. A point that is there already stays as it is."""
        if key in self.rows:
            return
        assert self._file is not None, "the journal is not open"
        line = json.dumps({"point": key, "rows": rows}, ensure_ascii=False, allow_nan=False)
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            kept = f"{len(self.rows)} finished points are kept, and the same command goes on from there"
            raise self._problem(f"cannot be written: {error.strerror}; {kept}") from None
        # As read back: whether a point ran now or before a restart, its rows are the same.
        self.rows[key] = json.loads(line)["rows"]

    def _read(self) -> None:
        """Read the whole lines; cut off what a killed process had begun to write."""
        assert self._file is not None
        self._file.seek(0)
        good = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            try:
                entry = json.loads(line)
                self.rows.setdefault(entry["point"], entry["rows"])
            except (ValueError, KeyError, TypeError):
                raise self._problem("is no journal of a sweep; choose another folder with --out") from None
            good += len(line)
        self._file.truncate(good)

    def _lock(self) -> None:
        """No two sweeps in one folder. The lock ends with the process, however it ends."""
        try:
            import fcntl
        except ImportError:  # no such lock on this system
            return
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise self._problem("another sweep is at work in this folder") from None

    def _problem(self, message: str) -> InputError:
        return InputError([Problem(file=str(self.path), message=message)])
