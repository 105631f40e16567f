"""Every run ends: what can never fit is refused, what cannot go on is named, and nothing else is given up."""

from dataclasses import replace
from typing import Any

import pytest
from engine_worlds import BYTES_PER_TOKEN, FixedCost, World, requests_of, worlds
from hypothesis import HealthCheck, given, settings

from simulator.allocators.base import Allocator, Life
from simulator.allocators.faults import FaultyAllocator
from simulator.allocators.host_pool import HostPool
from simulator.allocators.paged import plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.sharing import RULES
from simulator.config import EngineConfig, OnOom, ProfileName
from simulator.engine import Engine, EngineRun
from simulator.serving.sequence import Outcome, State
from simulator.units import format_bytes

POLICIES: list[OnOom] = ["fail", "wait", "preempt_recompute", "preempt_swap"]
PREEMPTING: list[OnOom] = ["preempt_recompute", "preempt_swap"]
Rows = list[tuple[int, int, int]]


def world(rows: Rows, pool_pages: int, *, kind: str = "paged_cow", samples: int = 1, **keys: Any) -> World:
    engine = {
        name: keys.pop(name) for name in list(keys) if name in EngineConfig.model_fields and name != "max_model_len"
    }
    return World(requests_of(rows, samples=samples), EngineConfig(**engine), kind, pool_pages, **keys)


def outcomes(run: EngineRun) -> list[str]:
    return [Outcome(outcome).name for outcome in run.ledger.outcome]


# ---- requests that no pool of this size can hold


@pytest.mark.parametrize("on_oom", POLICIES)
@pytest.mark.parametrize(
    ("prompt", "output", "pages", "expected"),
    [
        (3500, 1, 20, "too_large"),  # 28 pages of 128
        (3500, 200, 28, "too_large"),  # 3,699 tokens are stored: 29 pages
        (3500, 200, 29, "completed"),
        (3500, 1, 28, "completed"),
    ],
)
def test_a_request_larger_than_the_pool_never_runs(
    prompt: int, output: int, pages: int, expected: str, on_oom: OnOom
) -> None:
    asked = world([(0, prompt, output)], pages, page_tokens=128, max_model_len=8192, on_oom=on_oom)
    run, _ = asked.run()
    assert outcomes(run) == [expected]
    assert run.ended_because == "completed"
    assert (run.ledger.started_ns[0] < 0) == (expected == "too_large")


@pytest.mark.parametrize("kind", ["contiguous", "paged", "paged_cow", "paged_defrag"])
@pytest.mark.parametrize("scheduler", ["continuous", "prefill_first", "static"])
def test_others_are_served_around_a_request_that_is_too_large(kind: str, scheduler: str) -> None:
    asked = world([(0, 6, 3), (0, 60, 1), (0, 6, 3)], 10, kind=kind, scheduler=scheduler, max_model_len=64)
    if kind == "contiguous":
        asked.options = {"reserve": "exact"}
    assert outcomes(asked.run()[0]) == ["completed", "too_large", "completed"]


def test_look_ahead_slots_count_towards_what_a_request_needs() -> None:
    # 13 tokens take 4 pages of 4; with 4 look-ahead slots the last steps ask for 17.
    rows = [(0, 10, 4)]
    assert outcomes(world(rows, 4).run()[0]) == ["completed"]
    assert outcomes(world(rows, 4, num_lookahead_tokens=4).run()[0]) == ["too_large"]
    assert outcomes(world(rows, 5, num_lookahead_tokens=4).run()[0]) == ["completed"]


def test_a_windowed_request_must_fit_when_its_outputs_are_computed_again() -> None:
    # Window 5, pages of 4, two groups. Prompt 1 and 40 outputs: decoding needs 10 + 3 pages, but a recompute in one
    # piece needs the window layers' whole row: 10 + 10.
    rows = [(0, 1, 40)]
    for on_oom, pages, expected in (
        ("fail", 13, "completed"),
        ("preempt_recompute", 19, "too_large"),
        ("preempt_recompute", 20, "completed"),
    ):
        run, _ = world(rows, pages, kind="paged", window_tokens=5, on_oom=on_oom).run()
        assert outcomes(run) == [expected], (on_oom, pages)


def test_samples_that_share_a_prompt_need_a_seat_each() -> None:
    rows = [(0, 6, 3), (0, 6, 3)]
    assert outcomes(world(rows, 40, samples=3, max_num_seqs=2).run()[0]) == ["too_large", "too_large"]
    assert outcomes(world(rows, 40, samples=3, max_num_seqs=3).run()[0]) == ["completed", "completed"]
    # Without sharing each sample is a sequence of its own, and they take turns.
    assert outcomes(world(rows, 40, kind="paged", samples=3, max_num_seqs=2).run()[0]) == ["completed", "completed"]


