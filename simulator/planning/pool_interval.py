"""A pool whose size is not known exactly: what the memory budget cannot know, carried into the figures.

Activations, graphs and the runtime take what they take on the machine at hand, so the pool is somewhere in an interval.
Any size in it is taken to be as likely as any other (uniform law). The figures are simulated at evenly spaced sizes on
common random numbers and integrated by the trapezoidal rule, exact to ``(first - last) / (2 * parts)`` for figures that
only fall with the pool. The ends of the interval of an expected figure are the same sums of the ends at the sizes: as
wide as for figures that err together, which those on common random numbers nearly do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.errors import InputError, Problem, printable
from simulator.planning.sizing import Sampler
from simulator.planning.statistics import Estimate
from simulator.planning.target import Goal, Target
from simulator.scenario import Scenario
from simulator.units import format_bytes, parse_bytes

#: sizes at which the interval is looked at: both ends, the middle, and one between each two of these
NODES = 5


@dataclass(frozen=True, slots=True)
class PoolInterval:
    """Bytes of one device's KV pool, at the least and at the most."""

    low_bytes: int
    high_bytes: int

    def pages(self, page_bytes: int) -> tuple[int, ...]:
        """Whole pages at ``NODES`` evenly spaced sizes, both ends included."""
        span, parts = self.high_bytes - self.low_bytes, NODES - 1
        return tuple((self.low_bytes * parts + span * part) // parts // page_bytes for part in range(NODES))

    def enough(self, needed_bytes: int) -> float:
        """Probability that the pool is at least as large as needed."""
        if self.high_bytes == self.low_bytes:
            return float(needed_bytes <= self.low_bytes)
        return min(1.0, max(0.0, (self.high_bytes - needed_bytes) / (self.high_bytes - self.low_bytes)))

    def __str__(self) -> str:
        return f"{format_bytes(self.low_bytes)} to {format_bytes(self.high_bytes)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalPoint:
    """One size of the interval; ``thrash`` as in ``Observation``."""

    max_pages: int
    oom_rate: Estimate
    targets: tuple[Estimate, ...]
    thrash: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertain:
    """The figures over an interval: at each size, and expected. ``enough`` is the chance that the pool is enough."""

    interval: PoolInterval
    points: tuple[IntervalPoint, ...]
    expected_oom_rate: Estimate
    expected_targets: tuple[Estimate, ...]
    enough: float

    @property
    def low(self) -> IntervalPoint:
        """The smallest pool of the interval."""
        return self.points[0]

    @property
    def middle(self) -> IntervalPoint:
        """The pool in the middle."""
        return self.points[NODES // 2]

    @property
    def high(self) -> IntervalPoint:
        """The largest pool."""
        return self.points[-1]


def parse_interval(text: str) -> PoolInterval:
    """The interval of ``--pool-interval 20GiB:24GiB``. Raises ``InputError``."""
    option = f"--pool-interval {printable(text)}"
    low, colon, high = text.partition(":")
    if not colon:
        raise InputError([Problem(option=option, message="expected low:high, such as 20GiB:24GiB")])
    try:
        found = PoolInterval(parse_bytes(low), parse_bytes(high))
    except ValueError as error:
        raise InputError([Problem(option=option, message=str(error))]) from None
    if not 0 < found.low_bytes <= found.high_bytes:
        raise InputError([Problem(option=option, message="expected 0 < low <= high")])
    return found


def check_pages(interval: PoolInterval, page_bytes: int) -> None:
    """Raises ``InputError`` when not even one page is there for sure."""
    if interval.pages(page_bytes)[0] < 1:
        raise InputError([Problem(option="--pool-interval", message="the low end holds not even one page")])


def device_interval(scenario: Scenario) -> PoolInterval | None:
    """The interval that the device's ``pool_uncertainty_bytes`` makes of the budget; ``None`` without one."""
    spread, left = scenario.loaded_device.pool_uncertainty_bytes, scenario.budget.kv_bytes_available
    return PoolInterval(max(1, left - spread), left + spread) if spread else None


def uncertain(
    sampler: Sampler,
    goal: Goal,
    interval: PoolInterval,
    *,
    page_bytes: int,
    needed_pages: int | None,
    replications: int,
    confidence: float,
) -> Uncertain:
    """The figures over ``interval``, which is of whole pages; ``needed_pages`` are those that meet the goal."""
    sizes = interval.pages(page_bytes)
    points = tuple(_point(sampler, goal, pages, replications, confidence) for pages in sizes)
    return Uncertain(
        interval=interval,
        points=points,
        expected_oom_rate=_expected([one.oom_rate for one in points]),
        expected_targets=tuple(_expected([one.targets[place] for one in points]) for place in range(len(goal.targets))),
        enough=0.0 if needed_pages is None else interval.enough(needed_pages * page_bytes),
    )


def _point(sampler: Sampler, goal: Goal, pages: int, replications: int, confidence: float) -> IntervalPoint:
    row = sampler.at(pages, replications)
    return IntervalPoint(
        max_pages=pages,
        oom_rate=Target("oom", 1.0).estimate(row, confidence),
        targets=goal.estimates(row, confidence),
        thrash=any(one.thrashing for one in row),
    )


def _expected(estimates: Sequence[Estimate]) -> Estimate:
    """The trapezoidal rule over evenly spaced sizes."""
    parts = len(estimates) - 1
    weights = [(0.5 if place in (0, parts) else 1.0) / parts for place in range(parts + 1)]
    ends = [(one.value, one.low, one.high) for one in estimates]
    value, low, high = (
        sum(weight * end for weight, end in zip(weights, column, strict=True)) for column in zip(*ends, strict=True)
    )
    return Estimate(value, low, high)
