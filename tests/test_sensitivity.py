"""What a tenth of each assumption does to a size, against theory and against the memory budget's own arithmetic."""

import pickle
from pathlib import Path

import pytest

from simulator.planning.limits import hbm_limit_pages
from simulator.planning.sensitivity import Effect, sensitivity
from simulator.planning.tasks import in_order, one_by_one, processes
from simulator.scenario import Scenario, parse_scenario
from simulator.showing.size_words import sensitivity as in_words

#: 400 requests at once on average, each 4 s; prompts of ten pages, few outputs
STEADY = """\
name: steady
device: {preset: 910B3, launch_s: 30us}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: poisson, rate: 100/s}
  prompt_tokens: {dist: fixed, value: 1600}
  output_tokens: {dist: fixed, value: 40}
  requests: 3000
  warmup: 6s
engine: {max_num_seqs: 4000, max_num_batched_tokens: 32768, max_model_len: 8192, on_oom: fail, STEP}
allocators: [{kind: paged, page_size: 16}]
"""


def steady(step: str = "step_time: 100ms") -> Scenario:
    return parse_scenario(STEADY.replace("STEP", step), Path())


@pytest.fixture(scope="module")
def effects() -> dict[str, Effect]:
    found = sensitivity(steady(), 0, time_share=0.5, replications=1, runner=one_by_one)
    return {one.name: one for one in found}


def test_the_pages_needed_follow_littles_law(effects: dict[str, Effect]) -> None:
    """In mean, rate x time x pages: 10 % more of any of the three is 10 % more of them."""
    for name in ("arrival rate", "output tokens", "prompt tokens"):
        assert effects[name].needed_up == pytest.approx(1.1, abs=0.03), name
        assert effects[name].needed_down == pytest.approx(0.9, abs=0.03), name
        assert effects[name].room_up == effects[name].room_down == 1.0


def test_a_given_step_time_leaves_nothing_to_the_devices_speed(effects: dict[str, Effect]) -> None:
    assert set(effects) <= {"arrival rate", "output tokens", "prompt tokens", "hbm_usable_bytes", "activation_bytes",
                            "runtime_bytes"}  # fmt: skip


def test_room_is_what_the_memory_budget_leaves(effects: dict[str, Effect]) -> None:
    scenario = steady()
    budget, page_bytes = scenario.budget, 16 * 131_072
    more = 0.1 * scenario.loaded_device.hbm_usable_bytes * scenario.engine.gpu_memory_utilization
    by_hand = (budget.kv_bytes_available + more) // page_bytes / hbm_limit_pages(scenario, 0)
    assert effects["hbm_usable_bytes"].room_up == pytest.approx(by_hand, rel=1e-3)
    fewer = (budget.kv_bytes_available - 0.1 * budget.activation_bytes) // page_bytes / hbm_limit_pages(scenario, 0)
    assert effects["activation_bytes"].room_up == pytest.approx(fewer, rel=1e-3)


def test_the_largest_effect_comes_first_whatever_the_number_of_processes() -> None:
    scenario = steady("step_time: null")
    alone = sensitivity(scenario, 0, time_share=0.1, replications=1, runner=one_by_one)
    sizes = [one.size for one in alone]
    assert sizes == sorted(sizes, reverse=True)
    assert {"launch_s", "host_step_s", "hbm_sustained_bandwidth"} <= {one.name for one in alone}
    with processes(2) as runner:
        assert sensitivity(scenario, 0, time_share=0.1, replications=1, runner=runner) == alone


def test_a_scenario_with_figures_of_its_own_goes_to_other_processes() -> None:
    scenario = steady()
    there = pickle.loads(pickle.dumps(scenario))
    assert there.resolved() == scenario.resolved()
    assert there.loaded_device == scenario.loaded_device
    with processes(2) as runner:
        assert in_order(runner, _launch_s, [scenario]) == [scenario.loaded_device.launch_s]


def _launch_s(scenario: Scenario) -> float:
    return scenario.loaded_device.launch_s


def test_the_words_name_what_matters_and_what_hardly_does() -> None:
    def one(
        name: str, confidence: str | None, needed: tuple[float, float], room: tuple[float, float]
    ) -> dict[str, object]:
        return {
            "name": name,
            "confidence": confidence,
            "pages_needed_ratio": dict(zip(("up", "down"), needed, strict=True)),
            "pages_available_ratio": dict(zip(("up", "down"), room, strict=True)),
        }

    found = {
        "change": 0.1,
        "felt": 0.01,
        "assumptions": [
            one("hbm_usable_bytes", "measured", (1.0, 1.0), (1.25, 0.75)),
            one("prompt tokens", None, (1.12, 0.9), (1.0, 1.0)),
            one("launch_s", "assumed", (1.001, 1.0), (1.0, 1.0)),
        ],
    }
    assert in_words({"sensitivity": found}) == [
        "most sensitive to (each 10 % more / less, all else equal): hbm_usable_bytes (pages available +25 % / -25 %, "
        "measured), prompt tokens (pages needed +12 % / -10 %); hardly to launch_s"
    ]
    assert in_words({"sensitivity": None}) == []
