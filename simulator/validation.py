"""``simulate validate``: the simulator against the world, family by family.

Each family is a package module's ``checks`` (see ``validating``). A family says which of its checks take long; those
run only when asked for. Nothing here decides what is right: sources do, and a check that does not hold stays in the
table with what is known about the difference.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from simulator.errors import InputError, Problem, nearest_name
from simulator.validating.check import Check
from simulator.validating.reports import as_plain, not_checked
from simulator.version import version

#: family to its title and the modules of ``validating`` that check it
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "engines": (
        "Engines' own numbers",
        ("engine_lines", "engine_budgets", "engine_refusals", "engine_cases", "reports_memory"),
    ),
    "paper": ("The PagedAttention paper", ("paper",)),
    "prefix": ("Prefix cache", ("prefix", "agentic", "reports_cache")),
    "theory": ("Theory", ("theory_loss", "theory_queues", "theory_memory")),
    "scheduler": ("Scheduler and block manager, worked cases", ("scheduling", "paging")),
    "hardware": ("Hardware", ("hardware",)),
    "measured": ("Measured occupancy", ("measured",)),
    "pressure": ("Real engines under pressure", ("pressure", "reports_runs")),
}


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of a run, in the order of their families."""

    checks: tuple[Check, ...]
    long: bool

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that do not hold."""
        return tuple(check for check in self.checks if not check.passed)

    def to_dict(self) -> dict[str, Any]:
        """The document of ``simulate validate --format json``."""
        return {
            "schema_version": 1,
            "version": version(),
            "long": self.long,
            "checks": [asdict(check) for check in self.checks],
            "passed": len(self.checks) - len(self.failed),
            "failed": len(self.failed),
            "not_checked": as_plain(not_checked()),
        }


def chosen_families(names: Sequence[str]) -> tuple[str, ...]:
    """The families of ``--family`` options, all for none. Raises ``InputError`` for an unknown one."""
    for name in names:
        if name not in FAMILIES:
            nearest = nearest_name(name, FAMILIES)
            message = f"{name!r} is no family of checks"
            raise InputError([Problem(option="--family", message=message, nearest=nearest, allowed=tuple(FAMILIES))])
    return tuple(name for name in FAMILIES if not names or name in names)


def validate(
    families: Sequence[str] = (), *, long: bool = False, progress: Callable[[str], None] | None = None
) -> Report:
    """Run the checks of ``families`` (all for none); ``progress`` hears the title of each. Raises ``InputError``."""
    found: list[Check] = []
    for family in chosen_families(families):
        if progress is not None:
            progress(FAMILIES[family][0])
        found += family_checks(family, long=long)
    return Report(tuple(found), long)


def family_checks(family: str, *, long: bool = False) -> Iterator[Check]:
    """The checks of one family, one after the other."""
    for name in FAMILIES[family][1]:
        module = import_module(f"simulator.validating.{name}")
        yield from module.checks()
        if long and hasattr(module, "long_checks"):
            yield from module.long_checks()


def notes(family: str) -> tuple[str, ...]:
    """What a reader should know about a family: set-up, what is missing. One paragraph an entry."""
    found: list[str] = []
    for name in FAMILIES[family][1]:
        found += getattr(import_module(f"simulator.validating.{name}"), "NOTES", ())
    return tuple(found)
