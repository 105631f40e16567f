"""Contiguous reservations in worked cases, in long runs, and beside the PagedAttention paper's Orca figures."""

import heapq
import random

import numpy as np
import pytest
from contiguous_pool import FITS, RESERVES, Sequence, admitted, build, cause

from simulator.allocators.contiguous import ContiguousAllocator, RangeHolding


@pytest.mark.parametrize("operations", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("fit", FITS)
def test_invariants_hold_over_a_long_run_and_nothing_is_left_at_its_end(fit: str, operations: int) -> None:
    rng = random.Random(3)
    allocator = build(5_000, 1_000, reserve="grow", fit=fit, page_size=4, grow_tokens=32)
    live: list[RangeHolding] = []
    for step in range(operations):
        action = rng.random()
        if live and action < 0.6:
            holding = rng.choice(live)
            allocator.grow(holding, min(holding.capacity_tokens + rng.randint(1, 90), 1_000))
        elif live and action < 0.8:
            allocator.release(live.pop(rng.randrange(len(live))))
        else:
            holding_or_none = allocator.admit(Sequence(rng.randint(1, 400), rng.randint(1, 400)), rng.randint(1, 400))
            live += [holding_or_none] if holding_or_none else []
        if step % 50 == 0:
            allocator.check(live)
    for holding in live:
        allocator.release(holding)
    allocator.check([])
    assert allocator.allocated_bytes == allocator.tail_bytes == 0
    assert allocator.totals.moves > 100


def test_each_reservation_sets_aside_what_its_name_says() -> None:
    demand = Sequence(prompt_tokens=100, output_tokens=25)  # 124 tokens of KV in the end
    held = {}
    for reserve in RESERVES:
        allocator = build(4_096, 2_048, reserve=reserve, grow_tokens=64)
        holding = admitted(allocator, demand)
        held[reserve] = holding.held_tokens
        assert holding.capacity_tokens == holding.held_tokens
        assert allocator.allocated_bytes == allocator.holding_bytes(holding) == holding.held_tokens * 10
        assert allocator.tail_bytes == (holding.held_tokens - 124) * 10
    assert held == {"max_model_len": 2_048, "pow2": 100 + 32, "exact": 124, "grow": 128}


def test_no_reservation_exceeds_the_longest_sequence() -> None:
    for reserve in ("max_model_len", "pow2", "grow"):
        assert admitted(build(4_096, 120, reserve=reserve, grow_tokens=64), Sequence(90, 20)).held_tokens == 120


@pytest.mark.parametrize("reserve", RESERVES)
def test_room_asked_for_beyond_every_rule_is_given_to_the_token(reserve: str) -> None:
    """Look-ahead slots may reach past the last token, and past the longest sequence."""
    allocator = build(4_096, 120, reserve=reserve, grow_tokens=64)
    assert admitted(allocator, Sequence(100, 20), 123).held_tokens == 123


def test_sizes_round_up_to_granules_of_tokens_or_bytes() -> None:
    assert admitted(build(4_096, 2_048, reserve="exact", page_size=48), Sequence(100)).held_tokens == 144
    allocator = build(4_096, 2_048, reserve="exact", page_size="256B")
    holding = admitted(allocator, Sequence(100))  # 1,000 bytes in 4 granules
    assert allocator.holding_bytes(holding) == allocator.allocated_bytes == 1_024
    assert holding.held_tokens == holding.capacity_tokens == 102
    assert allocator.tail_bytes == 24
    allocator.check([holding])


def test_a_tail_smaller_than_a_granule_is_free_but_unusable() -> None:
    allocator = build(100, 100, reserve="exact", page_size=48)
    holding = admitted(allocator, Sequence(96))
    occupancy = allocator.occupancy()
    assert (occupancy.free_bytes, occupancy.unusable_bytes, occupancy.largest_free_bytes) == (40, 40, 0)
    assert allocator.admit(Sequence(1), 1) is None
    assert cause(allocator) == "capacity"
    allocator.check([holding])


def test_buddy_holds_the_next_power_of_two_tokens() -> None:
    allocator = build(15_728, 2_048, reserve="exact", fit="buddy")
    holding = admitted(allocator, Sequence(161, 338))
    assert holding.held_tokens == 512
    assert allocator.tail_bytes == (512 - 498) * 10


@pytest.mark.parametrize("fit", FITS)
def test_orca_max_fits_seven_sequences_of_2048_into_the_papers_15728_slots(fit: str) -> None:
    allocator = build(15_728, 2_048, reserve="max_model_len", fit=fit)
    for _ in range(7):
        admitted(allocator, Sequence(161, 338))
    assert allocator.admit(Sequence(1), 1) is None
    assert cause(allocator) == "capacity"
    occupancy = allocator.occupancy()
    assert occupancy.free_bytes / occupancy.capacity_bytes == pytest.approx(0.0885, abs=0.0001)


def mean_batch(allocator: ContiguousAllocator, *, admissions: int) -> float:
    """Mean number of running sequences: a queue that never empties, first come first served, one token a step."""
    rng = np.random.default_rng(7)
    shape_prompt, shape_output = 1.0, 0.875**-2  # gamma shape = 1 / CV^2
    prompts = np.ceil(rng.gamma(shape_prompt, 161.31 / shape_prompt, admissions)).astype(int)
    outputs = np.ceil(rng.gamma(shape_output, 337.99 / shape_output, admissions)).astype(int)
    running: list[tuple[int, int, RangeHolding]] = []
    now, area, settled = 0, 0, 0
    for index, (prompt, output) in enumerate(zip(prompts.tolist(), outputs.tolist(), strict=True)):
        prompt = min(prompt, 1_024)
        demand = Sequence(prompt, min(output, 2_048 - prompt))
        while (holding := allocator.admit(demand, prompt)) is None:
            finish, _, finished = heapq.heappop(running)
            if index > admissions // 5:
                area += (finish - now) * (len(running) + 1)
                settled += finish - now
            now = finish
            allocator.release(finished)
        heapq.heappush(running, (now + demand.output_tokens, index, holding))
    return area / settled


@pytest.mark.parametrize(
    ("reserve", "low", "high"),
    [("max_model_len", 7.0, 7.0), ("pow2", 9.3, 10.6), ("exact", 12.6, 14.1)],
)
def test_a_saturated_buddy_pool_runs_as_many_sequences_as_orca_in_the_paper(
    reserve: str, low: float, high: float
) -> None:
    """Published (SOSP'23, figure 13): 7.00, 9.81 and 13.62; the margins cover length shapes of the same moments."""
    allocator = build(15_728, 2_048, reserve=reserve, fit="buddy")
    assert low <= mean_batch(allocator, admissions=6_000) <= high


def test_growth_is_in_place_while_the_right_neighbour_is_free() -> None:
    allocator = build(100, 60, reserve="grow", grow_tokens=10)
    holding = admitted(allocator, Sequence(15, 40))
    assert (holding.start, holding.capacity_tokens) == (0, 20)
    assert allocator.grow(holding, 21)
    assert (holding.start, holding.capacity_tokens, holding.held_tokens) == (0, 30, 30)
    assert allocator.grow(holding, 55)
    assert holding.capacity_tokens == 60
    assert allocator.work.copied_bytes == allocator.totals.moves == 0


def test_growth_that_is_blocked_moves_and_pays_for_reading_and_writing() -> None:
    allocator = build(100, 60, reserve="grow", grow_tokens=10)
    first, second = admitted(allocator, Sequence(10, 40)), admitted(allocator, Sequence(10, 40))
    copies: list[tuple[int, int, int]] = []
    allocator.on_copy = lambda source, target, count: copies.append((source, target, count))
    assert allocator.grow(first, 11)
    assert copies == [(0, 200, 100)]
    assert (first.start, second.start) == (20, 10)
    assert allocator.work.copied_bytes == 2 * 10 * 10
    assert (allocator.totals.moves, allocator.totals.moved_bytes) == (1, 100)
    # what it left is a hole again
    assert admitted(allocator, Sequence(10, 40)).start == 0


def test_a_move_needs_room_for_the_old_and_the_new_range_at_once() -> None:
    allocator = build(50, 50, reserve="grow", grow_tokens=10)
    first, second = admitted(allocator, Sequence(20, 30)), admitted(allocator, Sequence(10, 1))
    assert not allocator.grow(first, 30)
    # 10 tokens are missing and 20 are free, but a move takes 30 in one piece
    shortfall = allocator.shortfall
    assert shortfall is not None
    assert (shortfall.cause, shortfall.needed_bytes, shortfall.free_bytes) == ("fragmentation", 100, 200)
    assert (first.start, first.capacity_tokens) == (0, 20)
    assert allocator.work.copied_bytes == 0
    allocator.check([first, second])


def test_growth_of_a_full_pool_fails_for_want_of_capacity() -> None:
    allocator = build(40, 40, reserve="grow", grow_tokens=10)
    first = admitted(allocator, Sequence(20, 21))
    admitted(allocator, Sequence(20, 1))
    assert not allocator.grow(first, 21)
    assert cause(allocator) == "capacity"


@pytest.mark.parametrize("reserve", ["max_model_len", "pow2", "exact"])
def test_a_fixed_reservation_never_grows(reserve: str) -> None:
    allocator = build(100, 20, reserve=reserve)
    holding = admitted(allocator, Sequence(10, 6))
    held = holding.capacity_tokens
    assert allocator.grow(holding, held)
    assert not allocator.grow(holding, held + 1)
    assert holding.capacity_tokens == held


def test_free_space_in_pieces_is_fragmentation_and_too_little_of_it_is_capacity() -> None:
    allocator = build(100, 100, reserve="exact")
    holdings = [admitted(allocator, Sequence(20)) for _ in range(5)]
    for holding in holdings[::2]:
        allocator.release(holding)
    occupancy = allocator.occupancy()
    assert (occupancy.free_bytes, occupancy.largest_free_bytes) == (600, 200)
    assert occupancy.fragmentation_ratio == pytest.approx(2 / 3)
    assert allocator.admit(Sequence(60), 60) is None
    assert cause(allocator) == "fragmentation"
    assert allocator.admit(Sequence(61), 61) is None
    assert cause(allocator) == "capacity"


def test_whole_prompt_admission_asks_for_a_hole_that_takes_the_whole_prompt() -> None:
    allocator = build(100, 100, reserve="grow", grow_tokens=10)
    holdings = [admitted(allocator, Sequence(20)) for _ in range(5)]
    for holding in holdings[::2]:
        allocator.release(holding)
    assert allocator.admit(Sequence(30), 10, whole_tokens=30) is None
    assert cause(allocator) == "fragmentation"
    chunk = allocator.admit(Sequence(30), 10, whole_tokens=20)
    assert chunk is not None
    assert chunk.held_tokens == 10


def test_a_watermark_keeps_bytes_free() -> None:
    allocator = build(100, 100, reserve="exact")
    assert allocator.admit(Sequence(91), 91, keep_free_bytes=100) is None
    assert cause(allocator) == "capacity"
    assert allocator.admit(Sequence(90), 90, keep_free_bytes=100) is not None


def test_too_large_is_judged_by_what_the_sequence_ends_up_holding() -> None:
    demand = Sequence(60, 31)  # 90 tokens of KV
    cases = {
        ("max_model_len", "first"): False,  # 128 tokens in a pool of 100
        ("pow2", "first"): True,  # 60 + 32
        ("exact", "first"): True,
        ("exact", "buddy"): False,  # a block of 128; the largest is 64
        ("grow", "first"): True,  # 96
        ("grow", "buddy"): False,
    }
    for (reserve, fit), fits in cases.items():
        allocator = build(100, 128, reserve=reserve, fit=fit, grow_tokens=16)
        assert allocator.can_ever_hold(demand) == fits, (reserve, fit)
        assert (allocator.admit(demand, 90) is not None) == fits, (reserve, fit)
    assert not build(1_000, 80, reserve="exact").can_ever_hold(demand), "longer than the engine accepts"


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("step", [1, 7, 16])
def test_a_sequence_alone_reaches_any_length_that_it_is_promised(fit: str, step: int) -> None:
    for final in range(1, 60):
        allocator = build(47, 60, reserve="grow", fit=fit, grow_tokens=step)
        demand = Sequence(1, final)
        if allocator.can_ever_hold(demand):
            holding = admitted(allocator, demand)
            for tokens in range(2, final + 1):
                assert tokens <= holding.capacity_tokens or allocator.grow(holding, tokens)
            allocator.check([holding])


def test_the_search_is_charged_by_the_hole() -> None:
    allocator = build(100, 50, reserve="grow", grow_tokens=10, cycles=7)
    first = admitted(allocator, Sequence(10))
    second = admitted(allocator, Sequence(10))
    assert allocator.work.search_cycles == 2 * 7
    allocator.release(first)
    allocator.work.clear()
    third = admitted(allocator, Sequence(20))  # passes the hole of 10 at 0
    assert allocator.work.search_cycles == 2 * 7
    allocator.work.clear()
    assert allocator.grow(second, 20)  # right neighbour in use, then both holes
    assert allocator.work.search_cycles == 3 * 7
    allocator.check([second, third])


def test_releasing_twice_is_an_error() -> None:
    allocator = build(100, 50, reserve="exact")
    holding = admitted(allocator, Sequence(10))
    allocator.release(holding)
    assert (holding.held_tokens, holding.capacity_tokens, allocator.allocated_bytes) == (0, 0, 0)
    with pytest.raises(AssertionError, match="not held"):
        allocator.release(holding)
    with pytest.raises(AssertionError, match="not held"):
        allocator.grow(holding, 20)


def test_the_check_finds_an_overlap_and_a_lost_range() -> None:
    allocator = build(100, 50, reserve="exact")
    first, second = admitted(allocator, Sequence(10)), admitted(allocator, Sequence(10))
    with pytest.raises(AssertionError, match="follows"):
        allocator.check([first])
    second.start = 5
    with pytest.raises(AssertionError, match="follows"):
        allocator.check([first, second])


def test_a_pool_smaller_than_a_granule_holds_nothing() -> None:
    for fit in FITS:
        allocator = build(10, 50, reserve="exact", fit=fit, page_size=16)
        assert not allocator.can_ever_hold(Sequence(1))
        assert allocator.admit(Sequence(1), 1) is None
        assert cause(allocator) == "capacity"
        allocator.check([])
