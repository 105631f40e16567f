"""Sizes for OOM rates too rare to be counted: a bound from sizes at which losses can be counted.

The logarithm of a loss rate falls ever more steeply with the pool: Erlang's loss formula is log-concave in the number
of servers, as are the tails of sums of many independent demands. So a straight line through two points of ``log rate``
against pages, continued to larger pools, stays above the curve. The line used is the flattest that the intervals of
both rates allow, which makes the size an upper bound at their confidence; that the rates are log-concave is assumed
of the system, not proved.
"""

import math
from dataclasses import dataclass

from simulator.planning.sizing import Effort, Sampler
from simulator.planning.statistics import Estimate, exact_interval
from simulator.planning.target import Target

#: losses wanted at the larger of the two sizes
_WANTED = 200
#: rate at the smaller size over that at the larger
_RATIO = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Two sizes with their rates, and the size at which the flattest line between them meets the target."""

    pages: int
    below: tuple[int, Estimate]
    above: tuple[int, Estimate]

    def bound(self, pages: int) -> float:
        """Upper bound of the rate at a size beyond ``above``."""
        (first, many), (second, few) = self.below, self.above
        slope = (math.log(many.low) - math.log(few.high)) / (second - first)
        return math.exp(math.log(few.high) - slope * (pages - second))


def is_rare(limit: float, requests: int, effort: Effort, confidence: float) -> bool:
    """Whether even a loss-free last look could not show a rate below ``limit``."""
    return exact_interval(0, requests * effort.most, confidence)[1] >= limit


def countable_rates(requests: int, effort: Effort) -> tuple[float, float]:
    """The OOM rates to look for at the two sizes of the line, the larger rate first."""
    low = min(0.05, _WANTED / (requests * effort.most))
    return min(0.4, _RATIO * low), low


def line(sampler: Sampler, sizes: tuple[int, int], target: Target, *, effort: Effort, confidence: float) -> Line | None:
    """The line through two sizes; ``None`` when their intervals do not tell them apart."""
    rates = [target.estimate(sampler.at(pages, effort.most), confidence) for pages in sizes]
    if not 0 < rates[1].high < rates[0].low:
        return None
    found = Line(pages=0, below=(sizes[0], rates[0]), above=(sizes[1], rates[1]))
    per_page = math.log(rates[0].low / rates[1].high) / (sizes[1] - sizes[0])
    beyond = math.ceil(math.log(rates[1].high / target.limit) / per_page)
    return Line(pages=sizes[1] + max(1, beyond), below=found.below, above=found.above)
