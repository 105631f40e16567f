"""The question turned round: how far may one key of the scenario go while the target still holds?

The highest rate that a pool sustains, the largest ``max_num_seqs``, the smallest watermark or safety factor. The values
are those of a range; bisection over them on the same few replications, then verification on unseen ones, as in
``sizing``. The figure is taken to rise or fall along the range; which of the two, its ends tell.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.planning.sizing import UNSEEN, Effort, hopeful
from simulator.planning.statistics import Estimate
from simulator.planning.target import Goal
from simulator.planning.tasks import Runner, extend
from simulator.planning.trial import Observation, Trial, given_warmup_s, observe
from simulator.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedValue:
    """One value of the key, and the figure of each target there."""

    value: Any
    replications: int
    estimates: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """The answer. ``best`` is the last value along the range that holds (``None``: none does).

    ``largest`` says whether larger values are the harder ones; ``whole_range``, that even the hardest holds.
    ``interrupted``: only the values tried until Ctrl-C are known, and none is the answer yet.
    """

    best: TriedValue | None
    largest: bool
    whole_range: bool
    tried: tuple[TriedValue, ...]
    interrupted: bool = False


@dataclass(slots=True)
class _Values:
    """Observations by place in the range."""

    scenarios: Sequence[Scenario]
    index: int
    runner: Runner
    offset: int
    made: dict[int, list[Observation]] = field(default_factory=dict)

    def at(self, place: int, replications: int) -> list[Observation]:
        row = self.made.setdefault(place, [])
        scenario = self.scenarios[place]
        warmup_s = given_warmup_s(scenario) or 0.0
        numbers = range(self.offset + len(row), self.offset + replications)
        trials = [Trial(scenario, self.index, number, warmup_s=warmup_s) for number in numbers]
        extend(row, self.runner, observe, trials)
        return row[:replications]


def solve(
    values: Sequence[Any],
    scenarios: Sequence[Scenario],
    index: int,
    goal: Goal,
    *,
    effort: Effort,
    confidence: float,
    runner: Runner,
) -> Solved:
    """The farthest of ``values`` at which allocator ``index`` keeps ``goal``; one scenario a value.

    Raises ``InputError`` when a scenario cannot run. After Ctrl-C the values tried so far are left.
    """
    search, unseen = (_Values(scenarios, index, runner, offset) for offset in (0, UNSEEN))
    interrupted, best, largest, whole = False, None, True, False
    try:
        best, largest, whole = _answer(search, unseen, goal, effort=effort, confidence=confidence)
    except KeyboardInterrupt:
        interrupted = True
    tried = [_tried(values, place, search, goal, confidence) for place, row in sorted(search.made.items()) if row]
    return Solved(
        best=None if best is None else _tried(values, best, unseen, goal, 1 - (1 - confidence) / effort.looks),
        largest=largest,
        whole_range=whole,
        tried=tuple(tried),
        interrupted=interrupted,
    )


def _answer(
    search: _Values, unseen: _Values, goal: Goal, *, effort: Effort, confidence: float
) -> tuple[int | None, bool, bool]:
    """The farthest place that holds, whether later places are the harder ones, and whether it is the last of them."""

    def holds(place: int) -> bool:
        return hopeful(search.at(place, effort.first), goal, effort, confidence)

    easy, hard = 0, len(search.scenarios) - 1
    largest = holds(easy) or not holds(hard)
    if not largest:
        easy, hard = hard, easy
    whole = holds(hard)
    place = hard if whole else _last_that_holds(holds, easy, hard)
    best = _verified(unseen, goal, place, easy, effort=effort, confidence=confidence)
    return best, largest, whole and best == hard


def _last_that_holds(holds: Callable[[int], bool], easy: int, hard: int) -> int:
    """Places between the two ends; the hard end is known not to hold."""
    while abs(hard - easy) > 1:
        middle = (easy + hard) // 2
        easy, hard = (middle, hard) if holds(middle) else (easy, middle)
    return easy


def _verified(unseen: _Values, goal: Goal, place: int, easy: int, *, effort: Effort, confidence: float) -> int | None:
    """The first place from ``place`` towards the easy end that is shown to hold on unseen replications."""
    shared_out = 1 - (1 - confidence) / effort.looks
    step = -1 if place >= easy else 1
    while True:
        replications = effort.first
        while True:
            row = unseen.at(place, replications)
            if goal.holds(row, shared_out):
                return place
            if replications >= effort.most or not hopeful(row, goal, effort, shared_out):
                break
            replications = min(2 * replications, effort.most)
        if place == easy:
            return None
        place += step


def _tried(values: Sequence[Any], place: int, made: _Values, goal: Goal, confidence: float) -> TriedValue:
    row = made.made[place]
    return TriedValue(value=values[place], replications=len(row), estimates=goal.estimates(row, confidence))