# ---- fewer pages than two growing requests need


GROWING: Rows = [(0, 6, 12), (0, 6, 12)]  # 17 tokens each: 5 pages of 4; 3 + 3 pages are held when both need a fourth


def test_fail_loses_one_of_two_growing_requests() -> None:
    run, _ = world(GROWING, 6, on_oom="fail").run()
    assert outcomes(run) == ["oom_decode", "completed"]
    assert run.ledger.oom_events == {"capacity": 1, "fragmentation": 0}


def test_wait_ends_in_a_livelock_that_names_the_holders() -> None:
    run, engine = world(GROWING, 6, on_oom="wait").run()
    assert run.ended_because == "livelock"
    assert outcomes(run) == ["unfinished", "unfinished"]
    page_bytes = 4 * BYTES_PER_TOKEN
    assert f"hold {6 * page_bytes} B of {6 * page_bytes} B" in run.detail
    for request_id in (0, 1):
        assert f"request {request_id} holds {3 * page_bytes} B (12 of 17 tokens)" in run.detail
    assert f"Room for 5 more tokens ({5 * BYTES_PER_TOKEN} B), kept for request 0, would let it finish" in run.detail
    assert "on_oom" in run.detail and "max_num_seqs" in run.detail
    assert all(sequence.state is State.STALLED for sequence in engine.scheduler.running)
    assert run.ledger.stalls == 2 and run.ledger.oom_events["capacity"] == 2


def test_the_remedies_that_a_livelock_names_do_help() -> None:
    # A pool of 9: four pages each, and the last one for the first to end.
    for cure in (world(GROWING, 9, on_oom="wait"), world(GROWING, 6, on_oom="wait", max_num_seqs=1)):
        assert outcomes(cure.run()[0]) == ["completed", "completed"]


@pytest.mark.parametrize("on_oom", PREEMPTING)
def test_preemption_lets_both_complete_in_turn(on_oom: OnOom) -> None:
    kind = "paged" if on_oom == "preempt_recompute" else "paged_cow"
    run, _ = world(GROWING, 6, on_oom=on_oom, kind=kind).run()
    assert outcomes(run) == ["completed", "completed"]
    assert run.ledger.preemptions.tolist() == [0, 1]
    assert run.ledger.finished_ns[0] < run.ledger.finished_ns[1]
    if on_oom == "preempt_recompute":
        assert run.ledger.recomputed_tokens == 12
    else:
        assert run.ledger.swapped_bytes == 2 * 3 * 4 * BYTES_PER_TOKEN


class SmallHost(World):
    """Two pages of host memory."""

    def allocator(self) -> Allocator:
        layout = plain_layout(page_tokens=self.page_tokens, bytes_per_token=BYTES_PER_TOKEN)
        return PagedCowAllocator(layout, max_pages=self.pool_pages, rules=RULES["generic"], host=HostPool(2))


def test_a_swap_without_host_room_loses_the_victim_and_says_so() -> None:
    run, _ = SmallHost(requests_of(GROWING), EngineConfig(on_oom="preempt_swap"), "paged_cow", 6).run()
    assert outcomes(run) == ["completed", "oom_decode"]
    assert run.ledger.swap_refusals == 1 and run.ledger.swapped_bytes == 0


@pytest.mark.parametrize("kind", ["paged", "paged_cow", "paged_defrag", "contiguous"])
@pytest.mark.parametrize("scheduler", ["continuous", "prefill_first", "static"])
def test_many_requests_that_each_fill_the_pool_complete_one_after_the_other(kind: str, scheduler: str) -> None:
    asked = world([(0, 6, 12)] * 7, 6, kind=kind, scheduler=scheduler)
    if kind == "contiguous":
        asked.options = {"reserve": "grow", "grow_tokens": 4}
    run, _ = asked.run()
    assert outcomes(run) == ["completed"] * 7


# ---- no false alarm


@pytest.mark.parametrize("on_oom", ["preempt_recompute", "wait", "fail"])
def test_a_sequence_alone_in_the_middle_of_a_contiguous_pool_starts_over_at_its_edge(on_oom: OnOom) -> None:
    # 10 tokens. The first request ends and leaves 3 free below the second, which cannot pass 7 tokens where it is.
    asked = world([(0, 3, 1), (0, 3, 7)], 10, kind="contiguous", page_tokens=1, max_model_len=10, on_oom=on_oom)
    asked.options = {"reserve": "grow", "grow_tokens": 1}
    run, _ = asked.run()
    assert (outcomes(run)[1], run.ended_because) == {
        "preempt_recompute": ("completed", "completed"),
        "wait": ("unfinished", "livelock"),
        "fail": ("oom_decode", "completed"),
    }[on_oom]


