"""Worked scheduling steps from the test suites of real engines: who computes how many tokens in which step.

Sources: vLLM 0.33.0 and 0.11.0 ``tests/v1/core/test_scheduler.py``, vLLM 0.6.3.post1 ``tests/core/test_scheduler.py``
and ``test_chunked_prefill_scheduler.py``, cann-recipes-infer ``tests/core/test_continuous_batching_scheduler.py``.
"""

from typing import Any
from unittest import mock

import pytest
from engine_worlds import BYTES_PER_TOKEN

from simulator.allocators.base import Holding, Shortfall
from simulator.allocators.host_pool import HostPool
from simulator.allocators.paged import PagedAllocator, plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.sharing import RULES
from simulator.config import EngineConfig
from simulator.profiles import PROFILES
from simulator.serving.batch import DecodeBatch
from simulator.serving.ledger import Ledger
from simulator.serving.schedulers import SCHEDULERS
from simulator.serving.sequence import Outcome, Sequence, State
from simulator.serving.token_budget import TokenBudget

LIVE = (State.PREFILL, State.DECODE)


class Desk:
    """One scheduler, stepped by hand. ``blocks`` counts all pages, the null page of some profiles among them."""

    def __init__(
        self, *, blocks: int, block_size: int = 16, max_model_len: int = 4096, host: int = 0, **engine: Any
    ) -> None:
        self.config = EngineConfig(**engine)
        profile = PROFILES[self.config.profile]
        layout = plain_layout(page_tokens=block_size, bytes_per_token=BYTES_PER_TOKEN)
        if host:
            self.allocator: PagedAllocator = PagedCowAllocator(
                layout,
                max_pages=blocks,
                rules=RULES[self.config.profile],
                host=HostPool(host),
                enable_prefix_caching=False,
            )
        else:
            self.allocator = PagedAllocator(
                layout,
                max_pages=blocks,
                free_order=profile.free_order,
                null_page=profile.null_page,
                reverse_release=profile.reverse_release,
            )
        self.batch = DecodeBatch(block_size)
        self.ledger = Ledger(64)
        self.scheduler = SCHEDULERS[self.config.scheduler](
            self.config, self.allocator, batch=self.batch, ledger=self.ledger, max_model_len=max_model_len
        )
        self.sequences: list[Sequence] = []
        self.now = 0

    def add(self, *prompts: int, output: int = 16) -> list[Sequence]:
        added = []
        for prompt in prompts:
            sequence = Sequence(len(self.sequences), prompt_tokens=prompt, output_tokens=output, arrival_ns=self.now)
            self.ledger.arrival(sequence.request_id, self.now)
            self.sequences.append(sequence)
            self.scheduler.enqueue(sequence, self.now)
            added.append(sequence)
        return added

    def begin(self) -> list[int]:
        """Schedule one step: the tokens that each sequence computes in it, in the order of their arrival."""
        before = {s: s.computed_tokens for s in self.sequences if s.state is State.PREFILL}
        load = self.scheduler.schedule(self.now)
        decodes = load is not None and load.decode_sequences > 0
        tokens = []
        for sequence in self.sequences:
            if sequence.state is State.PREFILL:
                tokens.append(sequence.computed_tokens - before.get(sequence, 0))
            else:
                tokens.append(int(decodes and sequence.state is State.DECODE))
        assert sum(tokens) == (load.tokens if load else 0)
        self.allocator.check(self.scheduler.live_holdings())
        return tokens

    def step(self) -> list[int]:
        tokens = self.begin()
        self.now += 1
        if any(tokens):
            self.scheduler.finish_step(self.now)
        return tokens


# ---- vLLM v1


def test_three_long_prompts_share_the_budget_under_a_long_prefill_threshold() -> None:
    desk = Desk(
        blocks=10_000,
        profile="vllm-0.11",
        max_num_batched_tokens=1024,
        long_prefill_token_threshold=400,
        max_num_seqs=16,
    )
    desk.add(800, 800, 800)
    assert desk.step() == [400, 400, 224]
    assert desk.step() == [400, 400, 224]
    assert desk.step() == [1, 1, 352]
    assert desk.step() == [1, 1, 1]


