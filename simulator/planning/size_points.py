"""The sizes that were looked at beside the one recommended: the trade-off curve, and how near the cliff is."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.planning.sizing import Effort, Sampler
from simulator.planning.statistics import Estimate
from simulator.planning.target import Goal, Target
from simulator.planning.trial import Observation
from simulator.scenario import Scenario

#: a pool this much smaller shows how near the cliff is
_CLIFF_SHRINK = 0.95
#: by how much the p99 of the first token may grow there before a size counts as near the cliff
NEAR_CLIFF_RATIO = 2.0
#: sizes of the trade-off curve, as shares of the answer
_CURVE_SHARES = (0.5, 0.75, 0.9, 1.1, 1.25)
#: a size this near to one of them does as well
_NEAR_SHARE = 0.05
#: preemptions per request from which a run is thrash: latencies are then no prediction
_THRASH_PREEMPTIONS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePoint:
    """One size tried. Rates are per arrived request; ``ttft_p99_s`` is the mean over replications.

    ``targets`` are the figures of the goal's targets. ``thrash``: the times there are no prediction.
    """

    max_pages: int
    replications: int
    oom_rate: Estimate
    preemption_rate: float
    targets: tuple[Estimate, ...]
    ttft_p99_s: float
    thrash: bool


@dataclass(frozen=True, slots=True)
class Search:
    """What a search works with."""

    scenario: Scenario
    index: int
    goal: Goal
    confidence: float
    effort: Effort
    search: Sampler
    unseen: Sampler
    limit_pages: int


def look_around(task: Search, pages: int) -> None:
    """Run what the curve needs beside what the search has run near the same sizes."""
    for share in _CURVE_SHARES:
        wanted = max(1, int(pages * share))
        if not any(abs(tried - wanted) <= _NEAR_SHARE * wanted for tried, row in task.search.made.items() if row):
            task.search.at(wanted, task.effort.first)


def cliff_ratio(task: Search, pages: int) -> float | None:
    """The p99 of TTFT with 5 % fewer pages over that with ``pages``; ``None`` where one is not to be had."""
    smaller = max(1, int(pages * _CLIFF_SHRINK))
    here = task.unseen.at(pages, task.effort.first)
    there = task.unseen.at(smaller, task.effort.first)
    before, after = (_mean_ttft_p99(row) for row in (here, there))
    return after / before if before > 0 and after > 0 else None


def curve(task: Search, recommended: SizePoint | None) -> tuple[SizePoint, ...]:
    """All sizes that were looked at."""
    chosen = [] if recommended is None else [recommended]
    tried = [point(task, task.search, pages) for pages, row in task.search.made.items() if row]
    others = [one for one in tried if one.max_pages not in {one.max_pages for one in chosen}]
    return tuple(sorted([*chosen, *others], key=lambda one: one.max_pages))


def point(task: Search, sampler: Sampler, pages: int) -> SizePoint:
    """What the observations made so far say about one size."""
    row = sampler.at(pages, max(len(sampler.made.get(pages, ())), 1))
    oom = Target("oom", 1.0)
    shared_out = 1 - (1 - task.confidence) / task.effort.looks
    return SizePoint(
        max_pages=pages,
        replications=len(row),
        oom_rate=oom.estimate(row, shared_out, task.search.clump(oom, pages)),
        preemption_rate=sum(one.preemptions for one in row) / max(1, sum(one.arrived for one in row)),
        targets=task.goal.estimates(row, shared_out, task.search.clumps(task.goal, pages)),
        ttft_p99_s=_mean_ttft_p99(row),
        thrash=_thrashes(row),
    )


def _thrashes(row: Sequence[Observation]) -> bool:
    preempted = sum(one.preemptions for one in row)
    return any(one.thrashing for one in row) or preempted > _THRASH_PREEMPTIONS * sum(one.arrived for one in row)


def _mean_ttft_p99(row: Sequence[Observation]) -> float:
    return sum(one.latency["ttft_p99"] for one in row) / len(row)