def test_a_stalled_sequence_goes_on_without_look_ahead_slots() -> None:
    # Both hold 9 slots of 19 at length 9 and ask for 12: refused, though one more is all that the first needs to end.
    asked = world([(0, 1, 10), (0, 1, 10)], 19, page_tokens=1, on_oom="wait", num_lookahead_tokens=2)
    run, _ = asked.run()
    assert outcomes(run) == ["completed", "completed"]
    assert run.ledger.stalls == 2


def test_a_static_batch_whose_last_sequence_was_preempted_is_over() -> None:
    rows = [(0, 3, 3), (0, 1, 1), (0, 1, 1)]
    asked = world(rows, 5, page_tokens=1, scheduler="static", max_num_seqs=2, max_num_batched_tokens=64)
    run, _ = asked.run()
    assert outcomes(run) == ["completed"] * 3
    assert run.ledger.preemptions[0] == 1


def test_a_static_batch_that_was_swapped_out_comes_back() -> None:
    rows = [(0, 1, 6), (0, 1, 1), (0, 1, 1)]
    run, _ = world(rows, 2, scheduler="static", max_num_seqs=2, on_oom="preempt_swap").run()
    assert outcomes(run) == ["completed"] * 3
    assert run.ledger.swapped_bytes == 2 * 4 * BYTES_PER_TOKEN


def test_samples_that_outgrow_the_pool_together_end_instead_of_waiting_on_the_host() -> None:
    # One shared page; at their second token two of three samples need a copy, but one page is left.
    run, _ = world([(0, 1, 2)], 2, samples=3, on_oom="preempt_swap").run()
    assert outcomes(run) == ["oom_decode"]
    assert run.ended_because == "completed"


def test_time_in_the_queue_ends_though_nothing_else_happens() -> None:
    run, _ = world([(0, 6, 10), (0, 6, 2)], 40, max_num_seqs=1, queue_timeout=2e-6).run(cost=FixedCost(1000))
    assert outcomes(run) == ["completed", "timed_out"]
    assert run.ledger.finished_ns[1] == 2000


# ---- leaks


class Leaky(World):
    """Every second sequence that ends keeps its pages."""

    def allocator(self) -> Allocator:
        return FaultyAllocator(super().allocator(), "missed_end_of_sequence", every=2)


class Leaked(World):
    """11 pages of 4 tokens are lost from the start."""

    def allocator(self) -> Allocator:
        allocator = super().allocator()
        assert allocator.admit(Life(-1, 44, 1, 44), 44) is not None
        return allocator


@pytest.mark.parametrize("on_oom", [*PREEMPTING, "wait"])
@pytest.mark.parametrize("profile", ["generic", "vllm-0.11"])
def test_a_leak_ends_in_a_livelock_that_says_how_much_belongs_to_nobody(on_oom: OnOom, profile: ProfileName) -> None:
    config = EngineConfig(on_oom=on_oom, profile=profile, max_num_batched_tokens=8, max_num_seqs=4)
    leaky = Leaky(requests_of([(i * 100_000, 18, 4) for i in range(20)]), config, "paged_cow", 25)
    run, engine = leaky.run(verify=False)
    assert run.ended_because == "livelock"
    assert "unfinished" in outcomes(run) and "completed" in outcomes(run)
    scheduler = engine.scheduler
    held = sum(engine.allocator.holding_bytes(scheduler.holding(sequence)) for sequence in scheduler.running)
    leaked = format_bytes(engine.allocator.allocated_bytes - held)
    assert f"{leaked} belong to no live sequence: a leak" in run.detail


def test_the_same_request_preempted_again_and_again_without_output_is_a_livelock() -> None:
    # Chunks of 8, admitted by the first chunk alone: the prompt gets as far as the leak allows, for ever.
    config = EngineConfig(profile="vllm-0.11", max_num_batched_tokens=8)
    run, _ = Leaked(requests_of([(0, 18, 2), (0, 60, 2)]), config, "paged", 22).run(verify=False)
    assert run.ended_because == "livelock"
    assert outcomes(run) == ["completed", "unfinished"]
    assert 64 < run.ledger.preemptions[1] < 100
    assert "704 B belong to no live sequence: a leak" in run.detail


def test_a_leak_under_fail_shows_at_the_end_as_memory_that_nobody_gave_back() -> None:
    leaky = Leaky(requests_of([(0, 18, 4)] * 9), EngineConfig(on_oom="fail"), "paged_cow", 25)
    with pytest.raises(AssertionError, match="bytes are still held"):
        leaky.run(verify=False)


# ---- published hangs


