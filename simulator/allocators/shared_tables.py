"""Page tables that share pages, with bytes that add up.

The byte counts of ``base.Allocator`` are exact under sharing: a page with ``r`` references is allocated once, and
``r - 1`` times its filled bytes are in ``discount_bytes``; slots that no sharer will ever fill are in ``tail_bytes``
once. Only a last page right after a fork is shared while partly filled; ``SharedTail`` says how far.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from librt.vecs import append, vec
from mypy_extensions import i64

from simulator.allocators.base import Occupancy, Shortfall
from simulator.allocators.bulk import Pages, backwards, page_array
from simulator.allocators.host_pool import HostCopy, HostPool
from simulator.allocators.paged import TABLE_ENTRY_BYTES, PagedAllocator, PagedHolding, PageGroup, PageLayout
from simulator.allocators.prefix_cache import SharedPages
from simulator.allocators.sharing import CowHolding, SharedTail, SharingRules, priority_of, table_of
from simulator.config import EvictionPolicy
from simulator.units import align_up, ceil_div


class SharedTables(PagedAllocator):
    """References, copy-on-write and byte counts; what is shared and when is the subclass's business.

    Tables that always grow in step (``PageGroup.copies``) are kept as one: an entry then stands for ``unit`` pages, and
    ``layout`` is the layout after this merger. Counts for others (``max_pages``, ``totals``, ...) are in single pages.
    """

    def __init__(
        self,
        layout: PageLayout,
        *,
        max_pages: int,
        rules: SharingRules,
        chunk_tokens: int,
        host: HostPool | None,
        eviction_policy: EvictionPolicy = "lru",
    ) -> None:
        self.unit = gcd(*(group.copies for group in layout.groups))
        null_pages = int(rules.null_page)
        units = max(0, max_pages - null_pages) // self.unit + null_pages
        super().__init__(
            _merged(layout, self.unit),
            max_pages=units,
            free_order=rules.free_order,
            null_page=rules.null_page,
            reverse_release=rules.reverse_release,
            chunk_tokens=chunk_tokens,
            host=host if host is None or self.unit == 1 else HostPool(host.max_pages // self.unit),
        )
        self.max_pages = max_pages
        self.capacity_bytes = max_pages * layout.page_bytes
        self.pages = SharedPages(units, rules.free_order, first_page=null_pages, eviction_policy=eviction_policy)
        self.pool = self.pages
        # for each group: pages owned, and references beyond the first one to them
        self._owned = [0] * len(layout.groups)
        self._further = [0] * len(layout.groups)
        # shared last pages: who writes into one takes another page than the next one in order
        self._shared_tails = 0
        uniform = self._plain and self.unit == 1 and layout.groups == (PageGroup(layout.bytes_per_token),)
        self._cycles_per_page = self.pages.cycles_per_page if uniform and not rules.share_whole_prompt else None
        self._plain = False

    @property
    def table_entries(self) -> int:
        """Entries of all page tables: the pages that would be owned if nothing were shared."""
        return self.pages.total_references * self.unit

    @property
    def owned_pages(self) -> int:
        """Pages with at least one reference."""
        return (self.usable_pages - len(self.pages)) * self.unit

    def free_pages(self) -> int:
        """Pages that could be taken now, cached ones included."""
        return len(self.pages) * self.unit

    def occupancy(self) -> Occupancy:
        page_bytes = self.layout.page_bytes
        available, cached = len(self.pages), self.pages.cached_pages
        return Occupancy(
            capacity_bytes=self.capacity_bytes,
            allocated_bytes=self.allocated_bytes,
            cached_bytes=cached * page_bytes,
            free_bytes=(available - cached) * page_bytes,
            largest_free_bytes=available * page_bytes,
            unusable_bytes=self.capacity_bytes - self.usable_pages * page_bytes,
        )

    def sure_to_grow(self, sequences: int, tokens: int) -> bool:
        # the write may begin in a shared last page, which then is one page more
        rows = 1 + ceil_div(tokens - 1, self.layout.page_tokens)
        return sequences * rows * self._row_pages <= len(self.pages)

    # ---- references

    def _enough(self, pages: int) -> bool:
        free = len(self.pages)
        if pages <= free:
            return True
        page_bytes = self.layout.page_bytes
        self.shortfall = Shortfall("capacity", pages * page_bytes, free * page_bytes, free * page_bytes)
        return False

    def _take(self, count: int) -> list[int]:
        return list(self._take_many(count))

    def _take_many(self, count: int) -> Pages:
        pages = self.pages.take_many(count)
        self._count_taken(count, self.pages.cycles_to_find(pages))
        return pages

    def _count_taken(self, count: int, search_cycles: int) -> None:
        pages, totals, work = count * self.unit, self.totals, self.work
        self.allocated_bytes += count * self.layout.page_bytes
        totals.pages_taken += pages
        totals.unshared_pages += pages
        totals.evictions = self.pages.evictions * self.unit
        work.new_pages += pages
        work.table_bytes += pages * TABLE_ENTRY_BYTES
        work.search_cycles += search_cycles * self.unit

    def _share(self, index: int, pages: Pages, *, priority: int = 0) -> None:
        """One more reference to ``pages`` of group ``index``, all of them full, for a request of ``priority``."""
        revived = self.pages.share(pages, priority=priority)
        self.allocated_bytes += revived * self.layout.page_bytes
        self._count(index, owned=revived, further=len(pages) - revived)
        self.work.table_bytes += len(pages) * self.unit * TABLE_ENTRY_BYTES
        self.totals.unshared_pages += len(pages) * self.unit

    def _unshare(self, holding: PagedHolding, index: int, pages: Pages) -> None:
        """One reference less to ``pages`` of group ``index``, counted as full where others still hold them."""
        if self._reverse_release:
            pages = backwards(pages)
        freed = self.pages.drop(pages, holding.demand.request_id)
        self.allocated_bytes -= freed * self.layout.page_bytes
        self._count(index, owned=-freed, further=freed - len(pages))

    def _count(self, index: int, *, owned: int, further: int = 0) -> None:
        """So many pages more of group ``index``, so many references more to pages that have one already.

        Layers need not divide evenly among the tables of a group, so bytes follow from whole numbers of pages.
        """
        group = self.layout.groups[index]
        row_bytes, copies = self.layout.page_tokens * group.token_bytes, group.copies
        before, after = self._owned[index], self._owned[index] + owned
        self.tail_bytes += owned * self.layout.page_bytes - (after * row_bytes // copies - before * row_bytes // copies)
        self._owned[index] = after
        before, after = self._further[index], self._further[index] + further
        self.discount_bytes += after * row_bytes // copies - before * row_bytes // copies
        self._further[index] = after

    def _extend(self, holding: PagedHolding, needed: int) -> None:
        if needed:
            rows = needed // self._row_pages
            self._hand_out(holding, self._take_many(needed), rows)
            self._set_held(holding, holding.held_tokens + rows * self.layout.page_tokens)
        holding.capacity_tokens = self._next_call(holding) if self._windowed else holding.held_tokens

    def _hand_out(self, holding: PagedHolding, pages: Pages, rows: int) -> None:
        """Give ``pages`` to the groups: all rows of the first group, then of the next, as separate managers do."""
        start = 0
        for index, group in enumerate(self.layout.groups):
            stop = start + rows * group.copies
            table = table_of(holding, index)
            for at in range(start, stop):
                table = append(table, pages[at])
            holding.tables[index] = table
            self._count(index, owned=stop - start)
            start = stop

    # ---- tables

    def _attach(self, holding: PagedHolding, *, rows: int, tables: Sequence[Pages], dropped: Sequence[int]) -> None:
        """Start an empty holding with ``rows`` rows of existing pages, ``dropped`` of them given back already."""
        for index, (group, pages) in enumerate(zip(self.layout.groups, tables, strict=True)):
            self._share(index, pages, priority=priority_of(holding))
            holding.tables[index] = pages[:]
            holding.dropped[index] = dropped[index]
            self.discount_bytes += self._row_bytes(group, dropped[index])
        self._set_held(holding, rows * self.layout.page_tokens)
        self._extend(holding, 0)

    def _detach(self, holding: PagedHolding) -> None:
        assert isinstance(holding, CowHolding)
        if holding.shared_tail is not None:
            self._leave_tail(holding, holding.shared_tail)
        self._set_early(holding, 0)
        for index, group in enumerate(self.layout.groups):
            self._unshare(holding, index, table_of(holding, index))
            self.discount_bytes -= self._row_bytes(group, holding.dropped[index])
            holding.tables[index] = vec[i64]()
            holding.dropped[index] = 0
        self._set_held(holding, 0)
        holding.capacity_tokens = holding.registered = 0

    def _drop_rows(self, holding: PagedHolding, index: int, rows: int) -> None:
        group, table = self.layout.groups[index], table_of(holding, index)
        self._unshare(holding, index, table[: rows * group.copies])
        holding.tables[index] = table[rows * group.copies :]
        holding.dropped[index] += rows
        self.discount_bytes += self._row_bytes(group, rows)

    def _set_early(self, holding: CowHolding, early_tokens: int) -> None:
        """Record how many tokens of shared pages the length of ``holding`` does not contain yet."""
        self.discount_bytes += (holding.early_tokens - early_tokens) * self.bytes_per_token
        holding.early_tokens = early_tokens

    # ---- the partly filled last page

    def _share_tail(self, parent: CowHolding, child: CowHolding, length: int) -> None:
        """``child`` has just attached the last page of ``parent``, which is filled up to ``length``."""
        tail = parent.shared_tail
        if tail is None:
            end = align_up(length, self.layout.page_tokens)
            tail = parent.shared_tail = SharedTail(length, end, parent)
            self._shared_tails += 1
            self.cycles_per_page = None
        assert tail.length == length, f"request {child.demand.request_id}: fork at {length}, last page at {tail.length}"
        before = tail.excess_tokens()
        tail.join(child)
        self.tail_bytes -= (tail.excess_tokens() - before) * self.bytes_per_token
        self.discount_bytes -= (tail.end - length) * self.bytes_per_token
        parent.capacity_tokens = child.capacity_tokens = length

    def _leave_tail(self, holding: CowHolding, tail: SharedTail) -> None:
        """``holding`` is about to give up its reference to the shared last page, as if it were full."""
        before = tail.excess_tokens()
        tail.leave(holding)
        if len(tail.sharers) == 1:
            self._shared_tails -= 1
            self.cycles_per_page = None if self._shared_tails else self._cycles_per_page
        self.tail_bytes += (before - tail.excess_tokens()) * self.bytes_per_token
        self.discount_bytes += (tail.end - tail.length) * self.bytes_per_token

    def _copy_tail(self, holding: CowHolding, tail: SharedTail) -> None:
        """Copy-on-write: ``holding`` gives up its share of the last page for a page of its own with the same tokens."""
        filled_tokens = tail.length % self.layout.page_tokens
        self._leave_tail(holding, tail)
        for index, group in enumerate(self.layout.groups):
            first = self._tail_entry(holding, index, tail.length)
            table, last = table_of(holding, index), first + group.copies
            shared, own = table[first:last], self._take_many(group.copies)
            self._tell(zip(shared, own, strict=True))
            self._unshare(holding, index, shared)
            for at in range(group.copies):
                table[first + at] = own[at]
            self._count(index, owned=group.copies)
            self.work.copied_bytes += 2 * filled_tokens * group.token_bytes
        self.totals.cow_copies += self._row_pages * self.unit
        self.totals.unshared_pages -= self._row_pages * self.unit

    def _tail_entry(self, holding: PagedHolding, index: int, length: int) -> int:
        """Where, in the table of group ``index``, the row with the last of ``length`` tokens begins."""
        return ((length - 1) // self.layout.page_tokens - holding.dropped[index]) * self.layout.groups[index].copies

    # ---- swapping

    def _host_copy(self, holding: PagedHolding, place: dict[int, int]) -> HostCopy:
        assert isinstance(holding, CowHolding)
        copy = replace(super()._host_copy(holding, place), registered=holding.registered)
        tail = holding.shared_tail
        if tail is None:
            return copy
        entry = self._tail_entry(holding, 0, tail.length)
        return replace(copy, tail_page=copy.tables[0][entry], shared_length=tail.length)

    def _restore(self, moved: Sequence[tuple[PagedHolding, HostCopy]], pages: dict[int, int]) -> None:
        """A page is taken once: whoever comes first has it, the others share it."""
        placed: set[int] = set()
        tails: dict[int, CowHolding] = {}
        for holding, copy in moved:
            assert isinstance(holding, CowHolding)
            for index, group in enumerate(self.layout.groups):
                table = [pages[page] for page in copy.tables[index]]
                shared = [page for page in table if page in placed]
                self._share(index, page_array(shared), priority=priority_of(holding))
                self._count(index, owned=len(table) - len(shared))
                self.discount_bytes += self._row_bytes(group, copy.dropped[index])
                holding.tables[index], holding.dropped[index] = page_array(table), copy.dropped[index]
                placed.update(table)
            self._set_held(holding, copy.held_tokens)
            self._extend(holding, 0)
            if copy.tail_page >= 0:
                first = tails.setdefault(copy.tail_page, holding)
                if first is not holding:
                    self._share_tail(first, holding, copy.shared_length)


def _merged(layout: PageLayout, unit: int) -> PageLayout:
    """``layout`` with ``unit`` tables that grow in step made one."""
    groups = tuple(replace(group, copies=group.copies // unit) for group in layout.groups)
    return PageLayout(layout.page_tokens, layout.page_bytes * unit, groups)
