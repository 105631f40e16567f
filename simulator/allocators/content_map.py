"""What every address of a memory holds, as disjoint pieces: which content, and which position of it."""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from operator import itemgetter

_START = itemgetter(0)

Piece = tuple[int, int, Hashable, int]
"""``(start, end, content, origin)``: address ``a`` from ``start`` to before ``end`` holds position ``a - origin`` of
``content``."""


@dataclass(frozen=True, slots=True)
class Found:
    """Part of an answer: ``content`` is ``None`` where nothing was ever written; ``position`` is that of ``start``."""

    start: int
    end: int
    content: Hashable | None
    position: int


class ContentMap:
    """A sorted list of pieces. Addresses may be negative. Writing and copying cost O(pieces touched + list move)."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def write(self, start: int, size: int, content: Hashable, position: int) -> None:
        """Let ``size`` addresses from ``start`` hold ``content`` from ``position`` on, whatever was there before."""
        end, origin = start + size, start - position
        first, last, left, right = self._cut(start, end)
        if left and left[-1][1:] == (start, content, origin):
            start = left.pop()[0]
        self._pieces[first:last] = [*left, (start, end, content, origin), *right]

    def copy(self, source: int, target: int, size: int) -> None:
        """Let the addresses from ``target`` hold what those from ``source`` hold now; the two may overlap."""
        shift = target - source
        copied = [
            (found.start + shift, found.end + shift, found.content, found.start + shift - found.position)
            for found in self.read(source, size)
            if found.content is not None
        ]
        first, last, left, right = self._cut(target, target + size)
        self._pieces[first:last] = [*left, *copied, *right]

    def read(self, start: int, size: int) -> Iterator[Found]:
        """What ``size`` addresses from ``start`` hold, in order and without gaps."""
        end = start + size
        index = max(0, bisect_right(self._pieces, start, key=_START) - 1)
        while start < end:
            piece = self._pieces[index] if index < len(self._pieces) else (end, end, None, 0)
            index += 1
            if piece[1] <= start and piece[0] < end:
                continue
            if piece[0] > start:
                stop = min(piece[0], end)
                yield Found(start, stop, None, 0)
                start = stop
            if start < end:
                stop = min(piece[1], end)
                yield Found(start, stop, piece[2], start - piece[3])
                start = stop

    def _cut(self, start: int, end: int) -> tuple[int, int, list[Piece], list[Piece]]:
        """Range of pieces that meet ``start .. end - 1`` or touch its start, and what of them lies left and right."""
        pieces = self._pieces
        first = bisect_left(pieces, start, key=_START)
        if first and pieces[first - 1][1] >= start:
            first -= 1
        last = bisect_left(pieces, end, key=_START)
        left = [(s, min(e, start), content, origin) for s, e, content, origin in pieces[first:last] if s < start]
        right = [(max(s, end), e, content, origin) for s, e, content, origin in pieces[first:last] if e > end]
        return first, last, left, right
