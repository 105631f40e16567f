"""Paged KV memory with a pool of its own for every group of layers, as cann-recipes-infer has it.

Layers that need different history have different pools, split once and for all: a page of one cannot serve the other.
So enough bytes may be free and yet a request be refused, which is fragmentation *between* pools. In return no page is
padded, and a window group never takes more than its windows.

Rules (``executor/core/kv_cache/{kv_cache_manager,single_type_kv_cache_manager}.py``): an allocation asks all groups
first and takes from none unless all have room; what is out of the window is given back before, even if the allocation
then fails; a new sequence takes window pages only for the last window of its prompt; room for live requests is kept
free in the pools of full attention only.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from simulator.allocators.base import Cause, Demand, Holding, Occupancy, Shortfall
from simulator.allocators.page_pool import FreePages, PagePool
from simulator.allocators.paged import TABLE_ENTRY_BYTES, PagedAllocator, PagedHolding, PageGroup, PageLayout
from simulator.config import FreeOrder
from simulator.units import ceil_div


@dataclass(frozen=True, slots=True)
class OwnPages(PageLayout):
    """Groups whose pages are as large as they need; ``page_bytes`` is the largest of them."""

    def padding_bytes(self, group: PageGroup) -> int:
        return 0

    def bytes_of(self, group: PageGroup) -> int:
        """Bytes of one page of ``group``."""
        return self.page_tokens * group.token_bytes


def own_pages(page_tokens: int, groups: tuple[PageGroup, ...]) -> OwnPages:
    """The layout of ``groups``, each of which is one table (``copies`` 1)."""
    assert all(group.copies == 1 for group in groups)
    return OwnPages(page_tokens, page_tokens * max(group.token_bytes for group in groups), groups)


class Pools(FreePages):
    """The free pages of all groups. Ids are distinct over all pools; the lowest ones are the null pages."""

    def __init__(self, sizes: Sequence[int], order: FreeOrder, *, null_pages: int) -> None:
        self.pools: list[PagePool] = []
        start = null_pages
        for size in sizes:
            self.pools.append(PagePool(start + size, order, first_page=start))
            start += size

    def __len__(self) -> int:
        return sum(map(len, self.pools))

    def take(self, count: int) -> list[int]:
        """Not to be asked: a page belongs to a group."""
        raise NotImplementedError(f"{count} pages of which group?")

    def give(self, pages: Iterable[int]) -> None:
        """Return pages of one group."""
        returned = list(pages)
        if returned:
            self.pool_of(returned[0]).give(returned)

    def pool_of(self, page: int) -> PagePool:
        """The pool that ``page`` comes from."""
        return next(pool for pool in self.pools if page < pool.max_pages)

    def search_cycles(self, taken: Sequence[int]) -> int:
        """Modelled cost of having found ``taken``, pages of one group, each looked for in its own pool."""
        pool = self.pool_of(taken[0])
        return pool.search_cycles([page - pool.first_page for page in taken]) if taken else 0

    def free_ids(self) -> list[int]:
        """Every free page, pool by pool."""
        return list(chain.from_iterable(pool.free_ids() for pool in self.pools))


class GroupPools(PagedAllocator):
    """``sizes[g]`` pages for group ``g``, the null page of each (``null_page``) on top."""

    fragments = True

    def __init__(
        self,
        layout: OwnPages,
        *,
        sizes: Sequence[int],
        free_order: FreeOrder = "fifo",
        null_page: bool = True,
        reverse_release: bool = False,
        chunk_tokens: int = 0,
        lookahead_tokens: int = 0,
    ) -> None:
        nulls = len(sizes) if null_page else 0
        super().__init__(
            layout,
            max_pages=sum(sizes) + nulls,
            free_order=free_order,
            reverse_release=reverse_release,
            chunk_tokens=chunk_tokens,
        )
        self.cycles_per_page = None
        # slots beyond what is computed that every call asks for
        self._lookahead_tokens = lookahead_tokens
        self.own = layout
        self.sizes = tuple(sizes)
        self.pool = self.pools = Pools(sizes, free_order, null_pages=nulls)
        self.usable_pages = sum(sizes)
        self._page_bytes = [layout.bytes_of(group) for group in layout.groups]
        self._unusable_bytes = sum(self._page_bytes) if null_page else 0
        self.capacity_bytes = self._bytes(sizes) + self._unusable_bytes

    # ---- asking

    def can_ever_hold(self, demand: Demand) -> bool:
        prompt, final = demand.prompt_tokens, demand.final_tokens
        peaks = (self._peak_rows(group, prompt, final) for group in self.layout.groups)
        return all(rows <= size for rows, size in zip(peaks, self.sizes, strict=True))

    def _peak_rows(self, group: PageGroup, prompt_tokens: int, final_tokens: int) -> int:
        if group.window_tokens is None:
            return ceil_div(final_tokens, self.layout.page_tokens)
        whole = not self._chunk_tokens or prompt_tokens <= self._chunk_tokens
        if not whole:
            return super()._peak_rows(group, prompt_tokens, final_tokens)
        # a prompt in one piece takes only its last window; then the window moves on token by token
        prompt_rows = self._new_rows_of(group, prompt_tokens + self._lookahead_tokens)
        return max(prompt_rows, super()._peak_rows(group, 1, final_tokens))

    def free_rows(self) -> int:
        return min(map(len, self.pools.pools))

    def sure_to_grow(self, sequences: int, tokens: int) -> bool:
        return sequences * ceil_div(tokens, self.layout.page_tokens) <= self.free_rows()

    # ---- acting

    def admit(
        self, demand: Demand, tokens: int, *, whole_tokens: int = 0, keep_free_bytes: int = 0
    ) -> PagedHolding | None:
        kept = keep_free_bytes // (self.capacity_bytes // self.max_pages)
        needed = self._new_rows(tokens)
        asked = [max(pair) for pair in zip(needed, self._new_rows(max(tokens, whole_tokens)), strict=True)]
        keep = [kept if group.window_tokens is None else 0 for group in self.layout.groups]
        if not self._all_enough(asked, keep):
            return None
        holding = PagedHolding(demand, len(self.layout.groups))
        rows = ceil_div(tokens, self.layout.page_tokens)
        for index, count in enumerate(needed):
            holding.tables[index] = self._take_of(index, count)
            holding.dropped[index] = rows - count
            self.discount_bytes += self._row_bytes(self.layout.groups[index], rows - count)
        self._set_held(holding, rows * self.layout.page_tokens)
        holding.capacity_tokens = self._next_call(holding)
        return holding

    def grow(self, holding: Holding, tokens: int, new_tokens: int = 1) -> bool:
        assert isinstance(holding, PagedHolding)
        self._drop_unseen(holding, tokens - new_tokens)
        rows = max(0, ceil_div(tokens - holding.held_tokens, self.layout.page_tokens))
        if not self._all_enough([rows] * len(self.sizes), [0] * len(self.sizes)):
            return False
        if rows:
            for index, table in enumerate(holding.tables):
                table += self._take_of(index, rows)
            self._set_held(holding, holding.held_tokens + rows * self.layout.page_tokens)
        holding.capacity_tokens = self._next_call(holding)
        return True

    # ---- looking

    def occupancy(self) -> Occupancy:
        free_bytes, largest_bytes = self.free_and_largest_bytes()
        return Occupancy(
            capacity_bytes=self.capacity_bytes,
            allocated_bytes=self.allocated_bytes,
            cached_bytes=0,
            free_bytes=free_bytes,
            largest_free_bytes=largest_bytes,
            unusable_bytes=self._unusable_bytes,
        )

    def free_and_largest_bytes(self) -> tuple[int, int]:
        free = [len(pool) for pool in self.pools.pools]
        return self._bytes(free), self._largest_bytes(free)

    def check(self, holdings: Iterable[Holding]) -> None:
        """What plain paging promises, pool by pool."""
        live = [holding for holding in holdings if isinstance(holding, PagedHolding)]
        discount_bytes = tail_bytes = 0
        held = []
        for index, (group, pool) in enumerate(zip(self.layout.groups, self.pools.pools, strict=True)):
            pages = list(chain.from_iterable(holding.tables[index] for holding in live))
            free = pool.free_ids()
            everything = set(pages).union(free)
            assert len(everything) == len(pages) + len(free), "a page is in two places"
            assert everything == set(range(pool.first_page, pool.max_pages)), "a page was lost, or is another group's"
            discount_bytes += sum(self._row_bytes(group, holding.dropped[index]) for holding in live)
            held.append(len(pages))
        for holding in live:
            for index, group in enumerate(self.layout.groups):
                self._check_table(holding, index, group)
            tail_bytes += max(0, holding.held_tokens - holding.demand.final_tokens) * self.bytes_per_token
        assert self.allocated_bytes == self._bytes(held), "allocated bytes drifted"
        assert self.discount_bytes == discount_bytes, "dropped bytes drifted"
        assert self.tail_bytes == tail_bytes, "tail bytes drifted"

    def holding_bytes(self, holding: Holding) -> int:
        assert isinstance(holding, PagedHolding)
        return self._bytes([len(table) for table in holding.tables])

    # ---- how

    def _bytes(self, pages: Sequence[int]) -> int:
        return sum(count * size for count, size in zip(pages, self._page_bytes, strict=True))

    def _new_rows(self, tokens: int) -> list[int]:
        """Pages of each group for a new sequence of ``tokens``."""
        return [self._new_rows_of(group, tokens) for group in self.layout.groups]

    def _new_rows_of(self, group: PageGroup, tokens: int) -> int:
        """Of a window group only what the last token computed sees, which lies before the look-ahead slots."""
        rows = ceil_div(tokens, self.layout.page_tokens)
        if group.window_tokens is None:
            return rows
        return rows - max(0, tokens - self._lookahead_tokens - group.window_tokens) // self.layout.page_tokens

    def _all_enough(self, rows: Sequence[int], keep: Sequence[int]) -> bool:
        free = [len(pool) for pool in self.pools.pools]
        if all(count + kept <= left for count, kept, left in zip(rows, keep, free, strict=True)):
            return True
        needed_bytes = self._bytes([count + kept for count, kept in zip(rows, keep, strict=True)])
        free_bytes = self._bytes(free)
        cause: Cause = "capacity" if free_bytes < needed_bytes else "fragmentation"
        self.shortfall = Shortfall(cause, needed_bytes, free_bytes, self._largest_bytes(free))
        return False

    def _largest_bytes(self, free: Sequence[int]) -> int:
        """Bytes of the longest new sequence that finds room in every pool."""
        page_tokens = self.layout.page_tokens
        bounds = []
        for group, left in zip(self.layout.groups, free, strict=True):
            most = None if group.window_tokens is None else ceil_div(group.window_tokens - 1, page_tokens) + 1
            bounds.append((left, most))
        # a pool with room for a whole window bounds nothing
        rows = min((left for left, most in bounds if most is None or left < most), default=max(free))
        return self._bytes([min(rows, left) if most is None else min(rows, left, most) for left, most in bounds])

    def _take_of(self, index: int, count: int) -> list[int]:
        if not count:
            return []
        pages = self.pools.pools[index].take(count)
        self.allocated_bytes += count * self._page_bytes[index]
        self.totals.pages_taken += count
        self.work.new_pages += count
        self.work.table_bytes += count * TABLE_ENTRY_BYTES
        self.work.search_cycles += self.pools.search_cycles(pages)
        return pages

    def _give(self, pages: Sequence[int]) -> None:
        if pages:
            self.pools.give(pages)
            index = self.pools.pools.index(self.pools.pool_of(pages[0]))
            self.allocated_bytes -= len(pages) * self._page_bytes[index]

    def _drop_rows(self, holding: PagedHolding, index: int, rows: int) -> None:
        table = holding.tables[index]
        # the later page first, whatever the order of a whole release
        self._give(table[:rows][::-1])
        del table[:rows]
        holding.dropped[index] += rows
        self.discount_bytes += self._row_bytes(self.layout.groups[index], rows)


def window_pool_pages(window_tokens: int, *, page_tokens: int, sequences: int, next_tokens: int) -> int:
    """Pages of a window group's pool without its null page: for each of ``sequences`` the pages that a window and twice
    the ``next_tokens`` drafted at a time can touch (``docs/design/kv_cache_design.md``)."""
    return sequences * (ceil_div(window_tokens + 2 * next_tokens, page_tokens) + 1)
