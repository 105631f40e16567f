"""Files written whole or not at all: a reader, or a crash, meets the old content or the new, never a part.

Files that belong together are replaced together: they are written into a subfolder and moved from there.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from simulator.errors import InputError, Problem

#: subfolders of files that are not in place yet
_STAGE = ".new-"


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
        raise unwritable(path, error) from None


def make_folder(path: Path) -> None:
    """Create ``path`` and its parents, and see that files can be made in it. Raises ``InputError``."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise unwritable(path, error) from None


@contextmanager
def staged(folder: Path, *, last: str, dropping: Iterable[str] = ()) -> Iterator[Path]:
    """A subfolder to write files into; when the block ends, they take the places of those of ``folder``.

    ``last`` is removed first and moved last, so files beside a ``last`` belong together. Files named in ``dropping``
    that the block has not written anew are removed. If the block fails, ``folder`` stays as it was when it has a
    ``last``; else it keeps what the block has written so far. One process at a time; others wait.

    Raises ``InputError``.
    """
    make_folder(folder)
    with _locked(folder):
        _clear(folder)
        try:
            stage = Path(tempfile.mkdtemp(prefix=_STAGE, dir=folder))
        except OSError as error:
            raise unwritable(folder, error) from None
        try:
            yield stage
            (folder / last).unlink(missing_ok=True)
            for name in dropping:
                (folder / name).unlink(missing_ok=True)
            _move(stage, folder, last)
        except BaseException as error:
            if not (folder / last).exists():
                _move(stage, folder, last)
            if isinstance(error, InputError):
                raise InputError(_in_place(problem, stage, folder) for problem in error.problems) from None
            raise
        finally:
            shutil.rmtree(stage, ignore_errors=True)


def unwritable(path: Path, error: OSError) -> InputError:
    """The complaint about a file or folder that cannot be written."""
    return InputError([Problem(file=str(path), message=f"cannot be written: {error.strerror or error}")])


def _move(stage: Path, folder: Path, last: str) -> None:
    """A move inside a file system takes no room and leaves the old or the new file."""
    names = sorted(path.name for path in stage.iterdir() if not path.name.startswith("."))
    for name in sorted(names, key=last.__eq__):
        try:
            os.replace(stage / name, folder / name)
        except OSError as error:
            raise unwritable(folder / name, error) from None


def _in_place(problem: Problem, stage: Path, folder: Path) -> Problem:
    """``problem`` with the name that the file would have had."""
    path = Path(problem.file)
    return replace(problem, file=str(folder / path.name)) if path.parent == stage else problem


def _clear(folder: Path) -> None:
    """Remove what killed processes have left."""
    for left in folder.glob(f"{_STAGE}*"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Nobody else puts files into ``folder``. The lock ends with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # no such lock on this system
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
