"""``simulate size``: how large the pool must be, what that means for the engine's settings, and how safe it is.

The search is in ``sizing``; here its first bracket comes from the demand curve, and its answer is put beside what the
devices can hold. Sizes beyond that are simulated too: how much is missing is part of the answer. Targets too rare to
count are sized one by one (``rare_targets``); the largest of the sizes has to meet the others as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.planning import rare_targets
from simulator.planning.demand import Demand, demand
from simulator.planning.limits import Way, hbm_limit_pages, ways_to_hold
from simulator.planning.pool_interval import PoolInterval, Uncertain, uncertain
from simulator.planning.rare_targets import is_rare
from simulator.planning.sensitivity import Effect, sensitivity
from simulator.planning.sizing import UNSEEN, Effort, Found, Sampler, judge, smallest
from simulator.planning.statistics import Estimate
from simulator.planning.target import Goal, Target
from simulator.planning.tasks import Runner, in_order
from simulator.planning.trial import Observation, Trial
from simulator.scenario import Scenario
from simulator.traffic.requests import Requests

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeAnswer:
    """Everything ``size`` found out. ``recommended`` is ``None`` when no pool meets the goal.

    ``smaller`` is the largest size tried that did not meet it; ``bounds`` has an entry for each target, set for rates
    too rare to count. ``uncertain`` is set when the pool is an interval: then its low end has to be enough.
    ``cliff_ratio`` is the p99 of TTFT with 5 % fewer pages over that of the recommended size. ``interrupted``: only the
    sizes tried until Ctrl-C are known.
    """

    scenario: Scenario
    index: int
    goal: Goal
    confidence: float
    page_tokens: int
    page_bytes: int
    mean_tokens: float
    page_rounding_ratio: float
    hbm_limit_max_pages: int
    demand_peak_pages: int
    first_guess_pages: int
    recommended: SizePoint | None
    smaller: int
    bounds: tuple[Estimate | None, ...]
    cliff_ratio: float | None
    curve: tuple[SizePoint, ...]
    ways: tuple[Way, ...]
    warmup_s: float
    uncertain: Uncertain | None
    effects: tuple[Effect, ...]
    interrupted: bool = False

    @property
    def feasible(self) -> bool:
        """Whether a size was found that the devices can hold, even with the smallest pool of the interval."""
        return self.recommended is not None and self.recommended.max_pages <= self.limit_pages

    @property
    def limit_pages(self) -> int:
        """Pages there are for sure: the budget's, or those of the interval's low end."""
        return self.hbm_limit_max_pages if self.uncertain is None else self.uncertain.low.max_pages

    def safety_factor(self, max_pages: int) -> float:
        """``max_pages * page_size / (max_batch * avg_seq_len)``."""
        return max_pages * self.page_tokens / (self.scenario.engine.max_num_seqs * self.mean_tokens)


@dataclass(frozen=True, slots=True)
class _Search:
    """What a search works with."""

    scenario: Scenario
    index: int
    goal: Goal
    confidence: float
    effort: Effort
    search: Sampler
    unseen: Sampler
    limit_pages: int


def size(
    scenario: Scenario,
    index: int,
    goal: Goal,
    *,
    confidence: float,
    effort: Effort,
    runner: Runner,
    interval: PoolInterval | None = None,
    with_sensitivity: bool = False,
) -> SizeAnswer:
    """Find the smallest pool of allocator ``index`` that meets ``goal``. Raises ``InputError``.

    ``with_sensitivity``: also which assumptions it depends on, in some twenty runs more.
    """
    demands = in_order(runner, demand, [Trial(scenario, index, number) for number in range(effort.first)])
    warmup_s = max(one.warmup_s for one in demands)
    guess = max(_guess(demands, target) for target in goal.targets)
    hbm_limit = hbm_limit_pages(scenario, index)
    task = _Search(
        scenario,
        index,
        goal,
        confidence,
        effort,
        Sampler(scenario, index, runner, warmup_s),
        Sampler(scenario, index, runner, warmup_s, UNSEEN),
        max(hbm_limit, 4 * max(one.peak_pages for one in demands)),
    )
    requests = scenario.requests()
    found, bounds, interrupted = _until_interrupted(task, guess, len(requests))
    pages = found.judgement.pages if found else None
    first = demands[0]
    recommended = None if pages is None else _point(task, task.unseen, pages)
    return SizeAnswer(
        scenario=scenario,
        index=index,
        goal=goal,
        confidence=confidence,
        page_tokens=first.page_tokens,
        page_bytes=first.page_bytes,
        mean_tokens=float((requests.prompt_tokens + requests.output_tokens).mean()),
        page_rounding_ratio=_rounding(requests, first.page_tokens),
        hbm_limit_max_pages=hbm_limit,
        demand_peak_pages=max(one.peak_pages for one in demands),
        first_guess_pages=guess,
        recommended=recommended,
        smaller=found.below if found else task.limit_pages,
        bounds=bounds,
        cliff_ratio=None if pages is None or interrupted else _cliff_ratio(task, pages),
        curve=_curve(task, recommended),
        ways=() if pages is None or pages <= hbm_limit else ways_to_hold(scenario, index, pages),
        warmup_s=warmup_s,
        uncertain=None if interval is None or interrupted else _over(task, interval, first.page_bytes, pages),
        interrupted=interrupted,
        effects=_effects(task, recommended) if with_sensitivity and not interrupted else (),
    )


def _effects(task: _Search, found: SizePoint | None) -> tuple[Effect, ...]:
    """What a tenth of each assumption does; nothing where the demand curve does not tell the size."""
    if found is None or found.thrash:
        return ()
    share = max(map(_time_share, task.goal.targets))
    return sensitivity(task.scenario, task.index, time_share=share, replications=1, runner=task.search.runner)


def _until_interrupted(
    task: _Search, guess: int, requests: int
) -> tuple[Found | None, tuple[Estimate | None, ...], bool]:
    """The search and a look around its answer; whether Ctrl-C came before both were done."""
    found: Found | None = None
    bounds: tuple[Estimate | None, ...] = (None,) * len(task.goal.targets)
    try:
        found, bounds = _answered(task, guess, requests)
        if found is not None:
            _look_around(task, found.judgement.pages)
    except KeyboardInterrupt:
        return found, bounds, True
    return found, bounds, False


def _look_around(task: _Search, pages: int) -> None:
    """Run what the curve and the cliff need beside what the search has run near the same sizes."""
    for share in _CURVE_SHARES:
        wanted = max(1, int(pages * share))
        if not any(abs(tried - wanted) <= _NEAR_SHARE * wanted for tried, row in task.search.made.items() if row):
            task.search.at(wanted, task.effort.first)
    _cliff_ratio(task, pages)


def _over(task: _Search, interval: PoolInterval, page_bytes: int, needed_pages: int | None) -> Uncertain:
    return uncertain(
        task.search,
        task.goal,
        interval,
        page_bytes=page_bytes,
        needed_pages=needed_pages,
        replications=min(2 * task.effort.first, task.effort.most),
        confidence=task.confidence,
    )


def _answered(task: _Search, guess: int, requests: int) -> tuple[Found | None, tuple[Estimate | None, ...]]:
    """The size that meets every target, and the bounds of those that can only be extrapolated."""
    targets, nothing = task.goal.targets, (None,) * len(task.goal.targets)
    rare = [one for one in targets if one.is_share and is_rare(one.limit, requests, task.effort, task.confidence)]
    if not rare:
        found = _found(task, task.goal, guess)
        if found is not None or len(targets) > 1 or not targets[0].is_share:
            return found, nothing
        rare = list(targets)
    plain = Goal(tuple(one for one in targets if one not in rare))
    sizes = {one: _extrapolated(task, one, guess, requests) for one in rare}
    candidates = [found for found, _ in sizes.values()]
    if plain.targets:
        candidates.append(_found(task, plain, guess))
    bounds = tuple(sizes[one][1] if one in sizes else None for one in targets)
    present = [found for found in candidates if found is not None]
    if len(present) < len(candidates):
        return None, nothing
    largest = max(present, key=lambda found: found.judgement.pages)
    if plain.targets and not _meets(task, plain, largest.judgement.pages):
        return None, nothing
    return largest, bounds


def _meets(task: _Search, goal: Goal, pages: int) -> bool:
    clumps = task.search.clumps(goal, pages)
    shared_out = 1 - (1 - task.confidence) / task.effort.looks
    return judge(task.unseen, goal, pages, task.effort, confidence=shared_out, clumps=clumps).passed


def _found(task: _Search, goal: Goal, guess: int) -> Found | None:
    return smallest(
        task.search,
        task.unseen,
        goal,
        guess=guess,
        limit_pages=task.limit_pages,
        effort=task.effort,
        confidence=task.confidence,
    )


def _extrapolated(task: _Search, target: Target, guess: int, requests: int) -> tuple[Found | None, Estimate | None]:
    """The size from two at which losses can be counted; it must not lose more than the target when tried."""
    sizes = []
    for rate in rare_targets.countable_rates(requests, task.effort):
        found = _found(task, Goal((Target(target.name, rate),)), guess)
        if found is None:
            return None, None
        sizes.append(found.judgement.pages)
        guess = found.judgement.pages
    line = rare_targets.line(task.search, (sizes[0], sizes[1]), target, effort=task.effort, confidence=task.confidence)
    if line is None:
        return None, None
    tried = judge(task.unseen, Goal((target,)), line.pages, task.effort, confidence=task.confidence)
    seen = tried.estimates[0]
    if seen.low >= target.limit or any(one.thrashing for one in task.unseen.made[line.pages]):
        return None, None
    bound = Estimate(seen.value, 0.0, max(line.bound(line.pages), seen.value))
    return Found(judgement=tried, below=sizes[1], search=task.search, unseen=task.unseen), bound


def _guess(demands: Sequence[Demand], target: Target) -> int:
    """The pages exceeded during the target's share of the time; for times, what is exceeded during a tenth."""
    return max(1, *(one.exceeded(_time_share(target)) for one in demands))


