"""Very slow steps: sums are exact beyond 64 bits, and the end of the clock is an answer, not a crash."""

from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.scenario import Scenario, parse_scenario
from simulator.simulation import simulate

SEQUENCES, OUTPUTS = 60, 4990
TEXT = f"""
name: slow
device: {{preset: 910B3}}
model: {{preset: llama-3.1-8b}}
workload:
  arrivals: {{process: fixed, rate: 1000000}}
  prompt_tokens: {{dist: fixed, value: 1}}
  output_tokens: {{dist: fixed, value: {OUTPUTS}}}
  requests: {SEQUENCES}
engine: {{max_num_seqs: 64, max_model_len: 5000, on_oom: fail}}
allocators: [{{kind: contiguous, reserve: max_model_len}}]
"""


def scenario(*overrides: str) -> Scenario:
    return parse_scenario(TEXT, Path(), overrides)


@pytest.mark.parametrize("step_time", ["1s", "10min", "1h", "24h"])
def test_mean_use_does_not_depend_on_how_long_a_step_takes(step_time: str) -> None:
    """60 sequences grow from 1 to 4990 tokens of 128 KiB, so they hold 2495.5 on average. From 10 min a step on, the
    nanoseconds times tokens of a stretch of steps pass 64 bits."""
    (run,) = simulate(scenario(f"engine.step_time={step_time}")).runs
    kv = run.summary["kv"]
    expected = SEQUENCES * (1 + OUTPUTS) / 2 * 131072 / run.summary["kv_capacity_bytes"]
    # The first request starts a step before the others.
    assert kv["mean_utilization"] == pytest.approx(expected, rel=1e-3)
    assert all(0 <= share <= 1 for share in kv["waste"].values())


@pytest.mark.parametrize(
    "overrides",
    [
        ["engine.step_time=9e9"],
        ["engine.step_time=9e7"],
        ["engine.step_time=2e6"],
        ["engine.step_time=9e9", "engine.scheduler=replay"],
        ["device.cube_flops=1"],
        ["device.clock_hz=1", "device.cube_flops=1", "device.link_bandwidth=1"],
    ],
    ids=str,
)
def test_a_run_past_the_end_of_the_clock_is_refused(overrides: list[str]) -> None:
    """4990 steps of 2e6 s are 9.98e9 s, 64 bits of nanoseconds end at 9.22e9 s."""
    with pytest.raises(InputError, match="end of the clock"):
        simulate(scenario(*overrides))


def test_a_run_just_short_of_the_end_is_served() -> None:
    """4991 steps of 1.8e6 s are 8.98e9 s."""
    (run,) = simulate(scenario("engine.step_time=1.8e6")).runs
    assert run.summary["requests"]["completed"] == SEQUENCES
    assert run.summary["simulated_s"] == pytest.approx(1.8e6 * (OUTPUTS + 1), rel=1e-3)


@pytest.mark.parametrize("key", ["cube_flops", "clock_hz", "link_bandwidth"])
def test_a_device_does_at_least_one_a_second(key: str) -> None:
    with pytest.raises(InputError, match="must be >= 1"):
        scenario(f"device.{key}=1e-308")
