"""Which cached page is given up next.

``lru`` is a queue: whoever was released longest ago goes first. Sequences release their last page first, so of one
chain the deepest page goes first and a prefix outlives what was built on it.

The other policies are SGLang's (``mem_cache/evict_policy.py``, 0.5.10; ``--radix-eviction-policy``). They choose among
*leaves*, pages on which no other cached page was built, the smallest of

=========== ============================================================================================
``lfu``     number of requests that used the page, then the time of last use
``fifo``    the time at which the page was first filled
``mru``     the time of last use, latest first
``filo``    the time at which the page was first filled, latest first
``priority``  priority of the most urgent request that used it, least urgent first, then the time of last use
=========== ============================================================================================

and the page below becomes a leaf when the last one above it is gone. SGLang gives up a whole node of its radix tree at
a time, up to the next branch; here a leaf is one page, so no more is given up than is needed.
"""

import heapq
from array import array
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from simulator.allocators.bulk import BULK_PAGES, page_array, view
from simulator.config import EvictionPolicy

#: entries of a queue below which it is not worth cleaning up
_SMALL = 1024


class EvictionOrder(Protocol):
    """The cached pages, in the order in which they are given up. Each page must have been covered."""

    #: whether the order asks for ``built`` and ``used``
    watches_use: bool

    @property
    def count(self) -> int: ...

    def __contains__(self, page: int) -> bool: ...

    def __iter__(self) -> Iterator[int]: ...

    def cover(self, pages: int) -> None: ...

    def built(self, page: int, *, on: int | None, priority: int) -> None: ...

    def used(self, pages: Sequence[int], *, priority: int) -> None: ...

    def extend(self, pages: Sequence[int]) -> None: ...

    def remove(self, page: int) -> None: ...

    def take(self, count: int) -> list[int]: ...


class ReleaseQueue:
    """First released, first given up. Appending is one copy, removal from the middle leaves an entry that no longer
    counts; entries are swept out when they are more than those that do, so every call is O(1) a page."""

    watches_use = False

    def __init__(self) -> None:
        self._entries = array("i")
        # number of the first entry ever still in _entries, and how many at its front have been taken
        self._base = 0
        self._taken = 0
        # the number of the entry that counts for a page, -1 for a page that is not in the queue
        self._number = array("q")
        self.count = 0

    def __contains__(self, page: int) -> bool:
        return page < len(self._number) and self._number[page] >= 0

    def __iter__(self) -> Iterator[int]:
        numbers, base = self._number, self._base
        for at in range(self._taken, len(self._entries)):
            page = self._entries[at]
            if numbers[page] == base + at:
                yield page

    def cover(self, pages: int) -> None:
        """Make room for the page ids below ``pages``."""
        self._number.extend(array("q", (-1,)) * (pages - len(self._number)))

    def built(self, page: int, *, on: int | None, priority: int) -> None:
        """Nothing that this order heeds."""

    def used(self, pages: Sequence[int], *, priority: int) -> None:
        """Nothing that this order heeds."""

    def extend(self, pages: Sequence[int]) -> None:
        """``pages`` have been released, in this order."""
        numbers = self._number
        number = self._base + len(self._entries)
        self._entries.extend(pages)
        if len(pages) >= BULK_PAGES:
            view(numbers)[page_array(pages)] = np.arange(number, number + len(pages))
        else:
            for page in pages:
                numbers[page] = number
                number += 1
        self.count += len(pages)
        if len(self._entries) > 2 * self.count + _SMALL:
            self._sweep()

    def remove(self, page: int) -> None:
        """``page`` is in use again."""
        assert self._number[page] >= 0, f"page {page} is free and cannot be shared"
        self._number[page] = -1
        self.count -= 1

    def take(self, count: int) -> list[int]:
        """The ``count`` pages released longest ago."""
        taken = self._take_many(count) if count >= BULK_PAGES else []
        entries, numbers, base, at = self._entries, self._number, self._base, self._taken
        while len(taken) < count:
            page = entries[at]
            if numbers[page] == base + at:
                numbers[page] = -1
                taken.append(page)
            at += 1
        self._taken = at
        self.count -= count
        if at > self.count + _SMALL:
            self._sweep()
        return taken

    def _take_many(self, count: int) -> list[int]:
        """Those of the first ``count`` entries that count."""
        first, base = self._taken, self._base
        pages, numbers = view(self._entries)[first : first + count], view(self._number)
        pages = pages[numbers[pages] == np.arange(base + first, base + first + len(pages))]
        numbers[pages] = -1
        self._taken = min(first + count, len(self._entries))
        taken: list[int] = pages.tolist()
        return taken

    def _sweep(self) -> None:
        """Keep only entries that count."""
        first, numbers = self._base + self._taken, view(self._number)
        # numbers go on from the last one, so that no old entry can be taken for a new one
        self._base += len(self._entries)
        pages = view(self._entries)[self._taken :]
        live = pages[numbers[pages] == np.arange(first, self._base)]
        numbers[live] = np.arange(self._base, self._base + len(live))
        self._entries, self._taken = array("i", live.tobytes()), 0


