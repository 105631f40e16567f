"""Files written whole or not at all: a reader, or a crash, meets the old content or the new, never a part."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from simulator.errors import InputError, Problem


def write_text(path: Path, text: str, *, replace: bool = True) -> None:
    """Write ``text`` as UTF-8. Raises ``InputError`` when it cannot be, or when ``path`` exists and may not change."""
    if not replace and path.exists():
        raise InputError([Problem(file=str(path), message="exists already; --force replaces it")])
    write_with(path, lambda stream: stream.write(text.encode()))


def write_with(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then move it there. Raises ``InputError``."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name[:60]}-", delete=False) as stream:
            try:
                write(stream)
                stream.flush()
                os.fsync(stream.fileno())
                os.chmod(stream.name, 0o666 & ~_umask())
                os.replace(stream.name, path)
            except BaseException:
                Path(stream.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise _unwritable(path, error) from None


def make_folder(path: Path) -> None:
    """Create ``path`` and its parents, and see that files can be made in it. Raises ``InputError``."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError([Problem(file=str(path), message=f"cannot be written: {error.strerror or error}")])


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
