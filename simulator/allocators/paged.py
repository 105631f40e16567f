"""Paged KV memory: equal pages, one page table a sequence, any free page serves any sequence.

A page id covers ``page_tokens`` tokens of the layers of one *page group*. A plain model has one group. A model
whose layers need different history (full attention beside sliding windows) has several, each with its own
table, all drawing on one pool; so has a page given in bytes that covers a single layer (``copies`` tables that
grow together). Group rules follow vLLM's hybrid KV manager (``vllm/v1/core/kv_cache_utils.py``): equal page
bytes for all groups, the shorter group padded.

Cost per call is O(pages moved); nothing here ever walks the pool.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simulator.allocators.base import Demand, Holding, Occupancy, Shortfall
from simulator.allocators.host_pool import HostCopy, HostPool, HostSwap
from simulator.allocators.page_pool import FreePages, PagePool
from simulator.config import FreeOrder
from simulator.units import align_up, ceil_div

#: bytes of one page-table entry (int32 in vLLM, ATB and cann-recipes)
TABLE_ENTRY_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Layers that share a page table.

    ``token_bytes``: KV of one token in these layers, over all ``copies``. ``copies`` equal tables grow in step.
    ``window_tokens`` is ``None`` for full attention; otherwise pages that lie wholly before the window of the next
    token are given back.
    """

    token_bytes: int
    copies: int = 1
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PageLayout:
    """The shape of a paged pool: ``page_bytes`` is what one page id stands for on one device."""

    page_tokens: int
    page_bytes: int
    groups: tuple[PageGroup, ...]

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token over all layers of the device."""
        return sum(group.token_bytes for group in self.groups)

    @property
    def row_pages(self) -> int:
        """Pages that ``page_tokens`` tokens take, over all groups."""
        return sum(group.copies for group in self.groups)

    def padding_bytes(self, group: PageGroup) -> int:
        """Bytes of one row of ``group`` that no layer uses (groups shorter than the longest are padded)."""
        return self.page_bytes * group.copies - self.page_tokens * group.token_bytes


def plain_layout(*, page_tokens: int, bytes_per_token: int) -> PageLayout:
    """The layout of a model whose layers all attend to everything: one group, one table."""
    return PageLayout(page_tokens, page_tokens * bytes_per_token, (PageGroup(bytes_per_token),))


class PagedHolding(Holding):
    """Page tables of one sequence: ``tables[g]``, a list or a ``vec``, has the page ids of group ``g``, ``copies`` a
    row, oldest first; ``dropped[g]`` counts the leading rows that were given back (window groups). While the sequence
    is in host memory its tables are empty and ``host_copy`` stands for them."""

    __slots__ = ("dropped", "host_copy", "tables")

    def __init__(self, demand: Demand, groups: int) -> None:
        super().__init__(demand)
        self.tables: list[Any] = [[] for _ in range(groups)]
        self.dropped = [0] * groups
        self.host_copy: HostCopy | None = None

    @property
    def pages(self) -> Any:
        """The page table of a sequence with one group."""
        return self.tables[0]


class PagedAllocator(HostSwap):
    """Pages on demand, no sharing. ``null_page`` keeps page 0 for padding, as vLLM v1 does. ``host`` is where pages are
    swapped to."""

    kind = "paged"

    def __init__(
        self,
        layout: PageLayout,
        *,
        max_pages: int,
        free_order: FreeOrder = "lifo",
        null_page: bool = False,
        reverse_release: bool = False,
        chunk_tokens: int = 0,
        host: HostPool | None = None,
    ) -> None:
        super().__init__()
        self.layout = layout
        self.host = host
        self.bytes_per_token = layout.bytes_per_token
        self.tile_tokens = layout.page_tokens
        self.max_pages = max_pages
        self.capacity_bytes = max_pages * layout.page_bytes
        pool = PagePool(max_pages, free_order, first_page=int(null_page))
        self.pool: FreePages = pool
        self.usable_pages = len(self.pool)
        self._null_pages = int(null_page)
        self._reverse_release = reverse_release
        self._chunk_tokens = chunk_tokens
        self._row_pages = layout.row_pages
        self._plain = len(layout.groups) == 1 and not layout.padding_bytes(layout.groups[0])
        plain_growth = type(self).grow is PagedAllocator.grow
        self._one_table = plain_growth and self._plain and layout.groups == (PageGroup(layout.bytes_per_token),)
        self.cycles_per_page = pool.cycles_per_page if self._one_table else None
        self._windowed = any(group.window_tokens is not None for group in layout.groups)

    # ---- asking

    def can_ever_hold(self, demand: Demand) -> bool:
        return self.peak_pages(demand.prompt_tokens, demand.final_tokens) <= self.usable_pages

    def peak_pages(self, prompt_tokens: int, final_tokens: int) -> int:
        """Most pages a sequence of this life holds at any time (window groups hold at most a window and a chunk)."""
        return sum(group.copies * self._peak_rows(group, prompt_tokens, final_tokens) for group in self.layout.groups)

    def _peak_rows(self, group: PageGroup, prompt_tokens: int, final_tokens: int) -> int:
        rows = ceil_div(final_tokens, self.layout.page_tokens)
        if group.window_tokens is None:
            return rows
        chunk = min(self._chunk_tokens or prompt_tokens, max(prompt_tokens, 1))
        return min(rows, ceil_div(group.window_tokens - 1 + chunk, self.layout.page_tokens) + 1)

    def free_pages(self) -> int:
        """Pages that could be taken now."""
        return len(self.pool)

    def free_rows(self) -> int:
        return len(self.pool) // self._row_pages

    def sure_to_grow(self, sequences: int, tokens: int) -> bool:
        return sequences * ceil_div(tokens, self.layout.page_tokens) * self._row_pages <= self.free_pages()

    # ---- acting

    def admit(
        self, demand: Demand, tokens: int, *, whole_tokens: int = 0, keep_free_bytes: int = 0
    ) -> PagedHolding | None:
        holding = PagedHolding(demand, len(self.layout.groups))
        needed = self._pages_missing(holding, tokens)
        asked = max(needed, self.peak_pages(whole_tokens, whole_tokens)) if whole_tokens > tokens else needed
        if not self._enough(asked + keep_free_bytes // self.layout.page_bytes):
            return None
        self._extend(holding, needed)
        return holding

    def grow(self, holding: Holding, tokens: int, new_tokens: int = 1) -> bool:
        assert isinstance(holding, PagedHolding)
        if self._windowed:
            self._drop_unseen(holding, tokens - new_tokens)
        needed = self._pages_missing(holding, tokens)
        if not self._enough(needed):
            return False
        self._extend(holding, needed)
        return True

    def grow_each(self, holdings: list[Holding]) -> None:
        if not self._one_table:
            super().grow_each(holdings)
            return
        # One page each, what decoding asks for all the time: one visit to the pool, no bookkeeping a page.
        page_tokens, beyond_tokens = self.layout.page_tokens, 0
        pages = self._take(len(holdings))
        for at, holding in enumerate(holdings):
            assert isinstance(holding, PagedHolding)
            table = holding.tables[0]
            assert isinstance(table, list)  # what the compiler appends to
            table.append(pages[at])
            held_tokens = holding.held_tokens + page_tokens
            holding.held_tokens = holding.capacity_tokens = held_tokens
            beyond = held_tokens - holding.final_tokens
            if beyond > 0:
                beyond_tokens += min(beyond, page_tokens)
        self.tail_bytes += beyond_tokens * self.bytes_per_token

    def release(self, holding: Holding) -> None:
        assert isinstance(holding, PagedHolding)
        if self._drop_host_copy(holding):
            return
        assert holding.held_tokens > 0, f"request {holding.demand.request_id} released twice"
        self._detach(holding)

    def _detach(self, holding: PagedHolding) -> None:
        rows = holding.held_tokens // self.layout.page_tokens
        for index, group in enumerate(self.layout.groups):
            table, dropped = holding.tables[index], holding.dropped[index]
            self._give(table[::-1] if self._reverse_release else table)
            self.discount_bytes -= self._row_bytes(group, dropped)
            self.tail_bytes -= self.layout.padding_bytes(group) * (rows - dropped)
            table.clear()
            holding.dropped[index] = 0
        self._set_held(holding, 0)
        holding.capacity_tokens = 0

    def _restore(self, moved: Sequence[tuple[PagedHolding, HostCopy]], pages: dict[int, int]) -> None:
        for holding, copy in moved:
            holding.tables = [[pages[page] for page in table] for table in copy.tables]
            holding.dropped = list(copy.dropped)
            for index, group in enumerate(self.layout.groups):
                self.discount_bytes += self._row_bytes(group, copy.dropped[index])
                self.tail_bytes += self.layout.padding_bytes(group) * (len(copy.tables[index]) // group.copies)
            self._set_held(holding, copy.held_tokens)
            self._extend(holding, 0)

    # ---- looking

    def occupancy(self) -> Occupancy:
        free_bytes = len(self.pool) * self.layout.page_bytes
        return Occupancy(
            capacity_bytes=self.capacity_bytes,
            allocated_bytes=self.allocated_bytes,
            cached_bytes=0,
            free_bytes=free_bytes,
            largest_free_bytes=free_bytes,
            unusable_bytes=self._null_pages * self.layout.page_bytes,
        )

    def check(self, holdings: Iterable[Holding]) -> None:
        """Every page is free or in exactly one table; bytes add up; tables reach their capacity."""
        owners: Counter[int] = Counter()
        tail_bytes = discount_bytes = 0
        for holding in holdings:
            assert isinstance(holding, PagedHolding)
            tail_bytes += max(0, holding.held_tokens - holding.demand.final_tokens) * self.bytes_per_token
            for index, group in enumerate(self.layout.groups):
                rows = self._check_table(holding, index, group)
                owners.update(holding.tables[index])
                tail_bytes += rows * self.layout.padding_bytes(group)
                discount_bytes += self._row_bytes(group, holding.dropped[index])
        shared = [page for page, count in owners.items() if count > 1]
        assert not shared, f"pages {shared[:5]} are in more than one table"
        free = self.pool.free_ids()
        assert len(set(free)) == len(free) == len(self.pool), "the free list is wrong or has a page twice"
        assert not owners.keys() & set(free), "a page is owned and free"
        assert len(free) + len(owners) + self._null_pages == self.max_pages, "a page was lost"
        assert self.allocated_bytes == len(owners) * self.layout.page_bytes, "allocated bytes drifted"
        assert self.tail_bytes == tail_bytes, "tail bytes drifted"
        assert self.discount_bytes == discount_bytes, "dropped bytes drifted"

    def _check_table(self, holding: PagedHolding, index: int, group: PageGroup) -> int:
        rows = holding.held_tokens // self.layout.page_tokens - holding.dropped[index]
        assert len(holding.tables[index]) == rows * group.copies, f"request {holding.demand.request_id}: wrong table"
        assert holding.capacity_tokens <= holding.held_tokens, "capacity beyond what is held"
        return rows

    def holding_bytes(self, holding: Holding) -> int:
        assert isinstance(holding, PagedHolding)
        return sum(map(len, holding.tables)) * self.layout.page_bytes

    # ---- how

    def _pages_missing(self, holding: PagedHolding, tokens: int) -> int:
        """Pages needed to reach ``tokens``, over all groups."""
        rows = ceil_div(tokens - holding.held_tokens, self.layout.page_tokens)
        return rows * self._row_pages if rows > 0 else 0

    def _enough(self, pages: int) -> bool:
        free = self.free_pages()
        if pages <= free:
            return True
        page_bytes = self.layout.page_bytes
        self.shortfall = Shortfall("capacity", pages * page_bytes, free * page_bytes, free * page_bytes)
        return False

    def _extend(self, holding: PagedHolding, needed: int) -> None:
        if needed:
            pages = self._take(needed)
            rows = needed // self._row_pages
            if self._plain:
                holding.tables[0] += pages
            else:
                self._deal(holding, pages, rows)
            self._set_held(holding, holding.held_tokens + rows * self.layout.page_tokens)
        holding.capacity_tokens = self._next_call(holding) if self._windowed else holding.held_tokens

    def _deal(self, holding: PagedHolding, pages: list[int], rows: int) -> None:
        """Hand ``pages`` to the groups: all rows of the first group, then of the next, as separate managers do."""
        start = 0
        for group, table in zip(self.layout.groups, holding.tables, strict=True):
            table += pages[start : start + rows * group.copies]
            start += rows * group.copies
            self.tail_bytes += rows * self.layout.padding_bytes(group)

    def _take(self, count: int) -> list[int]:
        pages = self.pool.take(count)
        self.allocated_bytes += count * self.layout.page_bytes
        self.totals.pages_taken += count
        work = self.work
        work.new_pages += count
        work.table_bytes += count * TABLE_ENTRY_BYTES
        work.search_cycles += self.pool.search_cycles(pages)
        return pages

    def _give(self, pages: Sequence[int]) -> None:
        self.pool.give(pages)
        self.allocated_bytes -= len(pages) * self.layout.page_bytes

    def _drop_unseen(self, holding: PagedHolding, computed_tokens: int) -> None:
        """Give back pages that the token at position ``computed_tokens`` and later ones cannot see."""
        for index, group in enumerate(self.layout.groups):
            if group.window_tokens is None:
                continue
            unseen = max(0, computed_tokens - group.window_tokens + 1)
            rows = unseen // self.layout.page_tokens - holding.dropped[index]
            if rows > 0:
                self._drop_rows(holding, index, rows)

    def _drop_rows(self, holding: PagedHolding, index: int, rows: int) -> None:
        """Give back the oldest ``rows`` rows of one group."""
        group, table = self.layout.groups[index], holding.tables[index]
        dead = table[: rows * group.copies]
        del table[: rows * group.copies]
        self._give(dead[::-1] if self._reverse_release else dead)
        holding.dropped[index] += rows
        self.discount_bytes += self._row_bytes(group, rows)
        self.tail_bytes -= rows * self.layout.padding_bytes(group)

    def _next_call(self, holding: PagedHolding) -> int:
        """Length up to which no page is due and none can be dropped."""
        page_tokens = self.layout.page_tokens
        limit = holding.held_tokens
        for group, dropped in zip(self.layout.groups, holding.dropped, strict=True):
            if group.window_tokens is not None:
                limit = min(limit, group.window_tokens + (dropped + 1) * page_tokens - 1)
        return limit

    def _row_bytes(self, group: PageGroup, rows: int) -> int:
        return rows * self.layout.page_tokens * group.token_bytes


def table_bytes(*, rows: int, max_model_len: int, page_tokens: int, align_bytes: int, tables: int = 1) -> int:
    """HBM taken by the page tables: ``rows`` sequences, each row long enough for ``max_model_len`` and its stride
    aligned to ``align_bytes``; ``tables`` such tables (one a group or layer)."""
    entries = ceil_div(max_model_len, page_tokens)
    return rows * tables * align_up(entries * TABLE_ENTRY_BYTES, align_bytes)
