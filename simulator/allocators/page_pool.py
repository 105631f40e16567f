"""The free pages of one pool and the order in which they are reused.

Four orders, as engines have them:

``lifo``
    the page freed last is taken first (vLLM 0.6, SGLang): warm, O(1).
``fifo``
    the page freed first is taken first (vLLM 0.11, cann-recipes): O(1), doubles as an LRU order for cached pages.
``address_ordered``
    the lowest page id first: keeps the used part of the pool dense, O(log free).
``first_fit_scan``
    the same pages, found by looking at every page from 0 on. The scan is what is modelled, so its cost is charged
    in ``search_cycles`` and not paid in host time.

Pages never handed out yet are a single counter, not a list, so a pool of millions of pages costs nothing until
it is used.
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import Final

from simulator.config import FreeOrder

#: cycles to test one page's flag in a host-side scan (load, compare, branch); assumed, one per cycle and more
SCAN_CYCLES_PER_PAGE: Final = 2
#: cycles of one free-list operation: a link read and a head update
LIST_CYCLES_PER_PAGE: Final = 8
#: cycles of one level of a heap or tree over the pool
HEAP_CYCLES_PER_LEVEL: Final = 6
#: entries taken from a queue that are not worth sweeping out
_SMALL: Final = 1024


class FreePages:
    """What a paged allocator asks of whatever keeps its free pages."""

    def __len__(self) -> int:
        raise NotImplementedError

    def take(self, count: int) -> list[int]:
        """``count`` page ids in the order of reuse; the caller has checked that so many are free."""
        raise NotImplementedError

    def give(self, pages: Iterable[int]) -> None:
        """Return pages."""
        raise NotImplementedError

    def search_cycles(self, taken: Sequence[int]) -> int:
        """Modelled cost of having found ``taken`` (ids just returned by ``take``)."""
        raise NotImplementedError

    def free_ids(self) -> list[int]:
        """Every free id in the order in which pages would be taken; O(free), for checks and pictures only."""
        raise NotImplementedError


class PagePool(FreePages):
    """Ids ``first_page .. max_pages - 1``, each either free here or owned by somebody else.

    ``take`` and ``give`` cost O(pages moved) (times log for ``address_ordered``), never O(pool).
    """

    def __init__(self, max_pages: int, order: FreeOrder, *, first_page: int = 0) -> None:
        self.max_pages = max_pages
        self.order = order
        self.first_page = first_page
        #: ``search_cycles`` of one page, ``None`` where it depends on the page
        self.cycles_per_page = self._cycles_per_page()
        self._fresh = first_page
        # free again; a queue (``fifo``) begins at _head, so that taking many is one slice
        self._recycled: list[int] = []
        self._head = 0

    def __len__(self) -> int:
        return self.max_pages - self._fresh + len(self._recycled) - self._head

    def take(self, count: int) -> list[int]:
        assert 0 <= count <= len(self), f"{count} pages asked, {len(self)} free"
        recycled = self._recycled
        if self.order == "fifo":
            return self._take_first(count)
        if self.order == "lifo":
            reused = min(count, len(recycled))
            taken = recycled[len(recycled) - reused :]
            taken.reverse()
            del recycled[len(recycled) - reused :]
        else:
            taken = [heapq.heappop(recycled) for _ in range(min(count, len(recycled)))]
        if len(taken) < count:
            taken += self._take_fresh(count - len(taken))
        return taken

    def _take_first(self, count: int) -> list[int]:
        """Pages never used, then those that have been free for longest."""
        taken = self._take_fresh(count) if self._fresh < self.max_pages else []
        head = self._head
        self._head = head + count - len(taken)
        taken += self._recycled[head : self._head]
        if self._head > _SMALL and 2 * self._head > len(self._recycled):
            del self._recycled[: self._head]
            self._head = 0
        return taken

    def give(self, pages: Iterable[int]) -> None:
        """Return pages; in ``lifo`` the last one given is the first to be taken again."""
        if self.order == "fifo" or self.order == "lifo":
            self._recycled.extend(pages)
        else:
            for page in pages:
                heapq.heappush(self._recycled, page)

    def search_cycles(self, taken: Sequence[int]) -> int:
        if self.cycles_per_page is None:
            return SCAN_CYCLES_PER_PAGE * (sum(taken) + len(taken))
        return self.cycles_per_page * len(taken)

    def _cycles_per_page(self) -> int | None:
        if self.order == "first_fit_scan":
            return None
        if self.order == "address_ordered":
            return HEAP_CYCLES_PER_LEVEL * self.max_pages.bit_length()
        return LIST_CYCLES_PER_PAGE

    def free_ids(self) -> list[int]:
        fresh = list(range(self._fresh, self.max_pages))
        if self.order == "fifo":
            return fresh + self._recycled[self._head :]
        if self.order == "lifo":
            return self._recycled[::-1] + fresh
        return sorted(self._recycled) + fresh

    def _take_fresh(self, count: int) -> list[int]:
        start = self._fresh
        self._fresh = min(start + count, self.max_pages)
        return list(range(start, self._fresh))
