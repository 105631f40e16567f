"""The smallest pool that meets its targets with confidence.

First a search (``bracket``) from the demand curve's guess, each size judged on the same few replications (common random
numbers), so that sizes differ by their pages and not by their luck. A size is good if it would be shown to be, should
all replications to come be like those seen.

What a search finds is the best of several looks at one sample, hence too good; so the answer is verified on
replications that the search has not seen, and enlarged until the upper end of the target's interval is below the limit
there. Replications are doubled until that is so or cannot become so. The interval reported is that of the
verification, with ``1 - confidence`` shared out among all its looks (Bonferroni).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.planning.bracket import crossing
from simulator.planning.statistics import Estimate, design_effect
from simulator.planning.target import Goal, Target
from simulator.planning.tasks import Runner, extend
from simulator.planning.trial import Observation, Trial, observe
from simulator.scenario import Scenario

#: number of the first replication of the verification; the search's are below
UNSEEN = 1_000_000
#: for each target, how many losses come together; see ``statistics.share``
Clumps = Sequence[float | None] | None
#: losses that a size must show before its clumps are believed
_TELLING_COUNT = 10
#: smaller pools that are looked at to see them; the curve shows the same
_CLUMP_SHARES = (0.75, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How hard to look: replications of the search and of the first and last look of the verification.

    Sizes are told apart to ``step_ratio`` of themselves, at least one page.
    """

    first: int = 4
    most: int = 64
    step_ratio: float = 0.02

    @property
    def looks(self) -> int:
        """How many times one size may be looked at."""
        return (self.most // self.first).bit_length()

    def step_pages(self, pages: int) -> int:
        """The distance at which two sizes count as the same."""
        return max(1, int(pages * self.step_ratio))


@dataclass(slots=True)
class Sampler:
    """Observations of one allocator by pool size, made when asked for and kept.

    ``offset`` is the number of the first replication.
    """

    scenario: Scenario
    index: int
    runner: Runner
    warmup_s: float
    offset: int = 0
    made: dict[int, list[Observation]] = field(default_factory=dict)

    def at(self, pages: int, replications: int) -> list[Observation]:
        """The first ``replications`` observations with a pool of ``pages``."""
        row = self.made.setdefault(pages, [])
        numbers = range(self.offset + len(row), self.offset + replications)
        trials = [Trial(self.scenario, self.index, number, pages, self.warmup_s) for number in numbers]
        extend(row, self.runner, observe, trials)
        return row[:replications]

    def thrashed(self, pages: int) -> bool:
        """Whether any run with so many pages or more thrashed or stood still."""
        return any(one.thrashing for tried, row in self.made.items() if tried >= pages for one in row)

    def clumps(self, goal: Goal, pages: int) -> tuple[float | None, ...]:
        """``clump`` of each target."""
        return tuple(self.clump(target, pages) for target in goal.targets)

    def clump(self, target: Target, pages: int) -> float | None:
        """Losses that come together, judged by the next smaller pool that shows enough of them.

        A smaller pool is full for longer, so its clumps are no smaller; ``None`` when there is none to judge by.
        """
        if not target.is_share:
            return None
        for smaller in sorted((one for one in self.made if one <= pages), reverse=True):
            counted = [target.count(one) for one in self.made[smaller]]
            if len(counted) > 1 and sum(counted) >= _TELLING_COUNT:
                return design_effect(counted, [one.arrived for one in self.made[smaller]])
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Whether a size passed, on how many replications, and the figure of each target there."""

    pages: int
    passed: bool
    replications: int
    estimates: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The answer of a search. ``below`` is the largest size tried that did not pass, 0 for none."""

    judgement: Judgement
    below: int
    search: Sampler
    unseen: Sampler


def judge(
    sampler: Sampler,
    goal: Goal,
    pages: int,
    effort: Effort,
    *,
    confidence: float,
    clumps: Clumps = None,
    least: int = 0,
) -> Judgement:
    """Look at one size until the answer is safe, or as often as allowed; what cannot be shown has not passed.

    No size passes on fewer than ``least`` replications.
    """
    replications = effort.first
    while True:
        observed = sampler.at(pages, replications)
        passed = replications >= least and goal.holds(observed, confidence, clumps)
        if passed or replications >= effort.most or not hopeful(observed, goal, effort, confidence, clumps):
            estimates = goal.estimates(observed, confidence, clumps)
            return Judgement(pages=pages, passed=passed, replications=replications, estimates=estimates)
        replications = min(2 * replications, effort.most)


def hopeful(observed: list[Observation], goal: Goal, effort: Effort, confidence: float, clumps: Clumps = None) -> bool:
    """Whether the last look would pass if the replications to come were like those seen."""
    return goal.holds(extended(observed, effort), confidence, clumps)


def extended(observed: list[Observation], effort: Effort) -> list[Observation]:
    """The replications of the last look, if those to come were like those seen."""
    return observed * (effort.most // len(observed))


def smallest(
    search: Sampler, unseen: Sampler, goal: Goal, *, guess: int, limit_pages: int, effort: Effort, confidence: float
) -> Found | None:
    """The smallest size that passes; ``None`` when not even ``limit_pages`` does.

    ``guess`` is where to begin.
    """

    def excess(pages: int) -> float:
        observed = extended(search.at(pages, effort.first), effort)
        return goal.excess(observed, confidence, search.clumps(goal, pages))

    bracket = crossing(excess, guess=guess, most=limit_pages, step=effort.step_pages)
    if bracket is None:
        return None
    low, high = bracket
    _show_clumps(search, goal, high, effort)
    return _verified(search, unseen, goal, low, high, limit_pages=limit_pages, effort=effort, confidence=confidence)


def _show_clumps(search: Sampler, goal: Goal, pages: int, effort: Effort) -> None:
    """Look at smaller pools until losses are seen to come together or apart, so that ``pages`` is judged by it.

    Without, a size that loses nobody would pass as if losses were independent, and fail by what is seen later.
    """
    for share in _CLUMP_SHARES:
        if all(search.clump(target, pages) is not None for target in goal.targets if target.is_share):
            return
        search.at(max(1, int(pages * share)), effort.first)


def _verified(
    search: Sampler,
    unseen: Sampler,
    goal: Goal,
    low: int,
    high: int,
    *,
    limit_pages: int,
    effort: Effort,
    confidence: float,
) -> Found | None:
    """The first size from ``high`` upwards that passes on unseen replications.

    Where pools not much smaller were seen to stand still, it takes all replications: a standstill is so rare near its
    end, and so bad, that a few runs without one show little.
    """
    shared_out = 1 - (1 - confidence) / effort.looks
    stride = effort.step_pages(high)
    while True:
        clumps = search.clumps(goal, high)
        least = effort.most if search.thrashed(high // 2) else 0
        judgement = judge(unseen, goal, high, effort, confidence=shared_out, clumps=clumps, least=least)
        if judgement.passed:
            return Found(judgement=judgement, below=low, search=search, unseen=unseen)
        if high >= limit_pages:
            return None
        low, high, stride = high, min(limit_pages, high + stride), stride + stride // 2 + 1