class LeafOrder:
    """The smallest leaf first, by one of the rules above.

    A page's parent is the page that holds what comes before it. Times are counted in releases and fillings.
    """

    watches_use = True

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self._now = 0
        self._cached: set[int] = set()
        self._heap: list[tuple[int, int, int, int]] = []
        self._filled = array("q")
        self._last_use = array("q")
        self._uses = array("i")
        self._priority = array("q")
        self._parent = array("i")
        # when the parent was filled: another time now means that the page has been given to somebody else since
        self._parent_filled = array("q")
        self._cached_children = array("i")

    @property
    def count(self) -> int:
        return len(self._cached)

    def __contains__(self, page: int) -> bool:
        return page in self._cached

    def __iter__(self) -> Iterator[int]:
        """The order of giving up if nothing else happened. For checks and pictures only: works on a copy."""
        copy = LeafOrder(self.policy)
        for name in ("_filled", "_last_use", "_uses", "_priority", "_parent", "_parent_filled", "_cached_children"):
            setattr(copy, name, getattr(self, name)[:])
        copy._cached, copy._heap = set(self._cached), list(self._heap)
        return iter(copy.take(self.count))

    def cover(self, pages: int) -> None:
        """Make room for the page ids below ``pages``."""
        missing = pages - len(self._filled)
        for column in (self._filled, self._last_use, self._uses, self._priority, self._parent_filled):
            column.extend(array(column.typecode, (0,)) * missing)
        self._cached_children.extend(array("i", (0,)) * missing)
        self._parent.extend(array("i", (-1,)) * missing)

    def built(self, page: int, *, on: int | None, priority: int) -> None:
        """``page`` has just been filled with what follows the content of the page ``on``, if anything comes before."""
        self._now += 1
        self._filled[page] = self._last_use[page] = self._now
        self._uses[page] = 1
        self._priority[page] = priority
        self._parent[page] = -1 if on is None else on
        self._parent_filled[page] = 0 if on is None else self._filled[on]
        self._cached_children[page] = 0

    def used(self, pages: Sequence[int], *, priority: int) -> None:
        """One more request of this ``priority`` uses ``pages``."""
        for page in pages:
            self._uses[page] += 1
            self._priority[page] = min(self._priority[page], priority)

    def extend(self, pages: Sequence[int]) -> None:
        """``pages`` have been released, all at the same time."""
        self._now += 1
        self._cached.update(pages)
        for page in pages:
            self._last_use[page] = self._now
            parent = self._parent_of(page)
            if parent >= 0:
                self._cached_children[parent] += 1
        for page in pages:
            if not self._cached_children[page]:
                self._push(page)

    def remove(self, page: int) -> None:
        """``page`` is in use again."""
        assert page in self._cached, f"page {page} is free and cannot be shared"
        self._leave(page)

    def take(self, count: int) -> list[int]:
        """The next ``count`` pages to give up."""
        taken: list[int] = []
        while len(taken) < count:
            *_, last_use, page = heapq.heappop(self._heap)
            is_leaf = page in self._cached and not self._cached_children[page]
            if is_leaf and last_use == self._last_use[page]:
                taken.append(page)
                self._leave(page)
        return taken

    def _leave(self, page: int) -> None:
        self._cached.remove(page)
        parent = self._parent_of(page)
        if parent >= 0:
            self._cached_children[parent] -= 1
            if parent in self._cached and not self._cached_children[parent]:
                self._push(parent)

    def _parent_of(self, page: int) -> int:
        parent = self._parent[page]
        return parent if parent >= 0 and self._filled[parent] == self._parent_filled[page] else -1

    def _push(self, page: int) -> None:
        first, second = self._rank(page)
        heapq.heappush(self._heap, (first, second, self._last_use[page], page))

    def _rank(self, page: int) -> tuple[int, int]:
        last_use, filled = self._last_use[page], self._filled[page]
        ranks = {
            "lru": (0, last_use),
            "lfu": (self._uses[page], last_use),
            "fifo": (0, filled),
            "mru": (0, -last_use),
            "filo": (0, -filled),
            "priority": (-self._priority[page], last_use),
        }
        return ranks[self.policy]


def eviction_order(policy: EvictionPolicy) -> EvictionOrder:
    """The order of ``policy``: the queue for ``lru``, leaves for the others."""
    return ReleaseQueue() if policy == "lru" else LeafOrder(policy)
