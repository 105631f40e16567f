"""Blocks of a power of two units: the buddy system (Knuth, TAOCP 2.5), baseline of the PagedAttention paper.

The capacity need not be a power of two. It is cut once into the largest aligned blocks that fit, none above
``largest_block``: 15,728 slots with blocks up to 2,048 become 7 * 2,048 and a tail of 1,024 + 256 + 64 + 32 + 16.
A block splits in halves on demand, and two free halves of one block (buddies: addresses that differ in one bit) join
again at once. What a cut has separated never joins.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator


def power_of_two_at_least(value: int) -> int:
    """Smallest power of two not below ``value``, which is at least 1: 25 -> 32, 32 -> 32."""
    return 1 << (value - 1).bit_length()


class Buddy:
    """Power-of-two blocks in ``[0, capacity)``: the smallest free block that suffices, of equal ones the lowest.

    Same interface as ``Arena``. An operation touches at most one block of each order: O(orders * log n)
    comparisons. ``largest_block`` is a power of two (default: the largest one that fits). Blocks of that size
    are listed once they have been used; those never touched are one range, so a huge pool costs nothing.
    """

    __slots__ = ("_free", "_live", "_top", "_untouched", "_untouched_end", "capacity", "examined", "total_free")

    def __init__(self, capacity: int, largest_block: int | None = None) -> None:
        largest = min(largest_block or capacity, capacity)
        self._top = max(largest.bit_length() - 1, 0)
        assert not largest_block or largest_block & (largest_block - 1) == 0, f"{largest_block} is no power of two"
        self.capacity = self.total_free = capacity
        self.examined = 0
        #: start -> order of each block in use
        self._live: dict[int, int] = {}
        #: starts of free blocks in order, one list an order
        self._free: list[list[int]] = [[] for _ in range(self._top + 1)]
        self._untouched = 0
        self._untouched_end = start = capacity >> self._top << self._top
        while start < capacity:
            order = (capacity - start).bit_length() - 1
            self._free[order].append(start)
            start += 1 << order

    @property
    def largest_free(self) -> int:
        """Size of the largest free block."""
        if self._untouched < self._untouched_end:
            return 1 << self._top
        return next((1 << order for order in range(self._top, -1, -1) if self._free[order]), 0)

    @property
    def largest_ever(self) -> int:
        return 1 << self._top if self.capacity else 0

    def footprint(self, size: int) -> int:
        return power_of_two_at_least(size)

    def allocate(self, size: int) -> int | None:
        """Start of a block of ``footprint(size)`` units, or ``None`` when no free block is large enough."""
        assert size > 0, f"a block of {size} units was asked for"
        order = (size - 1).bit_length()
        found = self._smallest_order(order)
        self.examined = max(min(found, self._top) - order + 1, 0)
        if found > self._top:
            return None
        start = self._free[found].pop(0)
        for lower in range(order, found):
            insort(self._free[lower], start + (1 << lower))
        self._live[start] = order
        self.total_free -= 1 << order
        return start

    def extend_in_place(self, start: int, size: int, new_size: int) -> bool:
        """Join the live block with the free buddies on its right until ``new_size`` fits; ``False`` changes nothing."""
        old, new = (size - 1).bit_length(), (new_size - 1).bit_length()
        self.examined = 1
        if new > self._top or start & ((1 << new) - 1):
            return False
        if not all(self._position(order, start + (1 << order)) is not None for order in range(old, new)):
            return False
        for order in range(old, new):
            self._take(order, start + (1 << order))
        self._live[start] = new
        self.total_free -= (1 << new) - (1 << old)
        return True

    def free(self, start: int, size: int) -> None:
        """Give back a live block and join it with its buddy as often as that one is free.

        ``AssertionError`` when there is no live block of this start and size.
        """
        order = (size - 1).bit_length()
        assert self._live.get(start) == order, f"no live block of {1 << order} units starts at {start}"
        del self._live[start]
        self.total_free += 1 << order
        while order < self._top and self._take(order, start ^ (1 << order)):
            start &= ~(1 << order)
            order += 1
        insort(self._free[order], start)

    def free_ranges(self) -> Iterator[tuple[int, int]]:
        """``(start, size)`` of each free block by rising address; the blocks never touched come as one."""
        ranges = [(start, 1 << order) for order, starts in enumerate(self._free) for start in starts]
        if self._untouched < self._untouched_end:
            ranges.append((self._untouched, self._untouched_end - self._untouched))
        return iter(sorted(ranges))

    def check(self) -> None:
        """Assert that blocks are aligned, cover the pool exactly once, and that no free buddies are left apart."""
        live = [(start, 1 << order) for start, order in self._live.items()]
        end = 0
        for start, size in sorted([*live, *self.free_ranges()]):
            aligned = start % size == 0 or start == self._untouched
            assert start == end and aligned, f"block [{start}, {start + size}) follows one that ends at {end}"
            end = start + size
        assert end == self.capacity, f"blocks end at {end}, the pool at {self.capacity}"
        assert sum(size for _, size in live) == self.capacity - self.total_free, "free units are counted wrong"
        for order, starts in enumerate(self._free):
            assert starts == sorted(starts), f"free blocks of order {order} are out of order"
            pairs = [start for start in starts if start ^ (1 << order) in starts]
            assert order == self._top or not pairs, f"free buddies of order {order} stand apart at {pairs}"

    def _smallest_order(self, order: int) -> int:
        """The smallest order, not below ``order``, that has a free block; above ``_top`` when there is none."""
        for larger in range(order, self._top + 1):
            if self._free[larger]:
                return larger
        if order <= self._top and self._untouched < self._untouched_end:
            self._free[self._top].append(self._untouched)
            self._untouched += 1 << self._top
            return self._top
        return self._top + 1

    def _position(self, order: int, start: int) -> int | None:
        starts = self._free[order]
        index = bisect_left(starts, start)
        return index if index < len(starts) and starts[index] == start else None

    def _take(self, order: int, start: int) -> bool:
        index = self._position(order, start)
        if index is None:
            return False
        del self._free[order][index]
        return True
