"""LRU at every capacity in one pass: Mattson's stack distances, counted with sorted arrays.

The stack distance of a reference is the number of different blocks used since the block's last use; LRU holds the
block at capacities above it (Mattson et al., 1970). With ``p`` the place of the last use, that number is

    (references before this one whose own last use was not after p) - (p + 1)

so one count of smaller elements to the left of each element gives all distances. A trace is fed in chunks; between
chunks only the stack itself is kept, so memory is bounded by the number of different blocks.
"""

import numpy as np
import numpy.typing as npt

from simulator.planning.block_stream import Chunk
from simulator.traffic.requests import IntArray

#: larger than any distance, for blocks that were never used before
_NEVER = 1 << 36


class LruCurve:
    """Counts of stack distances; ``hits`` and ``misses`` answer for any capacity once everything was fed."""

    def __init__(self) -> None:
        self._stack: IntArray = np.zeros(0, np.int64)
        self._depths: IntArray = np.zeros(0, np.int64)
        self._needed: IntArray = np.zeros(0, np.int64)
        self._references = 0

    def feed(self, chunk: Chunk) -> None:
        """The next references of the trace."""
        previous = self._previous_uses(chunk)
        depth = _depths(previous, len(self._stack))
        needed = _running_maximum(depth, chunk.request)
        self._depths = _added(self._depths, depth[depth < _NEVER])
        self._needed = _added(self._needed, needed[needed < _NEVER])
        self._references += len(chunk.blocks)
        self._stack = self._stack_after(chunk)

    def hits(self, capacity: int | None) -> int:
        """Blocks at the start of requests that were resident when the request came, up to its first miss.

        The block at ``i`` and all before it are resident when the deepest of them is; that depth is the running
        maximum of the distances, because a block met on the way only moves blocks down that are above the deepest.
        """
        return int(self._needed[:capacity].sum())

    def misses(self, capacity: int | None) -> int:
        """References that had to insert their block."""
        return self._references - int(self._depths[:capacity].sum())

    def _previous_uses(self, chunk: Chunk) -> IntArray:
        """Place of each reference's previous use: in the old stack, then the chunk; -1 for a first use."""
        blocks, size = chunk.blocks, len(self._stack)
        keys = np.sort(blocks * len(blocks) + np.arange(len(blocks)))
        block, place = np.divmod(keys, len(blocks))
        previous = np.full(len(blocks), -1, np.int64)
        again = block[1:] == block[:-1]
        previous[place[1:][again]] = place[:-1][again] + size
        at = np.empty(size, np.int64)
        at[self._stack] = np.arange(size)
        first_here = np.concatenate(([True], ~again))
        known = block[first_here] < size  # blocks are numbered by first use: these were seen in an earlier chunk
        previous[place[first_here][known]] = at[block[first_here][known]]
        return previous

    def _stack_after(self, chunk: Chunk) -> IntArray:
        """All blocks seen, from the least to the most recently used."""
        size = len(self._stack)
        last = np.full(chunk.known_blocks, -1, np.int64)
        last[self._stack] = np.arange(size)
        last[chunk.blocks] = np.arange(len(chunk.blocks)) + size
        return np.argsort(last)


def smaller_before(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each element, how many of the elements before it are smaller. The values must differ.

    A merge sort run backwards: the positions, in the order of their values, are split by halves again and again; a
    position in a right half counts the positions of its left half that came before it.
    """
    count = len(values)
    bits = max(0, count - 1).bit_length()
    order = np.concatenate((np.argsort(values), np.arange(count, 1 << bits))).astype(np.int32)
    found = np.zeros(1 << bits, np.int32)
    for bit in reversed(range(bits)):
        half = 1 << bit
        left = (order & half) == 0
        left_so_far = np.cumsum(left, dtype=np.int32)
        lefts, rights = order[left], order[~left]
        found[rights] += left_so_far[~left] - (np.arange(len(rights), dtype=np.int32) & -half)
        order = np.stack((lefts.reshape(-1, half), rights.reshape(-1, half)), axis=1).reshape(-1)
    return found[:count].astype(np.int64)


def _depths(previous: IntArray, stack_size: int) -> IntArray:
    depth = np.full(len(previous), _NEVER, np.int64)
    again = previous >= 0
    first_uses = np.cumsum(~again)
    places = previous[again]
    depth[again] = stack_size + first_uses[again] + smaller_before(places) - (places + 1)
    return depth


def _running_maximum(depth: IntArray, request: IntArray) -> IntArray:
    """Running maximum within each request; ``request`` numbers them, rising."""
    lift = request * (2 * _NEVER)
    return np.maximum.accumulate(depth + lift) - lift


def _added(counts: IntArray, values: IntArray) -> IntArray:
    more = np.bincount(values, minlength=len(counts))
    more[: len(counts)] += counts
    return more
