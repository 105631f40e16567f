"""Runs of adjacent pages: hand-computed ids, and a machine against plain Python lists."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from simulator.allocators.run_pool import RunPool


def test_fresh_runs_are_handed_out_in_address_order() -> None:
    pool = RunPool(32, 8)
    assert pool.take_runs(3) == [0, 8, 16]
    assert (len(pool), pool.whole_runs) == (8, 1)


def test_single_pages_break_one_run_and_spare_the_others() -> None:
    pool = RunPool(32, 8)
    assert pool.take(3) == [0, 1, 2]
    assert pool.take(2) == [3, 4]
    assert (pool.whole_runs, pool.broken_free_pages) == (3, 3)


def test_single_pages_come_from_the_most_used_broken_run() -> None:
    pool = RunPool(24, 8)
    pool.take_runs(3)
    pool.give([0, 1, 2, 8])
    assert pool.take(2) == [8, 0]


def test_lifo_reuses_the_run_freed_last_and_fifo_the_one_never_used() -> None:
    for order, expected in (("lifo", 0), ("fifo", 16)):
        pool = RunPool(24, 8, order=order)  # type: ignore[arg-type]
        pool.take_runs(2)
        pool.give(range(8, 16))
        pool.give(range(8))
        assert pool.take_runs(1) == [expected], order


def test_fifo_reuses_runs_in_the_order_in_which_they_became_whole() -> None:
    pool = RunPool(24, 8, order="fifo")
    pool.take_runs(3)
    for start in (8, 16, 0):
        pool.give(range(start, start + 8))
    assert pool.take_runs(3) == [8, 16, 0]


def test_the_remainder_and_the_null_page_lie_in_front_and_cost_no_run() -> None:
    pool = RunPool(17, 8, first_page=1)
    assert (len(pool), pool.total_runs, pool.head_pages) == (16, 2, 1)
    assert pool.take_runs(2) == [1, 9]


def test_without_a_remainder_the_null_page_costs_one_run_but_not_its_other_pages() -> None:
    pool = RunPool(16, 8, first_page=1)
    assert (len(pool), pool.total_runs, pool.whole_runs) == (15, 1, 1)
    assert pool.take(7) == [1, 2, 3, 4, 5, 6, 7]
    assert pool.whole_runs == 1


def test_two_free_halves_side_by_side_are_a_gap_but_not_a_run() -> None:
    pool = RunPool(16, 8)
    pool.take_runs(2)
    pool.give(range(4, 12))
    assert pool.largest_gap_pages() == 8
    assert pool.whole_runs == 0
    assert pool.fragmentation_ratio == 1.0


def test_giving_a_page_back_twice_is_an_assertion() -> None:
    pool = RunPool(16, 8)
    pool.take(2)
    pool.give([1])
    with pytest.raises(AssertionError, match="page 1 is free already"):
        pool.give([1])
    with pytest.raises(AssertionError, match="page 12 is free already"):
        pool.give([12])


def test_the_victim_is_the_run_with_the_fewest_used_pages_and_the_hole_lies_in_the_fullest() -> None:
    pool = RunPool(32, 8)
    pool.take_runs(4)
    pool.give([0, 1, 8, 9, 10, 11, 12, 13, 14, 16])
    assert pool.cheapest_broken() == pool.run_of(8)
    assert pool.used_pages(pool.run_of(8), 4) == [15]
    assert pool.take_hole(pool.run_of(8)) == 16


def test_an_untouched_pool_of_any_size_costs_nothing() -> None:
    pool = RunPool(10**15, 8)
    assert pool.take_runs(1) == [0]
    assert len(pool) == 10**15 - 8


class RunPoolMachine(RuleBasedStateMachine):
    """The pool against a set of free ids; every taken page must be one that the rules allow."""

    @initialize(
        pages=st.integers(0, 40),
        length=st.integers(1, 9),
        order=st.sampled_from(["lifo", "fifo"]),
        null=st.booleans(),
    )
    def start(self, pages: int, length: int, order: str, null: bool) -> None:
        self.first = int(null and pages > 0)
        self.length = length
        self.pool = RunPool(pages, length, order=order, first_page=self.first)  # type: ignore[arg-type]
        self.free = set(range(self.first, pages))
        self.used: list[int] = []
        head = pages % length or (min(length, pages) if self.first else 0)
        self.blocks = [set(range(start, start + length)) for start in range(head, pages, length)]

    def whole(self) -> list[set[int]]:
        return [block for block in self.blocks if block <= self.free]

    @rule(count=st.integers(0, 3))
    def take_runs(self, count: int) -> None:
        count = min(count, len(self.whole()))
        for start in self.pool.take_runs(count):
            run = set(range(start, start + self.length))
            assert run in self.whole()
            self.free -= run
            self.used += sorted(run)

    @rule(count=st.integers(0, 12))
    def take_single_pages(self, count: int) -> None:
        count = min(count, len(self.free))
        for page in self.pool.take(count):
            broken = [block & self.free for block in self.blocks if 0 < len(block & self.free) < self.length]
            head = self.free.difference(*self.blocks)
            allowed = [head] if head else broken or self.whole()
            fewest = min(map(len, allowed))
            started = [part for part in allowed if page in part]
            assert started and len(started[0]) == fewest, "a run was broken or the wrong run was used up"
            self.free.remove(page)
            self.used.append(page)

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.used), unique=True))
        self.pool.give(chosen)
        self.free |= set(chosen)
        self.used = [page for page in self.used if page not in chosen]

    @invariant()
    def agrees_with_the_set(self) -> None:
        self.pool.check()
        assert self.pool.free_ids() == sorted(self.free)
        assert self.pool.whole_runs == len(self.whole())
        assert len(self.pool) == len(self.free)
        spaced = "".join("x" if page in self.free else " " for page in range(self.pool.max_pages))
        assert self.pool.largest_gap_pages() == max(map(len, spaced.split(" ")), default=0)


RunPoolMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestRunPoolAgainstSets = RunPoolMachine.TestCase


def _churn(operations: int, max_pages: int) -> RunPool:
    draw = random.Random(7)
    pool = RunPool(max_pages, 8)
    held: list[list[int]] = []
    for _ in range(operations):
        if draw.random() < 0.5 and pool.whole_runs:
            start = pool.take_runs(1)[0]
            held.append(list(range(start, start + 8)))
        elif len(pool) > 5:
            held.append(pool.take(draw.randint(1, 5)))
        while held and (len(pool) < 20 or draw.random() < 0.5):
            index = draw.randrange(len(held))
            held[index], held[-1] = held[-1], held[index]
            pool.give(held.pop())
    for pages in held:
        pool.give(pages)
    return pool


@pytest.mark.parametrize("operations", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_after_many_operations_everything_is_back_and_whole(operations: int) -> None:
    pool = _churn(operations, 1003)
    pool.check()
    assert (len(pool), pool.whole_runs) == (1003, 125)


def test_counts_stay_right_when_one_of_the_pages_given_back_is_refused() -> None:
    pool = RunPool(12, 4)
    pages = pool.take(6)
    pool.give([pages[5]])
    with pytest.raises(AssertionError, match=f"page {pages[5]} is free already"):
        pool.give([pages[0], pages[4], pages[5], pages[1]])
    pool.check()
    assert sorted(pool.free_ids()) == sorted({*range(12)} - {pages[1], pages[2], pages[3]})
