"""``simulate size``: how large the pool must be, what that means for the engine's settings, and how safe it is.

The search is in ``sizing``; here its first bracket comes from the demand curve, and its answer is put beside what the
devices can hold. Sizes beyond that are simulated too: how much is missing is part of the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.planning import rare_targets
from simulator.planning.demand import Demand, demand
from simulator.planning.limits import Way, hbm_limit_pages, ways_to_hold
from simulator.planning.sizing import UNSEEN, Effort, Found, Sampler, judge, smallest
from simulator.planning.statistics import Estimate
from simulator.planning.target import Target
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
#: preemptions per request from which a run is thrash: latencies are then no prediction
_THRASH_PREEMPTIONS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePoint:
    """One size tried. Rates are per arrived request; ``ttft_p99_s`` is the mean over replications."""

    max_pages: int
    replications: int
    oom_rate: Estimate
    preemption_rate: float
    target: Estimate
    ttft_p99_s: float
    thrash: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeAnswer:
    """Everything ``size`` found out. ``recommended`` is ``None`` when no pool meets the target.

    ``smaller`` is the largest size tried that did not meet it; ``bound`` is set for a rate too rare to count.
    ``cliff_ratio`` is the p99 of TTFT with 5 % fewer pages over that of the recommended size.
    """

    scenario: Scenario
    index: int
    target: Target
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
    bound: Estimate | None
    cliff_ratio: float | None
    curve: tuple[SizePoint, ...]
    ways: tuple[Way, ...]
    warmup_s: float

    @property
    def feasible(self) -> bool:
        """Whether a size was found that the devices can hold."""
        return self.recommended is not None and self.recommended.max_pages <= self.hbm_limit_max_pages

    def safety_factor(self, max_pages: int) -> float:
        """``max_pages * page_size / (max_batch * avg_seq_len)``."""
        return max_pages * self.page_tokens / (self.scenario.engine.max_num_seqs * self.mean_tokens)


@dataclass(frozen=True, slots=True)
class _Search:
    """What a search works with."""

    scenario: Scenario
    index: int
    target: Target
    confidence: float
    effort: Effort
    search: Sampler
    unseen: Sampler
    limit_pages: int


def size(
    scenario: Scenario, index: int, target: Target, *, confidence: float, effort: Effort, runner: Runner
) -> SizeAnswer:
    """Find the smallest pool of allocator ``index`` that meets ``target``. Raises ``InputError``."""
    demands = in_order(runner, demand, [Trial(scenario, index, number) for number in range(effort.first)])
    warmup_s = max(one.warmup_s for one in demands)
    guess = _guess(demands, target)
    hbm_limit = hbm_limit_pages(scenario, index)
    task = _Search(
        scenario,
        index,
        target,
        confidence,
        effort,
        Sampler(scenario, index, runner, warmup_s),
        Sampler(scenario, index, runner, warmup_s, UNSEEN),
        max(hbm_limit, 4 * max(one.peak_pages for one in demands)),
    )
    requests = scenario.requests()
    if target.is_share and rare_targets.is_rare(target.limit, len(requests), effort, confidence):
        found, bound = _extrapolated(task, guess, len(requests))
    else:
        found, bound = _found(task, target, guess), None
        if found is None and target.is_share:
            found, bound = _extrapolated(task, guess, len(requests))
    pages = found.judgement.pages if found else None
    first = demands[0]
    recommended = None if pages is None else _point(task, task.unseen, pages)
    return SizeAnswer(
        scenario=scenario,
        index=index,
        target=target,
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
        bound=bound,
        cliff_ratio=None if pages is None else _cliff_ratio(task, pages),
        curve=_curve(task, recommended),
        ways=() if pages is None or pages <= hbm_limit else ways_to_hold(scenario, index, pages),
        warmup_s=warmup_s,
    )


def _found(task: _Search, target: Target, guess: int) -> Found | None:
    return smallest(
        task.search,
        task.unseen,
        target,
        guess=guess,
        limit_pages=task.limit_pages,
        effort=task.effort,
        confidence=task.confidence,
    )


def _extrapolated(task: _Search, guess: int, requests: int) -> tuple[Found | None, Estimate | None]:
    """The size from two at which losses can be counted; it must not lose more than the target when tried."""
    sizes = []
    for rate in rare_targets.countable_rates(requests, task.effort):
        found = _found(task, Target(task.target.name, rate), guess)
        if found is None:
            return None, None
        sizes.append(found.judgement.pages)
        guess = found.judgement.pages
    line = rare_targets.line(
        task.search, (sizes[0], sizes[1]), task.target, effort=task.effort, confidence=task.confidence
    )
    if line is None:
        return None, None
    tried = judge(task.unseen, task.target, line.pages, task.effort, confidence=task.confidence)
    if tried.estimate.low >= task.target.limit:
        return None, None
    bound = Estimate(tried.estimate.value, 0.0, max(line.bound(line.pages), tried.estimate.value))
    return Found(judgement=tried, below=sizes[1], search=task.search, unseen=task.unseen), bound


def _guess(demands: Sequence[Demand], target: Target) -> int:
    """The pages exceeded during the target's share of the time; for times, what is exceeded during a tenth."""
    time_share = target.limit if target.is_share else 0.1
    return max(1, *(one.exceeded(time_share) for one in demands))


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
    return after / before if before else None


def _curve(task: _Search, recommended: SizePoint | None) -> tuple[SizePoint, ...]:
    """All sizes that the search looked at, and some around the answer."""
    chosen = [] if recommended is None else [recommended]
    for one in chosen:
        for share in _CURVE_SHARES:
            task.search.at(max(1, int(one.max_pages * share)), task.effort.first)
    tried = [_point(task, task.search, pages) for pages in task.search.made]
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
        target=task.target.estimate(row, shared_out, task.search.clump(task.target, pages)),
        ttft_p99_s=_mean_ttft_p99(row),
        thrash=_thrashes(row),
    )


def _thrashes(row: Sequence[Observation]) -> bool:
    preempted = sum(one.preemptions for one in row)
    return any(one.thrashing for one in row) or preempted > _THRASH_PREEMPTIONS * sum(one.arrived for one in row)


def _mean_ttft_p99(row: Sequence[Observation]) -> float:
    return sum(one.latency["ttft_p99"] for one in row) / len(row)
