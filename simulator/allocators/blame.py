"""Who is to blame when the books of a pool do not balance: request and page by name.

An allocator's own ``check`` says that something is wrong. Here the page tables of all live sequences are compared
with the free list, page by page, and the shadow tells who wrote a page that nobody admits to holding.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from simulator.allocators.base import Allocator, Holding
from simulator.allocators.contiguous import ContiguousAllocator, RangeHolding
from simulator.allocators.page_shadow import PageShadow
from simulator.allocators.paged import PagedAllocator, PagedHolding
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.range_shadow import RangeShadow
from simulator.allocators.shadow import ShadowMemory
from simulator.allocators.violations import Violation

_NOBODY: Final = -1


def find_culprits(allocator: Allocator, shadow: ShadowMemory, live: Sequence[Holding]) -> list[Violation]:
    """Every page or range that is not in exactly one state. O(pool)."""
    if isinstance(allocator, PagedAllocator) and isinstance(shadow, PageShadow):
        return _pages(allocator, shadow, [holding for holding in live if isinstance(holding, PagedHolding)])
    if isinstance(allocator, ContiguousAllocator) and isinstance(shadow, RangeShadow):
        return _ranges(allocator, shadow, [holding for holding in live if isinstance(holding, RangeHolding)])
    return []


def _pages(allocator: PagedAllocator, shadow: PageShadow, live: list[PagedHolding]) -> list[Violation]:
    named = Counter(chain.from_iterable(chain.from_iterable(holding.tables for holding in live)))
    free = allocator.pool.free_ids()
    if _balanced(allocator, shadow.pages, named, free):
        return []
    owners: dict[int, list[int]] = {}
    for holding in live:
        for page in chain.from_iterable(holding.tables):
            owners.setdefault(page, []).append(holding.demand.request_id)
    listed = Counter(free)
    wrong: list[Violation] = []
    for page in sorted({*shadow.pages, *owners, *listed}):
        wrong += _page(allocator, shadow, page, owners.get(page, []), listed[page])
    return wrong


def _balanced(allocator: PagedAllocator, pages: range, named: Counter[int], free: list[int]) -> bool:
    """Whether each page is in exactly one state, as the tables and the free list have it. Quick, and names nobody."""
    unlisted = set(free)
    if len(unlisted) != len(free) or not unlisted.isdisjoint(named) or len(free) + len(named) != len(pages):
        return False
    if pages and not (min(chain(named, free)) in pages and max(chain(named, free)) in pages):
        return False
    if isinstance(allocator, PagedCowAllocator):
        references = allocator.pages.references
        return len(named) == sum(map(bool, references)) and all(references[page] == named[page] for page in named)
    return named.total() == len(named)


def _page(
    allocator: PagedAllocator, shadow: PageShadow, page: int, holders: list[int], listed: int
) -> Iterator[Violation]:
    writer = shadow.last_writer(page)
    blamed = holders[0] if holders else writer if writer is not None else _NOBODY
    wrote = "nobody wrote it" if writer is None else f"request {writer} wrote it last"
    if page not in shadow.pages:
        where = f"in the page table of request {holders[0]}" if holders else "free"
        yield Violation("stale_table", blamed, page, f"page {page} is not of this pool, but {where}")
        return
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


def _ranges(allocator: ContiguousAllocator, shadow: RangeShadow, live: list[RangeHolding]) -> list[Violation]:
    wrong: list[Violation] = []
    pieces = [(holding.start, holding.units, holding.demand.request_id) for holding in live if holding.units]
    pieces += [(start, size, _NOBODY) for start, size in allocator._store.free_ranges()]
    end, before = 0, _NOBODY
    capacity = allocator.capacity_bytes // allocator.granule_bytes
    for start, size, request_id in [*sorted(pieces), (capacity, 0, _NOBODY)]:
        if start > end:
            writer = shadow.last_writer(end * allocator.granule_bytes, (start - end) * allocator.granule_bytes)
            who = "nobody wrote there" if writer is None else f"request {writer} wrote there last"
            message = f"granules {end} to {start - 1} are neither free nor held; {who}"
            wrong.append(Violation("leak", _NOBODY if writer is None else writer, -1, message))
        if start < end:
            blamed = max(request_id, before)
            message = f"granules {start} to {end - 1} of request {blamed} are free or held by another as well"
            wrong.append(Violation("overlap", blamed, -1, message))
        if start + size > end:
            end, before = start + size, request_id
    return wrong
