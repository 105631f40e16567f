"""One check: what the world says, what the simulator says, and how far apart the two may be.

A ``Source`` names where expected values come from; its methods make checks of the usual kinds. A value that does not
agree makes a failed check, never an exception.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

#: ``exact``: equal. ``rounding``: equal within the rounding of a log line. ``decoded``: the public figures were decoded
#: into integers first. ``ordering``: direction or inequality. ``statistical``: within sampling error. ``measured``:
#: within the stated distance from a measurement. ``approximate``: theory that is an approximation itself.
Grade = Literal["exact", "rounding", "decoded", "ordering", "statistical", "measured", "approximate"]
Value = bool | int | float | str
#: a mean may be this many of its standard errors away from what theory says
STANDARD_ERRORS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The outcome of one check. ``note`` says what a difference means; ``curve`` and ``at`` place it in a picture."""

    id: str
    family: str
    what: str
    source: str
    expected: Value
    tolerance: str
    grade: Grade
    got: Value
    passed: bool
    note: str = ""
    curve: str = ""
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where expected values come from; ``family`` and ``prefix`` begin the ids of its checks."""

    family: str
    prefix: str
    text: str

    def exact(self, name: str, what: str, *, expected: Value, got: Value, grade: Grade = "exact", **more: Any) -> Check:
        """``got`` equals ``expected``."""
        return self._check(name, what, expected, "none", grade, got, got == expected, more)

    def near(
        self,
        name: str,
        what: str,
        *,
        expected: float,
        got: float,
        rel: float | None = None,
        within: float | None = None,
        grade: Grade = "measured",
        **more: Any,
    ) -> Check:
        """``got`` is at most ``rel`` (a ratio of ``expected``) or ``within`` away."""
        margin = within if within is not None else (rel or 0.0) * abs(expected)
        tolerance = f"± {spelled(within)}" if within is not None else f"± {100 * (rel or 0.0):g} %"
        # A margin of half of a last digit must not fail by the last bit of a float.
        passed = abs(got - expected) <= margin * (1 + 1e-9) + 1e-12
        return self._check(name, what, expected, tolerance, grade, got, passed, more)

    def between(
        self, name: str, what: str, *, low: float, high: float, got: float, grade: Grade = "measured", **more: Any
    ) -> Check:
        """``got`` lies within closed bounds."""
        passed = low <= got <= high
        return self._check(name, what, f"{spelled(low)} to {spelled(high)}", "none", grade, got, passed, more)

    def holds(
        self, name: str, what: str, got: bool, *, seen: Value = "", grade: Grade = "ordering", **more: Any
    ) -> Check:
        """A statement is true; ``seen`` are the figures it is about."""
        shown = seen if seen != "" else ("yes" if got else "no")
        return self._check(name, what, "yes", "none", grade, shown, bool(got), more)

    def mean(
        self,
        name: str,
        what: str,
        *,
        expected: float,
        samples: npt.NDArray[Any],
        slack: float = 0.0,
        rel: float = 0.0,
        batches: int = 25,
        **more: Any,
    ) -> Check:
        """The mean of ``samples`` (in the order of time) is ``expected``, up to four standard errors and a slack.

        Standard errors come from ``batches`` batch means, as successive samples are not independent.
        """
        means = samples[: len(samples) // batches * batches].reshape(batches, -1).mean(axis=1)
        error = float(means.std(ddof=1)) / math.sqrt(batches)
        margin = STANDARD_ERRORS * error + max(slack, rel * abs(expected))
        got = float(samples.mean())
        tolerance = f"± {spelled(margin)}"
        return self._check(name, what, expected, tolerance, "statistical", got, abs(got - expected) <= margin, more)

    def _check(
        self,
        name: str,
        what: str,
        expected: Value,
        tolerance: str,
        grade: Grade,
        got: Value,
        passed: bool,
        more: dict[str, Any],
    ) -> Check:
        return Check(
            id=f"{self.family}.{self.prefix}.{name}",
            family=self.family,
            what=what,
            source=self.text,
            expected=_plain(expected),
            tolerance=tolerance,
            grade=grade,
            got=_plain(got),
            passed=bool(passed),
            **more,
        )


def spelled(value: Value | None) -> str:
    """A value for a table: thousands apart, six significant digits, yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e6 else f"{value:.6g}"
    return "" if value is None else value


def non_increasing(values: Sequence[float]) -> bool:
    """No value is larger than the one before it."""
    return all(after <= before for before, after in pairwise(values))


def _plain(value: Any) -> Value:
    """NumPy's numbers as Python's, for JSON."""
    found: Value = value.item() if isinstance(value, np.generic) else value
    return found
