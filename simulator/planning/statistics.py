"""Intervals for figures that come from replications, honest when hardly anything was counted.

A share (lost requests of arrived ones) is estimated by the ratio of the sums. Its interval is, at each end, the wider
of two:

* Student's t over replications, with the variance of a ratio estimator (delta method): right when losses come in
  clumps, but blind when no replication, or only one, has any;
* Clopper and Pearson's exact interval of the pooled counts: right when losses are rare and apart, and for none or all
  of them the only one that says anything ("rule of three": none of N gives at most 3.7 / N with 95 % confidence on
  two sides). ``clump`` divides the counts where losses are known to come together (design effect, Kish 1965).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.traffic.requests import FloatArray


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its two-sided interval."""

    value: float
    low: float
    high: float

    @property
    def interval(self) -> list[float]:
        """The two ends, for JSON."""
        return [self.low, self.high]

    def excludes(self, value: float) -> bool:
        """Whether ``value`` is outside the interval."""
        return not self.low <= value <= self.high


def share(
    counted: Sequence[int], trials: Sequence[int], *, confidence: float = 0.95, clump: float | None = None
) -> Estimate:
    """Share of ``counted`` in ``trials``, one pair a replication; see this module for the interval.

    Counts that may exceed the trials (preemptions of requests) are welcome too. ``clump`` is at least 1, the number of
    losses that come together; without it, it is what the data say (1 when they say nothing).
    """
    total, all_trials = sum(counted), sum(trials)
    if not all_trials:
        return Estimate(0.0, 0.0, 1.0)
    if clump is None:
        clump = design_effect(counted, trials)
    rate = total / all_trials
    low, high = exact_interval(min(total, all_trials) / clump, all_trials / clump, confidence)
    half = _ratio_half_width(counted, trials, confidence)
    return Estimate(rate, max(0.0, min(low, rate - half)), max(high, min(max(1.0, rate), rate + half)))


def mean(values: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """Mean of one figure a replication, with Student's t. A single replication has an interval without limits."""
    data = np.asarray(values, np.float64)
    centre = float(data.mean()) if len(data) else 0.0
    if len(data) < 2:
        return Estimate(centre, -math.inf, math.inf)
    half = student_quantile(confidence, len(data) - 1) * float(data.std(ddof=1)) / math.sqrt(len(data))
    return Estimate(centre, centre - half, centre + half)


def exact_interval(counted: float, trials: float, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's interval (1934) of a proportion; never covers less than it says. Counts may be broken."""
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    low = float(betaincinv(counted, trials - counted + 1, tail)) if counted > 0 else 0.0
    high = float(betaincinv(counted + 1, trials - counted, 1 - tail)) if counted < trials else 1.0
    return low, high


def student_quantile(confidence: float, freedom: int) -> float:
    """How many standard errors a two-sided interval reaches to each side."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + confidence) / 2))


def design_effect(counted: Sequence[int], trials: Sequence[int]) -> float:
    """By how much the variance between replications exceeds that of independent losses; at least 1."""
    pooled = sum(counted) / sum(trials)
    independent = pooled * (1 - pooled) / sum(trials)
    if len(counted) < 2 or independent <= 0:
        return 1.0
    return max(1.0, _ratio_variance(counted, trials) / independent)


def _ratio_variance(counted: Sequence[int], trials: Sequence[int]) -> float:
    """Of the ratio of sums: residuals against the pooled ratio (Cochran, Sampling Techniques, 6.4)."""
    count: FloatArray = np.asarray(counted, np.float64)
    trial: FloatArray = np.asarray(trials, np.float64)
    residual = count - trial * (count.sum() / trial.sum())
    return float((residual @ residual) / (len(count) - 1) / len(count) / trial.mean() ** 2)


def _ratio_half_width(counted: Sequence[int], trials: Sequence[int], confidence: float) -> float:
    if len(counted) < 2:
        return 0.0
    spread = math.sqrt(_ratio_variance(counted, trials))
    return student_quantile(confidence, len(counted) - 1) * spread
