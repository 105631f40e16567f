"""What a compacting pool must do, by counting: which pages are free, which runs are whole, and nothing else.

``CountedRuns`` plays a ``PagedDefragAllocator``. It says beforehand whether a request fits, how many pages compaction
will move and what every counter and cost will be; afterwards that tables begin with the runs that were due to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.allocators.base import Life, Shortfall, Work
from simulator.allocators.host_pool import HostPool
from simulator.allocators.page_pool import LIST_CYCLES_PER_PAGE
from simulator.allocators.paged import PageGroup, PageLayout
from simulator.allocators.paged_defrag import PagedDefragAllocator
from simulator.allocators.run_tables import RunHolding
from simulator.config import DefragTrigger
from simulator.units import ceil_div

_ENTRY_BYTES = 4


@dataclass
class Bill:
    """What an operation is expected to cost: pages and the lists they were found in, runs that single pages stand
    in for, pages moved and runs made whole."""

    pages: int = 0
    heads: int = 0
    unmerged: int = 0
    moves: int = 0
    made_whole: int = 0


@dataclass
class One:
    """A sequence and how many tokens it has."""

    holding: RunHolding
    length: int
    #: whether the last growth was refused: what a window gave back then is not reckoned with until it grows
    refused: bool = False

    @property
    def on_host(self) -> bool:
        return self.holding.host_copy is not None


@dataclass
class CountedRuns:
    """An allocator, its sequences and its host; nothing limits the moves of a step."""

    layout: PageLayout
    max_pages: int
    run_length: int
    compacts: bool = True
    strict: bool = True
    by_run: bool = False
    null: bool = False
    chunk_tokens: int = 0
    host_pages: int = 30
    threshold: float | None = None
    order: Any = "lifo"
    sequences: list[One] = field(default_factory=list)
    moved: list[tuple[int, int, int]] = field(default_factory=list)
    #: pages that a window gives back before the operation asks for any
    gone: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.allocator = PagedDefragAllocator(
            self.layout,
            max_pages=self.max_pages,
            run_length=self.run_length,
            trigger=DefragTrigger(on_failure=self.compacts, fragmentation=self.threshold),
            max_moves_per_step=10**6,
            grow_by="run" if self.by_run else "page",
            strict_runs=self.strict,
            free_order=self.order,
            null_page=self.null,
            chunk_tokens=self.chunk_tokens,
            host=HostPool(self.host_pages),
        )
        self.allocator.on_copy = lambda source, target, count: self.moved.append((source, target, count))
        rest = self.max_pages % self.run_length
        self.head = self.run_length if self.null and not rest else rest
        self.blocks = [
            set(range(start, start + self.run_length)) for start in range(self.head, self.max_pages, self.run_length)
        ]
        self.row_pages = sum(group.copies for group in self.layout.groups)
        self.bytes = self.layout.page_bytes

    # ---- what is where

    def free(self) -> set[int]:
        used = {page for one in self.sequences for table in one.holding.tables for page in table}
        return set(range(int(self.null), self.max_pages)) - (used - self.gone)

    def whole(self) -> int:
        free = self.free()
        return sum(block <= free for block in self.blocks)

    def best(self) -> int:
        """Whole runs that moving pages could make: what is used fills the head and as few runs as can be."""
        used = self.max_pages - int(self.null) - len(self.free())
        return len(self.blocks) - ceil_div(max(0, used - (self.head - int(self.null))), self.run_length)

    def compaction(self, runs: int) -> tuple[int, int]:
        """Moves until so many runs are whole, and runs made whole; nothing moves if that cannot be reached.

        The emptiest broken run is emptied, page by page, into the head and then into the fullest one with room.
        """
        length, free = self.run_length, self.free()
        head_free = len(free & set(range(self.head)))
        used = [length - len(block & free) for block in self.blocks]
        before, moves = used.count(0), 0
        if not before < runs <= self.best():
            return 0, 0
        while used.count(0) < runs:
            victim = min((at for at, count in enumerate(used) if 0 < count < length), key=used.__getitem__)
            while used[victim]:
                if head_free:
                    head_free -= 1
                else:
                    others = [at for at, count in enumerate(used) if 0 < count < length and at != victim]
                    used[max(others, key=used.__getitem__)] += 1
                used[victim] -= 1
                moves += 1
        return moves, used.count(0) - before

    def largest_bytes(self) -> int:
        """The longest sequence that could be placed as things are."""
        free, whole, rows = len(self.free()), self.whole(), 0
        while (rows + 1) * self.row_pages <= free and (
            not self.strict or (rows + 1) // self.run_length * self.row_pages <= whole
        ):
            rows += 1
        return rows * self.row_pages * self.bytes

    # ---- what is asked

    def runs_in(self, rows: int) -> int:
        return rows // self.run_length * self.row_pages

    def growth_rows(self, missing_tokens: int) -> int:
        """With growth by runs rows are rounded up, where runs are loose only if there are as many."""
        rows = max(0, ceil_div(missing_tokens, self.layout.page_tokens))
        rounded = ceil_div(rows, self.run_length) * self.run_length
        return rounded if self.by_run and (self.strict or self.runs_in(rounded) <= self.whole()) else rows

    def peak_rows(self, group: PageGroup, tokens: int) -> int:
        """Rows alive at once while a prompt is computed: of a window what it sees and a chunk, wherever it begins."""
        rows = ceil_div(tokens, self.layout.page_tokens)
        if group.window_tokens is None:
            return rows
        chunk = min(self.chunk_tokens, tokens) if self.chunk_tokens else tokens
        return min(rows, ceil_div(group.window_tokens - 1 + chunk, self.layout.page_tokens) + 1)

    def asked(self, pages: int, runs: int) -> Bill | None:
        """What compaction does for so many pages and runs; ``None`` if they cannot be had."""
        bill, whole = Bill(), self.whole()
        if pages > len(self.free()):
            return None
        if runs > whole and self.compacts:
            bill.moves, bill.made_whole = self.compaction(runs)
        return None if self.strict and runs > whole + bill.made_whole else bill

    def shortfall(self, pages: int) -> Shortfall:
        free = len(self.free())
        cause: Any = "capacity" if pages > free else "fragmentation"
        return Shortfall(cause, pages * self.bytes, free * self.bytes, self.largest_bytes())

    def charge(self, bill: Bill, columns: Sequence[int], whole: int) -> list[int]:
        """Bill columns of so many rows; how many runs each of them gets of those that are whole."""
        given = []
        for rows in columns:
            wanted = rows // self.run_length
            runs = min(wanted, whole)
            whole -= runs
            given.append(runs)
            bill.pages += rows
            bill.heads += runs + rows - runs * self.run_length
            bill.unmerged += wanted - runs
        return given

    # ---- operations

    def admit(self, life: Life, tokens: int, *, whole_tokens: int = 0, keep_pages: int = 0) -> bool:
        rows = ceil_div(tokens, self.layout.page_tokens)
        pages, runs = rows * self.row_pages, self.runs_in(rows)
        if whole_tokens > tokens:
            peaks = [(group.copies, self.peak_rows(group, whole_tokens)) for group in self.layout.groups]
            pages = max(pages, sum(copies * peak for copies, peak in peaks))
            runs = max(runs, sum(copies * (peak // self.run_length) for copies, peak in peaks))
        bill = self.asked(pages + keep_pages, runs)
        before, shortfall, whole = self.note(), self.shortfall(pages + keep_pages), self.whole()
        # less than a page more is not worth a page
        keep = keep_pages * self.bytes + self.bytes - 1
        holding = self.allocator.admit(life, tokens, whole_tokens=whole_tokens, keep_free_bytes=keep)
        assert (holding is not None) == (bill is not None)
        if holding is None or bill is None:
            self.refused(before, shortfall)
            return False
        one = One(holding, tokens)
        self.sequences.append(one)
        self.served(before, bill, one, rows, whole)
        return True

    def grow(self, one: One, new_tokens: int) -> bool:
        tokens = one.length + new_tokens
        self.gone = self.unseen(one, tokens - new_tokens)
        rows = self.growth_rows(tokens - one.holding.held_tokens)
        bill = self.asked(rows * self.row_pages, self.runs_in(rows))
        shortfall, whole = self.shortfall(rows * self.row_pages), self.whole()
        before = self.note()
        grown = self.allocator.grow(one.holding, tokens, new_tokens)
        assert grown == (bill is not None)
        self.gone, one.refused = set(), bill is None
        if bill is None:
            self.refused(before, shortfall)
            return False
        one.length = tokens
        self.served(before, bill, one, rows, whole)
        return True

    def unseen(self, one: One, computed: int) -> set[int]:
        """Pages of windows that nobody sees from position ``computed`` on."""
        pages: set[int] = set()
        for index, group in enumerate(self.layout.groups):
            if group.window_tokens is not None:
                first, held = one.holding.dropped[index], one.holding.held_tokens // self.layout.page_tokens
                ends = [(row + 1) * self.layout.page_tokens for row in range(first, held)]
                rows = sum(end <= computed - group.window_tokens + 1 for end in ends)
                pages.update(one.holding.tables[index][: rows * group.copies])
        return pages

    def release(self, one: One) -> None:
        before = self.note()
        self.sequences.remove(one)
        self.allocator.release(one.holding)
        self.counted(before, Bill())

    def swap_out(self, ones: list[One]) -> bool:
        pages = sum(len(table) for one in ones for table in one.holding.tables)
        room = self.host_pages - self.on_host()
        before, self.moved = self.note(), []
        bytes_moved = self.allocator.swap_out([one.holding for one in ones])
        assert bytes_moved == (pages * self.bytes if pages <= room else None)
        assert len(self.moved) == (bytes_moved or 0) // self.bytes and all(target < 0 for _, target, _ in self.moved)
        self.moved = []
        self.counted(before, Bill())
        return bytes_moved is not None

    def on_host(self) -> int:
        return sum(self.host_rows(one)[1] for one in self.sequences)

    def host_rows(self, one: One) -> tuple[list[int], int]:
        """Rows of each column that a sequence has on the host, and its pages."""
        copy = one.holding.host_copy
        if copy is None:
            return [], 0
        groups = zip(copy.tables, self.layout.groups, strict=True)
        rows = [len(table) // group.copies for table, group in groups for _ in range(group.copies)]
        return rows, sum(rows)

    def swap_in(self, ones: list[One], keep_pages: int) -> bool:
        """All come back together, each with room for one token more."""
        columns = [rows for one in ones for rows in self.host_rows(one)[0]]
        more = [self.back_rows(one) for one in ones]
        pages = keep_pages + sum(columns) + sum(more) * self.row_pages
        runs = sum(rows // self.run_length for rows in columns) + sum(map(self.runs_in, more))
        bill, shortfall, whole = self.asked(pages, runs), self.shortfall(pages), self.whole()
        before, self.moved = self.note(), []
        keep = keep_pages * self.bytes + self.bytes - 1
        wanted: Any = [(one.holding, one.length + 1) for one in ones]
        bytes_moved = self.allocator.swap_in(wanted, keep_free_bytes=keep)
        assert bytes_moved == (None if bill is None else sum(columns) * self.bytes)
        if bill is None:
            self.refused(before, shortfall)
            return False
        back = [target for source, target, _ in self.moved if source < 0]
        assert len(back) == sum(columns)
        self.moved = [copy for copy in self.moved if copy[0] >= 0]
        whole += bill.made_whole - sum(self.charge(bill, columns, whole + bill.made_whole))
        for rows in more:
            each = [rows] * self.row_pages
            whole -= sum(self.charge(bill, each, whole))
        for one in ones:
            one.length, one.refused = one.length + 1, False
        self.counted(before, bill)
        return True

    def back_rows(self, one: One) -> int:
        copy = one.holding.host_copy
        assert copy is not None
        missing = one.length + 1 - copy.held_tokens
        return self.growth_rows(missing) if self.strict else max(0, ceil_div(missing, self.layout.page_tokens))

    def maintain(self, now_ns: int) -> None:
        """Compacts until less than the threshold of what is free lies outside whole runs, as far as that goes."""
        bill, free, whole = Bill(), len(self.free()), self.whole()
        if self.threshold is not None and free:
            while (free - whole * self.run_length) / free >= self.threshold and whole < self.best():
                whole += 1
            bill.moves, bill.made_whole = self.compaction(whole)
        before = self.note()
        assert self.allocator.maintain(now_ns) == (bill.moves > 0)
        self.counted(before, bill)

    # ---- what must come of it

    def note(self) -> tuple[Any, ...]:
        totals = self.allocator.totals
        self.allocator.work.clear()
        self.moved = []
        return totals.pages_taken, totals.unmerged_runs, totals.moves, totals.defrag_runs, self.tables()

    def tables(self) -> list[list[list[int]]]:
        return [
            [[page for page in table if page not in self.gone] for table in one.holding.tables]
            for one in self.sequences
        ]

    def refused(self, before: tuple[Any, ...], shortfall: Shortfall) -> None:
        """Nothing has changed, and the reason is said truly."""
        assert self.allocator.shortfall == shortfall
        assert self.tables() == before[-1]
        self.counted(before, Bill())

    def served(self, before: tuple[Any, ...], bill: Bill, one: One, rows: int, whole: int) -> None:
        given = self.charge(bill, [rows] * self.row_pages, whole + bill.made_whole)
        self.begins_with_runs(one, rows, given)
        self.counted(before, bill)

    def begins_with_runs(self, one: One, rows: int, given: list[int]) -> None:
        """The new part of each column begins with the runs that were due to it."""
        column = 0
        for table, group in zip(one.holding.tables, self.layout.groups, strict=True):
            new = table[len(table) - rows * group.copies :]
            for copy in range(group.copies):
                pages, length = list(new[copy :: group.copies]), self.run_length
                for run in range(given[column]):
                    part = pages[run * length : (run + 1) * length]
                    assert part == sorted(part) and set(part) in self.blocks, f"{pages} does not begin with runs"
                column += 1

    def counted(self, before: tuple[Any, ...], bill: Bill) -> None:
        allocator, totals = self.allocator, self.allocator.totals
        found = totals.pages_taken, totals.unmerged_runs, totals.moves, totals.defrag_runs
        more = bill.pages, bill.unmerged, bill.moves, bill.made_whole
        assert found == tuple(one + other for one, other in zip(before, more, strict=False))
        assert totals.moved_bytes == totals.moves * self.bytes
        assert allocator.work == Work(
            copied_bytes=2 * self.bytes * bill.moves,
            search_cycles=LIST_CYCLES_PER_PAGE * bill.heads,
            table_bytes=_ENTRY_BYTES * (bill.pages + bill.moves),
            new_pages=bill.pages,
        )
        assert [count for *_, count in self.moved] == [1] * bill.moves
        allocator.check([one.holding for one in self.sequences])
        self.looks_right()

    def looks_right(self) -> None:
        allocator, free = self.allocator, len(self.free())
        assert sorted(self.free()) == allocator.runs.free_ids()
        assert allocator.free_and_largest_bytes() == (free * self.bytes, self.largest_bytes())
        occupancy = allocator.occupancy()
        assert (occupancy.free_bytes, occupancy.largest_free_bytes) == (free * self.bytes, self.largest_bytes())
        assert occupancy.allocated_bytes == (self.max_pages - self.null - free) * self.bytes
        assert (occupancy.cached_bytes, occupancy.unusable_bytes) == (0, self.null * self.bytes)
        pieces = [self.pieces(one) for one in self.sequences]
        assert [one.holding.bursts for one in self.sequences] == pieces
        used, count = self.max_pages - int(self.null) - free, sum(map(sum, pieces))
        assert allocator.mean_run_pages == (used / count if count else 1.0)
        for one in self.sequences:
            sure = 0 if one.on_host else self.without_asking(one)
            assert one.holding.capacity_tokens == sure or (one.refused and one.holding.capacity_tokens < sure)

    def pieces(self, one: One) -> list[int]:
        """Pieces of adjacent pages in each table, column by column."""
        found = []
        for table, group in zip(one.holding.tables, self.layout.groups, strict=True):
            columns = [list(table[copy :: group.copies]) for copy in range(group.copies)]
            found.append(
                sum(at == 0 or page != pages[at - 1] + 1 for pages in columns for at, page in enumerate(pages))
            )
        return found

    def without_asking(self, one: One) -> int:
        """Longest length at which nothing is due: room is there, and no window has a page that it does not see."""
        holding, page = one.holding, self.layout.page_tokens
        length = holding.held_tokens
        while any(
            group.window_tokens is not None and (length - group.window_tokens) // page > dropped
            for group, dropped in zip(self.layout.groups, holding.dropped, strict=True)
        ):
            length -= 1
        return length
