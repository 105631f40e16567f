"""Lines of a text file from outside, plain or gzip, with bounded memory and errors that name file and line."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

from simulator.errors import InputError, Problem

MAX_LINE_BYTES = 16 * 2**20
_BLOCK_BYTES = 2**20


def complaint(
    path: Path, line: int | None, message: str, *, key: str = "", allowed: tuple[str, ...] = ()
) -> InputError:
    """The error about one place of a file; ``key`` is the column or JSON key."""
    return InputError([Problem(message=message, file=str(path), line=line, key=key, allowed=allowed)])


def text_lines(path: Path) -> Iterator[str]:
    """The lines of ``path`` without their ``\\n``, decoded as UTF-8 (a byte-order mark is dropped).

    Gzip is recognised by its first bytes, whatever the name. Raises ``InputError`` when the file is missing, not a
    regular file, unreadable, a damaged gzip, not UTF-8, or has a line over 16 MiB.
    """
    return chain.from_iterable(text.split("\n") for _, text in text_blocks(path))


def text_blocks(path: Path) -> Iterator[tuple[int, str]]:
    """Whole lines, many at a time, each with the number of its first one; as ``text_lines`` otherwise.

    A call a block, not a line, keeps a million lines under a second.
    """
    number, rest = 1, b""
    with _opened(path) as source:
        while block := _next_block(source, path):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                line = number + whole.count(b"\n") + len(newline)
                raise complaint(path, line, f"the line is longer than {MAX_LINE_BYTES} bytes: not a trace file")
            if newline:
                yield number, _decoded(whole, path, number)
                number += whole.count(b"\n") + 1
        if rest:
            yield number, _decoded(rest, path, number)


def _decoded(text: bytes, path: Path, number: int) -> str:
    try:
        return text.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        column = error.start - (before.rfind(b"\n") + 1)
        line = number + before.count(b"\n")
        raise complaint(path, line, f"not UTF-8 text (byte {column} of the line)") from None


def _next_block(source: BinaryIO, path: Path) -> bytes:
    import gzip
    import zlib

    try:
        return source.read(_BLOCK_BYTES)
    except EOFError:
        raise complaint(path, None, "the gzip file ends too early: it is truncated") from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise complaint(path, None, f"the gzip file is damaged: {error}") from None
    except OSError as error:
        raise complaint(path, None, f"cannot be read: {error.strerror or error}") from None


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    _check_regular(path)
    try:
        file = path.open("rb")
    except OSError as error:
        raise complaint(path, None, f"cannot be opened: {error.strerror or error}") from None
    with file:
        if _first_bytes(file, path) == b"\x1f\x8b":
            import gzip

            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast(BinaryIO, unpacked)
        else:
            yield file


def _first_bytes(file: BufferedReader, path: Path) -> bytes:
    try:
        return file.peek(2)[:2]
    except OSError as error:
        raise complaint(path, None, f"cannot be read: {error.strerror or error}") from None


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
