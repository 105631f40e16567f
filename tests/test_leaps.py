"""Leaping over decode steps changes nothing: facts, page ids and integrals equal those of the step-by-step engine."""

from functools import cache
from typing import Any
from unittest import mock

import pytest
from engine_worlds import World, requests_of, worlds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.config import EngineConfig
from simulator.cost import StepCost, StepTimes
from simulator.device import DeviceConfig, load_device
from simulator.model import ModelConfig, load_model
from simulator.serving.sequence import Outcome

_FACTS = (
    *("outcome", "arrived_ns", "started_ns", "first_token_ns", "finished_ns", "preemptions", "hit_tokens"),
    *("output_tokens", "cause", "events", "oom_events", "preemption_count", "recomputed_tokens", "swapped_bytes"),
    *("swap_refusals", "stalls", "padding_tokens"),
)
_MEMORY = (
    *("used_byte_ns", "peak_used_bytes", "steps", "sequence_steps", "peak_sequences", "busy_ns"),
    *("output_tokens", "prompt_tokens", "rows"),
)


def digest(world: World, *, leap: bool, cost: StepTimes | None = None) -> dict[str, Any]:
    """Everything that a run leaves behind."""
    run, engine = world.run(leap=leap, cost=cost)
    ledger, recorder, allocator = run.ledger, run.recorder, engine.allocator
    facts = {name: getattr(ledger, name) for name in _FACTS}
    memory = {name: getattr(recorder, name) for name in _MEMORY}
    integrals = {
        name: (value.total, value.peak)
        for name in ("allocated", "tail", "unavailable", "dead", "entries", "free", "scattered")
        for value in [getattr(recorder, name)]
    }
    return {
        **facts,
        **memory,
        **integrals,
        "ended": (run.ended_because, run.ended_ns, run.detail),
        "totals": allocator.totals,
        "next_pages": allocator.pool.free_ids()[:50] if hasattr(allocator, "pool") else None,
    }


def assert_same(world: World, cost: StepTimes | None = None) -> None:
    """With arrays from the second step on, so that small worlds use them too."""
    with mock.patch("simulator.serving.leap.SHORTEST_STRETCH", 2):
        leaping = digest(world, leap=True, cost=cost)
    stepping = digest(world, leap=False, cost=cost)
    for name, value in stepping.items():
        assert leaping[name] == value, name


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds())
def test_a_leaping_run_equals_a_stepping_run_byte_for_byte(world: World) -> None:
    assert_same(world)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds(), page=st.sampled_from([4, 128]), array=st.sampled_from([1, 20]))
def test_a_leaping_run_equals_a_stepping_run_under_the_cost_model(world: World, page: int, array: int) -> None:
    with mock.patch("simulator.cost.SHORT_ARRAY", array), mock.patch("simulator.serving.page_steps.SHORT_ARRAY", array):
        assert_same(world, step_cost(page, "llama-3.2-1b" if world.window_tokens is None else "gemma-3-27b"))


def test_who_comes_back_leaves_the_way_free_from_the_next_step_on() -> None:
    """Both prompts fill the pool; the second one is swapped out, comes back when the first is done, and has two more
    tokens to go. While it was away nobody could have been admitted; from then on memory is free for whoever comes."""
    engine = EngineConfig(
        profile="vllm-0.6", scheduler="prefill_first", on_oom="preempt_swap", max_num_seqs=2, max_num_batched_tokens=4
    )
    world = World(requests_of([(0, 1, 2), (0, 1, 3)]), engine, "paged_cow", 4, page_tokens=8, window_tokens=5)
    assert_same(world, step_cost(4, "gemma-3-27b"))


@cache
def step_cost(page: int, model: str) -> StepCost:
    device = load_device(DeviceConfig(preset="910B4"))
    return StepCost(device, load_model(ModelConfig(preset=model)), EngineConfig(), page_tokens=page)


@pytest.mark.long
@settings(max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds())
def test_a_leaping_run_equals_a_stepping_run_over_many_worlds(world: World) -> None:
    assert_same(world)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds())
def test_every_run_ends_with_every_request_accounted_for(world: World) -> None:
    run, engine = world.run()
    ledger = run.ledger
    counts = {outcome: ledger.outcome.count(outcome) for outcome in Outcome}
    assert sum(counts.values()) == len(world.requests)
    if run.ended_because == "completed":
        assert counts[Outcome.unfinished] == 0
        assert engine.allocator.allocated_bytes == 0
    for i in range(len(world.requests)):
        if ledger.outcome[i] == Outcome.completed:
            room = world.max_model_len - int(world.requests.prompt_tokens[i])
            wanted = min(int(world.requests.output_tokens[i]), room)
            assert ledger.output_tokens[i] == max(1, wanted)
            assert ledger.arrived_ns[i] <= ledger.started_ns[i] <= ledger.first_token_ns[i] <= ledger.finished_ns[i]
