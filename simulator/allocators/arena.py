"""Ranges of one address space: the free-list allocator of the textbooks, with immediate coalescing.

Addresses and sizes are integers in whatever unit the caller chose (bytes, tokens, granules). The cost of an
operation depends on the number ``n`` of holes (at most live ranges + 1), never on the size of the space:
a pool of 2**45 bytes costs what a pool of 64 does.

==============  ===================================================================================
``best worst``  O(log n) comparisons in two sorted lists (plus the list's memmove)
``first next``  a scan over the holes until one is large enough; ``n`` of them at worst
``free``        O(log n) comparisons
==============  ===================================================================================

A scan is kept for ``first`` and ``next`` because it is what the modelled allocator does, and it is cheap: some
25 ns a hole, while a batch holds hundreds of ranges and not millions.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

Fit = Literal["first", "best", "next", "worst"]


class RangeStore(Protocol):
    """What ``Arena`` and ``Buddy`` have in common: ranges handed out of ``[0, capacity)``."""

    capacity: int
    #: free units, wherever they lie
    total_free: int
    #: holes (or free lists) that the last ``allocate`` or ``extend_in_place`` looked at
    examined: int

    @property
    def largest_free(self) -> int:
        """Size of the largest range that ``allocate`` could place now."""

    @property
    def largest_ever(self) -> int:
        """Size of the largest range that an empty store can place."""

    def footprint(self, size: int) -> int:
        """Units that an allocation of ``size`` occupies."""

    def allocate(self, size: int) -> int | None:
        """Start of a fresh range of ``footprint(size)`` units, or ``None`` when no hole is large enough."""

    def extend_in_place(self, start: int, size: int, new_size: int) -> bool:
        """Lengthen the live range to ``footprint(new_size)`` without moving it; ``False`` changes nothing."""

    def free(self, start: int, size: int) -> None:
        """Give back a live range; ``size`` is what it was allocated or last extended with."""

    def free_ranges(self) -> Iterator[tuple[int, int]]:
        """``(start, size)`` of each hole by rising address."""

    def check(self) -> None:
        """Assert that the store agrees with itself."""


class Arena:
    """Exact ranges in ``[0, capacity)``, placed at the low end of the hole that ``fit`` picks.

    ``first``: the hole of lowest address that is large enough. ``best``: the smallest such hole, ``worst``: the
    largest hole; of equal ones the lowest. ``next``: like ``first``, but the search starts at the first hole that
    ends past the end of the range placed last, and goes round once (Knuth's roving pointer, TAOCP 2.5).
    """

    __slots__ = ("_by_size", "_cursor", "_find", "_sizes", "_starts", "capacity", "examined", "fit", "total_free")

    def __init__(self, capacity: int, fit: Fit = "first") -> None:
        self.capacity = self.total_free = capacity
        self.fit = fit
        self.examined = 0
        self._cursor = 0
        self._starts = [0] if capacity else []
        self._sizes = [capacity] if capacity else []
        #: (size, start) in order, kept only where the fit looks holes up by size
        self._by_size = [(capacity, 0)] if capacity and fit in ("best", "worst") else []
        searches: dict[Fit, Callable[[int], int | None]] = {
            "first": self._first,
            "best": self._best,
            "next": self._next,
            "worst": self._worst,
        }
        self._find = searches[fit]

    @property
    def largest_free(self) -> int:
        """Size of the largest hole: O(1) for ``best`` and ``worst``, else one pass over the holes."""
        return self._by_size[-1][0] if self._by_size else max(self._sizes, default=0)

    @property
    def largest_ever(self) -> int:
        return self.capacity

    @property
    def hole_count(self) -> int:
        return len(self._starts)

    def footprint(self, size: int) -> int:
        return size

    def allocate(self, size: int) -> int | None:
        """Start of a fresh range of ``size`` units, or ``None`` when no hole is large enough."""
        assert size > 0, f"a range of {size} units was asked for"
        index = self._find(size)
        if index is None:
            return None
        start = self._starts[index]
        self._shrink(index, size)
        self._cursor = start + size
        return start

    def extend_in_place(self, start: int, size: int, new_size: int) -> bool:
        """Take ``new_size - size`` units from the hole right of the live range, if there is one that large."""
        self.examined = 1
        end, extra = start + size, new_size - size
        assert extra >= 0, f"a range of {size} units cannot be extended to {new_size}"
        if extra == 0:
            return True
        index = bisect_left(self._starts, end)
        if index == len(self._starts) or self._starts[index] != end or self._sizes[index] < extra:
            return False
        self._shrink(index, extra)
        return True

    def free(self, start: int, size: int) -> None:
        """Give back ``[start, start + size)`` and join it with the holes that touch it.

        ``AssertionError`` when part of it is free already or outside the arena.
        """
        starts, sizes = self._starts, self._sizes
        end = start + size
        index = bisect_left(starts, start)
        assert 0 <= start < end <= self.capacity, f"[{start}, {end}) is not a range of this arena"
        left_end = starts[index - 1] + sizes[index - 1] if index else -1
        right_start = starts[index] if index < len(starts) else self.capacity + 1
        assert left_end <= start and end <= right_start, f"[{start}, {end}) is released, but part of it is free"
        self.total_free += size
        if left_end == start:
            right_size = self._remove(index) if right_start == end else 0
            self._resize(index - 1, starts[index - 1], sizes[index - 1] + size + right_size)
        elif right_start == end:
            self._resize(index, start, sizes[index] + size)
        else:
            self._insert(index, start, size)

    def free_ranges(self) -> Iterator[tuple[int, int]]:
        """``(start, size)`` of each hole by rising address."""
        return zip(self._starts, self._sizes, strict=True)

    def check(self) -> None:
        """Assert that holes are inside, apart from each other by at least one unit, and counted right."""
        end = -1
        for start, size in self.free_ranges():
            assert size > 0 and start > end, (
                f"hole [{start}, {start + size}) is empty, or touches one that ends at {end}"
            )
            end = start + size
        assert end <= self.capacity, f"a hole ends at {end}, past the arena's {self.capacity}"
        assert sum(self._sizes) == self.total_free, f"holes hold {sum(self._sizes)} units, {self.total_free} counted"
        if self.fit in ("best", "worst"):
            assert self._by_size == sorted(zip(self._sizes, self._starts, strict=True)), "the size order is stale"

    def _first(self, size: int) -> int | None:
        for index, hole in enumerate(self._sizes):
            if hole >= size:
                self.examined = index + 1
                return index
        self.examined = len(self._sizes)
        return None

    def _next(self, size: int) -> int | None:
        sizes = self._sizes
        count = len(sizes)
        begin = bisect_right(self._starts, self._cursor)
        if begin and self._starts[begin - 1] + sizes[begin - 1] > self._cursor:
            begin -= 1
        for self.examined in range(1, count + 1):
            index = (begin + self.examined - 1) % count
            if sizes[index] >= size:
                return index
        self.examined = count
        return None

    def _best(self, size: int) -> int | None:
        return self._lowest_of(size)

    def _worst(self, size: int) -> int | None:
        largest = self.largest_free
        self.examined = len(self._starts).bit_length()
        return self._lowest_of(largest) if largest >= size else None

    def _lowest_of(self, size: int) -> int | None:
        """Index of the smallest hole not below ``size``, of equal ones the lowest. Looks at log2(n) + 1 holes."""
        self.examined = len(self._starts).bit_length()
        position = bisect_left(self._by_size, (size, 0))
        if position == len(self._by_size):
            return None
        return bisect_left(self._starts, self._by_size[position][1])

    def _shrink(self, index: int, size: int) -> None:
        """Take ``size`` units from the low end of a hole."""
        self.total_free -= size
        remaining = self._sizes[index] - size
        if remaining:
            self._resize(index, self._starts[index] + size, remaining)
        else:
            self._remove(index)

    def _resize(self, index: int, start: int, size: int) -> None:
        if self._by_size:
            self._forget(index)
            insort(self._by_size, (size, start))
        self._starts[index] = start
        self._sizes[index] = size

    def _insert(self, index: int, start: int, size: int) -> None:
        self._starts.insert(index, start)
        self._sizes.insert(index, size)
        if self.fit in ("best", "worst"):
            insort(self._by_size, (size, start))

    def _remove(self, index: int) -> int:
        if self._by_size:
            self._forget(index)
        del self._starts[index]
        return self._sizes.pop(index)

    def _forget(self, index: int) -> None:
        del self._by_size[bisect_left(self._by_size, (self._sizes[index], self._starts[index]))]
