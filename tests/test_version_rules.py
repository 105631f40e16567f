"""Rules in which engine versions differ: small worked cases, figures by hand from the rules of the named sources."""

import pytest
from cow_world import Sequence as Owner
from engine_worlds import FixedCost, World, requests_of
from test_scheduler_cases import Desk

from simulator.allocators.paged import plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.sharing import RULES
from simulator.config import EngineConfig
from simulator.sequence import Outcome, State
from simulator.token_budget import INITIAL_RATIO, LEAST_RATIO

# ---- SGLang 0.5.10: managers/schedule_policy.py, schedule_batch.py


def sglang(**settings: int) -> Desk:
    return Desk(block_size=1, profile="sglang", max_num_batched_tokens=4096, max_num_seqs=64, **settings)


@pytest.mark.parametrize(("blocks", "admitted"), [(235, True), (234, False)])
def test_a_request_comes_in_when_a_share_of_what_others_will_generate_stays_free(blocks: int, admitted: bool) -> None:
    # The first runs with 50 + 1 tokens when the second asks, and 50 outputs of 51 are to come: at 0.7 that is 35. The
    # second wants 70 + 77 and a page of one token; more than 51 + 35 + 70 + 77 + 1 = 234 must be there.
    desk = sglang(blocks=blocks)
    desk.add(50, output=51)
    desk.step()
    desk.add(70, output=77)
    assert desk.step() == [1, 70 if admitted else 0]


def test_requests_of_the_same_step_count_in_full() -> None:
    # 50 + 51 for the first; 70 + 77 + 1 for the second: 249 are not more than 249.
    for blocks, second in ((250, 70), (249, 0)):
        desk = sglang(blocks=blocks)
        desk.add(50, output=51)
        desk.add(70, output=77)
        assert desk.step() == [50, second], blocks


def test_the_share_falls_with_every_decode_step_and_starts_again_when_nobody_runs() -> None:
    desk = sglang(blocks=2000)
    desk.add(10, output=901)
    budget = desk.scheduler.admission.token_budget
    assert budget is not None
    desk.step()
    for _ in range(300):
        desk.step()
    assert budget.ratio == pytest.approx((INITIAL_RATIO + LEAST_RATIO) / 2)
    for _ in range(400):
        desk.step()
    assert budget.ratio == pytest.approx(0.098)
    for _ in range(200):
        desk.step()
    assert not desk.scheduler.running
    desk.add(10)
    desk.step()
    assert budget.ratio == pytest.approx(0.7)


def test_a_retraction_estimates_the_share_from_those_that_stay() -> None:
    # 12 tokens for two prompts of 5: after one more output each nothing is left, the second gives way. The first has 2
    # outputs of 4 then: (2 + 20) / (4 + 1) is more than 1.
    desk = sglang(blocks=12)
    desk.scheduler.admission.token_budget._start_ratio = 0.0  # type: ignore[union-attr]
    first, second = desk.add(5, 5, output=4)
    desk.scheduler.admission.token_budget.tokens_kept = lambda candidate: 0  # type: ignore[union-attr, method-assign]
    assert desk.step() == [5, 5]
    assert desk.step() == [1, 1]
    assert desk.begin() == [1, 0]
    assert (first.state, second.state) == (State.DECODE, State.WAITING)
    assert desk.scheduler.admission.token_budget.ratio == 1.0  # type: ignore[union-attr]


def test_a_retracted_request_finds_its_prompt_again_but_not_its_outputs() -> None:
    for name, found in (("sglang", 8), ("vllm-0.33", 12)):
        allocator = PagedCowAllocator(plain_layout(page_tokens=4, bytes_per_token=1), max_pages=20, rules=RULES[name])
        owner = Owner(0, 8, 20, computed_tokens=8)
        holding = allocator.admit(owner, 8)
        assert holding is not None
        owner.tokens = [("x",)] * 13
        for length in range(9, 14):
            assert allocator.grow(holding, length)
        owner.computed_tokens = 13
        allocator.release(holding)
        assert allocator.hit_tokens(owner, 13) == found, name


# ---- vLLM 0.6.3: core/block_manager.py can_append_slots


def v0_pair(blocks: int, *, on_oom: str = "preempt_recompute") -> Desk:
    desk = Desk(
        blocks=blocks,
        block_size=4,
        profile="vllm-0.6",
        scheduler="prefill_first",
        max_num_batched_tokens=64,
        on_oom=on_oom,
    )
    desk.add(5, 5, output=4)
    assert desk.step() == [5, 5]
    return desk


def test_an_append_asks_for_a_free_block_even_where_the_last_one_has_room() -> None:
    # Two blocks each, three slots of each last one empty: with a fifth block both decode, without it one gives way.
    assert v0_pair(5).step() == [1, 1]
    assert v0_pair(4).step() == [1, 0]


def test_policies_that_0_6_does_not_have_take_a_block_only_where_one_is_needed() -> None:
    assert v0_pair(4, on_oom="wait").step() == [1, 1]


def test_a_request_that_needs_the_whole_pool_ends_one_recompute_a_token() -> None:
    # Two blocks of 4 tokens, a prompt of 5 and 4 outputs: 8 tokens are written. Nothing is ever free for an append, so
    # every output after the first comes out of a recompute.
    world = World(
        requests=requests_of([(0, 5, 4)]),
        engine=EngineConfig(profile="vllm-0.6", scheduler="prefill_first", max_num_seqs=4, max_num_batched_tokens=64),
        kind="paged",
        pool_pages=2,
    )
    run, _ = world.run()
    assert run.ledger.outcome[0] == Outcome.completed
    assert run.ledger.preemption_count == 3
    assert run.ledger.recomputed_tokens == 5 + 6 + 7


# ---- hit rates: v1/core/kv_cache_manager.py of vLLM 0.11 and 0.33


@pytest.mark.parametrize("leap", [True, False])
@pytest.mark.parametrize(("profile", "queries"), [("vllm-0.33", 2), ("vllm-0.11", 8)])
def test_0_11_counts_a_waiting_request_at_every_step_that_refuses_it(profile: str, queries: int, leap: bool) -> None:
    """Seven usable pages of 4 tokens. The first request starts with five and takes steps 1 to 7; the second asks for
    five in the steps 2 to 7 in vain, and comes in with step 8: looked up once or seven times, beside the first."""
    world = World(
        requests=requests_of([(0, 20, 7), (50, 20, 2)]),
        engine=EngineConfig(profile=profile, max_num_seqs=4, max_num_batched_tokens=64, on_oom="wait"),
        kind="paged_cow",
        pool_pages=8,
    )
    run, engine = world.run(leap=leap, cost=FixedCost(100))
    assert run.recorder.steps == 7 + 2
    assert engine.allocator.totals.prefix_query_tokens == 20 * queries
    assert engine.allocator.totals.prefix_hit_tokens == 0
