"""The search for the size at which something begins to hold: both ends are looked at, and looks are few."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.planning.bracket import crossing


class Looked:
    """An excess that remembers which sizes it was asked about."""

    def __init__(self, excess: Callable[[int], float]) -> None:
        self.excess = excess
        self.sizes: list[int] = []

    def __call__(self, size: int) -> float:
        assert size not in self.sizes, f"{size} was known already"
        self.sizes.append(size)
        return self.excess(size)


def two_percent(size: int) -> int:
    return max(1, int(size * 0.02))


def power(root: float, slope: float) -> Callable[[int], float]:
    return lambda size: slope * math.log(size / root)


def cliff(root: float) -> Callable[[int], float]:
    return lambda size: math.inf if size < root else -0.2


def rare(root: float) -> Callable[[int], float]:
    """Losses fall ever more steeply, and their interval stays where nothing can be counted."""
    return lambda size: max(-3.0, 4.0 - 4.0 * (size / root) ** 2)


SHAPES = st.one_of(
    st.builds(power, st.floats(1.5, 1e5), st.floats(-60, -0.6)),
    st.builds(cliff, st.floats(1.5, 1e5)),
    st.builds(rare, st.floats(1.5, 1e5)),
)


@given(excess=SHAPES, guess=st.integers(1, 200_000))
def test_ends_are_neighbours_that_were_both_looked_at(excess: Callable[[int], float], guess: int) -> None:
    looked = Looked(excess)
    found = crossing(looked, guess=guess, most=1 << 40, step=two_percent)
    assert found is not None
    low, high = found
    assert 0 <= low < high <= low + two_percent(high)
    assert high in looked.sizes and excess(high) < 0
    assert low == 0 or (low in looked.sizes and excess(low) >= 0)
    # Bisection of a factor of 2 needs some 6 looks to 2 %, doubling to get there up to 17; a look in three is one.
    assert len(looked.sizes) <= 3 * (6 + 1) + abs(math.log2(guess / high)) + 3


@pytest.mark.parametrize("slope", [-2.0, -4.4, -12.0, -40.0])
@pytest.mark.parametrize("distance", [0.3, 0.8, 1.1, 2.0])
def test_a_smooth_fall_takes_a_handful_of_looks(slope: float, distance: float) -> None:
    looked = Looked(power(4200, slope))
    found = crossing(looked, guess=int(4200 * distance), most=1 << 40, step=two_percent)
    assert found is not None and found[0] <= 4200 <= found[1]
    assert len(looked.sizes) <= 7


def test_what_never_passes_is_said_after_the_largest_size_was_looked_at() -> None:
    looked = Looked(lambda size: 1.0)
    assert crossing(looked, guess=10, most=5000, step=two_percent) is None
    assert looked.sizes[-1] == 5000


def test_what_always_passes_ends_at_one() -> None:
    assert crossing(Looked(lambda size: -math.inf), guess=1000, most=5000, step=two_percent) == (0, 1)
