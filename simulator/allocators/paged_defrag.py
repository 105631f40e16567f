"""Paged KV memory handed out in runs of adjacent pages, and compacted when runs become scarce.

One pool of equal pages has no external fragmentation: any free page serves any sequence. It comes back as soon as
adjacency counts: pages backed by huge pages, transfers that read ``run_length`` pages with one descriptor. Then a
request can find enough free pages and still no run, and that is the failure which compaction cures here.

Every request for ``r`` rows takes ``r // run_length`` runs in each table and single pages for the rest; single
pages come out of runs that are broken already. Compaction empties the broken runs with the fewest used pages into
the holes of those with the most. A move rewrites one page-table entry and copies one page, so no sequence reads
anything else afterwards; it costs a read and a write of the page in device memory.

What compaction buys is longer transfers (``mean_run_pages``) and requests served that would have been refused;
what it costs is in ``work`` and ``totals``. ``compaction.compaction_break_even`` weighs the two.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from simulator.allocators.base import Demand, Holding, Occupancy, Shortfall
from simulator.allocators.compactor import Compactor
from simulator.allocators.host_pool import HostCopy, HostPool, host_copy_of, paged
from simulator.allocators.paged import TABLE_ENTRY_BYTES, PagedAllocator, PagedHolding, PageLayout
from simulator.allocators.run_pool import RunOrder, RunPool
from simulator.allocators.run_tables import RunHolding, RunTables
from simulator.config import DefragTrigger, GrowBy
from simulator.units import ceil_div


class PagedDefragAllocator(PagedAllocator):
    """Pages in runs of ``run_length``; see the module docstring.

    ``grow_by``: a growing sequence takes the ``page`` it needs, or the whole next ``run`` (longer bursts, more
    reserved room). ``strict_runs``: a missing run is a ``fragmentation`` failure; otherwise single pages stand in
    and ``totals.unmerged_runs`` counts them. ``trigger`` says when to compact: when a run is missing, when the
    share of free pages outside whole runs reaches a threshold, or every so many seconds; between two calls of
    ``maintain`` at most ``max_moves_per_step`` pages move, and what is left over is taken up at the next call.
    ``totals.defrag_runs`` counts runs that compaction made whole.
    """

    kind = "paged_defrag"
    fragments = True

    def __init__(
        self,
        layout: PageLayout,
        *,
        max_pages: int,
        run_length: int,
        trigger: DefragTrigger,
        max_moves_per_step: int = 64,
        grow_by: GrowBy = "page",
        strict_runs: bool = True,
        free_order: RunOrder = "lifo",
        null_page: bool = False,
        reverse_release: bool = False,
        chunk_tokens: int = 0,
        host: HostPool | None = None,
    ) -> None:
        super().__init__(
            layout,
            max_pages=max_pages,
            null_page=null_page,
            reverse_release=reverse_release,
            chunk_tokens=chunk_tokens,
            host=host,
        )
        self.cycles_per_page = None
        self.runs = RunPool(max_pages, run_length, order=free_order, first_page=int(null_page))
        self.pool = self.runs
        self.tables = RunTables(layout.groups)
        self.run_length = run_length
        self.grow_by = grow_by
        self.strict_runs = strict_runs
        self.compacts_on_failure = trigger.on_failure
        self.compactor = Compactor(self.runs, trigger, max_moves_per_step=max_moves_per_step, move=self._move)

    # ---- asking

    @property
    def mean_run_pages(self) -> float:
        """Mean length of the pieces of adjacent pages that live page tables consist of; 1 when nothing is held.

        It is what one transfer can read at most, in pages.
        """
        bursts = self.tables.bursts
        return self.allocated_bytes / (self.layout.page_bytes * bursts) if bursts else 1.0

    def can_ever_hold(self, demand: Demand) -> bool:
        """As for plain pages; with strict runs also after a recompute that starts at any length, when the same tokens
        may split into runs and single pages in another way. Where all pages exist, so do their runs."""
        grows = demand.final_tokens > demand.prompt_tokens
        rounded = self.strict_runs and self.grow_by == "run" and grows
        pages = 0
        for group in self.layout.groups:
            rows = self._peak_rows(group, demand.prompt_tokens, demand.final_tokens)
            slack = self.run_length - 1 if rounded else 0
            if group.window_tokens is not None and self.strict_runs:
                slack += self.run_length - 1
            pages += group.copies * (rows + slack)
        return pages <= self.usable_pages

    # ---- acting

    def admit(
        self, demand: Demand, tokens: int, *, whole_tokens: int = 0, keep_free_bytes: int = 0
    ) -> RunHolding | None:
        holding = RunHolding(demand, len(self.layout.groups))
        rows = ceil_div(tokens, self.layout.page_tokens)
        pages, runs = rows * self._row_pages, self._runs_in(rows)
        if whole_tokens > tokens:
            peak_rows = [self._peak_rows(group, whole_tokens, whole_tokens) for group in self.layout.groups]
            pages = max(pages, self.peak_pages(whole_tokens, whole_tokens))
            runs = max(runs, sum(self._group_runs(index, rows) for index, rows in enumerate(peak_rows)))
        if not self._room(pages + keep_free_bytes // self.layout.page_bytes, runs):
            return None
        self.tables.seat(holding)
        self._extend(holding, rows * self._row_pages)
        return holding

    def sure_to_grow(self, sequences: int, tokens: int) -> bool:
        # Only single pages are sure: a run may first need a compaction.
        single = self.grow_by == "page" and ceil_div(tokens, self.layout.page_tokens) < self.run_length
        return single and super().sure_to_grow(sequences, tokens)

    def grow(self, holding: Holding, tokens: int, new_tokens: int = 1) -> bool:
        assert isinstance(holding, RunHolding)
        if self._windowed:
            self._drop_unseen(holding, tokens - new_tokens)
        return self._grow_by(holding, self._growth_rows(tokens - holding.held_tokens))

    def _grow_back(self, holding: Holding, tokens: int) -> bool:
        if self.strict_runs:
            return self.grow(holding, tokens)
        # A whole run for the first of several sequences could leave no page for the last.
        assert isinstance(holding, RunHolding)
        return self._grow_by(holding, max(0, ceil_div(tokens - holding.held_tokens, self.layout.page_tokens)))

    def _grow_by(self, holding: RunHolding, rows: int) -> bool:
        if not self._room(rows * self._row_pages, self._runs_in(rows)):
            return False
        self._extend(holding, rows * self._row_pages)
        return True

    def swap_in(self, wanted: list[tuple[Holding, int]], *, keep_free_bytes: int = 0) -> int | None:
        page_tokens = self.layout.page_tokens
        pages = keep_free_bytes // self.layout.page_bytes
        runs = 0
        for holding, tokens in wanted:
            copy = host_copy_of(paged(holding))
            missing = tokens - copy.held_tokens
            # without strict runs, growth makes do with single pages
            rows = self._growth_rows(missing) if self.strict_runs else ceil_div(max(0, missing), page_tokens)
            pages += sum(map(len, copy.tables)) + rows * self._row_pages
            runs += self._runs_of(copy) + self._runs_in(rows)
        if not self._room(pages, runs):
            return None
        return super().swap_in(wanted, keep_free_bytes=keep_free_bytes)

    def maintain(self, now_ns: int, holdings: Iterable[Holding] = ()) -> bool:
        """Compact if that is due; whether any page moved."""
        moved = self.compactor.maintain(now_ns)
        self.totals.defrag_runs = self.compactor.runs_gained
        return moved

    def maintenance_due_ns(self, now_ns: int) -> int | None:
        return self.compactor.due_ns(now_ns)

    # ---- looking

    def occupancy(self) -> Occupancy:
        free_bytes = len(self.runs) * self.layout.page_bytes
        return Occupancy(
            capacity_bytes=self.capacity_bytes,
            allocated_bytes=self.allocated_bytes,
            cached_bytes=0,
            free_bytes=free_bytes,
            largest_free_bytes=self._largest_free_bytes(),
            unusable_bytes=self._null_pages * self.layout.page_bytes,
        )

    def free_and_largest_bytes(self) -> tuple[int, int]:
        return len(self.runs) * self.layout.page_bytes, self._largest_free_bytes()

    def check(self, holdings: Iterable[Holding]) -> None:
        """What plain paging promises, and: run queues, owners of pages and counts of adjacent pieces are exact."""
        live = [holding for holding in holdings if isinstance(holding, RunHolding)]
        super().check(live)
        self.runs.check()
        self.tables.check([holding for holding in live if holding.host_copy is None])

    # ---- room

    def _group_runs(self, index: int, rows: int) -> int:
        return self.layout.groups[index].copies * (rows // self.run_length)

    def _runs_in(self, rows: int) -> int:
        """Runs that ``rows`` more rows ask for, over all tables."""
        return rows // self.run_length * self._row_pages

    def _growth_rows(self, tokens: int) -> int:
        """Rows that a sequence takes to become ``tokens`` longer than what it holds."""
        rows = max(0, ceil_div(tokens, self.layout.page_tokens))
        if self.grow_by == "page":
            return rows
        whole_rows = ceil_div(rows, self.run_length) * self.run_length
        at_hand = self._runs_in(whole_rows) <= self.runs.whole_runs
        return whole_rows if self.strict_runs or at_hand else rows

    def _room(self, pages: int, runs: int) -> bool:
        """Whether so many pages, among them so many runs, can be taken; compacts if that may help."""
        if not self._enough(pages):
            return False
        pool = self.runs
        if runs > pool.whole_runs:
            self.compactor.provide(runs)
            self.totals.defrag_runs = self.compactor.runs_gained
        if runs <= pool.whole_runs or not self.strict_runs:
            return True
        page_bytes = self.layout.page_bytes
        self.shortfall = Shortfall(
            "fragmentation", pages * page_bytes, len(pool) * page_bytes, self._largest_free_bytes()
        )
        return False

    def _enough(self, pages: int) -> bool:
        free = len(self.runs)
        if pages > free:
            page_bytes = self.layout.page_bytes
            self.shortfall = Shortfall("capacity", pages * page_bytes, free * page_bytes, self._largest_free_bytes())
        return pages <= free

    def _largest_free_bytes(self) -> int:
        """Bytes of the longest new sequence that could be placed now without compaction."""
        rows = len(self.runs) // self._row_pages
        if self.strict_runs:
            rows = min(rows, self.runs.whole_runs // self._row_pages * self.run_length + self.run_length - 1)
        return rows * self._row_pages * self.layout.page_bytes

    # ---- taking

    def _extend(self, holding: PagedHolding, needed: int) -> None:
        assert isinstance(holding, RunHolding)
        rows = needed // self._row_pages
        if rows:
            runs = min(self._runs_in(rows), self.runs.whole_runs)
            self.totals.unmerged_runs += self._runs_in(rows) - runs
            starts = self.runs.take_runs(runs)
            singles = self.runs.take(needed - runs * self.run_length)
            self._account(needed, starts, singles)
            self._fill(holding, rows, starts, singles)
            self._set_held(holding, holding.held_tokens + rows * self.layout.page_tokens)
        holding.capacity_tokens = self._next_call(holding) if self._windowed else holding.held_tokens

    def _account(self, pages: int, starts: list[int], singles: list[int]) -> None:
        self.allocated_bytes += pages * self.layout.page_bytes
        self.totals.pages_taken += pages
        self.work.new_pages += pages
        self.work.table_bytes += pages * TABLE_ENTRY_BYTES
        self.work.search_cycles += self.runs.search_cycles(starts) + self.runs.search_cycles(singles)

    def _fill(self, holding: RunHolding, rows: int, starts: list[int], singles: list[int]) -> None:
        """Append ``rows`` rows to every table: for each column runs as far as there are any, then single pages."""
        next_run, next_single = iter(starts), iter(singles)
        for index, group in enumerate(self.layout.groups):
            self.tables.append(holding, index, self._rows_of_pages(rows, group.copies, next_run, next_single))
            self.tail_bytes += rows * self.layout.padding_bytes(group)

    def _rows_of_pages(self, rows: int, copies: int, runs: Iterator[int], singles: Iterator[int]) -> list[int]:
        """Table entries for ``rows`` rows of ``copies`` columns."""
        pages = [0] * (rows * copies)
        for copy in range(copies):
            taken = islice(runs, rows // self.run_length)
            column = [page for start in taken for page in range(start, start + self.run_length)]
            column += islice(singles, rows - len(column))
            pages[copy::copies] = column
        return pages

    def _detach(self, holding: PagedHolding) -> None:
        assert isinstance(holding, RunHolding)
        super()._detach(holding)
        self.tables.unseat(holding)

    def _runs_of(self, copy: HostCopy) -> int:
        """Runs that the tables of a sequence in host memory ask for."""
        return sum(
            self._group_runs(index, len(table) // group.copies)
            for index, (table, group) in enumerate(zip(copy.tables, self.layout.groups, strict=True))
        )

    def _take_for(self, copies: Sequence[HostCopy]) -> dict[int, int]:
        """Runs and single pages for what comes back from the host, as for new sequences of that length."""
        wanted = sum(self._runs_of(copy) for copy in copies)
        pages = sum(len(table) for copy in copies for table in copy.tables)
        starts = self.runs.take_runs(min(wanted, self.runs.whole_runs))
        singles = self.runs.take(pages - len(starts) * self.run_length)
        self.totals.unmerged_runs += wanted - len(starts)
        self._account(pages, starts, singles)
        next_run, next_single = iter(starts), iter(singles)
        place: dict[int, int] = {}
        for copy in copies:
            for table, group in zip(copy.tables, self.layout.groups, strict=True):
                rows = len(table) // group.copies
                place.update(zip(table, self._rows_of_pages(rows, group.copies, next_run, next_single), strict=True))
        return place

    def _restore(self, moved: Sequence[tuple[PagedHolding, HostCopy]], pages: dict[int, int]) -> None:
        super()._restore(moved, pages)
        for holding, _ in moved:
            assert isinstance(holding, RunHolding)
            self.tables.adopt(holding)

    def _drop_rows(self, holding: PagedHolding, index: int, rows: int) -> None:
        assert isinstance(holding, RunHolding)
        before = self.tables.bursts_of_first_rows(holding, index, rows + 1)
        super()._drop_rows(holding, index, rows)
        self.tables.forget(holding, index, before - self.tables.bursts_of_first_rows(holding, index, 1))

    # ---- compaction

    def _move(self, source: int, run: int) -> None:
        """Copy one page out of ``run`` into a hole elsewhere and rewrite the table entry that names it."""
        target = self.runs.take_hole(run)
        assert target is not None, "compaction started without holes"
        self.tables.rename(source, target)
        if self.on_copy is not None:
            self.on_copy(source, target, 1)
        self.runs.give((source,))
        self.work.copied_bytes += 2 * self.layout.page_bytes
        self.work.table_bytes += TABLE_ENTRY_BYTES
        self.totals.moved_bytes += self.layout.page_bytes
        self.totals.moves += 1
