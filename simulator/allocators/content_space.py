"""Numbers for contents: every page that a prompt or an answer can fill has one.

Content is named by ``page_keys``: a name (part of a prompt, what one sample generates) and a position in it. The
positions of a name that were asked for together have consecutive numbers, a *run*. So the contents of a whole sequence
are a few ranges of numbers, worked out once, and what is known of a content stands in a column.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Span = tuple[int, int, int]
"""``(name, first, last)``: the pages ``first .. last - 1`` of the line ``name``."""

Numbers = npt.NDArray[np.intp]


class ContentSpace:
    """Numbers given out so far. They hold until ``keep`` gives new ones, which a change of ``epoch`` tells."""

    def __init__(self) -> None:
        #: numbers given out: all are below
        self.size = 0
        self.epoch = 0
        # of each name, the run made last
        self._named: dict[int, int] = {}
        # of each run, in the order of their numbers, which have no gaps: its name, its positions from the first to
        # before the last, the first number, and the run of that name made before (-1: none)
        self._names: list[int] = []
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._bases: list[int] = []
        self._others: list[int] = []

    def numbers(self, spans: Sequence[Span]) -> Numbers:
        """The numbers of all contents in ``spans``, new ones where there are none."""
        starts: list[int] = []
        counts: list[int] = []
        stop = -1
        for name, first, last in spans:
            while first < last:
                run = self._run_at(name, first, last)
                count = min(self._lasts[run], last) - first
                start = self._bases[run] + first - self._firsts[run]
                if start == stop:
                    counts[-1] += count
                else:
                    starts.append(start)
                    counts.append(count)
                stop = start + count
                first += count
        return _ranges(starts, counts)

    def runs(self) -> Iterator[tuple[int, int, int, int]]:
        """Every run: name, first and last position, and the first number."""
        yield from zip(self._names, self._firsts, self._lasts, self._bases, strict=True)

    def keep(self, is_live: npt.NDArray[np.bool_]) -> Numbers:
        """Forget all numbers but those that are live; the new numbers of these, in order. O(size)."""
        old_bases = np.array(self._bases, np.intp)
        counts = np.add.reduceat(is_live, old_bases, dtype=np.intp)
        kept = np.flatnonzero(counts)
        counts, live = counts[kept], np.flatnonzero(is_live)
        stops = np.cumsum(counts)
        lowest, highest = live[stops - counts], live[stops - 1]
        sizes = highest - lowest + 1
        new_bases = np.cumsum(sizes) - sizes
        firsts = np.array(self._firsts, np.intp)[kept] + lowest - old_bases[kept]
        names = [self._names[run] for run in kept.tolist()]
        self.size, self._named = 0, {}
        self._names, self._firsts, self._lasts, self._bases, self._others = [], [], [], [], []
        for name, first, size in zip(names, firsts.tolist(), sizes.tolist(), strict=True):
            self._add(name, first, first + size)
        self.epoch += 1
        shifts: Numbers = np.repeat(new_bases - lowest, counts)
        return live + shifts

    def _run_at(self, name: int, position: int, last: int) -> int:
        """The run that has this position, made to end before ``last`` if there is none."""
        run = self._named.get(name, -1)
        while run >= 0:
            first = self._firsts[run]
            if first <= position < self._lasts[run]:
                return run
            if position < first < last:
                last = first
            run = self._others[run]
        return self._add(name, position, last)

    def _add(self, name: int, first: int, last: int) -> int:
        run = len(self._names)
        self._names.append(name)
        self._firsts.append(first)
        self._lasts.append(last)
        self._bases.append(self.size)
        self._others.append(self._named.get(name, -1))
        self._named[name] = run
        self.size += last - first
        return run


def _ranges(starts: Sequence[int], counts: list[int]) -> Numbers:
    """``counts[i]`` numbers from ``starts[i]`` on, for each ``i``."""
    if len(starts) == 1:
        return np.arange(starts[0], starts[0] + counts[0])
    shifts: list[int] = []
    total = 0
    for start, count in zip(starts, counts, strict=True):
        shifts.append(start - total)
        total += count
    return np.array(shifts, np.intp).repeat(np.array(counts, np.intp)) + np.arange(total)
