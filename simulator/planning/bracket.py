"""Where sizes begin to pass: two sizes next to each other, found with few looks.

What is asked of a size is its *excess*: the logarithm of the upper end of its figure over the limit, so that a size
passes where the excess is below 0. Between a size that fails and one that passes the logarithm of the size at which it
crosses 0 is interpolated, and the next look is half a step beyond that, on the side that is farther away: so both ends
close in. Where the last looks did not halve the bracket, the next is in its middle, so no shape of the excess needs
more than three times the looks of bisection. Every end is looked at, none is taken for granted.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

Excess = Callable[[int], float]

#: how fast the excess falls with the logarithm of the size, where two looks do not tell
_USUAL_SLOPE = -3.0
#: the flattest slope that two looks may tell: flatter ones (no losses at both) say nothing
_FLATTEST_SLOPE = -0.5
#: one step away from all looks so far is at most so large
_MOST_FACTOR = 2.0


@dataclass(slots=True)
class _Looks:
    """Excess by size; ``low`` is the largest that fails (0: none), ``high`` the smallest above it that passes."""

    excess: Excess
    made: dict[int, float] = field(default_factory=dict)
    low: int = 0
    high: int | None = None

    def look(self, size: int) -> None:
        self.made[size] = self.excess(size)
        if self.made[size] < 0:
            self.high = size
        else:
            self.low = size

    def slope(self, first: int, second: int) -> float:
        """Change of the excess with the logarithm of the size, between two looks."""
        change = self.made[second] - self.made[first]
        found = change / math.log(second / first) if first != second else math.nan
        return found if math.isfinite(found) and found < _FLATTEST_SLOPE else _USUAL_SLOPE

    def beyond(self, end: int) -> float:
        """Where the excess crosses 0, seen from the outermost look ``end`` and its neighbour."""
        others = [size for size in self.made if size != end]
        neighbour = min(others, key=lambda size: abs(size - end), default=end)
        value = self.made[end]
        if not math.isfinite(value):
            return end * _MOST_FACTOR if value > 0 else end / _MOST_FACTOR
        return end * math.exp(max(-40.0, min(40.0, -value / self.slope(end, neighbour))))

    def between(self, low: int, high: int) -> float:
        """Where it crosses 0 between a look that fails and one that passes; the middle where that cannot be told."""
        above, below = self.made.get(low, math.inf), self.made[high]
        if not (math.isfinite(above) and math.isfinite(below)) or above <= below:
            return (low + high) / 2
        return low * math.exp(math.log(high / low) * above / (above - below))


def crossing(excess: Excess, *, guess: int, most: int, step: Callable[[int], int]) -> tuple[int, int] | None:
    """A size that fails (0 for none) and one that passes, no more than ``step(size)`` larger.

    ``guess`` is where to begin; ``None`` when even ``most`` fails.
    """
    looks = _Looks(excess)
    looks.look(max(1, min(guess, most)))
    widths = [math.inf]
    while True:
        low, high = looks.low, looks.high
        if high is None:
            if low >= most:
                return None
            looks.look(min(most, _upwards(looks, step(low))))
            continue
        width = high - low
        if width <= step(high):
            return low, high
        stuck = len(widths) > 2 and width > widths[-2] / 2
        looks.look((low + high) // 2 if stuck else _inside(looks, low, high, step(high)))
        widths = [math.inf] if stuck else [*widths, width]


def _upwards(looks: _Looks, step: int) -> int:
    low = looks.low
    wanted = looks.beyond(low) + step
    return max(low + step, min(int(wanted), int(_MOST_FACTOR * low)))


def _inside(looks: _Looks, low: int, high: int, step: int) -> int:
    """The next look between two ends; without a lower one, at most a factor below the upper."""
    if not low:
        wanted = looks.beyond(high) - step
        return max(1, min(high - step, max(int(wanted), int(high / _MOST_FACTOR))))
    root = looks.between(low, high)
    aside = step / 2 if root - low < high - root else -step / 2
    return max(low + 1, min(high - 1, round(root + aside)))
