"""Which allocator loses fewer requests, and is the difference more than chance?

Replications are paired: in each of them every allocator meets the same requests, so the difference between two
allocators is a figure of each replication, with an interval of its own that is narrower than those of the two rates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulator.planning.statistics import Estimate, mean, share
from simulator.planning.tasks import Runner, until_interrupted
from simulator.planning.trial import Observation, Trial, given_warmup_s, observe
from simulator.planning.verdict import verdict
from simulator.scenario import Scenario

_LATENCIES = ("ttft_p50", "ttft_p95", "ttft_p99", "tpot_mean", "e2e_p95")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One allocator over all replications. ``oom_rates`` has one share a replication; rates are of arrived requests."""

    label: str
    oom_rate: Estimate
    preemption_rate: float
    timed_out_rate: float
    latency: dict[str, Estimate]
    oom_rates: tuple[float, ...]
    arrived: int
    thrashing: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; ends of intervals that a single replication cannot give are ``null``."""
        return {
            "label": self.label,
            "arrived": self.arrived,
            "oom_rate": self.oom_rate.value,
            "oom_rate_ci": self.oom_rate.interval,
            "preemption_rate": self.preemption_rate,
            "timed_out_rate": self.timed_out_rate,
            "latency_s": {name: _measured(one) for name, one in self.latency.items()},
            "oom_rates": list(self.oom_rates),
            "thrashing": self.thrashing,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """OOM rate of ``label`` less that of ``than``, replication by replication."""

    label: str
    than: str
    difference: Estimate

    @property
    def settled(self) -> bool:
        """Whether the interval leaves no doubt which of the two loses less."""
        return self.difference.excludes(0.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "label": self.label,
            "than": self.than,
            "oom_rate_difference": self.difference.value,
            "ci": _finite(self.difference),
            "settled": self.settled,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The answer for one scenario; ``standings`` in the scenario's order, ``differences`` for every pair.

    ``interrupted``: over fewer replications than were asked for.
    """

    standings: tuple[Standing, ...]
    differences: tuple[Difference, ...]
    verdict: str
    interrupted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "allocators": [one.to_dict() for one in self.standings],
            "differences": [one.to_dict() for one in self.differences],
            "verdict": self.verdict,
        }


def compare(
    scenarios: Sequence[Scenario],
    *,
    replications: int,
    runner: Runner,
    confidence: float = 0.95,
    allocators: tuple[str, ...] | None = None,
) -> list[Comparison]:
    """One comparison a scenario; all have the same allocators. Raises ``InputError``.

    After Ctrl-C it is over the replications that every allocator has finished in every scenario; ``KeyboardInterrupt``
    goes on when there is none.
    """
    chosen = [
        (scenario, index, label)
        for scenario in scenarios
        for index, label in enumerate(scenario.labels)
        if allocators is None or label in allocators
    ]
    trials = [
        Trial(scenario, index, replication, warmup_s=given_warmup_s(scenario) or 0.0)
        for replication in range(replications)
        for scenario, index, _ in chosen
    ]
    observed, interrupted = until_interrupted(runner, observe, trials)
    rounds = [range(start, start + len(chosen)) for start in range(0, len(trials), len(chosen))]
    whole = [places for places in rounds if all(place in observed for place in places)]
    if not whole:
        raise KeyboardInterrupt
    width = len(chosen) // len(scenarios)
    found = []
    for first in range(0, len(chosen), width):
        labels = [label for _, _, label in chosen[first : first + width]]
        rows = [[observed[places[first + place]] for places in whole] for place in range(width)]
        found.append(_compared(labels, rows, confidence, interrupted=interrupted))
    return found


def _compared(
    labels: Sequence[str], rows: Sequence[Sequence[Observation]], confidence: float, *, interrupted: bool
) -> Comparison:
    standings = tuple(_standing(label, row, confidence) for label, row in zip(labels, rows, strict=True))
    differences = tuple(
        _difference(better, other, confidence)
        for place, other in enumerate(standings)
        for better in standings[place + 1 :]
    )
    said = verdict([one.to_dict() for one in standings], [one.to_dict() for one in differences])
    return Comparison(standings=standings, differences=differences, verdict=said, interrupted=interrupted)


def _standing(label: str, row: Sequence[Observation], confidence: float) -> Standing:
    arrived = [one.arrived for one in row]
    total = max(1, sum(arrived))
    return Standing(
        label=label,
        oom_rate=share([one.lost for one in row], arrived, confidence=confidence),
        preemption_rate=sum(one.preemptions for one in row) / total,
        timed_out_rate=sum(one.timed_out for one in row) / total,
        latency={name: mean([one.latency[name] for one in row], confidence=confidence) for name in _LATENCIES},
        oom_rates=tuple(one.lost / max(1, one.arrived) for one in row),
        arrived=sum(arrived),
        thrashing=any(one.thrashing for one in row),
    )


def _difference(one: Standing, other: Standing, confidence: float) -> Difference:
    pairs = zip(one.oom_rates, other.oom_rates, strict=True)
    found = mean([mine - theirs for mine, theirs in pairs], confidence=confidence)
    if found.low in (found.high, -math.inf):
        # All replications agree (or there is one): only the two exact intervals say how far chance reaches.
        low = one.oom_rate.low - other.oom_rate.high
        found = Estimate(found.value, low, one.oom_rate.high - other.oom_rate.low)
    return Difference(label=one.label, than=other.label, difference=found)


def _measured(estimate: Estimate) -> dict[str, Any]:
    """``null`` where no request was completed, in one replication at least."""
    return {"mean": estimate.value if math.isfinite(estimate.value) else None, "ci": _finite(estimate)}


def _finite(estimate: Estimate) -> list[float] | None:
    return estimate.interval if math.isfinite(estimate.low) else None
