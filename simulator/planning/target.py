"""What a pool has to achieve: ``oom=0.001``, ``preemption=0.01``, ``ttft_p95=2s``."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.errors import InputError, Problem, nearest_name, printable
from simulator.planning.statistics import Estimate, mean, share
from simulator.planning.trial import LATENCIES, Observation
from simulator.units import format_seconds, parse_seconds

#: shares of the arrived requests, and what they are called
PROPORTIONS = {
    "oom": "OOM rate",
    "timeout": "share of requests timed out",
    "wait": "share of requests that waited for memory",
}
#: counts for each arrived request, which may exceed 1
RATES = {"preemption": "preemptions per request"}
SHARES = {**PROPORTIONS, **RATES}
NAMES = (*SHARES, *LATENCIES)


@dataclass(frozen=True, slots=True)
class Target:
    """The figure ``name`` has to stay below ``limit``.

    ``oom``, ``timeout`` and ``wait`` (an allocation failed for the request, at its admission or later) are shares of
    the arrived requests, ``preemption`` is preemptions per arrived request, the others are seconds, averaged over
    replications.
    """

    name: str
    limit: float

    @property
    def is_share(self) -> bool:
        """Whether the figure is a count per request."""
        return self.name in SHARES

    def estimate(self, observed: Sequence[Observation], confidence: float, clump: float | None = None) -> Estimate:
        """The figure over replications; see ``statistics.share`` for ``clump``."""
        if not self.is_share:
            return mean([one.latency[self.name] for one in observed], confidence=confidence)
        counted = [self.count(one) for one in observed]
        return share(counted, [one.arrived for one in observed], confidence=confidence, clump=clump)

    def count(self, observed: Observation) -> int:
        """What is counted in one run, for a target that is a share."""
        return {
            "oom": observed.lost,
            "preemption": observed.preemptions,
            "timeout": observed.timed_out,
            "wait": observed.waited,
        }[self.name]

    def __str__(self) -> str:
        if self.is_share:
            return f"{SHARES[self.name]} below {self.limit:g}"
        return f"{self.name} below {format_seconds(self.limit)}"


@dataclass(frozen=True, slots=True)
class Goal:
    """Targets that have to hold together.

    Each is shown with the whole confidence: a size passes only if all are shown, and a wrong answer needs one that is
    not true to be shown, which has the chance of that one alone (intersection-union test, Berger 1982).
    """

    targets: tuple[Target, ...]

    def estimates(
        self, observed: Sequence[Observation], confidence: float, clumps: Sequence[float | None] | None = None
    ) -> tuple[Estimate, ...]:
        """The figure of each target; ``clumps`` has one entry a target, see ``statistics.share``."""
        known = [None] * len(self.targets) if clumps is None else clumps
        pairs = zip(self.targets, known, strict=True)
        return tuple(target.estimate(observed, confidence, clump) for target, clump in pairs)

    def holds(
        self, observed: Sequence[Observation], confidence: float, clumps: Sequence[float | None] | None = None
    ) -> bool:
        """Whether every upper end is below its limit, and no run thrashed or stood still."""
        if any(one.thrashing for one in observed):
            return False
        estimates = self.estimates(observed, confidence, clumps)
        return all(one.high < target.limit for one, target in zip(estimates, self.targets, strict=True))

    def excess(
        self, observed: Sequence[Observation], confidence: float, clumps: Sequence[float | None] | None = None
    ) -> float:
        """How far the upper ends are from their limits: the largest logarithm of their ratio, below 0 where it holds.

        Endless where a run thrashed or a figure is not known.
        """
        if any(one.thrashing for one in observed):
            return math.inf
        pairs = zip(self.estimates(observed, confidence, clumps), self.targets, strict=True)
        ratios = [one.high / target.limit for one, target in pairs]
        if not all(math.isfinite(ratio) for ratio in ratios):
            return math.inf
        worst = max(ratios)
        return math.log(worst) if worst > 0 else -math.inf

    def __str__(self) -> str:
        return " and ".join(map(str, self.targets))


def parse_goal(texts: Sequence[str]) -> Goal:
    """The targets of ``--target`` and ``--slo``, each once. Raises ``InputError``."""
    targets = tuple(parse_target(text) for text in texts)
    names = [target.name for target in targets]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError([Problem(option="--target", message=f"{twice} has two limits: give one")])
    return Goal(targets)


def parse_target(text: str) -> Target:
    """The target of ``--target name=limit``. Raises ``InputError``."""
    option = f"--target {printable(text)}"
    name, equals, spelled = text.partition("=")
    name = name.strip().lower().replace("-", "_")
    if name not in NAMES:
        problem = Problem(
            option=option, message=f"{name!r} is no target", nearest=nearest_name(name, NAMES), allowed=NAMES
        )
        raise InputError([problem])
    if not equals:
        raise InputError([Problem(option=option, message="expected name=limit, such as preemption=0.01")])
    try:
        limit = float(spelled) if name in SHARES else parse_seconds(spelled)
    except ValueError as error:
        raise InputError([Problem(option=option, message=str(error))]) from None
    if not 0 < limit <= (1 if name in PROPORTIONS else 1e9):
        raise InputError([Problem(option=option, message=f"{spelled.strip()} is no limit: give a number above 0")])
    return Target(name, limit)
