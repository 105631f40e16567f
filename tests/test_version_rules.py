"""Rules in which engine versions differ: small worked cases, figures by hand from the rules of the named sources."""

import pytest
from cow_world import Sequence as Owner
from engine_worlds import BYTES_PER_TOKEN, FixedCost, World, requests_of
from test_scheduler_cases import Desk

from simulator.allocators.paged import PagedAllocator, PageGroup, PageLayout, plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.sharing import RULES
from simulator.config import EngineConfig
from simulator.serving.sequence import Outcome, State
from simulator.serving.token_budget import INITIAL_RATIO, LEAST_RATIO

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


# ---- vLLM 0.6.3: chunked prefill with prefix caching, swapping of groups


def caching_desk(**settings: int) -> Desk:
    desk = Desk(blocks=64, block_size=4, host=8, profile="vllm-0.6", max_num_batched_tokens=64, **settings)
    desk.allocator.caches_prefixes = True
    return desk


def test_with_prefix_caching_a_cut_prompt_ends_with_a_block() -> None:
    # tests/core/test_chunked_prefill_scheduler.py, test_perfix_caching: 50 + 12 of a budget of 64, not 50 + 14.
    desk = caching_desk()
    desk.add(50, 50, output=1)
    assert desk.step() == [50, 12]
    assert desk.step() == [0, 38]


def test_a_budget_below_a_page_is_used_all_the_same() -> None:
    desk = Desk(blocks=64, block_size=16, host=8, profile="vllm-0.6", max_num_batched_tokens=10, max_num_seqs=4)
    desk.allocator.caches_prefixes = True
    desk.add(25, output=1)
    assert [desk.step() for _ in range(3)] == [[10], [10], [5]]


def test_of_three_requests_of_two_samples_the_last_is_swapped_as_a_whole() -> None:
    """tests/core/test_scheduler.py, test_decode_swap_beam_search: the third group cannot append, and goes to the host.

    Sixteen pages of 4: three prompts of 8 take two pages each, the first append one more for each of the six samples.
    For the thirteenth token each needs another; there are four."""
    world = World(
        requests=requests_of([(0, 8, 6)] * 3, samples=2),
        engine=EngineConfig(profile="vllm-0.6", on_oom="preempt_swap", max_num_seqs=8, max_num_batched_tokens=64),
        kind="paged_cow",
        pool_pages=16,
        options={"enable_prefix_caching": False},
    )
    run, _ = world.run()
    assert run.ledger.outcome.tolist() == [Outcome.completed] * 3
    assert run.ledger.preemptions.tolist() == [0, 0, 1]
    # two shared pages and a private one a sample, out and in again
    assert run.ledger.swapped_bytes == 2 * (2 + 2) * 4 * BYTES_PER_TOKEN
    assert run.ledger.recomputed_tokens == 0


def test_without_prefix_caching_nothing_is_looked_up() -> None:
    world = World(
        requests=requests_of([(0, 20, 7), (50, 20, 2)], prefixes=[(1, 20), (1, 20)]),
        engine=EngineConfig(profile="vllm-0.33", max_num_seqs=4, max_num_batched_tokens=64),
        kind="paged_cow",
        pool_pages=16,
        options={"enable_prefix_caching": False},
    )
    totals = world.run()[1].allocator.totals
    assert (totals.prefix_query_tokens, totals.prefix_hit_tokens, totals.evictions) == (0, 0, 0)


# ---- pages of one layer: vAttention (microsoft/vattention, utils.h)


@pytest.mark.parametrize(("tokens", "mib"), [(1, 128), (1024, 128), (1025, 256)])
def test_two_mebibytes_for_k_and_for_v_of_a_layer_hold_1024_tokens(tokens: int, mib: int) -> None:
    # Llama-3-8B: 8 KV heads of 128 in 2 bytes are 2 KiB a token for K and for V; 32 layers take 64 pages of 2 MiB.
    layout = PageLayout(1024, 4 * 2**20, (PageGroup(131_072, copies=32),))
    allocator = PagedAllocator(layout, max_pages=640)
    assert allocator.admit(Owner(0, tokens, 1), tokens) is not None
    assert allocator.allocated_bytes == mib * 2**20


# ---- static batches


def test_padding_is_counted_apart_from_prompts() -> None:
    """Prompts of 12 and 4 in one batch: eight tokens are padding, in the step and in no throughput."""
    world = World(
        requests=requests_of([(0, 12, 3), (0, 4, 1)]),
        engine=EngineConfig(scheduler="static", max_num_seqs=4, max_num_batched_tokens=64),
        kind="paged",
        pool_pages=16,
    )
    run, _ = world.run()
    assert run.recorder.prompt_tokens == 12 + 4
    # and the second sequence is computed along in both decode steps of the first
    assert run.ledger.padding_tokens == 8 + 2
