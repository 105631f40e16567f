"""Bad input, as a value: what is wrong, where, what is allowed, and the nearest valid name.

Every loader collects ``Problem`` records and raises one ``InputError`` with all of them, so that a user
mends a file in one pass. The command line prints it and exits with code 2.
"""

import difflib
from collections.abc import Iterable, Sized
from dataclasses import dataclass

#: a longer list of names is cut to those most like what was written
_SHOWN_NAMES, _LIKELY_NAMES = 12, 6
#: of one message
_MOST_CHARACTERS = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with the input.

    ``file`` and ``line`` (1-based) say where; ``option`` replaces them for a command-line option. ``key`` is the
    dotted path of the key, empty when no key is concerned.
    """

    message: str
    file: str = ""
    line: int | None = None
    option: str = ""
    key: str = ""
    found: str | None = None
    allowed: tuple[str, ...] = ()
    nearest: str | None = None

    def __str__(self) -> str:
        """``file:line: key: message; did you mean 'x'? allowed: a, b``."""
        line = f"{self.file}:{self.line}" if self.line is not None else self.file
        head = ": ".join(part for part in (self.option or line, self.key) if part)
        text = f"{head}: {self.message}" if head else self.message
        if self.found is not None and self.found not in self.message:
            text += f"; found {self.found}"
        if self.nearest is not None:
            text += f"; did you mean {self.nearest!r}?"
        if self.allowed:
            text += f"{' ' if self.nearest is not None else '; '}allowed: {self._listed()}"
        return _fit_to_print(text)

    def _listed(self) -> str:
        """The allowed names; of many, those most like the nearest one or the key, and how many there are."""
        if len(self.allowed) <= _SHOWN_NAMES:
            return ", ".join(self.allowed)
        wanted = self.nearest or self.key.rpartition(".")[2]
        likely = sorted(self.allowed, key=lambda name: -difflib.SequenceMatcher(None, name, wanted).ratio())
        return ", ".join(likely[:_LIKELY_NAMES]) + f", ... ({len(self.allowed)} in all)"


class InputError(ValueError):
    """The input cannot be used; ``problems`` holds every reason, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type["InputError"], tuple[tuple[Problem, ...]]]:
        """Crosses process borders with its problems, not with its message."""
        return InputError, (self.problems,)


def nearest_name(name: object, names: Iterable[str]) -> str | None:
    """The name of ``names`` that ``name`` was probably meant to be, or ``None``. Case is ignored."""
    by_lower = {known.lower(): known for known in names}
    found = difflib.get_close_matches(str(name).lower().replace("-", "_"), by_lower, n=1, cutoff=0.6)
    if not found:
        found = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def shown(value: object, limit: int = 60) -> str:
    """``value`` as a user wrote it, on one printable line of at most about ``limit`` characters."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return f"a mapping of {_count(value, 'key')}" if value else "an empty mapping"
    if isinstance(value, list):
        return f"a list of {_count(value, 'item')}" if value else "an empty list"
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 4] + "..." + text[-1]


def printable(key: str) -> str:
    """``key`` cut to 60 characters, control characters escaped, so that it cannot garble a terminal."""
    text = key if key.isprintable() else repr(key)[1:-1]
    return text if len(text) <= 60 else text[:57] + "..."


def _fit_to_print(text: str) -> str:
    """``text`` as one line of bounded length, whatever a file had in it: nothing that could steer a terminal."""
    if len(text) > _MOST_CHARACTERS:
        text = text[: _MOST_CHARACTERS - 3] + "..."
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _count(values: Sized, noun: str) -> str:
    return f"{len(values)} {noun}" + ("s" if len(values) != 1 else "")
