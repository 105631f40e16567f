"""Intervals against published values, and their coverage on known systems."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.planning.statistics import Estimate, design_effect, exact_interval, mean, share, student_quantile
from simulator.planning.warmup import mser5
from simulator.quantiles import quantiles


@given(
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=40),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=5),
)
def test_quantiles_are_those_of_numpy_bit_for_bit(values: list[float], shares: list[float]) -> None:
    column = np.array(values)
    assert quantiles(column, shares) == np.quantile(column, shares).tolist()


def test_a_quantile_of_a_column_with_a_hole_is_none() -> None:
    assert math.isnan(quantiles(np.array([1.0, math.nan]), (0.5,))[0])


def test_student_quantiles_are_those_of_the_tables() -> None:
    assert student_quantile(0.95, 1) == pytest.approx(12.706, abs=5e-4)
    assert student_quantile(0.95, 9) == pytest.approx(2.262, abs=5e-4)
    assert student_quantile(0.99, 30) == pytest.approx(2.750, abs=5e-4)


def test_exact_intervals_invert_the_binomial_tails() -> None:
    low, high = exact_interval(3, 20)
    at_least = sum(math.comb(20, k) * low**k * (1 - low) ** (20 - k) for k in range(3, 21))
    at_most = sum(math.comb(20, k) * high**k * (1 - high) ** (20 - k) for k in range(4))
    assert at_least == pytest.approx(0.025)
    assert at_most == pytest.approx(0.025)


def test_none_of_n_is_the_rule_of_three_on_two_sides() -> None:
    low, high = exact_interval(0, 1000)
    assert low == 0.0
    assert high == pytest.approx(1 - 0.025 ** (1 / 1000))


def test_all_of_n_leaves_no_room_above() -> None:
    low, high = exact_interval(50, 50)
    assert low == pytest.approx(0.025 ** (1 / 50))
    assert high == 1.0


def test_replications_without_a_loss_still_have_an_upper_bound() -> None:
    found = share([0] * 10, [1000] * 10)
    assert (found.value, found.low) == (0.0, 0.0)
    assert found.high == pytest.approx(-math.log(0.025) / 10_000, rel=1e-3)


def test_clumped_losses_widen_the_bound_in_proportion() -> None:
    apart, together = share([0] * 10, [1000] * 10), share([0] * 10, [1000] * 10, clump=20)
    assert together.high == pytest.approx(20 * apart.high, rel=0.01)


def test_replications_that_differ_more_than_chance_have_the_wider_student_interval() -> None:
    found = share([0, 100, 0, 100], [1000] * 4)
    # rates 0, .1, 0, .1: mean .05, standard deviation .1/sqrt(3), over 4 replications, t(3) = 3.182
    assert found.value == pytest.approx(0.05)
    student = 0.05 + 3.1824 * 0.1 / math.sqrt(3) / 2
    assert student <= found.high <= 1.01 * student
    assert found.low == 0.0


def test_the_design_effect_of_independent_losses_is_about_one() -> None:
    counts = np.random.default_rng(3).binomial(1000, 0.05, size=400).tolist()
    assert design_effect(counts, [1000] * 400) == pytest.approx(1.0, abs=0.2)
    assert design_effect([0, 10], [10, 10]) > 5


def test_one_replication_alone_has_no_finite_interval_of_a_mean() -> None:
    assert mean([3.0]) == Estimate(3.0, -math.inf, math.inf)


def test_the_mean_of_replications_has_students_interval() -> None:
    found = mean([1.0, 2.0, 3.0])
    assert found.value == 2.0
    assert found.high == pytest.approx(2 + 4.3027 / math.sqrt(3), rel=1e-4)
    assert found.excludes(5.0)
    assert not found.excludes(2.5)


@pytest.mark.parametrize("rate", [0.002, 0.05, 0.3])
def test_intervals_of_independent_losses_cover_the_truth(rate: float) -> None:
    rng = np.random.default_rng(7)
    repeats = 400
    covered = 0
    for _ in range(repeats):
        found = share(rng.binomial(200, rate, size=8).tolist(), [200] * 8)
        covered += found.low <= rate <= found.high
    assert covered / repeats >= 0.93


def test_mser_drops_a_start_that_climbs_and_keeps_a_level_series() -> None:
    rng = np.random.default_rng(5)
    level = rng.normal(100, 5, 500)
    climbing = np.concatenate((np.linspace(0, 100, 60), level))
    assert 45 <= mser5(climbing) <= 90
    assert mser5(level) <= 100


def test_mser_never_drops_more_than_half() -> None:
    assert mser5(np.arange(100.0)) <= 50
    assert mser5(np.arange(3.0)) == 0
    assert mser5(np.full(100, 4.0)) == 0
