"""Mistakes on purpose, page by page: which page of whom, how much is lost by them, and what goes on as it was."""

from typing import Any

import pytest
from cow_world import Sequence

from simulator.allocators.base import Leak, Life
from simulator.allocators.faults import FaultyAllocator, Injected
from simulator.allocators.forwarding import innermost
from simulator.allocators.host_pool import HostPool
from simulator.allocators.paged import PagedAllocator, PagedHolding, PageGroup, PageLayout, plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.config import FaultKind


def planted(kind: FaultKind, *, sharing: bool) -> tuple[FaultyAllocator, list[Any]]:
    """Requests 1 to 3 of seven tokens on pages of four: 0 and 1, 2 and 3, 4 and 5. Every second end goes wrong."""
    layout = plain_layout(page_tokens=4, bytes_per_token=10)
    inner = PagedCowAllocator(layout, max_pages=16) if sharing else PagedAllocator(layout, max_pages=16)
    allocator = FaultyAllocator(inner, kind, every=2)
    requests = [Sequence(number, 7, 1, computed_tokens=7) for number in (1, 2, 3)]
    holdings = [allocator.admit(request, 7) for request in requests]
    assert [list(one.tables[0]) for one in holdings if isinstance(one, PagedHolding)] == [[0, 1], [2, 3], [4, 5]]
    return allocator, holdings


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize(
    ("kind", "page", "lost_pages", "lost_tokens"),
    [
        # a whole sequence of seven tokens in eight slots
        ("missed_end_of_sequence", 2, 2, 1),
        # its last page, of which nobody can say any more how full it was
        ("forgotten_decrement", 3, 1, 0),
    ],
)
def test_every_second_end_loses_what_was_forgotten(
    sharing: bool, kind: FaultKind, page: int, lost_pages: int, lost_tokens: int
) -> None:
    allocator, holdings = planted(kind, sharing=sharing)
    allocator.release(holdings[0])
    assert (allocator.injected, allocator.leak(), allocator.releases) == ([], Leak(), 1)
    allocator.release(holdings[1])
    assert allocator.injected == [Injected(kind, 2, page)]
    assert allocator.leak() == Leak(allocated_bytes=lost_pages * 40, discount_bytes=0, tail_bytes=lost_tokens * 10)
    allocator.release(holdings[2])
    inner = innermost(allocator)
    assert isinstance(inner, PagedAllocator) and inner.free_pages() == 16 - lost_pages
    assert (len(allocator.injected), allocator.releases) == (1, 3)
    assert allocator.leak().allocated_bytes == lost_pages * 40


def test_a_stale_entry_goes_to_the_next_sequence_that_did_not_get_the_page_anyway() -> None:
    allocator, holdings = planted("stale_page_table", sharing=False)
    allocator.release(holdings[0])
    allocator.release(holdings[1])
    assert allocator.injected == []
    # pages 3 and 2 were given back last: who asks for both has nothing stale to get
    both = allocator.admit(Life(4, 8, 1, 8), 8)
    assert isinstance(both, PagedHolding) and sorted(both.tables[0]) == [2, 3] and allocator.injected == []
    after = allocator.admit(Life(5, 8, 1, 8), 8)
    assert isinstance(after, PagedHolding) and after.tables[0][0] == 2 and after.tables[0][1] in (0, 1)
    assert allocator.injected == [Injected("stale_page_table", 5, 2)]
    last = allocator.admit(Life(6, 4, 1, 4), 4)
    assert isinstance(last, PagedHolding) and last.tables[0] == [6] and len(allocator.injected) == 1


@pytest.mark.parametrize("page_bytes", [40, 50])
def test_what_a_window_has_dropped_and_what_is_padded_is_lost_with_its_sequence_and_not_with_others(
    page_bytes: int,
) -> None:
    """Rows of four tokens: 40 bytes in full attention, 20 in a window of four, each in a page of ``page_bytes``."""
    layout = PageLayout(4, page_bytes, (PageGroup(10), PageGroup(5, window_tokens=4)))
    allocator = FaultyAllocator(PagedAllocator(layout, max_pages=20), "missed_end_of_sequence", every=2)
    ones = [allocator.admit(Life(number, 7, 5, 11), 7) for number in range(3)]
    for one in ones:
        # token 8 sees tokens 5 to 8: the first row of the window is given back, a third row is taken
        assert isinstance(one, PagedHolding) and allocator.grow(one, 9) and one.dropped == [0, 1]
    for one in ones[:2]:
        assert one is not None
        allocator.release(one)
    # three pages and two; a token past the end, over both groups; padding of all five pages
    padding = 3 * (page_bytes - 40) + 2 * (page_bytes - 20)
    assert allocator.leak() == Leak(allocated_bytes=5 * page_bytes, discount_bytes=20, tail_bytes=15 + padding)


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("kind", ["forgotten_decrement", "stale_page_table", "double_release"])
def test_no_mistake_is_made_with_pages_at_the_end_of_who_has_none(kind: FaultKind, sharing: bool) -> None:
    """A sequence that ends in host memory holds no page: its end is as it should be, and gives the host's back."""
    layout, host = plain_layout(page_tokens=4, bytes_per_token=10), HostPool(4)
    inner = (
        PagedCowAllocator(layout, max_pages=16, host=host)
        if sharing
        else PagedAllocator(layout, max_pages=16, host=host)
    )
    allocator = FaultyAllocator(inner, kind)
    holding = allocator.admit(Sequence(1, 7, 1, computed_tokens=7), 7)
    assert holding is not None and allocator.swap_out([holding]) is not None
    assert (inner.free_pages(), host.free_pages) == (16, 2)
    allocator.release(holding)
    assert (allocator.injected, inner.free_pages(), host.free_pages) == ([], 16, 4)
