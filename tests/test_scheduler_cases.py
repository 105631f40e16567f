"""Worked scheduling steps from the test suites of real engines: who computes how many tokens in which step.

Sources: vLLM 0.33.0 and 0.11.0 ``tests/v1/core/test_scheduler.py``, vLLM 0.6.3.post1 ``tests/core/test_scheduler.py``
and ``test_chunked_prefill_scheduler.py``, cann-recipes-infer ``tests/core/test_continuous_batching_scheduler.py``.
"""

from pathlib import Path
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
from simulator.errors import InputError
from simulator.profiles import PROFILES
from simulator.scenario import parse_scenario
from simulator.serving.batch import DecodeBatch
from simulator.serving.ledger import Ledger
from simulator.serving.schedulers import SCHEDULERS
from simulator.serving.sequence import Group, Outcome, Sequence, State
from simulator.serving.token_budget import TokenBudget
from simulator.simulation import simulate

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

    def add(self, *prompts: int, output: int = 16, priority: int = 0) -> list[Sequence]:
        added = []
        for prompt in prompts:
            sequence = Sequence(
                len(self.sequences),
                prompt_tokens=prompt,
                output_tokens=output,
                arrival_ns=self.now,
                priority=priority,
            )
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


@pytest.mark.parametrize(("profile", "chunks"), [("vllm-0.33", [32, 0]), ("generic", [32, 16])])
def test_0_33_keeps_room_for_prompts_that_are_under_way(profile: str, chunks: list[int]) -> None:
    """``reserved_blocks``: a prompt of 6 blocks holds 2 and has 4 to come, so of 10 blocks 4 are left, not 8."""
    blocks = 11 if profile == "vllm-0.33" else 10
    desk = Desk(blocks=blocks, profile=profile, max_num_batched_tokens=48, long_prefill_token_threshold=32)
    desk.add(96, 80)
    assert desk.step() == chunks
    # what has been computed is held and not kept free twice: 80 tokens still do not fit beside 96
    assert desk.step()[1] == 0 or profile == "generic"
    desk.add(64)
    assert not desk.begin()[2], "nobody goes ahead of the one that waits"


def test_0_33_admits_beside_a_prompt_under_way_what_fits_beside_the_whole_of_it() -> None:
    desk = Desk(blocks=11, profile="vllm-0.33", max_num_batched_tokens=48, long_prefill_token_threshold=32)
    desk.add(96, 64)
    assert desk.step() == [32, 16]
    assert desk.step() == [32, 16]


# ---- vLLM 0.33: a threshold that adapts, priorities


def test_the_adaptive_threshold_is_at_least_a_fair_share_of_the_budget() -> None:
    """test_long_prefill_threshold_floored_by_fair_share: threshold 100, two requests share 1024 tokens."""
    desk = Desk(
        blocks=10_000,
        profile="vllm-0.33",
        max_num_batched_tokens=1024,
        long_prefill_token_threshold=100,
        adaptive_long_prefill_threshold=True,
    )
    desk.add(2000, 10)
    assert desk.step() == [512, 10]


def test_the_fair_share_counts_who_waits_and_who_runs_and_never_lowers_the_threshold() -> None:
    desk = Desk(
        blocks=10_000,
        profile="vllm-0.33",
        max_num_batched_tokens=1024,
        long_prefill_token_threshold=300,
        adaptive_long_prefill_threshold=True,
        max_num_seqs=2,
    )
    desk.add(2000, 2000, 2000, 2000)
    # four are live, two of them without a seat: 1024 / 4 is less than the threshold
    assert desk.step() == [300, 300, 0, 0]
    desk = Desk(
        blocks=10_000,
        profile="vllm-0.33",
        max_num_batched_tokens=1024,
        long_prefill_token_threshold=100,
        adaptive_long_prefill_threshold=True,
        max_num_seqs=2,
    )
    desk.add(2000, 2000, 2000)
    assert desk.step() == [341, 341, 0]


def test_of_two_that_need_memory_the_less_urgent_one_is_preempted() -> None:
    """test_priority_scheduling_preemption: 5 usable blocks of 16; the urgent one comes a step later."""
    desk = Desk(blocks=6, profile="vllm-0.33", max_num_batched_tokens=100, scheduling_policy="priority")
    (low,) = desk.add(32, priority=5)
    assert desk.step() == [32]
    (high,) = desk.add(32, priority=0)
    # the one that decodes takes its third block, two are left for the urgent prompt
    assert desk.step() == [1, 32]
    # now the urgent one needs a third block and none is free
    assert desk.begin() == [0, 1]
    assert (low.state, high.state) == (State.WAITING, State.DECODE)
    assert list(desk.ledger.preemptions[:2]) == [1, 0]
    assert list(desk.scheduler.waiting) == [low]


def test_without_priorities_the_same_two_preempt_the_later_one() -> None:
    desk = Desk(blocks=6, profile="vllm-0.33", max_num_batched_tokens=100)
    desk.add(32, priority=5)
    desk.step()
    desk.add(32, priority=0)
    desk.step()
    assert desk.begin() == [1, 0]