def _time_share(target: Target) -> float:
    return target.limit if target.is_share else 0.1


def _rounding(requests: Requests, page_tokens: int) -> float:
    """How many more tokens whole pages hold than the requests have at their end, as a share."""
    tokens = requests.prompt_tokens + requests.output_tokens
    pages = -(-tokens // page_tokens)
    return float((pages * page_tokens).sum() / tokens.sum()) - 1.0


def _cliff_ratio(task: _Search, pages: int) -> float | None:
    smaller = max(1, int(pages * _CLIFF_SHRINK))
    here = task.unseen.at(pages, task.effort.first)
    there = task.unseen.at(smaller, task.effort.first)
    before, after = (_mean_ttft_p99(row) for row in (here, there))
    return after / before if before > 0 and after > 0 else None


def _curve(task: _Search, recommended: SizePoint | None) -> tuple[SizePoint, ...]:
    """All sizes that were looked at."""
    chosen = [] if recommended is None else [recommended]
    tried = [_point(task, task.search, pages) for pages, row in task.search.made.items() if row]
    others = [one for one in tried if one.max_pages not in {one.max_pages for one in chosen}]
    return tuple(sorted([*chosen, *others], key=lambda one: one.max_pages))


def _point(task: _Search, sampler: Sampler, pages: int) -> SizePoint:
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
