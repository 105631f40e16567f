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
import itertools
from array import array
from collections.abc import Iterator
from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

from simulator.allocators.bulk import Column, Pages
from simulator.config import EvictionPolicy

#: entries of a queue below which it is not worth cleaning up
_SMALL: Final = 1024


class EvictionOrder:
    """The cached pages, in the order in which they are given up. Each page must have been covered."""

    #: whether the order asks for ``built`` and ``used``
    watches_use = False

    @property
    def count(self) -> int:
        """Pages in the order."""
        raise NotImplementedError

    def __contains__(self, page: int) -> bool:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError

    def cover(self, pages: int) -> None:
        """Make room for the page ids below ``pages``."""
        raise NotImplementedError

    def built(self, page: int, *, on: int, priority: int) -> None:
        """``page`` has just been filled with what follows the content of the page ``on`` (-1: nothing)."""

    def used(self, pages: Pages, *, priority: int) -> None:
        """One more request of this ``priority`` uses ``pages``."""

    def extend(self, pages: Pages) -> None:
        """``pages`` have been released, in this order, all at the same time."""
        raise NotImplementedError

    def remove(self, pages: Pages) -> None:
        """``pages`` are in use again."""
        raise NotImplementedError

    def take_one(self) -> int:
        """The next page to give up."""
        raise NotImplementedError

    def take(self, count: int) -> Pages:
        """The next ``count`` pages to give up."""
        taken = vec[i64](capacity=count)
        for _ in range(count):
            taken = append(taken, self.take_one())
        return taken


class ReleaseQueue(EvictionOrder):
    """First released, first given up. Appending is one copy, removal from the middle leaves an entry that no longer
    counts; entries are swept out when they are more than those that do, so every call is O(1) a page."""

    def __init__(self) -> None:
        self._entries = vec[i64]()
        # how many entries at the front have been taken
        self._taken = 0
        # the entry that counts for a page, -1 for a page that is not in the queue
        self._entry = Column(-1)
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    def __contains__(self, page: int) -> bool:
        return page < len(self._entry) and self._entry.items[page] >= 0

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._live()))

    def cover(self, pages: int) -> None:
        self._entry.cover(pages)

    def extend(self, pages: Pages) -> None:
        if len(self._entries) > 2 * self._count + _SMALL:
            self._sweep()
        entries, entry = self._entries, self._entry.items
        at: int
        for page in pages:
            at = len(entries)
            entry[page] = at
            entries = append(entries, page)
        self._entries = entries
        self._count += len(pages)

    def remove(self, pages: Pages) -> None:
        entry = self._entry.items
        for page in pages:
            assert entry[page] >= 0, f"page {page} is free and cannot be shared"
            entry[page] = -1
        self._count -= len(pages)

    def take_one(self) -> int:
        return self.take(1)[0]

    def take(self, count: int) -> Pages:
        taken = vec[i64](capacity=count)
        entries, entry, at = self._entries, self._entry.items, self._taken
        while len(taken) < count:
            assert at < len(entries), f"{self._count} released pages are counted, but only {len(taken)} are found"
            page = entries[at]
            if entry[page] == at:
                entry[page] = -1
                taken = append(taken, page)
            at += 1
        self._taken = at
        self._count -= count
        return taken

    def _live(self) -> Pages:
        """The pages of the entries that count."""
        entries, entry = self._entries, self._entry.items
        live = vec[i64](capacity=self._count)
        for at in range(self._taken, len(entries)):
            page = entries[at]
            if entry[page] == at:
                live = append(live, page)
        return live

    def _sweep(self) -> None:
        """Keep only entries that count."""
        live, entry = self._live(), self._entry.items
        at: int
        for at in range(len(live)):
            entry[live[at]] = at
        self._entries, self._taken = live, 0


class LeafOrder(EvictionOrder):
    """The smallest leaf first, by one of the rules above.

    A page's parent is the page that holds what comes before it. Times are counted in releases and fillings.
    """

    watches_use = True

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self._times = itertools.count()
        self._cached: set[int] = set()
        # ranks, each followed by the time of last use and the page
        self._heap: list[tuple[int, ...]] = []
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
        return iter([copy.take_one() for _ in range(self.count)])

    def cover(self, pages: int) -> None:
        missing = pages - len(self._filled)
        for column in (self._filled, self._last_use, self._uses, self._priority, self._parent_filled):
            column.extend(array(column.typecode, (0,)) * missing)
        self._cached_children.extend(array("i", (0,)) * missing)
        self._parent.extend(array("i", (-1,)) * missing)

    def built(self, page: int, *, on: int, priority: int) -> None:
        self._filled[page] = self._last_use[page] = next(self._times)
        self._uses[page] = 1
        self._priority[page] = priority
        self._parent[page] = on
        self._parent_filled[page] = 0 if on < 0 else self._filled[on]
        self._cached_children[page] = 0

    def used(self, pages: Pages, *, priority: int) -> None:
        for page in pages:
            self._uses[page] += 1
            self._priority[page] = min(self._priority[page], priority)

    def extend(self, pages: Pages) -> None:
        released = list(pages)
        now = next(self._times)
        self._cached.update(released)
        for page in released:
            self._last_use[page] = now
            parent = self._parent_of(page)
            if parent >= 0:
                self._cached_children[parent] += 1
        for page in released:
            if not self._cached_children[page]:
                self._push(page)

    def remove(self, pages: Pages) -> None:
        for page in pages:
            assert page in self._cached, f"page {page} is free and cannot be shared"
            self._leave(page)

    def take_one(self) -> int:
        while True:
            *_, last_use, page = heapq.heappop(self._heap)
            is_leaf = page in self._cached and not self._cached_children[page]
            if is_leaf and last_use == self._last_use[page]:
                self._leave(page)
                return page

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
        heapq.heappush(self._heap, (*self._rank(page), self._last_use[page], page))

    def _rank(self, page: int) -> tuple[int, ...]:
        last_use, filled = self._last_use[page], self._filled[page]
        ranks = {
            "lfu": (self._uses[page], last_use),
            "fifo": (filled,),
            "mru": (-last_use,),
            "filo": (-filled,),
            "priority": (-self._priority[page], last_use),
        }
        return ranks[self.policy]


def eviction_order(policy: EvictionPolicy) -> EvictionOrder:
    """The order of ``policy``: the queue for ``lru``, leaves for the others."""
    return ReleaseQueue() if policy == "lru" else LeafOrder(policy)
