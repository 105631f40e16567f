"""Whoever stands in for an allocator passes every call on, brings every answer back, and shows the numbers after it."""

from typing import Any

import pytest

from simulator.allocators.base import Allocator, Holding, Leak, Life, Occupancy, Shortfall
from simulator.allocators.forwarding import ForwardingAllocator, innermost
from simulator.allocators.paged import PagedAllocator, plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.verify import VerifyingAllocator
from simulator.allocators.violations import VerificationError

LIFE = Life(1, 8, 5, 12)
HOLDING = Holding(LIFE)
OTHER = Holding(Life(2, 8, 5, 12))


class Heard(Allocator):
    """Notes what it is asked, answers with something that nobody else says, and changes its numbers each time."""

    kind = "heard"

    def __init__(self) -> None:
        super().__init__()
        self.bytes_per_token, self.tile_tokens, self.max_pages, self.capacity_bytes = 3, 5, 7, 11
        self.can_fork = self.caches_prefixes = self.fragments = self.compacts_on_failure = self.leaks = True
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def heard(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any], answer: Any) -> Any:
        self.asked.append((name, arguments, options))
        self.allocated_bytes += 1
        self.discount_bytes += 2
        self.tail_bytes += 3
        self.shortfall = Shortfall("capacity", len(self.asked), 0, 0)
        return answer

    @property
    def mean_run_pages(self) -> float | None:
        return 2.5

    @property
    def table_entries(self) -> int:
        return 13


ANSWERS: dict[str, Any] = {
    "leak": Leak(5, 6, 7),
    "can_ever_hold": True,
    "free_rows": 17,
    "sure_to_grow": True,
    "maintenance_due_ns": 19,
    "hit_tokens": 23,
    "occupancy": Occupancy(
        capacity_bytes=1, allocated_bytes=2, cached_bytes=3, free_bytes=4, largest_free_bytes=5, unusable_bytes=6
    ),
    "free_and_largest_bytes": (29, 31),
    "holding_bytes": 37,
    "check": None,
    "admit": HOLDING,
    "grow": True,
    "grow_each": None,
    "fork": OTHER,
    "release": None,
    "swap_out": 41,
    "swap_in": 43,
    "refused_again": None,
    "maintain": True,
}
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("leak", (), {}),
    ("can_ever_hold", (LIFE,), {}),
    ("free_rows", (), {}),
    ("sure_to_grow", (2, 3), {}),
    ("maintenance_due_ns", (5,), {}),
    ("hit_tokens", (LIFE, 4), {}),
    ("occupancy", (), {}),
    ("free_and_largest_bytes", (), {}),
    ("holding_bytes", (HOLDING,), {}),
    ("check", ([HOLDING],), {}),
    ("admit", (LIFE, 4), {"whole_tokens": 6, "keep_free_bytes": 7}),
    ("grow", (HOLDING, 9, 2), {}),
    ("grow_each", ([HOLDING],), {}),
    ("fork", (HOLDING, LIFE, 3), {}),
    ("release", (HOLDING,), {}),
    ("swap_out", ([HOLDING],), {}),
    ("swap_in", ([(HOLDING, 4)],), {"keep_free_bytes": 9}),
    ("refused_again", (LIFE, 4), {}),
    ("maintain", (5, [HOLDING]), {}),
]
ASKING = {name for name, _, _ in CALLS[:10]}
for call in ANSWERS:

    def answer(self: Heard, *arguments: Any, name: str = call, **options: Any) -> Any:
        return self.heard(name, arguments, options, ANSWERS[name])

    setattr(Heard, call, answer)


