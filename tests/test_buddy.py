"""The buddy store against a bitmap that looks at every aligned block, and against the published arithmetic."""

import copy
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from simulator.allocators.buddy import Buddy, power_of_two_at_least


class BlockMap:
    """The same store, one list entry a unit. A free block is aligned, wholly free, and inside no larger free one."""

    def __init__(self, capacity: int, largest_block: int) -> None:
        self.used = [False] * capacity
        self.sizes = [1 << order for order in range(largest_block.bit_length())]

    def aligned(self, size: int) -> list[int]:
        """Starts of the blocks of ``size`` that exist: aligned, and inside."""
        return [start for start in range(0, len(self.used), size) if start + size <= len(self.used)]

    def free_blocks(self) -> list[tuple[int, int]]:
        blocks: list[tuple[int, int]] = []
        for size in reversed(self.sizes):
            for start in self.aligned(size):
                inside_larger = any(low <= start < low + large for low, large in blocks)
                if not inside_larger and not any(self.used[start : start + size]):
                    blocks.append((start, size))
        return sorted(blocks)

    def allocate(self, size: int) -> int | None:
        block = size_at_least(size)
        fitting = sorted((large, start) for start, large in self.free_blocks() if large >= block)
        if not fitting:
            return None
        start = fitting[0][1]
        self.used[start : start + block] = [True] * block
        return start

    def extend(self, start: int, size: int, new_size: int) -> bool:
        old, new = size_at_least(size), size_at_least(new_size)
        exists = new in self.sizes and start in self.aligned(new)
        if not exists or any(self.used[start + old : start + new]):
            return False
        self.used[start : start + new] = [True] * new
        return True

    def free(self, start: int, size: int) -> None:
        block = size_at_least(size)
        self.used[start : start + block] = [False] * block


def size_at_least(size: int) -> int:
    block = 1
    while block < size:
        block += block
    return block


def free_blocks(buddy: Buddy, largest: int) -> list[tuple[int, int]]:
    """The free blocks one by one: those never touched are reported as one range."""
    return [
        (piece, min(size, largest))
        for start, size in buddy.free_ranges()
        for piece in range(start, start + size, largest)
    ]


def assert_same(buddy: Buddy, model: BlockMap) -> None:
    blocks = model.free_blocks()
    assert free_blocks(buddy, model.sizes[-1]) == blocks
    assert buddy.largest_free == max((size for _, size in blocks), default=0)
    assert buddy.total_free == model.used.count(False)
    buddy.check()


class BuddyMachine(RuleBasedStateMachine):
    @initialize(capacity=st.integers(1, 64), largest=st.sampled_from([1, 2, 4, 8, 16, 32, 64]))
    def start(self, capacity: int, largest: int) -> None:
        self.buddy = Buddy(capacity, largest)
        self.model = BlockMap(capacity, largest)
        self.live: list[tuple[int, int]] = []

    @rule(size=st.integers(1, 20))
    def allocate(self, size: int) -> None:
        start = self.buddy.allocate(size)
        assert start == self.model.allocate(size)
        if start is not None:
            self.live.append((start, size))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        start, size = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.buddy.free(start, size)
        self.model.free(start, size)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), extra=st.integers(0, 40))
    def extend(self, data: st.DataObject, extra: int) -> None:
        index = data.draw(st.integers(0, len(self.live) - 1))
        start, size = self.live[index]
        extended = self.buddy.extend_in_place(start, size, size + extra)
        assert extended == self.model.extend(start, size, size + extra)
        if extended:
            self.live[index] = (start, size + extra)

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "buddy"):
            assert_same(self.buddy, self.model)


BuddyMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestBuddyAgainstABitmap = BuddyMachine.TestCase


State = tuple[Buddy, BlockMap, tuple[tuple[int, int], ...]]


def successors(buddy: Buddy, model: BlockMap, live: tuple[tuple[int, int], ...]) -> Iterator[State]:
    for size in range(1, buddy.capacity + 1):
        after, model_after = copy.deepcopy((buddy, model))
        start = after.allocate(size)
        assert start == model_after.allocate(size)
        if start is not None:
            yield after, model_after, tuple(sorted((*live, (start, size_at_least(size)))))
    for start, size in live:
        rest = tuple(item for item in live if item[0] != start)
        after, model_after = copy.deepcopy((buddy, model))
        after.free(start, size)
        model_after.free(start, size)
        yield after, model_after, rest
        after, model_after = copy.deepcopy((buddy, model))
        extended = after.extend_in_place(start, size, 2 * size)
        assert extended == model_after.extend(start, size, 2 * size)
        if extended:
            yield after, model_after, tuple(sorted((*rest, (start, 2 * size))))


