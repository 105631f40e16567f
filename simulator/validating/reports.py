"""Every public report with numbers that was looked at, and what ``simulate validate`` makes of it.

The lists are data (``presets/validation/*.yaml``): a row names the checks that cover it, or says why there is none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One report, or one case of an engine's test suite. ``checks`` are ids, a ``*`` at the end stands for all that
    begin so; ``tests`` names of this project's tests; ``not_checked`` says what is left out and why."""

    row: str
    text: str
    grade: str = ""
    checks: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    not_checked: str = ""

    def covered_by(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Those of ``ids`` that the row names, in their order."""
        return tuple(id_ for id_ in ids if any(_names(pattern, id_) for pattern in self.checks))


@dataclass(frozen=True, slots=True)
class NotChecked:
    """A published figure that no check compares with, and the reason."""

    what: str
    why: str


def _names(pattern: str, id_: str) -> bool:
    return id_.startswith(pattern[:-1]) if pattern.endswith("*") else id_ == pattern


def public_reports() -> tuple[Row, ...]:
    """Threads, logs and messages of users and maintainers."""
    return _rows("public_reports", "report")


def engine_tests() -> tuple[Row, ...]:
    """Numeric cases of engines' own test suites."""
    return _rows("engine_tests", "case")


def not_checked() -> tuple[NotChecked, ...]:
    """What is not checked: by name, with the reason."""
    general = [NotChecked(str(entry["what"]), str(entry["why"])) for entry in _entries("not_checked")]
    rows = [NotChecked(row.text, row.not_checked) for row in (*public_reports(), *engine_tests()) if row.not_checked]
    return (*general, *rows)


def unknown_checks(ids: Sequence[str]) -> list[str]:
    """What rows name and ``ids``, those of a whole run, do not have."""
    named = [pattern for row in (*public_reports(), *engine_tests()) for pattern in row.checks]
    return [pattern for pattern in named if not any(_names(pattern, id_) for id_ in ids)]


def as_plain(found: Iterable[NotChecked]) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(one) for one in found]


def _rows(name: str, text_key: str) -> tuple[Row, ...]:
    return tuple(
        Row(
            row=str(entry["row"]),
            text=str(entry[text_key]),
            grade=str(entry.get("grade", "")),
            checks=tuple(entry.get("checks", ())),
            tests=tuple(entry.get("tests", ())),
            not_checked=str(entry.get("not_checked", "")),
        )
        for entry in _entries(name)
    )


@cache
def _entries(name: str) -> list[dict[str, Any]]:
    import yaml

    text = (files("simulator") / "presets" / "validation" / f"{name}.yaml").read_text(encoding="utf-8")
    loaded: list[dict[str, Any]] = yaml.safe_load(text)
    return loaded
