"""Page ids and other numbers in packed arrays: eight bytes each on their way and in page tables, four in columns.

Compiled, a step of a loop over a ``vec`` takes a few nanoseconds, so that what happens to many pages is written as what
happens to each of them. ``append`` returns what the longer array is called from then on.
"""

import copyreg
from collections.abc import Iterable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from librt.vecs import append, vec
from mypy_extensions import i32, i64

Pages: TypeAlias = "vec[i64]"

#: places that a column has from the start
_FIRST_PLACES: Final = 64


class Column:
    """A number for each place. ``items`` is replaced when the column grows."""

    __slots__ = ("empty", "items")

    def __init__(self, empty: int) -> None:
        #: what stands where nothing was written yet
        self.empty = empty
        self.items = vec[i32]()

    def __len__(self) -> int:
        return len(self.items)

    @property
    def view(self) -> npt.NDArray[np.int32]:
        """The same memory for NumPy, until the column grows."""
        return np.frombuffer(memoryview(self.items), np.int32)

    def cover(self, places: int) -> None:
        """Make room for the places below ``places``; amortised O(1) a place."""
        missing = places - len(self.items)
        if missing > 0:
            items = self.items
            for _ in range(max(missing, len(items) // 4, _FIRST_PLACES)):
                items = append(items, self.empty)
            self.items = items


def page_array(pages: Iterable[int]) -> Pages:
    """Page ids as an array."""
    return vec[i64](pages)


def joined(first: Pages, second: Pages) -> Pages:
    """A new array with one after the other."""
    both = vec[i64](capacity=len(first) + len(second))
    for page in first:
        both = append(both, page)
    for page in second:
        both = append(both, page)
    return both


def backwards(pages: Pages) -> Pages:
    """A new array with the last one first."""
    turned = vec[i64](capacity=len(pages))
    at = len(pages)
    while at:
        at -= 1
        turned = append(turned, pages[at])
    return turned


def _small(numbers: Iterable[int]) -> "vec[i32]":
    return vec[i32](numbers)


# lets ``copy`` and process pools take arrays along
copyreg.pickle(type(page_array(())), lambda pages: (page_array, (list(pages),)))
copyreg.pickle(type(_small(())), lambda numbers: (_small, (list(numbers),)))
