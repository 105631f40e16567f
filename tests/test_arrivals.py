"""Arrival processes against renewal theory; tolerances are five standard errors of the statistic."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from simulator.workload import WorkloadConfig, generate

NS = 1_000_000_000
GAMMA = {"process": "gamma", "rate": 4, "cv": 3}
MMPP = {"process": "mmpp", "states": [{"rate": 1, "duration": "60s"}, {"rate": 20, "duration": "5s"}]}
DIURNAL = {"process": "diurnal", "rate": 3, "amplitude": 0.8, "period": "100s", "peak_at": "25s"}
DRAWN = [{"process": "poisson", "rate": 4}, GAMMA, MMPP, DIURNAL]


def workload(arrivals, **more):
    return WorkloadConfig.model_validate({"arrivals": arrivals, "prompt_tokens": 100, "output_tokens": 10, **more})


def times_s(arrivals, seed=1, **more):
    return generate(workload(arrivals, **more), seed=seed).arrival_ns / NS


def rate_in_windows(times, end_s, width_s):
    return np.histogram(times, np.arange(0, end_s + width_s / 2, width_s))[0]


def test_poisson_gaps_have_the_mean_and_the_spread_of_the_exponential():
    count, rate = 200_000, 8.0
    gaps = np.diff(times_s({"process": "poisson", "rate": rate}, requests=count), prepend=0.0)
    assert gaps.mean() == pytest.approx(1 / rate, rel=5 / math.sqrt(count))
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=5 / math.sqrt(count))
    assert np.mean(gaps > 1 / rate) == pytest.approx(math.exp(-1), abs=5 * 0.5 / math.sqrt(count))


def test_poisson_counts_before_the_horizon_have_equal_mean_and_variance():
    counts = np.array([len(times_s({"process": "poisson", "rate": 2}, seed=seed, horizon=50)) for seed in range(400)])
    assert counts.mean() == pytest.approx(100, abs=5 * 10 / math.sqrt(400))
    assert counts.var() == pytest.approx(100, rel=5 * math.sqrt(2 / 400))


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5])
def test_gamma_gaps_have_the_cv_asked_for(cv):
    count = 200_000
    gaps = np.diff(times_s({"process": "gamma", "rate": 4, "cv": cv}, requests=count), prepend=0.0)
    assert gaps.mean() == pytest.approx(0.25, rel=5 * cv / math.sqrt(count))
    # Var of the sample variance of a gamma: (kurtosis - 1) * sigma**4 / n with kurtosis 3 + 6 cv**2.
    error = 5 * math.sqrt((2 + 6 * cv**2) / count) / 2
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=error + 5 * cv / math.sqrt(count))


def test_burstiness_is_the_shape_of_the_gamma():
    same = [{"process": "gamma", "rate": 4, "cv": 2.0}, {"process": "gamma", "rate": 4, "burstiness": 0.25}]
    first, second = (times_s(arrivals, requests=1000) for arrivals in same)
    assert np.array_equal(first, second)


def test_fixed_arrivals_are_evenly_spaced_from_zero():
    assert times_s({"process": "fixed", "rate": 4}, requests=5).tolist() == [0, 0.25, 0.5, 0.75, 1.0]
    assert times_s({"process": "fixed", "interval": "200ms"}, horizon=1).tolist() == [0, 0.2, 0.4, 0.6, 0.8]
    assert times_s({"process": "fixed", "interval": 0}, requests=3).tolist() == [0, 0, 0]


def test_two_state_mmpp_has_the_theoretical_mean_and_index_of_dispersion():
    # Fischer and Meier-Hellstern 1993, with s = 1 / duration:
    # IDC(inf) = 1 + 2 (l1 - l2)^2 s1 s2 / ((s1 + s2)^2 (l1 s2 + l2 s1)).
    l1, l2, s1, s2 = 1.0, 20.0, 1 / 60, 1 / 5
    mean = (l1 * s2 + l2 * s1) / (s1 + s2)
    dispersion = 1 + 2 * (l1 - l2) ** 2 * s1 * s2 / ((s1 + s2) ** 2 * (l1 * s2 + l2 * s1))
    end_s, width_s = 2_000_000, 1000
    counts = rate_in_windows(times_s(MMPP, horizon=end_s), end_s, width_s)
    assert counts.mean() / width_s == pytest.approx(mean, rel=5 * math.sqrt(dispersion / (mean * end_s)))
    assert counts.var() / counts.mean() == pytest.approx(dispersion, rel=5 * math.sqrt(2 / len(counts)) + 0.02)


def test_mmpp_rate_rescales_the_states_and_a_silent_state_is_silent():
    arrivals = {"process": "mmpp", "states": [{"rate": 0, "duration": 10}, {"rate": 1, "duration": 10}], "rate": 5}
    times = times_s(arrivals, requests=100_000)
    # On for about half the time at twice the mean; the law of the number of cycles gives the error of the mean.
    assert len(times) / times[-1] == pytest.approx(5, rel=5 * math.sqrt(20 / times[-1]))
    assert np.diff(times).max() > 10


def test_diurnal_rate_follows_the_cosine():
    times = times_s(DIURNAL, horizon=100_000)
    assert len(times) == pytest.approx(300_000, abs=5 * math.sqrt(300_000))
    phase = 2 * np.pi * (times - 25) / 100
    # The first Fourier coefficient of the density 1 + a cos(x) is a / 2.
    assert np.cos(phase).mean() == pytest.approx(0.4, abs=5 * math.sqrt(0.5 / len(times)))
    assert np.sin(phase).mean() == pytest.approx(0.0, abs=5 * math.sqrt(0.5 / len(times)))


def test_closed_loop_has_all_requests_at_zero_and_thinks_before_each():
    requests = generate(workload({"process": "closed", "users": 7, "think": "2s"}, requests=100_000), seed=3)
    assert requests.closed is not None and requests.closed.users == 7
    assert not requests.arrival_ns.any()
    think = requests.closed.think_ns / NS
    assert think.mean() == pytest.approx(2, rel=5 / math.sqrt(100_000))
    assert think.std() == pytest.approx(2, rel=5 * math.sqrt(8 / 100_000))


def test_fixed_think_time_is_the_same_for_every_request():
    arrivals = {"process": "closed", "users": 2, "think": "150ms", "think_dist": "fixed"}
    closed = generate(workload(arrivals, requests=10), seed=3).closed
    assert closed is not None and set(closed.think_ns.tolist()) == {150_000_000}


@pytest.mark.parametrize("arrivals", DRAWN, ids=lambda each: each["process"])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), short=st.integers(1, 3000), extra=st.integers(0, 40_000))
def test_a_longer_run_starts_with_the_shorter_one(arrivals, seed, short, extra):
    few = generate(workload(arrivals, requests=short), seed=seed).arrival_ns
    many = generate(workload(arrivals, requests=short + extra), seed=seed).arrival_ns
    assert len(few) == short and len(many) == short + extra
    assert np.array_equal(few, many[:short])
    assert np.all(np.diff(many) >= 0)


@pytest.mark.parametrize("arrivals", DRAWN, ids=lambda each: each["process"])
def test_a_horizon_cuts_the_same_series_at_the_horizon(arrivals):
    whole = times_s(arrivals, requests=5000)
    cut = times_s(arrivals, horizon=40)
    assert np.array_equal(cut, whole[whole < 40])


def test_requests_and_horizon_end_at_whichever_comes_first():
    fixed = {"process": "fixed", "rate": 1}
    assert len(times_s(fixed, requests=10, horizon=4)) == 4
    assert len(times_s(fixed, requests=3, horizon=4)) == 3
    assert len(times_s({"process": "poisson", "rate": 0.001}, horizon=0.001)) == 0


def test_replications_and_seeds_differ_and_repeat():
    poisson = workload({"process": "poisson", "rate": 1}, requests=10)
    first = generate(poisson, seed=1, replication=0).arrival_ns
    assert np.array_equal(first, generate(poisson, seed=1, replication=0).arrival_ns)
    assert not np.array_equal(first, generate(poisson, seed=1, replication=1).arrival_ns)
    assert not np.array_equal(first, generate(poisson, seed=2, replication=0).arrival_ns)


def test_arrivals_beyond_the_clock_are_refused():
    with pytest.raises(ValueError, match="beyond the clock"):
        times_s({"process": "poisson", "rate": 1e-9}, requests=1000)


@pytest.mark.parametrize(
    ("arrivals", "more", "message"),
    [
        ({"process": "poisson", "rate": 0}, {}, "greater than 0"),
        ({"process": "poisson", "rate": -1}, {}, "greater than"),
        ({"process": "poisson", "rate": float("nan")}, {}, "not finite"),
        ({"process": "poisson", "rate": float("inf")}, {}, "not finite"),
        ({"process": "poisson", "rate": "3/fortnight"}, {}, "unknown unit"),
        ({"process": "poisson", "rate": 1e30}, {}, "less than or equal"),
        ({"process": "poisson", "rate": True}, {}, "not a rate"),
        ({"process": "poisson"}, {}, "Field required"),
        ({"process": "poisson", "rate": 1, "cv": 2}, {}, "not permitted"),
        ({"process": "poison", "rate": 1}, {}, "does not match any of the expected tags"),
        ({"rate": 1}, {}, "discriminator 'process'"),
        ({"process": "fixed"}, {}, "either rate or interval"),
        ({"process": "fixed", "rate": 1, "interval": 1}, {}, "either rate or interval"),
        ({"process": "fixed", "interval": 0}, {"requests": None, "horizon": 5}, "allowed: 50000000"),
        ({"process": "gamma", "rate": 1}, {}, "either cv or burstiness"),
        ({"process": "gamma", "rate": 1, "cv": 0}, {}, "greater than or equal to 0.01"),
        ({"process": "mmpp", "states": [{"rate": 1, "duration": 1}]}, {}, "at least 2"),
        ({"process": "mmpp", "states": [{"rate": 0, "duration": 1}] * 2}, {}, "nothing would arrive"),
        ({"process": "mmpp", "states": [{"rate": 1, "duration": "1ns"}] * 2}, {}, "use poisson"),
        ({"process": "mmpp", "states": [{"rate": 1, "duration": 0}] * 2}, {}, "greater than 0"),
        ({"process": "diurnal", "rate": 1, "amplitude": 1.5}, {}, "less than or equal to 1"),
        ({"process": "diurnal", "rate": 1, "period": 0}, {}, "greater than 0"),
        ({"process": "closed", "users": 0}, {}, "greater than or equal to 1"),
        ({"process": "closed", "users": 4}, {"requests": None, "horizon": 60}, "closed arrivals need requests"),
        ({"process": "poisson", "rate": 1}, {"requests": None}, "requests or horizon is missing"),
        ({"process": "poisson", "rate": 1}, {"requests": 0}, "greater than or equal to 1"),
        ({"process": "poisson", "rate": 1}, {"requests": 10**18}, "less than or equal to 50000000"),
        ({"process": "poisson", "rate": 1000}, {"requests": None, "horizon": 1e9}, "allowed: 50000000"),
        ({"process": "poisson", "rate": 1}, {"horizon": -1}, "greater than"),
        ({"process": "poisson", "rate": 1}, {"warmup": "automatic"}, "auto"),
    ],
)
def test_a_senseless_process_is_refused_with_the_reason(arrivals, more, message):
    with pytest.raises(ValidationError, match=message):
        workload(arrivals, **{"requests": 10, **more})
