"""Who is to blame when the books of a pool do not balance: request and page by name.

An allocator's own ``check`` says that something is wrong. Here the page tables of all live sequences are compared
with the free list, page by page, and the shadow tells who wrote a page that nobody admits to holding.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

from simulator.allocators.base import Allocator, Holding
from simulator.allocators.contiguous import ContiguousAllocator, RangeHolding
from simulator.allocators.paged import PagedAllocator, PagedHolding
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.shadow import ShadowMemory, Violation

_NOBODY = -1


def find_culprits(allocator: Allocator, shadow: ShadowMemory, live: Iterable[Holding]) -> Iterator[Violation]:
    """Every page or range that is not in exactly one state. O(pool)."""
    if isinstance(allocator, PagedAllocator):
        yield from _pages(allocator, shadow, [holding for holding in live if isinstance(holding, PagedHolding)])
    elif isinstance(allocator, ContiguousAllocator):
        yield from _ranges(allocator, shadow, [holding for holding in live if isinstance(holding, RangeHolding)])


def _pages(allocator: PagedAllocator, shadow: ShadowMemory, live: list[PagedHolding]) -> Iterator[Violation]:
    owners: dict[int, list[int]] = {}
    for holding in live:
        for page in chain.from_iterable(holding.tables):
            owners.setdefault(page, []).append(holding.demand.request_id)
    free = Counter(allocator.pool.free_ids())
    for page in range(allocator.max_pages - allocator.usable_pages, _known_end(owners, free, allocator.max_pages)):
        holders, listed = owners.get(page, []), free[page]
        yield from _page(allocator, shadow, page, holders, listed)


def _known_end(owners: dict[int, list[int]], free: Counter[int], max_pages: int) -> int:
    """One past the last page worth looking at."""
    return max(max_pages, max(owners, default=0) + 1, max(free, default=0) + 1)


def _page(
    allocator: PagedAllocator, shadow: ShadowMemory, page: int, holders: list[int], listed: int
) -> Iterator[Violation]:
    writer = shadow.last_writer(page)
    blamed = holders[0] if holders else writer if writer is not None else _NOBODY
    wrote = "nobody wrote it" if writer is None else f"request {writer} wrote it last"
    if listed > 1:
        yield Violation("double_release", blamed, page, f"page {page} is free {listed} times over; {wrote}")
    if listed and holders:
        message = f"page {page} is free but still in the page table of request {holders[0]}"
        yield Violation("stale_table", holders[0], page, message)
    if isinstance(allocator, PagedCowAllocator):
        references = allocator.pages.references[page] if page < len(allocator.pages.references) else 0
        if references != len(holders):
            message = f"page {page} has {references} references but is in {len(holders)} page tables; {wrote}"
            yield Violation("references", blamed, page, message)
    elif len(holders) > 1:
        message = f"page {page} is in the page tables of requests {holders[0]} and {holders[1]}"
        yield Violation("stale_table", holders[1], page, message)
    if not listed and not holders:
        message = f"page {page} is neither free nor in the page table of a live request; {wrote}"
        yield Violation("leak", blamed, page, message)


def _ranges(allocator: ContiguousAllocator, shadow: ShadowMemory, live: list[RangeHolding]) -> Iterator[Violation]:
    pieces = [(holding.start, holding.units, holding.demand.request_id) for holding in live if holding.units]
    pieces += [(start, size, _NOBODY) for start, size in allocator._store.free_ranges()]
    end, before = 0, _NOBODY
    capacity = allocator.capacity_bytes // allocator.granule_bytes
    for start, size, request_id in [*sorted(pieces), (capacity, 0, _NOBODY)]:
        if start > end:
            writer = shadow.last_writer_of(end * allocator.granule_bytes, (start - end) * allocator.granule_bytes)
            who = "nobody wrote there" if writer is None else f"request {writer} wrote there last"
            message = f"granules {end} to {start - 1} are neither free nor held; {who}"
            yield Violation("leak", _NOBODY if writer is None else writer, -1, message)
        if start < end:
            blamed = max(request_id, before)
            message = f"granules {start} to {end - 1} of request {blamed} are free or held by another as well"
            yield Violation("overlap", blamed, -1, message)
        if start + size > end:
            end, before = start + size, request_id
