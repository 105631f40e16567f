"""The lognormal law that has given moments after clipping.

X = clip(exp(mu + sigma * Z), low, high) with Z standard normal. Users state what they measured: the mean, the 95th
percentile or the coefficient of variation of the lengths as they are, cap included. So mu and sigma are solved for
the clipped variable. Its k-th moment is the textbook partial expectation of the lognormal law:

    low**k * Phi(a) + exp(k*mu + (k*sigma)**2 / 2) * (Phi(b - k*sigma) - Phi(a - k*sigma)) + high**k * (1 - Phi(b))

with a = (ln low - mu) / sigma, b = (ln high - mu) / sigma.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

Z95 = NormalDist().inv_cdf(0.95)
MAX_SIGMA = 10.0
_STEP = 0.01


@lru_cache(maxsize=256)
def solve_sigma(sigma: float, mean: float, low: float, high: float) -> tuple[float, float]:
    """``(mu, sigma)`` with the given mean after clipping. Raises ``ValueError`` when no mu can."""
    _check_mean(mean, low, high)
    return _mu(sigma, mean, low, high), sigma


@lru_cache(maxsize=256)
def solve_cv(cv: float, mean: float, low: float, high: float) -> tuple[float, float]:
    """``(mu, sigma)`` with the given mean and coefficient of variation after clipping. Raises ``ValueError``."""
    _check_mean(mean, low, high)
    largest = _cv(MAX_SIGMA, mean, low, high)
    if cv >= largest:
        raise ValueError(
            f"cv {cv:g} cannot be had with mean {mean:g} between {low:g} and {high:g}: "
            f"allowed below {largest:.4g} (lower cv, or widen min and max)"
        )
    unclipped = math.sqrt(math.log1p(cv * cv))
    if math.isclose(_cv(unclipped, mean, low, high), cv, rel_tol=1e-12):
        return _mu(unclipped, mean, low, high), unclipped
    sigma = _bisect(lambda s: _cv(s, mean, low, high) - cv, 1e-9, MAX_SIGMA)
    return _mu(sigma, mean, low, high), sigma


@lru_cache(maxsize=256)
def solve_p95(p95: float, mean: float, low: float, high: float) -> tuple[float, float]:
    """``(mu, sigma)`` with the given mean and 95th percentile after clipping.

    Without a cap two values of sigma do it, on either side of z95 = 1.645: the smaller, less extreme one is returned.
    Raises ``ValueError`` when none does; without a cap p95 / mean is at most exp(z95**2 / 2) = 3.868.
    """
    _check_mean(mean, low, high)
    if not low < p95 < high:
        raise ValueError(f"p95 {p95:g} must lie between min {low:g} and max {high:g}")
    if not mean < p95:
        raise ValueError(f"p95 {p95:g} must be above the mean {mean:g}")

    def excess(sigma: float) -> float:
        return clipped_moment(1, math.log(p95) - Z95 * sigma, sigma, low=low, high=high) - mean

    sigmas = [step * _STEP for step in range(1, round(MAX_SIGMA / _STEP) + 1)]
    crossed = next((sigma for sigma in sigmas if excess(sigma) <= 0), None)
    if crossed is None:
        lowest = min(map(excess, sigmas)) + mean
        raise ValueError(
            f"p95 {p95:g} is {p95 / mean:.4g} times the mean {mean:g}: a lognormal between {low:g} and {high:g} "
            f"reaches at most {p95 / lowest:.4g} times (a mean of at least {lowest:.6g}); lower p95 or max"
        )
    sigma = _bisect(lambda s: -excess(s), max(crossed - _STEP, 1e-9), crossed)
    return math.log(p95) - Z95 * sigma, sigma


def clipped_moment(order: int, mu: float, sigma: float, *, low: float, high: float) -> float:
    """E[clip(X, low, high)**order]; ``low`` positive."""
    a, b = (math.log(low) - mu) / sigma, (math.log(high) - mu) / sigma
    shift = order * sigma
    inside = math.exp(order * mu + shift * shift / 2) * _between(a - shift, b - shift)
    return low**order * _between(-math.inf, a) + inside + high**order * _between(b, math.inf)


def _between(a: float, b: float) -> float:
    """P(a < Z < b), accurate in both tails."""
    if a > 0:
        return 0.5 * (math.erfc(a / math.sqrt(2)) - math.erfc(b / math.sqrt(2)))
    return 0.5 * (math.erfc(-b / math.sqrt(2)) - math.erfc(-a / math.sqrt(2)))


def _check_mean(mean: float, low: float, high: float) -> None:
    if not low < mean < high:
        raise ValueError(f"mean {mean:g} must lie between min {low:g} and max {high:g}")


def _mu(sigma: float, mean: float, low: float, high: float) -> float:
    """The mean rises with mu, from low to high."""
    reach = MAX_SIGMA * sigma
    return _bisect(
        lambda mu: clipped_moment(1, mu, sigma, low=low, high=high) - mean,
        math.log(low) - reach,
        math.log(high) + reach,
    )


def _cv(sigma: float, mean: float, low: float, high: float) -> float:
    second = clipped_moment(2, _mu(sigma, mean, low, high), sigma, low=low, high=high)
    return math.sqrt(max(second / (mean * mean) - 1, 0.0))


def _bisect(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where ``rising`` passes zero, to the last bit that halving can tell apart."""
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
