"""The free pages of a pool that is handed out in runs of adjacent pages.

A *run* is ``run_length`` neighbouring page ids at a fixed boundary: what one huge page backs, or what one transfer
descriptor can read in a piece. A run is *whole* when all its pages are free and *broken* when some are. Pages that
make no run (the remainder of the pool, and the null page) lie at the front, in the *head*, so they cost no run.

Runs with free pages sit in queues by how many are free, linked through arrays, so taking, giving back and finding
a compaction victim touch only the pages asked for. Arrays grow with use: a pool that was never touched costs
nothing, however large.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from simulator.allocators.page_pool import LIST_CYCLES_PER_PAGE, FreePages

RunOrder = Literal["lifo", "fifo"]

_NONE: Final = -1


class RunPool(FreePages):
    """Ids ``first_page .. max_pages - 1``, each free here or owned by somebody else.

    ``order`` says which run of equally many free pages is used next: the one that changed last (``lifo``) or
    first (``fifo``); runs never touched yet come last and first respectively.
    """

    def __init__(self, max_pages: int, run_length: int, *, order: RunOrder = "lifo", first_page: int = 0) -> None:
        assert run_length >= 1 and 0 <= first_page <= max(0, min(1, max_pages))
        self.max_pages = max_pages
        self.run_length = run_length
        self.order = order
        self.first_page = first_page
        remainder = max_pages % run_length
        #: pages of the head, which is run 0; run ``r`` starts at page ``head_pages + (r - 1) * run_length``
        self.head_pages = min(max_pages, run_length) if first_page and not remainder else remainder
        #: runs of the pool, the head not counted
        self.total_runs = (max_pages - self.head_pages) // run_length
        #: runs of which every page is free
        self.whole_runs = self.total_runs
        self._free_pages = max_pages - first_page
        self._fresh = 1
        self._is_free = bytearray(self.head_pages)
        self._free_in_run = array("i", [0])
        self._next = array("i", [_NONE])
        self._prev = array("i", [_NONE])
        self._first = array("i", [_NONE]) * (run_length + 1)
        self._last = array("i", [_NONE]) * (run_length + 1)
        self._nonempty = 0
        if self.head_pages > first_page:
            self._is_free[first_page:] = b"\x01" * (self.head_pages - first_page)
            self._set_free(0, self.head_pages - first_page)

    def __len__(self) -> int:
        return self._free_pages

    @property
    def broken_free_pages(self) -> int:
        """Free pages outside whole runs."""
        return self._free_pages - self.whole_runs * self.run_length

    @property
    def fragmentation_ratio(self) -> float:
        """1 - free pages in whole runs / free pages; 0 when nothing is free."""
        return self.broken_free_pages / self._free_pages if self._free_pages else 0.0

    def run_of(self, page: int) -> int:
        """The run that ``page`` belongs to; 0 is the head."""
        return (page - self.head_pages) // self.run_length + 1

    def is_free(self, page: int) -> bool:
        return self.first_page <= page < self.max_pages and (page >= len(self._is_free) or bool(self._is_free[page]))

    def free_in_run(self, run: int) -> int:
        """Free pages of one run."""
        return self._free_in_run[run] if run < self._fresh else self.run_length

    # ---- taking and giving

    def take_runs(self, count: int) -> list[int]:
        """First page ids of ``count`` whole runs; the caller has checked that so many are free."""
        assert 0 <= count <= self.whole_runs, f"{count} runs asked, {self.whole_runs} whole"
        length = self.run_length
        used = bytes(length)
        starts = []
        for _ in range(count):
            run = self._next_whole()
            start = self._start(run)
            self._is_free[start : start + length] = used
            self._set_free(run, 0)
            starts.append(start)
        self._free_pages -= count * length
        return starts

    def take(self, count: int) -> list[int]:
        """``count`` single pages, out of the most used broken runs first so that whole runs are spared."""
        assert 0 <= count <= self._free_pages, f"{count} pages asked, {self._free_pages} free"
        taken: list[int] = []
        while len(taken) < count:
            run = self._most_used_broken()
            run = self._next_whole() if run == _NONE else run
            self._take_from(run, count - len(taken), taken)
        return taken

    def give(self, pages: Iterable[int]) -> None:
        """Return pages. A page that is free already, or was never handed out, is an ``AssertionError``."""
        is_free, in_use = self._is_free, len(self._is_free)
        run, returned = _NONE, 0
        try:
            for page in pages:
                assert self.first_page <= page < in_use and not is_free[page], f"page {page} is free already"
                is_free[page] = 1
                owner = self.run_of(page)
                if owner != run:
                    self._add_free(run, returned)
                    run, returned = owner, 0
                returned += 1
        finally:
            self._add_free(run, returned)  # counts stay right when one of the pages is refused

    def search_cycles(self, taken: Sequence[int]) -> int:
        """Modelled cost of having found ``taken``, page ids or run starts: each was the head of a list."""
        return LIST_CYCLES_PER_PAGE * len(taken)

    # ---- compaction

    def cheapest_broken(self) -> int | None:
        """The broken run with the fewest used pages, or ``None``; never the head, which cannot become whole."""
        candidates = self._nonempty & ~(1 << self.run_length) & ~1
        return self._first[candidates.bit_length() - 1] if candidates else None

    def used_pages(self, run: int, limit: int) -> list[int]:
        """The first ``limit`` pages of ``run`` that are not free."""
        start, end = self._span(run)
        return [page for page in range(start, end) if not self._is_free[page]][:limit]

    def take_hole(self, avoid_run: int) -> int | None:
        """One free page in the most used broken run other than ``avoid_run``, or ``None``."""
        queues = self._nonempty & ~(1 << self.run_length)
        while queues:
            lowest = queues & -queues
            run = self._first[lowest.bit_length() - 1]
            if run == avoid_run:
                run = self._next[run]
            if run != _NONE:
                taken: list[int] = []
                self._take_from(run, 1, taken)
                return taken[0]
            queues ^= lowest
        return None

    # ---- looking, for checks and pictures only

    def free_ids(self) -> list[int]:
        """Every free page id, ascending; O(pool)."""
        touched = [page for page, free in enumerate(bytes(self._is_free)) if free]
        return touched + list(range(len(self._is_free), self.max_pages))

    def largest_gap_pages(self) -> int:
        """Most free pages side by side, run boundaries ignored; O(pool)."""
        gaps = bytes(self._is_free).split(b"\x00")
        gaps[-1] += b"\x01" * (self.max_pages - len(self._is_free))
        return max(map(len, gaps))

    def check(self) -> None:
        """Assert that counts, queues and flags agree; O(pool touched)."""
        listed: dict[int, int] = {}
        for queue in range(self.run_length + 1):
            previous, run = _NONE, self._first[queue]
            assert (run != _NONE) == bool(self._nonempty >> queue & 1), f"queue {queue} is marked wrongly"
            while run != _NONE:
                assert self._prev[run] == previous and run not in listed, f"run {run} is linked wrongly"
                listed[run] = queue
                previous, run = run, self._next[run]
            assert self._last[queue] == previous, f"queue {queue} ends wrongly"
        free_pages, whole_runs = 0, self.total_runs - (self._fresh - 1)
        for run in range(self._fresh):
            start, end = self._span(run)
            count = self._is_free.count(1, start, end)
            assert count == self._free_in_run[run], f"run {run} has {count} free pages, not {self._free_in_run[run]}"
            assert listed.get(run) == (_queue_of(run, count) if count else None), f"run {run} is queued wrongly"
            free_pages += count
            whole_runs += run > 0 and count == self.run_length
        free_pages += (self.total_runs - (self._fresh - 1)) * self.run_length
        assert (free_pages, whole_runs) == (self._free_pages, self.whole_runs), "free pages or whole runs miscounted"

    # ---- how

    def _start(self, run: int) -> int:
        return self.head_pages + (run - 1) * self.run_length

    def _span(self, run: int) -> tuple[int, int]:
        return (self._start(run), self._start(run + 1)) if run else (0, self.head_pages)

    def _most_used_broken(self) -> int:
        queues = self._nonempty & ~(1 << self.run_length)
        return self._first[(queues & -queues).bit_length() - 1] if queues else _NONE

    def _next_whole(self) -> int:
        """A whole run: recycled before fresh in ``lifo``, fresh before recycled in ``fifo``."""
        recycled = self._first[self.run_length]
        fresh_left = self._fresh <= self.total_runs
        if recycled == _NONE or (self.order == "fifo" and fresh_left):
            assert fresh_left, "no whole run is left"
            return self._open_fresh()
        return recycled

    def _open_fresh(self) -> int:
        run = self._fresh
        self._fresh += 1
        self._is_free.extend(b"\x01" * self.run_length)
        self._free_in_run.append(self.run_length)
        self._next.append(_NONE)
        self._prev.append(_NONE)
        self._link(run, self.run_length)
        return run

    def _take_from(self, run: int, limit: int, taken: list[int]) -> None:
        """Append the lowest free pages of ``run`` to ``taken``, at most ``limit``."""
        start, end = self._span(run)
        before = len(taken)
        page = self._is_free.find(1, start, end)
        while page >= 0 and len(taken) - before < limit:
            self._is_free[page] = 0
            taken.append(page)
            page = self._is_free.find(1, page + 1, end)
        count = len(taken) - before
        self._free_pages -= count
        self._set_free(run, self._free_in_run[run] - count)

    def _add_free(self, run: int, count: int) -> None:
        if count:
            self._free_pages += count
            self._set_free(run, self._free_in_run[run] + count)

    def _set_free(self, run: int, free: int) -> None:
        """Record that ``run`` has ``free`` free pages and requeue it."""
        before = self._free_in_run[run]
        if before:
            self._unlink(run, _queue_of(run, before))
        self._free_in_run[run] = free
        if run:
            self.whole_runs += (free == self.run_length) - (before == self.run_length)
        if free:
            self._link(run, _queue_of(run, free))

    def _link(self, run: int, queue: int) -> None:
        if self.order == "lifo":
            neighbour, before, after, near, far = self._first[queue], self._prev, self._next, self._first, self._last
        else:
            neighbour, before, after, near, far = self._last[queue], self._next, self._prev, self._last, self._first
        after[run], before[run] = neighbour, _NONE
        if neighbour == _NONE:
            far[queue] = run
        else:
            before[neighbour] = run
        near[queue] = run
        self._nonempty |= 1 << queue

    def _unlink(self, run: int, queue: int) -> None:
        before, after = self._prev[run], self._next[run]
        if before == _NONE:
            self._first[queue] = after
        else:
            self._next[before] = after
        if after == _NONE:
            self._last[queue] = before
        else:
            self._prev[after] = before
        if self._first[queue] == _NONE:
            self._nonempty &= ~(1 << queue)


def _queue_of(run: int, free: int) -> int:
    """The queue of a run with ``free`` free pages; the head has its own, which comes first: it never becomes whole."""
    return free if run else 0