def test_the_most_urgent_is_admitted_first_and_of_equals_who_came_first() -> None:
    desk = Desk(
        blocks=1000, profile="vllm-0.33", max_num_batched_tokens=100, max_num_seqs=1, scheduling_policy="priority"
    )
    for priority in (2, 0, 1, 0):
        desk.add(20, output=1, priority=priority)
        desk.now += 1
    order = []
    for _ in range(4):
        order += [index for index, tokens in enumerate(desk.step()) if tokens]
    assert order == [1, 3, 2, 0]


def test_a_request_that_preempts_itself_lets_the_others_of_its_step_go_on() -> None:
    """vLLM 0.33: under priorities the victim need not be the last one that runs."""
    # 5 usable blocks: 2 of the least urgent, 3 of the other, which has room for 8 more tokens
    desk = Desk(blocks=6, profile="vllm-0.33", max_num_batched_tokens=100, scheduling_policy="priority")
    (low,) = desk.add(32, priority=5)
    (high,) = desk.add(40, priority=0)
    assert desk.step() == [32, 40]
    assert desk.scheduler.running[0] is high, "the most urgent was admitted first"
    assert desk.begin() == [0, 1]
    assert low.state is State.WAITING
    # the same where the one that preempts itself comes first in the order of admission
    desk = Desk(blocks=6, profile="vllm-0.33", max_num_batched_tokens=100, scheduling_policy="priority")
    (low,) = desk.add(31, priority=5)
    desk.step()
    (high,) = desk.add(40, priority=0)
    assert desk.step() == [1, 40]
    assert desk.scheduler.running == [low, high]
    assert desk.begin() == [0, 1]
    assert low.state is State.WAITING


def test_the_refused_head_gives_way_to_a_more_urgent_arrival_that_fits() -> None:
    desk = Desk(blocks=11, profile="vllm-0.33", max_num_batched_tokens=400, scheduling_policy="priority", on_oom="wait")
    desk.add(64)
    desk.step()
    desk.add(128, priority=1)  # 8 blocks, 5 are free
    assert desk.step() == [1, 0]
    assert desk.scheduler.blocked and desk.scheduler.admission_open()
    desk.add(32, priority=0)
    assert desk.step() == [1, 0, 32]


def test_whoever_has_waited_too_long_gives_up_though_others_are_more_urgent() -> None:
    desk = Desk(
        blocks=1000,
        profile="vllm-0.33",
        max_num_batched_tokens=100,
        max_num_seqs=1,
        scheduling_policy="priority",
        queue_timeout=10e-9,
    )
    desk.add(20, output=100)
    desk.step()
    (late,) = desk.add(20, priority=3)
    desk.now += 5
    desk.add(20, priority=2)
    assert desk.scheduler.deadline_ns() == late.arrival_ns + 10
    desk.now = late.arrival_ns + 10
    desk.step()
    assert desk.ledger.outcome[1] == Outcome.timed_out
    assert desk.ledger.outcome[2] == Outcome.unfinished


def test_samples_of_one_request_give_up_together() -> None:
    desk = Desk(
        blocks=1000, max_num_batched_tokens=100, max_num_seqs=1, scheduling_policy="priority", queue_timeout=10e-9
    )
    desk.add(20, output=100)
    desk.step()
    group = Group(3)
    for sample in range(3):
        sequence = Sequence(1, prompt_tokens=9, output_tokens=9, arrival_ns=desk.now, sample=sample, group=group)
        group.members.append(sequence)
        desk.sequences.append(sequence)
    desk.ledger.arrival(1, desk.now)
    for sequence in group.members:
        desk.scheduler.enqueue(sequence, desk.now)
    desk.now += 10
    desk.step()
    assert desk.ledger.outcome[1] == Outcome.timed_out
    assert not desk.scheduler.waiting and {member.state for member in group.members} == {State.DONE}


CLASSES = """
device: {preset: 910B3}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: poisson, rate: 30}
  prompt_tokens: 200
  output_tokens: 40
  priority: 7
  classes: [{name: batch}, {name: chat, priority: 1}]
  requests: 400
engine: {max_num_seqs: 8, max_model_len: 1024, step_time: 10ms, scheduling_policy: priority}
allocators: [{kind: paged, page_size: 16, max_pages: 110}]
"""


def test_an_urgent_class_of_a_scenario_waits_less_and_is_preempted_less() -> None:
    waits, preemptions = {}, {}
    for policy in ("priority", "fcfs"):
        scenario = parse_scenario(CLASSES, Path(), [f"engine.scheduling_policy={policy}"])
        assert scenario.requests().class_priority == (7, 1)
        rows = simulate(scenario, verify=True).runs[0].requests
        waited = rows["start_s"] - rows["arrival_s"]
        for name in ("chat", "batch"):
            waits[policy, name] = float(waited[rows["class"] == name].mean())
            preemptions[policy, name] = int(rows["preemptions"][rows["class"] == name].sum())
    assert waits["priority", "chat"] < 0.1 * waits["priority", "batch"]
    assert waits["fcfs", "chat"] == pytest.approx(waits["fcfs", "batch"], rel=0.2)
    assert preemptions["priority", "chat"] < 0.2 * preemptions["priority", "batch"]


def test_a_replay_has_no_queue_for_priorities() -> None:
    with pytest.raises(InputError, match=r"engine\.scheduling_policy: found priority; .* use fcfs"):
        parse_scenario(CLASSES, Path(), ["engine.scheduler=replay", "engine.on_oom=fail"])