@pytest.mark.parametrize(("profile", "first"), [("vllm-0.33", 1024), ("vllm-0.11", 400), ("generic", 400)])
def test_a_prompt_alone_ignores_the_threshold_since_0_33(profile: str, first: int) -> None:
    desk = Desk(blocks=10_000, profile=profile, max_num_batched_tokens=1024, long_prefill_token_threshold=400)
    desk.add(2000)
    assert desk.step() == [first]
    desk.add(10)
    # In company the threshold holds again.
    assert desk.step() == [400, 10]


@pytest.mark.parametrize(("chunked", "first"), [(True, [800, 224, 0, 0]), (False, [800, 0, 0, 0])])
def test_prompts_are_admitted_in_order_and_never_past_one_that_does_not_fit_the_budget(
    chunked: bool, first: list[int]
) -> None:
    desk = Desk(
        blocks=10_000,
        profile="vllm-0.11",
        max_num_batched_tokens=1024,
        max_num_seqs=3,
        enable_chunked_prefill=chunked,
        max_model_len=1024,
    )
    desk.add(800, 800, 10, 10)
    assert desk.step() == first
    assert desk.step() == ([1, 576, 10, 0] if chunked else [1, 800, 10, 0])


def test_a_decode_that_needs_a_block_preempts_the_one_admitted_last() -> None:
    # 10 usable blocks of 16: both prompts of 80 take 5, then the first needs a sixth.
    desk = Desk(blocks=11, profile="vllm-0.11", max_num_batched_tokens=160)
    first, second = desk.add(80, 80)
    assert desk.step() == [80, 80]
    assert desk.begin() == [1, 0]
    assert (first.state, second.state) == (State.DECODE, State.WAITING)
    assert desk.scheduler.waiting[0] is second and second.computed_tokens == 0
    assert desk.ledger.preemptions[1] == 1


def test_a_request_preempts_itself_when_it_is_the_last_and_nothing_is_admitted_in_that_step() -> None:
    desk = Desk(blocks=11, profile="vllm-0.11", max_num_batched_tokens=200, max_num_seqs=3)
    _, second = desk.add(70, 80)  # 5 + 5 blocks; the first has room for 10 more tokens, the second for none
    assert desk.step() == [70, 80]
    desk.add(10)
    assert desk.begin() == [1, 0, 0]
    assert second.state is State.WAITING and desk.scheduler.preempted_in_step
    assert desk.scheduler.waiting[0] is second, "a victim comes back before those that never ran"


def test_running_requests_come_before_waiting_ones() -> None:
    desk = Desk(blocks=1000, profile="vllm-0.33", max_num_batched_tokens=64)
    desk.add(50)
    desk.step()
    desk.add(100)
    assert desk.step() == [1, 63]
    assert desk.step() == [1, 37]


@pytest.mark.parametrize(("profile", "admitted"), [("vllm-0.33", 0), ("vllm-0.6", 0), ("vllm-0.11", 95)])
def test_the_whole_prompt_must_fit_but_in_0_11_only_the_first_chunk(profile: str, admitted: int) -> None:
    desk = Desk(blocks=21, profile=profile, max_num_batched_tokens=96)
    desk.add(64)
    desk.step()
    # 20 blocks are usable (21 in 0.6), 5 of them taken: the second prompt takes 17.
    desk.add(272)
    assert desk.step() == [1, admitted]


def test_a_sequence_of_the_whole_pool_runs_alone() -> None:
    desk = Desk(blocks=5, profile="vllm-0.33", max_num_batched_tokens=64)  # 4 usable
    desk.add(64, 16, output=1)
    assert desk.step() == [64, 0]
    assert desk.step() == [0, 16]


# ---- vLLM v0: prompts first, watermark, recompute


def v0(**keys: Any) -> Desk:
    keys = {"block_size": 4, "profile": "vllm-0.6", "scheduler": "prefill_first", "max_num_batched_tokens": 64, **keys}
    return Desk(**keys)


def test_prompts_are_batched_and_then_decode_together() -> None:
    desk = v0(blocks=8)
    desk.add(4, 4, 4, 4)
    assert desk.step() == [4, 4, 4, 4]
    assert desk.step() == [1, 1, 1, 1]


def test_an_aborted_request_lets_the_preempted_one_compute_its_prompt_and_its_output_again() -> None:
    desk = v0(blocks=2)
    first, _ = desk.add(4, 4, output=4)
    assert desk.step() == [4, 4]
    assert desk.step() == [1, 0]
    assert desk.ledger.preemptions.tolist()[:2] == [0, 1]
    desk.scheduler.end(first, Outcome.timed_out, desk.now)
    assert desk.step() == [0, 5]


