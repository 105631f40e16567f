"""Numbers for contents: every page that a prompt or an answer can fill has one.

Content is named by ``page_keys``: a name (part of a prompt, what one sample generates) and a position in it. The
positions of a name that were asked for together have consecutive numbers, a *run*. So the contents of a whole sequence
are a few ranges of numbers, worked out once, and what is known of a content stands in a column.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from librt.vecs import append, vec
from mypy_extensions import i32, i64

Span = tuple[int, int, int]
"""``(name, first, last)``: the pages ``first .. last - 1`` of the line ``name``."""

Numbers: TypeAlias = "vec[i64]"


class ContentSpace:
    """Numbers given out so far. They hold until ``keep`` gives new ones, which a change of ``epoch`` tells."""

    def __init__(self) -> None:
        self.epoch = 0
        self._clear()

    def numbers(self, spans: Sequence[Span]) -> Numbers:
        """The numbers of all contents in ``spans``, new ones where there are none."""
        numbers = vec[i64](capacity=spans[-1][2] - spans[0][1] if spans else 0)
        for name, first, last in spans:
            while first < last:
                run = self._run_at(name, first, last)
                stop = min(self._lasts[run], last)
                shift = self._bases[run] - self._firsts[run]
                while first < stop:
                    numbers = append(numbers, first + shift)
                    first += 1
        return numbers

    def runs(self) -> Iterator[tuple[int, int, int, int]]:
        """Every run: name, first and last position, and the first number."""
        yield from zip(self._names, self._firsts, self._lasts, self._bases, strict=True)

    def keep(self, page_of: "vec[i32]") -> Numbers:
        """Forget the numbers for which ``page_of`` is negative. For each old number the new one; those of contents that
        are gone mean nothing. O(size)."""
        names, firsts, lasts, bases = self._names, self._firsts, self._lasts, self._bases
        self._clear()
        renumbered = vec[i64](capacity=len(page_of))
        for run in range(len(names)):
            low = bases[run]
            end = low + lasts[run] - firsts[run]
            lowest, highest = low, end
            while lowest < end and page_of[lowest] < 0:
                lowest += 1
            while highest > lowest and page_of[highest - 1] < 0:
                highest -= 1
            shift = self.size - lowest
            for number in range(low, end):
                renumbered = append(renumbered, number + shift)
            if lowest < highest:
                first = firsts[run] - low
                self._add(names[run], first + lowest, first + highest)
        self.epoch += 1
        return renumbered

    def _clear(self) -> None:
        #: numbers given out: all are below
        self.size = 0
        # of each name, the run made last
        self._named: dict[int, int] = {}
        # of each run, in the order of their numbers, which have no gaps: its name, its positions from the first to
        # before the last, the first number, and the run of that name made before (-1: none)
        self._names: list[int] = []
        self._firsts = vec[i64]()
        self._lasts = vec[i64]()
        self._bases = vec[i64]()
        self._others = vec[i64]()

    def _run_at(self, name: int, position: int, last: int) -> int:
        """The run that has this position, made to end before ``last`` if there is none."""
        run = self._named.get(name, -1)
        while run >= 0:
            first: int = self._firsts[run]
            if first <= position < self._lasts[run]:
                return run
            if position < first < last:
                last = first
            run = self._others[run]
        return self._add(name, position, last)

    def _add(self, name: int, first: int, last: int) -> int:
        run = len(self._names)
        self._names.append(name)
        self._firsts = append(self._firsts, first)
        self._lasts = append(self._lasts, last)
        self._bases = append(self._bases, self.size)
        self._others = append(self._others, self._named.get(name, -1))
        self._named[name] = run
        self.size += last - first
        return run
