"""Replacement policies that need a pass for each capacity: FIFO, LFU and Belady's optimum.

Every miss inserts its block and, once the pool is full, evicts another one first. Blocks at the start of a request
count as hits up to the request's first miss; nothing is evicted before it, so they were resident on its arrival.

In a trace that is held whole, blocks that come only once need no bookkeeping: a run of them is one negative number.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from typing import Final, Protocol

import numpy as np

from simulator.planning.block_stream import Chunk
from simulator.traffic.requests import IntArray

#: the blocks of each request, in order; ``-k`` stands for ``k`` blocks that come only once
Items = list[list[int]]

_LONG_AGO: Final = -(1 << 62)


class Policy(Protocol):
    """One policy at one capacity. ``misses`` counts insertions, ``hits`` follows the rule of this module."""

    hits: int
    misses: int

    def feed(self, requests: Items, known_blocks: int) -> None: ...


def items(chunk: Chunk) -> Items:
    """The chunk's references, request by request."""
    blocks, request = chunk.blocks, chunk.request
    if chunk.whole:
        kept, blocks = runs_joined(blocks, request)
        request = request[kept]
    flat = blocks.tolist()
    ends = [*(np.flatnonzero(np.diff(request)) + 1).tolist(), len(flat)]
    return [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def runs_joined(blocks: IntArray, request: IntArray) -> tuple[IntArray, IntArray]:
    """The places at which references or runs begin, and what begins there.

    A run of blocks that come only once, within a request, is one negative number.
    """
    once = np.bincount(blocks)[blocks] == 1
    continues = np.zeros(len(blocks), np.bool_)
    continues[1:] = once[1:] & once[:-1] & (request[1:] == request[:-1])
    kept = np.flatnonzero(~continues)
    return kept, np.where(once[kept], -np.diff(kept, append=len(blocks)), blocks[kept])


class Fifo:
    """Evicts the block that was inserted first.

    A block is resident until ``capacity`` later insertions, so the number of its insertion is all its state.
    """

    def __init__(self, capacity: int) -> None:
        self.hits = self.misses = 0
        self._capacity = capacity
        self._inserted: list[int] = []

    def feed(self, requests: Items, known_blocks: int) -> None:
        """The next requests of the trace."""
        inserted = self._inserted
        inserted += [_LONG_AGO] * (known_blocks - len(inserted))
        hits, misses, oldest = self.hits, self.misses, self.misses - self._capacity
        for blocks in requests:
            leading = True
            for block in blocks:
                if block < 0:
                    leading = False
                    misses -= block
                    oldest -= block
                elif inserted[block] < oldest:
                    leading = False
                    inserted[block] = misses
                    misses += 1
                    oldest += 1
                elif leading:
                    hits += 1
        self.hits, self.misses = hits, misses


class Lfu:
    """Evicts the block with the smallest (uses since its insertion, time of its last use).

    Blocks used once queue up by age in ``_fresh``; an entry whose block was used again, or was inserted again, is
    dead (``_born`` tells). Blocks used more often have one entry each in a heap; a use makes it too small, which is
    put right when it comes to the top. Misses in a row are inserted together.
    """

    def __init__(self, capacity: int) -> None:
        self.hits = self.misses = 0
        self._room = capacity
        self._uses: list[int] = []
        self._last: list[int] = []
        self._born: list[int] = []
        self._clock = 0
        self._fresh: deque[int] = deque()
        self._front = 0
        self._worn: list[tuple[int, int, int]] = []

    def feed(self, requests: Items, known_blocks: int) -> None:
        """The next requests of the trace."""
        for column in (self._uses, self._last, self._born):
            column += [0] * (known_blocks - len(column))
        uses, last, worn = self._uses, self._last, self._worn
        for blocks in requests:
            clock = begun = self._clock
            for block in blocks:
                if block < 0 or not uses[block]:
                    break
                clock += 1
                last[block] = clock
                uses[block] += 1
                if uses[block] == 2:
                    heappush(worn, (2, clock, block))
            leading = clock - begun
            self._clock = clock
            self.hits += leading
            if leading < len(blocks):
                self._mixed(blocks[leading:])

    def _use(self, block: int) -> None:
        """A block that is resident, after its request's first miss."""
        self._clock += 1
        self._last[block] = self._clock
        self._uses[block] += 1
        if self._uses[block] == 2:
            heappush(self._worn, (2, self._clock, block))

    def _mixed(self, blocks: list[int]) -> None:
        """Blocks after the first miss, resident or not."""
        uses, born = self._uses, self._born
        waiting: list[int] = []
        place = self._front + len(self._fresh)
        for block in blocks:
            if block >= 0:
                if uses[block]:
                    # Whether it is still resident turns out once those before it are in.
                    self._insert(waiting)
                    waiting = []
                    place = self._front + len(self._fresh)
                    if uses[block]:
                        self._use(block)
                        continue
                uses[block] = 1
                born[block] = place
            place += 1
            waiting.append(block)
        self._insert(waiting)

    def _insert(self, blocks: list[int]) -> None:
        count = sum([-block if block < 0 else 1 for block in blocks])
        self.misses += count
        excess = max(0, count - self._room)
        left = self._evict_fresh(excess)
        if left and left == excess and not self._room:
            # Nothing but worn blocks: one makes room for the first of these, which is then the next victim.
            self._evict_worn()
            left -= 1
        self._room = max(0, self._room - count)
        self._fresh.extend(blocks)
        self._evict_fresh(left)

    def _evict_fresh(self, count: int) -> int:
        """Evicts up to ``count`` blocks used once, oldest first; returns how many are missing."""
        fresh, uses, born, front = self._fresh, self._uses, self._born, self._front
        while count and fresh:
            block = fresh.popleft()
            if block >= 0:
                if uses[block] == 1 and born[block] == front:
                    uses[block] = 0
                    count -= 1
            elif -block <= count:
                count += block
            else:
                fresh.appendleft(block + count)
                front -= 1
                count = 0
            front += 1
        self._front = front
        return count

    def _evict_worn(self) -> None:
        worn, uses, last = self._worn, self._uses, self._last
        while True:
            count, at, block = worn[0]
            if (count, at) == (uses[block], last[block]):
                heappop(worn)
                uses[block] = 0
                return
            heapreplace(worn, (uses[block], last[block], block))


def belady_hits(blocks: IntArray, capacities: Sequence[int]) -> list[int]:
    """Hits of Belady's optimum, which evicts the block whose next use is farthest away, at each capacity.

    Counts hits block by block, not up to a request's first miss: an upper bound for every policy that inserts on each
    miss.
    """
    runs, nexts = _with_next_uses(blocks)
    flat = blocks.tolist()
    return [_belady(flat, runs, nexts, capacity) for capacity in capacities]


def _belady(flat: list[int], runs: list[int], nexts: list[int], capacity: int) -> int:
    """Blocks without a next use are only counted (``dead``).

    Of the others a heap holds the places of their next uses, the farthest on top, those that have passed at the
    bottom.
    """
    resident = bytearray(max(flat, default=0) + 1)
    room, dead, hits = capacity, 0, 0
    farthest: list[int] = []
    for block, following in zip(runs, nexts, strict=True):
        count = -block if block < 0 else 1
        if block >= 0 and resident[block]:
            hits += 1
        elif room:
            taken = min(room, count)
            room -= taken
            dead += taken if block < 0 else 0
        elif dead:
            dead -= block >= 0
        else:
            resident[flat[-heappop(farthest)]] = 0
            dead += block < 0
        if block < 0:
            continue
        if following < 0:
            dead += 1
        else:
            resident[block] = 1
            heappush(farthest, -following)
    return hits


def _with_next_uses(blocks: IntArray) -> tuple[list[int], list[int]]:
    """The references with runs of blocks that come only once joined, and the place of each one's next use or -1."""
    count = len(blocks)
    block, place = np.divmod(np.sort(blocks * count + np.arange(count)), max(1, count))
    following = np.full(count, -1, np.int64)
    again = block[1:] == block[:-1]
    following[place[:-1][again]] = place[1:][again]
    kept, joined = runs_joined(blocks, np.zeros(count, np.int64))
    return joined.tolist(), following[kept].tolist()