@pytest.mark.parametrize("blocks", [40, 100, 300, 900])
@pytest.mark.parametrize("on_oom", PREEMPTING)
def test_a_small_cache_under_a_burst_of_512_token_requests_finishes_them_all(blocks: int, on_oom: OnOom) -> None:
    # BLIS (inference-sim issue 297): below 1,000 blocks of 16 the simulation never ended.
    rows = [(i * 500_000, 512, 64) for i in range(60)]
    run, _ = world(rows, blocks, page_tokens=16, max_model_len=1024, on_oom=on_oom).run(verify=False)
    assert outcomes(run) == ["completed"] * 60


def test_sharing_a_prefix_finishes_more_and_computes_less_again_for_each() -> None:
    # inference-sim issue 1167: 200 blocks, 30 requests a second, a shared prefix of 512 tokens; without sharing nothing
    # finished there. Preemptions as such need not fall: sharing lets more sequences run, each cheaper to preempt.
    rows = [(i * 33_000_000, 600, 256) for i in range(120)]
    results = {}
    for kind in ("paged_cow", "paged"):
        shared = World(
            requests_of(rows, prefixes=[(0, 512)] * len(rows)),
            EngineConfig(max_num_batched_tokens=2048),
            kind,
            200,
            page_tokens=16,
            max_model_len=1024,
            horizon_ns=8_000_000_000,
        )
        run, _ = shared.run(verify=False, cost=FixedCost(10_000_000))
        completed = outcomes(run).count("completed")
        results[kind] = completed, run.ledger.recomputed_tokens / completed
    assert results["paged_cow"][0] > 2 * results["paged"][0]
    assert results["paged_cow"][1] < results["paged"][1]


def test_admission_by_the_whole_prompt_does_not_compute_a_prompt_that_cannot_stay() -> None:
    # vLLM PR 37307: four prompts of 100 units hold most of the pool; a fifth is admitted by its first chunk, gets half
    # way, is preempted, and starts again.
    rows = [(0, 100, 40)] * 4 + [(1, 100, 40)]
    done = {}
    for profile in ("vllm-0.33", "vllm-0.11"):
        keys = {"page_tokens": 4, "max_model_len": 256, "max_num_batched_tokens": 32, "profile": profile}
        run, _ = world(rows, 113, kind="paged", **keys).run(verify=False, cost=FixedCost(1000))
        assert outcomes(run) == ["completed"] * 5
        done[profile] = run.ledger.preemptions[4], run.ledger.recomputed_tokens, run.ledger.started_ns[4]
    assert done["vllm-0.33"][0] == 0
    assert done["vllm-0.11"][0] > 0
    assert done["vllm-0.33"][1] < done["vllm-0.11"][1]
    assert done["vllm-0.33"][2] > done["vllm-0.11"][2]


# ---- random worlds


def within_rules(world: World) -> World:
    """``world`` with a token budget that a scenario would accept: whole prompts must fit it."""
    if world.engine.enable_chunked_prefill:
        return world
    budget = max(world.engine.max_num_batched_tokens, world.max_model_len)
    return replace(world, engine=world.engine.model_copy(update={"max_num_batched_tokens": budget}))


def ends(world: World) -> tuple[EngineRun, Engine]:
    """Run ``world`` step by step, counting: far fewer scheduling points than a run for ever would have."""
    sequences = int(world.requests.samples.sum())
    points = 0

    def watch(engine: Engine) -> bool:
        nonlocal points
        points += 1
        return points <= 2000 * (1 + sequences)

    run, engine = world.run(verify=False, leap=False, watch=watch)
    assert run.ended_because != "interrupted", "too many scheduling points"
    return run, engine


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds())
def test_no_world_runs_for_ever_and_only_a_true_standstill_is_a_livelock(world: World) -> None:
    check_end(within_rules(world))


@pytest.mark.long
@settings(max_examples=10_000, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds())
def test_no_world_runs_for_ever_and_only_a_true_standstill_is_a_livelock_in_many_worlds(world: World) -> None:
    check_end(within_rules(world))


def check_end(world: World) -> None:
    run, engine = ends(world)
    unfinished = outcomes(run).count("unfinished")
    if run.ended_because == "completed":
        assert not unfinished
    elif run.ended_because == "livelock":
        # Without a leak only those who wait with full hands can block each other.
        assert world.engine.on_oom == "wait" and unfinished
        blocked = [s for s in engine.scheduler.running if s.state is not State.LINGERING]
        assert blocked
        for sequence in blocked:
            holding = engine.scheduler.holding(sequence)
            if sequence.state is State.STALLED:
                assert not engine.allocator.grow(holding, sequence.computed_tokens + 1), "it could have gone on"
