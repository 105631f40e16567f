"""Checks for people: the answer in words, one row a check, then what is known about each that fails."""

from collections.abc import Sequence

from simulator.showing.outlet import outlet
from simulator.showing.terminal import print_rows
from simulator.validating.check import Check, spelled
from simulator.validating.reports import not_checked


def print_checks(checks: Sequence[Check]) -> None:
    """The table of ``simulate validate``."""
    failed = [check for check in checks if not check.passed]
    print_rows(answer(checks), [_row(check) for check in checks])
    for check in failed:
        text = f"{check.id}: {check.note or 'not understood yet'}"
        outlet().line(text)
    left_out = len(not_checked())
    outlet().line(f"{left_out} published figures are not checked, see docs/validation.md or --format json")


def answer(checks: Sequence[Check]) -> str:
    """How many hold, in one sentence."""
    failed = [check.id for check in checks if not check.passed]
    text = f"{len(checks) - len(failed)} of {len(checks)} checks hold"
    return text + (f"; these do not: {', '.join(failed)}." if failed else ".")


def _row(check: Check) -> dict[str, str]:
    return {
        "check": f"{check.id}: {check.what}",
        "source": check.source,
        "expected": spelled(check.expected),
        "tolerance": check.tolerance,
        "got": spelled(check.got),
        "pass": "yes" if check.passed else "NO",
    }
