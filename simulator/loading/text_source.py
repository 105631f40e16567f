"""Input files read with a bound: no directory, no endless device, nothing beyond a stated size, only UTF-8."""

import stat
from pathlib import Path

from simulator.errors import InputError, Problem


def read_bytes(path: Path, name: str, *, limit_bytes: int) -> bytes:
    """The content of ``path``, which messages call ``name``. Raises ``InputError``."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise _error(name, None, "is a directory, not a file")
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise _error(name, None, "is not a regular file")
        with path.open("rb") as stream:
            content = stream.read(limit_bytes + 1)
    except InputError:
        raise
    except OSError as error:
        raise _error(name, None, f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise _error(repr(name), None, f"is not a usable file name: {error}") from None
    if len(content) > limit_bytes:
        raise _error(name, None, f"is larger than {limit_bytes // 2**20} MiB, the limit for this kind of file")
    return content


def decoded(content: bytes, name: str) -> str:
    """``content`` as text, a UTF-8 byte-order mark dropped. Raises ``InputError`` for anything but UTF-8."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _error(name, 1, "is UTF-16 text: save it as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise _error(name, line, f"is not UTF-8 text (byte 0x{byte:02x}): save it as UTF-8") from None


def _error(name: str, line: int | None, message: str) -> InputError:
    return InputError([Problem(file=name, line=line, message=message)])
