"""Many pages at once: columns of integers (``array``) seen as NumPy arrays for the length of one call.

An array that is being looked at cannot grow, so views are never kept. Below ``BULK_PAGES`` a loop is faster.
"""

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

#: pages from which arrays are faster than a loop (compiled: some 10 us against 0.3 us a page)
BULK_PAGES = 48

Pages = npt.NDArray[np.int32]


def page_array(pages: Sequence[int]) -> Pages:
    """Page ids as an array."""
    return np.array(pages, np.int32)


def view(column: "array[int]") -> npt.NDArray[np.signedinteger]:
    """``column`` itself, to be read and written in many places at once. Do not keep it."""
    return np.frombuffer(column, np.int32 if column.typecode == "i" else np.int64)


def append(column: "array[int]", values: Pages) -> None:
    """Put ``values`` at the end of a column of four-byte integers."""
    column.frombytes(values.astype(np.int32, copy=False).tobytes())


def count_last(column: "array[int]", absent: int) -> int:
    """Length of ``column`` without the entries ``absent`` at its end."""
    there = np.flatnonzero(view(column) != absent)
    return int(there[-1]) + 1 if len(there) else 0
