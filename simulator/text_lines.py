"""Lines of a text file from outside, plain or gzip, with bounded memory and errors that name file and line."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from simulator.errors import InputError, Problem

MAX_LINE_BYTES = 16 * 2**20


def complaint(
    path: Path, line: int | None, message: str, *, key: str = "", allowed: tuple[str, ...] = ()
) -> InputError:
    """The error about one place of a file; ``key`` is the column or JSON key."""
    return InputError([Problem(message=message, file=str(path), line=line, key=key, allowed=allowed)])


def text_lines(path: Path) -> Iterator[str]:
    """The lines of ``path`` with their line ends, decoded as UTF-8 (a byte-order mark is dropped).

    Gzip is recognised by its first bytes, whatever the name. Raises ``InputError`` when the file is missing, not a
    regular file, unreadable, a damaged gzip, not UTF-8, or has a line over 16 MiB.
    """
    number = 0
    with _opened(path) as source:
        while raw := _next_line(source, path, number + 1):
            number += 1
            try:
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise complaint(path, number, f"not UTF-8 text (byte {error.start} of the line)") from None


def _next_line(source: BinaryIO, path: Path, number: int) -> bytes:
    try:
        line = source.readline(MAX_LINE_BYTES)
    except EOFError:
        raise complaint(path, number, "the gzip file ends too early: it is truncated") from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise complaint(path, number, f"the gzip file is damaged: {error}") from None
    except OSError as error:
        raise complaint(path, number, f"cannot be read: {error.strerror or error}") from None
    if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
        raise complaint(path, number, f"the line is longer than {MAX_LINE_BYTES} bytes: not a trace file")
    return line


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    _check_regular(path)
    try:
        file = path.open("rb")
    except OSError as error:
        raise complaint(path, None, f"cannot be opened: {error.strerror or error}") from None
    with file:
        if file.peek(2)[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=file) as unpacked, io.BufferedReader(unpacked, 2**20) as source:
                yield source
        else:
            yield file


def _check_regular(path: Path) -> None:
    """A pipe or a device could block or never end."""
    try:
        found = "a directory" if path.is_dir() else None if path.is_file() else "not a regular file"
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise complaint(path, None, f"cannot be opened: {error}") from None
    if not exists:
        raise complaint(path, None, "no such file")
    if found:
        raise complaint(path, None, f"is {found}; a file is needed")