def test_seats_bound_a_prompt_batch() -> None:
    desk = v0(blocks=1000, max_num_seqs=2, max_num_batched_tokens=1000)
    desk.add(60, 60, 60)
    assert desk.step() == [60, 60, 0]
    assert len(desk.scheduler.waiting) == 1


def test_a_prompt_longer_than_the_model_allows_is_not_queued() -> None:
    desk = v0(blocks=1000, max_model_len=30, max_num_batched_tokens=1000)
    desk.add(60)
    assert not desk.scheduler.waiting
    assert desk.ledger.outcome[0] == Outcome.too_large


def test_a_new_prompt_interrupts_decoding() -> None:
    desk = v0(blocks=100)
    desk.add(4)
    desk.step()
    desk.add(8)
    assert desk.step() == [0, 8]
    assert desk.step() == [1, 1]


@pytest.mark.parametrize("blocks", [8, 40, 80])
@pytest.mark.parametrize("watermark", [0.0, 0.5])
def test_the_watermark_refuses_for_ever_what_an_empty_pool_could_not_keep_free(blocks: int, watermark: float) -> None:
    # NEVER iff N - need < int(watermark * N): need counts the prompt's blocks.
    for need in range(1, blocks):
        desk = v0(blocks=blocks, watermark=watermark, max_num_batched_tokens=4096)
        (sequence,) = desk.add(4 * need, output=1)
        never = blocks - need < int(watermark * blocks)
        assert (sequence.state is State.DONE) == never, need
        assert desk.step() == ([0] if never else [4 * need])


def test_the_watermark_makes_later_requests_wait_but_lets_decodes_use_the_rest() -> None:
    desk = v0(blocks=20, watermark=0.2, max_num_batched_tokens=400)
    first, second = desk.add(40, 28, output=30)  # 10 + 7 blocks; 3 would be left, 4 must be
    assert desk.step() == [40, 0]
    desk.scheduler.end(second, Outcome.timed_out, desk.now)
    desk.add(24, output=30)  # 6 blocks leave 4
    assert desk.step() == [0, 0, 24]
    for _ in range(5):
        assert desk.step() == [1, 0, 1]
    assert first.state is State.DECODE and desk.allocator.free_pages() == 0
    # Both last pages have room for three tokens more, but an append asks for a free block for every one it touches.
    assert desk.step() == [1, 0, 0]


def test_0_33_keeps_its_watermark_only_while_something_runs() -> None:
    desk = Desk(blocks=21, block_size=4, profile="vllm-0.33", watermark=0.5, max_num_batched_tokens=400)
    desk.add(72, output=1)
    assert desk.step() == [72]


# ---- vLLM v0 with chunked prefill: one mixed batch


def chunked(**keys: Any) -> Desk:
    return Desk(**{"block_size": 4, "profile": "vllm-0.6", "max_num_batched_tokens": 64, **keys})


def test_a_chunk_fills_the_budget_and_decodes_come_first_in_the_next_step() -> None:
    desk = chunked(blocks=32)
    desk.add(60, 60)
    assert desk.step() == [60, 4]
    assert desk.step() == [1, 56]


@pytest.mark.parametrize(("max_model_len", "expected"), [(64, [32]), (32, [0])])
def test_a_prompt_beyond_the_budget_is_chunked_and_one_beyond_the_model_is_refused(
    max_model_len: int, expected: list[int]
) -> None:
    desk = chunked(blocks=100, max_num_batched_tokens=32, max_model_len=max_model_len)
    desk.add(48, output=1)
    assert desk.step() == expected


def test_a_prompt_whose_second_chunk_has_no_room_starts_over() -> None:
    desk = chunked(blocks=32, max_num_batched_tokens=30)
    (sequence,) = desk.add(60, output=1)
    assert desk.step() == [30]
    refuse_growth_once(desk)
    assert desk.step() == [0]
    assert sequence.state is State.WAITING and sequence.computed_tokens == 0
    assert desk.ledger.preemptions[0] == 1
    assert desk.step() == [30]
    assert sequence.target_tokens - sequence.computed_tokens == 30
    assert desk.step() == [30]
    assert sequence.state is State.DONE