@pytest.mark.parametrize(("name", "arguments", "options"), CALLS, ids=[name for name, _, _ in CALLS])
def test_every_call_is_passed_on_and_answered(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    inner = Heard()
    outer = ForwardingAllocator(inner)
    assert getattr(outer, name)(*arguments, **options) == ANSWERS[name]
    assert inner.asked == [(name, arguments, options)]
    if name not in ASKING:
        shown = (outer.allocated_bytes, outer.discount_bytes, outer.tail_bytes, outer.shortfall)
        assert shown == (1, 2, 3, Shortfall("capacity", 1, 0, 0))


def test_every_number_and_flag_is_the_inner_allocators() -> None:
    inner = Heard()
    inner.allocated_bytes = 47
    outer = ForwardingAllocator(ForwardingAllocator(inner))
    assert (outer.kind, outer.bytes_per_token, outer.tile_tokens, outer.max_pages) == ("heard", 3, 5, 7)
    assert (outer.capacity_bytes, outer.allocated_bytes) == (11, 47)
    assert outer.can_fork and outer.caches_prefixes and outer.fragments and outer.compacts_on_failure and outer.leaks
    assert outer.work is inner.work and outer.totals is inner.totals
    assert (outer.mean_run_pages, outer.table_entries) == (2.5, 13)
    assert innermost(outer) is inner


# ---- who watches does more than pass on


def watched(**options: Any) -> VerifyingAllocator:
    layout = plain_layout(page_tokens=4, bytes_per_token=10)
    return VerifyingAllocator(PagedAllocator(layout, max_pages=16), **options)


def admitted(allocator: VerifyingAllocator, request_id: int, tokens: int = 8) -> Any:
    holding = allocator.admit(Life(request_id, tokens, 50, tokens + 49), tokens)
    assert holding is not None
    return holding


def test_what_is_over_can_neither_grow_nor_be_forked() -> None:
    allocator = watched()
    ended = admitted(allocator, 5)
    allocator.release(ended)
    with pytest.raises(VerificationError, match="request 5 is used or released after its release"):
        allocator.grow(ended, 9)
    layout = plain_layout(page_tokens=4, bytes_per_token=10)
    sharing = VerifyingAllocator(PagedCowAllocator(layout, max_pages=16))
    stranger = watched(every=10**6)
    with pytest.raises(VerificationError, match="request 7 is used or released after its release"):
        sharing.fork(admitted(stranger, 7), Life(7, 8, 50, 57), 8)


def test_sequences_that_grow_together_are_watched_one_by_one() -> None:
    allocator = watched()
    first, second = admitted(allocator, 1), admitted(allocator, 2)
    before = allocator.operations
    allocator.grow_each([first, second])
    assert allocator.operations == before + 2
    # a page of four tokens each, to which both may write without asking
    assert allocator.shadow.written(first) == allocator.shadow.written(second) == 12


def test_a_move_that_nobody_was_told_of_is_noticed_when_it_is_made() -> None:
    class Mover(PagedAllocator):
        def maintain(self, now_ns: int, holdings: Any) -> bool:
            (holding,) = holdings
            (page,) = self.pool.take(1)
            old, holding.tables[0][0] = holding.tables[0][0], page
            self.pool.give([old])
            return True

    allocator = VerifyingAllocator(Mover(plain_layout(page_tokens=4, bytes_per_token=10), max_pages=16), every=10**6)
    holding = admitted(allocator, 3)
    with pytest.raises(VerificationError, match="request 3 reads its position 0 at page 2, slot 0 and finds nothing"):
        allocator.maintain(1, [holding])


def test_a_sequence_that_is_called_live_but_was_never_admitted_is_named() -> None:
    allocator = watched()
    ended = admitted(allocator, 5)
    allocator.release(ended)
    with pytest.raises(VerificationError, match="request 5 is live, but was never admitted or is over"):
        allocator.check([ended])


def test_a_violation_is_told_once_for_a_request_and_page() -> None:
    allocator = watched(stop=False, every=10**6)
    holding = admitted(allocator, 1)
    holding.tables[0][1] = 9
    for _ in range(3):
        allocator.check([holding])
    found = [(one.kind, one.request_id, one.page) for one in allocator.violations]
    # page 9 is free and named, page 1 is neither, and reading page 9 finds nothing
    assert sorted(found) == [("leak", 1, 1), ("stale_table", 1, 9), ("wrong_read", 1, 9)]
