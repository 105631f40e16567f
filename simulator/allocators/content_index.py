"""Which page holds a given content, and which content a given page holds.

Contents are numbers (``content_space``), so both directions are columns of integers, four bytes a page each. Further
pages with a content that is there already, *twins*, are rare; they stand in a dictionary and bear a mark.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from librt.vecs import append, vec
from mypy_extensions import i64

from simulator.allocators.bulk import Column, Pages
from simulator.allocators.content_space import ContentSpace, Numbers, Span

_NONE: Final = -1
#: added to the number of a content that several pages hold
_TWIN: Final = 1 << 30
#: numbers below which it is not worth making room
_SMALL: Final = 1 << 14
#: numbers for each page: when there are more, those of contents that are gone are used again
_NUMBERS_PER_PAGE: Final = 5


class ContentIndex:
    """Both directions of the map. Pages must be announced by ``cover`` before they are named.

    Numbers hold until ``epoch`` changes, which happens in ``make_room`` only.
    """

    def __init__(self) -> None:
        self._space = ContentSpace()
        self._limit = _SMALL
        # by number: the page that has held the content for longest
        self._page_of = Column(_NONE)
        # by page: number of the content, and _TWIN if other pages hold it, too
        self._content_of = Column(_NONE)
        # by number: further pages with the same content, oldest first
        self._twins: dict[int, list[int]] = {}

    @property
    def epoch(self) -> int:
        """Changes when numbers do."""
        return self._space.epoch

    def cover(self, pages: int) -> None:
        """Make room for the page ids below ``pages``."""
        self._content_of.cover(pages)

    # ---- numbers

    def numbers(self, spans: Sequence[Span]) -> Numbers:
        """The numbers of all contents in ``spans``."""
        numbers = self._space.numbers(spans)
        self._page_of.cover(self._space.size)
        return numbers

    def make_room(self) -> None:
        """Give up the numbers of contents that no page holds, if they are many. Amortised O(1) a number given out."""
        if self._space.size > self._limit:
            self._renumber()
            self._limit = max(_SMALL, _NUMBERS_PER_PAGE * len(self._content_of), 2 * self._space.size)

    # ---- asking

    def knows(self, page: int) -> bool:
        """Whether the content of ``page`` is known."""
        return page < len(self._content_of) and self._content_of.items[page] != _NONE

    def count_known(self, pages: Pages) -> int:
        """Of how many ``pages`` the content is known."""
        content_of, known = self._content_of.items, 0
        for page in pages:
            if content_of[page] >= 0:
                known += 1
        return known

    def find(self, number: int) -> int | None:
        """The page that has held this content for longest, or ``None``."""
        page = self._page_of.items[number]
        return None if page < 0 else page

    def find_each(self, numbers: Numbers) -> npt.NDArray[np.int64]:
        """``find`` for each of ``numbers``, negative where there is none."""
        return self._page_of.view[np.frombuffer(memoryview(numbers), np.int64)].astype(np.int64)

    def leading(self, numbers: Numbers) -> Pages:
        """Pages of the contents up to the first one that is not there."""
        page_of = self._page_of.items
        page: int
        pages = vec[i64](capacity=len(numbers))
        for number in numbers:
            page = page_of[number]
            if page < 0:
                break
            pages = append(pages, page)
        return pages

    # ---- changing

    def name(self, pages: Pages, numbers: Numbers) -> None:
        """Record the contents of ``pages``, in order, where they are not known; who was found stays the one."""
        assert len(pages) == len(numbers), f"{len(pages)} pages for {len(numbers)} contents"
        page_of, content_of = self._page_of.items, self._content_of.items
        page: int
        number: int
        for at in range(len(pages)):
            page, number = pages[at], numbers[at]
            if content_of[page] >= 0:
                continue
            if page_of[number] < 0:
                page_of[number] = page
                content_of[page] = number
            else:
                self._name_twin(page, number)

    def forget(self, pages: Pages) -> int:
        """The contents of ``pages`` will be overwritten; how many were known."""
        page_of, content_of, known = self._page_of.items, self._content_of.items, 0
        number: int
        for page in pages:
            number = content_of[page]
            if number < 0:
                continue
            known += 1
            content_of[page] = _NONE
            if number < _TWIN:
                page_of[number] = _NONE
            else:
                self._forget_twin(page, number - _TWIN)
        return known

    # ---- looking, for checks

    def contents(self) -> Iterator[tuple[int, int, list[int]]]:
        """Every content known: name, position and the pages that hold it, the one that is found first."""
        for name, first, last, base in self._space.runs():
            for number in range(base, base + last - first):
                page = self._page_of.items[number]
                if page >= 0:
                    yield name, first + number - base, [page, *self._twins.get(number, ())]

    def check(self) -> None:
        """Assert that both directions agree; O(pages)."""
        page_of, content_of = self._page_of.view, self._content_of.view
        numbers = np.flatnonzero(page_of >= 0)
        marks = np.zeros(len(page_of), np.int32)
        marks[list(self._twins)] = _TWIN
        told = content_of[page_of[numbers]]
        assert np.array_equal(told, numbers + marks[numbers]), "a page is found by another content"
        for number, pages in self._twins.items():
            assert pages, "a content is said to have twins"
            for page in pages:
                assert self._content_of.items[page] == number + _TWIN, f"page {page} is not known for what it holds"
        known = len(numbers) + sum(map(len, self._twins.values()))
        assert known == int(np.count_nonzero(content_of >= 0)), "a page is known but not found, or twice"
        assert self._space.size <= len(page_of), "there are contents without room"

    # ---- how

    def _name_twin(self, page: int, number: int) -> None:
        """``page`` has a content that another page holds already."""
        self._twins.setdefault(number, []).append(page)
        self._content_of.items[page] = number + _TWIN
        first: int = self._page_of.items[number]
        self._content_of.items[first] = number + _TWIN

    def _forget_twin(self, page: int, number: int) -> None:
        """Another page than ``page`` still holds the content."""
        twins = self._twins[number]
        if self._page_of.items[number] == page:
            self._page_of.items[number] = twins.pop(0)
        else:
            twins.remove(page)
        if not twins:
            del self._twins[number]
            first: int = self._page_of.items[number]
            self._content_of.items[first] = number

    def _renumber(self) -> None:
        """Give up all numbers but those of contents that some page holds."""
        content_of, first_of = self._content_of.items, self._page_of.items
        new_of = self._space.keep(first_of)
        self._page_of = Column(_NONE)
        self._page_of.cover(self._space.size)
        page_of = self._page_of.items
        number: int
        new: int
        page: int
        for page in range(len(content_of)):
            number = content_of[page]
            if number >= _TWIN:
                new = new_of[number - _TWIN]
                content_of[page] = new + _TWIN
            elif number >= 0:
                new = new_of[number]
                content_of[page] = new
                page_of[new] = page
        twins: dict[int, list[int]] = {}
        for number, further in self._twins.items():
            new = new_of[number]
            twins[new] = further
            page_of[new] = first_of[number]
        self._twins = twins
