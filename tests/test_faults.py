"""Mistakes on purpose, page by page: which page of whom, how much is lost by them, and what goes on as it was."""

from typing import Any

import pytest
from cow_world import Sequence

from simulator.allocators.base import Leak, Life
from simulator.allocators.faults import FaultyAllocator, Injected
from simulator.allocators.forwarding import innermost
from simulator.allocators.paged import PagedAllocator, PagedHolding, plain_layout
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
