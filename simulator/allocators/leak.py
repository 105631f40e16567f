"""What is held although nobody live holds it: the damage that a forgotten release does.

The counts of an allocator (``allocated_bytes``, ``discount_bytes``, ``tail_bytes``) go on counting what an ended
sequence never gave back. Here they are counted again from the live page tables alone; the difference has leaked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from simulator.allocators.base import Allocator, Holding, Leak
from simulator.allocators.contiguous import ContiguousAllocator, RangeHolding
from simulator.allocators.cow_check import sharing_bytes
from simulator.allocators.paged import PagedAllocator, PagedHolding
from simulator.allocators.shared_tables import SharedTables
from simulator.allocators.sharing import CowHolding


@dataclass(frozen=True, slots=True)
class _Counted:
    """What live tables account for."""

    discount_bytes: int
    tail_bytes: int


def leak_of(allocator: Allocator, live: Sequence[Holding]) -> Leak:
    """What has leaked, given all live holdings. O(pool)."""
    if isinstance(allocator, ContiguousAllocator):
        held_bytes = sum(map(allocator.holding_bytes, live))
        counted = _Counted(0, sum(allocator.unused_bytes(each) for each in live if isinstance(each, RangeHolding)))
        return _difference(allocator, allocator.allocated_bytes - held_bytes, counted)
    if not isinstance(allocator, PagedAllocator):
        return Leak()
    holdings = [holding for holding in live if isinstance(holding, PagedHolding)]
    named = set(chain.from_iterable(table for holding in holdings for table in holding.tables))
    somewhere = named.union(allocator.pool.free_ids())
    lost = allocator.usable_pages - len(somewhere)
    shared = isinstance(allocator, SharedTables)
    counted = _shared(allocator, holdings) if shared else _plain(allocator, holdings)
    return _difference(allocator, max(0, lost) * allocator.layout.page_bytes, counted)


def _difference(allocator: Allocator, leaked_bytes: int, counted: _Counted) -> Leak:
    return Leak(
        allocated_bytes=leaked_bytes,
        discount_bytes=allocator.discount_bytes - counted.discount_bytes,
        tail_bytes=allocator.tail_bytes - counted.tail_bytes,
    )


def _shared(allocator: Allocator, holdings: Sequence[PagedHolding]) -> _Counted:
    assert isinstance(allocator, SharedTables)
    return _Counted(*sharing_bytes(allocator, [each for each in holdings if isinstance(each, CowHolding)]))


def _plain(allocator: PagedAllocator, holdings: Sequence[PagedHolding]) -> _Counted:
    layout = allocator.layout
    tail_bytes = discount_bytes = 0
    for holding in holdings:
        tail_bytes += max(0, holding.held_tokens - holding.demand.final_tokens) * layout.bytes_per_token
        for index, group in enumerate(layout.groups):
            tail_bytes += len(holding.tables[index]) // group.copies * layout.padding_bytes(group)
            discount_bytes += holding.dropped[index] * layout.page_tokens * group.token_bytes
    return _Counted(discount_bytes, tail_bytes)
