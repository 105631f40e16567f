"""Many pages at once: columns of integers that are read and written in many places by one call.

A column is an ``array``, quick to read and write at one place, and a NumPy view of the same memory. Page ids travel as
NumPy arrays of the width that indexing wants (``Pages``), page tables keep them in four bytes.
"""

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Pages = npt.NDArray[np.intp]

#: places that a column has from the start
_FIRST_PLACES = 64


class Column:
    """Four-byte integers; ``items`` for one at a time, ``view`` for many. Both are replaced when the column grows."""

    __slots__ = ("empty", "items", "view")

    def __init__(self, empty: int) -> None:
        #: what stands where nothing was written yet
        self.empty = empty
        self.items = array("i")
        self.view = np.frombuffer(self.items, np.int32)

    def __getstate__(self) -> "tuple[int, array[int]]":
        return self.empty, self.items

    def __setstate__(self, state: "tuple[int, array[int]]") -> None:
        # a copy looks at its own memory
        self.empty, self.items = state
        self.view = np.frombuffer(self.items, np.int32)

    def __len__(self) -> int:
        return len(self.items)

    def cover(self, places: int) -> None:
        """Make room for the places below ``places``; amortised O(1) a place."""
        missing = places - len(self.items)
        if missing > 0:
            more = max(missing, len(self.items) // 4, _FIRST_PLACES)
            self.items = self.items + array("i", (self.empty,)) * more
            self.view = np.frombuffer(self.items, np.int32)


def page_array(pages: Sequence[int]) -> Pages:
    """Page ids as an array."""
    return np.array(pages, np.intp)


def new_table(pages: Pages) -> "array[int]":
    """A page table of ``pages``."""
    table = array("i")
    extend_table(table, pages)
    return table


def extend_table(table: "array[int]", pages: Pages) -> None:
    """Put ``pages`` at the end of a page table."""
    table.frombytes(pages.astype(np.int32).tobytes())


def table_pages(table: "array[int]", first: int, last: int) -> Pages:
    """The entries ``first .. last - 1`` of a page table, as a copy."""
    if last <= first:
        return np.zeros(0, np.intp)
    return np.frombuffer(table, np.int32, last - first, first * table.itemsize).astype(np.intp)