def refuse_growth_once(desk: Desk) -> None:
    """The next growth is refused, as the mocked block manager of the original test does."""
    allocator = desk.allocator
    grow = allocator.grow

    def refuse(holding: Holding, tokens: int, new_tokens: int = 1) -> bool:
        allocator.grow = grow  # type: ignore[method-assign]
        allocator.shortfall = Shortfall("capacity", 1, 0, 0)
        return False

    allocator.grow = refuse  # type: ignore[method-assign]


def test_a_swapped_request_returns_before_anybody_new_is_admitted() -> None:
    desk = Desk(blocks=5, block_size=4, host=6, profile="vllm-0.6", on_oom="preempt_swap", max_num_batched_tokens=64)
    first, second = desk.add(8, 8, output=6)  # 2 + 2 blocks of 5; both need a third
    assert desk.step() == [8, 8]
    assert desk.step() == [1, 0]
    assert second.state is State.SWAPPED
    (third,) = desk.add(4, output=6)
    while first.state is not State.DONE:
        assert desk.step()[2] == 0, "one free block would do for the newcomer, but somebody is swapped out"
    assert desk.step() == [0, 1, 4]
    assert second.state is State.DECODE and third.state in LIVE


# ---- cann-recipes-infer


def cann(**keys: Any) -> Desk:
    keys = {
        "block_size": 128,
        "profile": "cann-recipes",
        "scheduler": "prefill_first",
        "max_num_batched_tokens": 64,
        **keys,
    }
    return Desk(**keys)


def test_four_of_eight_requests_decode_at_a_time_when_there_are_four_seats() -> None:
    desk = cann(blocks=101, max_num_seqs=4)
    desk.add(*[8] * 8)
    assert desk.step() == [8] * 4 + [0] * 4
    assert desk.step() == [1] * 4 + [0] * 4


def test_prefill_goes_first_in_a_batch_of_its_own() -> None:
    desk = cann(blocks=101, max_num_seqs=4)
    desk.add(8)
    desk.step()
    desk.add(8)
    assert desk.step() == [0, 8]


@pytest.mark.parametrize(("need", "admitted"), [(90, True), (91, False)])
def test_room_for_64_tokens_is_kept_for_every_live_request(need: int, admitted: bool) -> None:
    # 100 blocks of 128 are free beside 10 live requests: one block each is set aside.
    desk = cann(blocks=111, max_num_batched_tokens=20_000, max_model_len=20_000)
    desk.add(*[8] * 10)
    desk.step()
    assert desk.allocator.free_pages() == 100
    desk.add(need * 128)
    assert desk.step()[10] == (need * 128 if admitted else 0)


# ---- SGLang


def test_sglang_retracts_the_request_with_the_fewest_outputs_and_of_those_the_longest_prompt() -> None:
    desk = Desk(blocks=12, block_size=4, profile="sglang", max_num_batched_tokens=64)
    old = desk.add(12)[0]
    desk.step()
    short, long = desk.add(8, 16)
    with mock.patch.object(TokenBudget, "tokens_kept", return_value=0):
        assert desk.step() == [1, 8, 16]
    # 4 + 2 + 4 blocks. In the next step the prompts of 8 and 16 need a block each and there are two.
    assert desk.step() == [1, 1, 1]
    for _ in range(2):
        desk.step()
    # The first needs its fifth block: 4 + 3 + 5 are taken.
    assert desk.begin() == [1, 1, 0]
    assert (old.state, short.state, long.state) == (State.DECODE, State.DECODE, State.WAITING)


# ---- nano-vllm


def test_only_the_first_prompt_of_a_prefill_step_may_be_chunked() -> None:
    desk = Desk(blocks=100, scheduler="prefill_first", max_num_batched_tokens=100)
    desk.add(120, 80)
    assert desk.step() == [100, 0]
    # The rest of the first and the whole of the second fit.
    assert desk.step() == [20, 80]


def test_without_chunks_a_prompt_beyond_the_budget_is_refused() -> None:
    desk = Desk(blocks=100, scheduler="prefill_first", max_num_batched_tokens=100, enable_chunked_prefill=False)
    desk.add(120)
    assert desk.ledger.outcome[0] == Outcome.too_large


def test_a_second_prompt_is_not_cut_to_fill_a_prefill_step() -> None:
    desk = Desk(blocks=100, scheduler="prefill_first", max_num_batched_tokens=100)
    desk.add(60, 60)
    assert desk.step() == [60, 0]
    assert desk.step() == [0, 60]