@pytest.mark.parametrize(("capacity", "largest"), [(7, 8), (8, 8), (8, 2), (6, 4)])
def test_every_reachable_state_of_a_small_buddy_equals_the_bitmap(capacity: int, largest: int) -> None:
    frontier: list[State] = [(Buddy(capacity, largest), BlockMap(capacity, largest), ())]
    seen = set()
    while frontier:
        for state in successors(*frontier.pop()):
            if state[2] not in seen:
                seen.add(state[2])
                assert_same(state[0], state[1])
                frontier.append(state)
    # ways to fill a block: in use, or (halves in all combinations); 2, 5, 26, 677 for 1, 2, 4, 8 units
    ways = {(7, 8): 26 * 5 * 2, (8, 8): 677, (8, 2): 5**4, (6, 4): 26 * 5}[capacity, largest]
    assert len(seen) == ways


@pytest.mark.parametrize("operations", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_long_random_run_places_every_block_where_the_bitmap_does(operations: int) -> None:
    rng = random.Random(20)
    buddy, model = Buddy(45, 16), BlockMap(45, 16)
    live: list[tuple[int, int]] = []
    for step in range(operations):
        if live and rng.random() < 0.5:
            start, size = live.pop(rng.randrange(len(live)))
            buddy.free(start, size)
            model.free(start, size)
        else:
            size = rng.randint(1, 9)
            found = buddy.allocate(size)
            assert found == model.allocate(size)
            if found is not None:
                live.append((found, size))
        if step % 97 == 0:
            assert_same(buddy, model)


def test_the_papers_pool_is_seven_blocks_of_2048_and_a_tail() -> None:
    buddy = Buddy(15_728, 2_048)
    assert [size for _, size in free_blocks(buddy, 2_048)] == [2_048] * 7 + [1_024, 256, 64, 32, 16]
    assert [buddy.allocate(2_048) for _ in range(8)] == [slot * 2_048 for slot in range(7)] + [None]
    assert buddy.total_free == 15_728 - 7 * 2_048


@given(capacity=st.integers(1, 10**6), order=st.integers(0, 20))
def test_the_first_cut_covers_the_pool_with_aligned_blocks(capacity: int, order: int) -> None:
    buddy = Buddy(capacity, 2**order)
    buddy.check()
    assert buddy.total_free == capacity


@pytest.mark.parametrize("order", [5, 8, 11])
def test_a_quarter_of_a_block_is_wasted_when_sizes_are_uniform_between_powers_of_two(order: int) -> None:
    sizes = range(2 ** (order - 1) + 1, 2**order + 1)
    buddy = Buddy(2**30)
    for size in sizes:
        assert buddy.allocate(size) is not None
    taken = 2**30 - buddy.total_free
    # mean waste = (2^(k-1) - 1) / 2 of 2^k: a quarter less half a unit
    assert (taken - sum(sizes)) / taken == pytest.approx(0.25 - 0.5 / 2**order, abs=1e-12)


@given(size=st.integers(1, 2**40))
def test_a_block_is_less_than_twice_what_was_asked_for(size: int) -> None:
    block = power_of_two_at_least(size)
    assert size <= block < 2 * size
    assert block.bit_count() == 1


def test_the_search_examines_one_free_list_an_order() -> None:
    buddy = Buddy(16)
    buddy.allocate(1)  # orders 0 to 4: only the block of 16 is free
    assert buddy.examined == 5
    buddy.allocate(1)  # its buddy of one unit
    assert buddy.examined == 1
    buddy.allocate(16)  # orders 4 to 4, in vain
    assert buddy.examined == 1


def test_release_of_what_is_not_a_live_block_is_an_error() -> None:
    buddy = Buddy(16)
    start = buddy.allocate(4)
    assert start == 0
    for wrong_start, wrong_size in ((1, 4), (0, 2), (4, 4)):
        with pytest.raises(AssertionError, match="no live block"):
            buddy.free(wrong_start, wrong_size)
    buddy.free(0, 3)
    with pytest.raises(AssertionError, match="no live block"):
        buddy.free(0, 4)


def test_the_size_of_the_pool_is_just_a_number() -> None:
    buddy = Buddy(2**45 + 3, 2**11)
    assert buddy.allocate(1) == 2**45 + 2  # the smallest block of the tail
    assert [buddy.allocate(2**11), buddy.allocate(2**11)] == [0, 2**11]
    buddy.free(0, 2**11)
    assert buddy.allocate(2**10) == 0
    buddy.check()


def test_an_empty_buddy_places_nothing() -> None:
    buddy = Buddy(0, 8)
    assert buddy.allocate(1) is None
    assert buddy.largest_free == buddy.largest_ever == 0
    buddy.check()
