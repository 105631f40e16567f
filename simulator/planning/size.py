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
from simulator.planning.pool_interval import PoolInterval, Uncertain, check_pages, uncertain
from simulator.planning.rare_targets import is_rare
from simulator.planning.sensitivity import Effect, sensitivity
from simulator.planning.size_points import Search, SizePoint, cliff_ratio, curve, look_around, point
from simulator.planning.sizing import UNSEEN, Effort, Found, Sampler, judge, smallest
from simulator.planning.statistics import Estimate
from simulator.planning.target import Goal, Target
from simulator.planning.tasks import Runner, extend
from simulator.planning.trial import Trial
from simulator.scenario import Scenario
from simulator.traffic.requests import Requests


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeAnswer:
    """Everything ``size`` found out. ``recommended`` is ``None`` when no pool meets the goal.

    ``smaller`` is the largest size tried that did not meet it; ``bounds`` has an entry for each target, set for rates
    too rare to count. ``uncertain`` is set when the pool is an interval: then its low end has to be enough.
    ``cliff_ratio`` is the p99 of TTFT with 5 % fewer pages over that of the recommended size. ``interrupted``: only
    what was found out until Ctrl-C is known.
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
    interval: PoolInterval | None
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
        return self.hbm_limit_max_pages if self.interval is None else self.interval.pages(self.page_bytes)[0]

    def safety_factor(self, max_pages: int) -> float:
        """``max_pages * page_size / (max_batch * avg_seq_len)``."""
        return max_pages * self.page_tokens / (self.scenario.engine.max_num_seqs * self.mean_tokens)


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
    demands, interrupted = _demands(scenario, index, effort, runner)
    if interval is not None:
        check_pages(interval, demands[0].page_bytes)
    warmup_s = max(one.warmup_s for one in demands)
    guess = max(_guess(demands, target) for target in goal.targets)
    hbm_limit, requests = hbm_limit_pages(scenario, index), scenario.requests()
    task = Search(
        scenario,
        index,
        goal,
        confidence,
        effort,
        Sampler(scenario, index, runner, warmup_s),
        Sampler(scenario, index, runner, warmup_s, UNSEEN),
        max(hbm_limit, 4 * max(one.peak_pages for one in demands)),
    )
    first, known = demands[0], _Known(bounds=(None,) * len(goal.targets), interrupted=interrupted)
    if not interrupted:
        _find_out(known, task, guess, len(requests), first.page_bytes, interval, with_sensitivity=with_sensitivity)
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
        recommended=known.recommended,
        smaller=known.found.below if known.found else task.limit_pages,
        bounds=known.bounds,
        cliff_ratio=known.cliff_ratio,
        curve=known.curve or curve(task, known.recommended),
        ways=_ways(task, known.recommended, hbm_limit),
        warmup_s=warmup_s,
        interval=interval,
        uncertain=known.uncertain,
        interrupted=known.interrupted,
        effects=known.effects,
    )


def _demands(scenario: Scenario, index: int, effort: Effort, runner: Runner) -> tuple[list[Demand], bool]:
    """The demand in each replication of the search, and whether Ctrl-C came; it goes on where nothing is known."""
    demands: list[Demand] = []
    try:
        extend(demands, runner, demand, [Trial(scenario, index, number) for number in range(effort.first)])
    except KeyboardInterrupt:
        if not demands:
            raise
        return demands, True
    return demands, False


@dataclass(slots=True)
class _Known:
    """What is known so far, filled in stage by stage: Ctrl-C takes only the stage under way and those after it."""

    bounds: tuple[Estimate | None, ...]
    interrupted: bool
    found: Found | None = None
    recommended: SizePoint | None = None
    curve: tuple[SizePoint, ...] = ()
    cliff_ratio: float | None = None
    uncertain: Uncertain | None = None
    effects: tuple[Effect, ...] = ()


def _find_out(
    known: _Known,
    task: Search,
    guess: int,
    requests: int,
    page_bytes: int,
    interval: PoolInterval | None,
    *,
    with_sensitivity: bool,
) -> None:
    """The search, a look around its answer, what an uncertain pool means, and what the answer depends on."""
    try:
        known.found, known.bounds = _answered(task, guess, requests)
        pages = known.found.judgement.pages if known.found else None
        if pages is not None:
            known.recommended = point(task, task.unseen, pages)
            look_around(task, pages)
            known.cliff_ratio = cliff_ratio(task, pages)
        known.curve = curve(task, known.recommended)  # without the sizes of the interval
        if interval is not None:
            known.uncertain = _over(task, interval, page_bytes, pages)
        if with_sensitivity:
            known.effects = _effects(task, known.recommended)
    except KeyboardInterrupt:
        known.interrupted = True


def _ways(task: Search, found: SizePoint | None, hbm_limit: int) -> tuple[Way, ...]:
    if found is None or found.max_pages <= hbm_limit:
        return ()
    return ways_to_hold(task.scenario, task.index, found.max_pages)


def _effects(task: Search, found: SizePoint | None) -> tuple[Effect, ...]:
    """What a tenth of each assumption does; nothing where the demand curve does not tell the size."""
    if found is None or found.thrash:
        return ()
    share = max(map(_time_share, task.goal.targets))
    return sensitivity(task.scenario, task.index, time_share=share, replications=1, runner=task.search.runner)


def _over(task: Search, interval: PoolInterval, page_bytes: int, needed_pages: int | None) -> Uncertain:
    return uncertain(
        task.search,
        task.goal,
        interval,
        page_bytes=page_bytes,
        needed_pages=needed_pages,
        replications=min(2 * task.effort.first, task.effort.most),
        confidence=task.confidence,
    )


def _answered(task: Search, guess: int, requests: int) -> tuple[Found | None, tuple[Estimate | None, ...]]:
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


def _meets(task: Search, goal: Goal, pages: int) -> bool:
    clumps = task.search.clumps(goal, pages)
    shared_out = 1 - (1 - task.confidence) / task.effort.looks
    return judge(task.unseen, goal, pages, task.effort, confidence=shared_out, clumps=clumps).passed


def _found(task: Search, goal: Goal, guess: int) -> Found | None:
    return smallest(
        task.search,
        task.unseen,
        goal,
        guess=guess,
        limit_pages=task.limit_pages,
        effort=task.effort,
        confidence=task.confidence,
    )


def _extrapolated(task: Search, target: Target, guess: int, requests: int) -> tuple[Found | None, Estimate | None]:
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
