"""Which page holds a given content, and which content a given page holds.

Contents are numbers (``content_space``), so both directions are columns of integers, four bytes a page each: looking
up, naming or forgetting many pages is a few array operations, whoever they belong to. Further pages with a content
that is there already, *twins*, are rare; they stand in a dictionary and bear a mark.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from simulator.allocators.bulk import Column, Pages
from simulator.allocators.content_space import ContentSpace, Numbers, Span

_NONE = -1
#: added to the number of a content that several pages hold
_TWIN = 1 << 30
#: numbers below which it is not worth making room
_SMALL = 1 << 14
#: numbers for each page: when there are more, those of contents that are gone are used again
_NUMBERS_PER_PAGE = 5


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
        contents = self._content_of.view[pages]
        if contents.item(contents.argmin()) >= 0:
            return len(pages)
        return int(np.count_nonzero(contents >= 0))

    def known(self, pages: Pages) -> "np.typing.NDArray[np.bool_]":
        """For each of ``pages`` whether its content is known."""
        return self._content_of.view[pages] >= 0

    def find(self, number: int) -> int | None:
        """The page that has held this content for longest, or ``None``."""
        page = self._page_of.items[number]
        return None if page < 0 else page

    def find_each(self, numbers: Numbers) -> Pages:
        """``find`` for each of ``numbers``, negative where there is none."""
        return self._page_of.view[numbers].astype(np.intp)

    def leading(self, numbers: Numbers) -> Pages:
        """Pages of the contents up to the first one that is not there."""
        if not len(numbers):
            return numbers
        pages = self._page_of.view[numbers]
        missing = int(pages.argmin())
        return (pages[:missing] if pages.item(missing) < 0 else pages).astype(np.intp)

    # ---- changing

    def name_one(self, page: int, number: int) -> None:
        """Record the content of ``page`` if it is not known; who was found stays the one."""
        if self._content_of.items[page] >= 0:
            return
        if self._page_of.items[number] < 0:
            self._page_of.items[number] = page
            self._content_of.items[page] = number
        else:
            self._name_twin(page, number)

    def name(self, pages: Pages, numbers: Numbers) -> None:
        """``name_one`` for each, in order; the numbers are distinct."""
        assert len(pages) == len(numbers), f"{len(pages)} pages for {len(numbers)} contents"
        if not len(pages):
            return
        known, found = self._content_of.view[pages], self._page_of.view[numbers]
        if known.item(known.argmax()) < 0 and found.item(found.argmax()) < 0:
            self._page_of.view[numbers] = pages
            self._content_of.view[pages] = numbers
            return
        for page, number in zip(pages.tolist(), numbers.tolist(), strict=True):
            self.name_one(page, number)

    def forget_one(self, page: int) -> bool:
        """The content of ``page`` will be overwritten; whether it was known."""
        number = self._content_of.items[page]
        if number < 0:
            return False
        self._content_of.items[page] = _NONE
        if number < _TWIN:
            self._page_of.items[number] = _NONE
        else:
            self._forget_twin(page, number - _TWIN)
        return True

    def forget(self, pages: Pages) -> int:
        """``forget_one`` for each; how many contents were known."""
        if not len(pages):
            return 0
        numbers = self._content_of.view[pages]
        if numbers.item(numbers.argmax()) >= _TWIN:
            return sum(map(self.forget_one, pages.tolist()))
        if numbers.item(numbers.argmin()) < 0:
            known = numbers >= 0
            pages, numbers = pages[known], numbers[known]
        self._page_of.view[numbers.astype(np.intp)] = _NONE
        self._content_of.view[pages] = _NONE
        return len(pages)

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
        self._content_of.items[self._page_of.items[number]] = number + _TWIN

    def _forget_twin(self, page: int, number: int) -> None:
        """Another page than ``page`` still holds the content."""
        twins = self._twins[number]
        if self._page_of.items[number] == page:
            self._page_of.items[number] = twins.pop(0)
        else:
            twins.remove(page)
        if not twins:
            del self._twins[number]
            self._content_of.items[self._page_of.items[number]] = number

    def _renumber(self) -> None:
        """Give up all numbers but those of contents that some page holds."""
        page_of, content_of = self._page_of.view, self._content_of.view
        is_live = page_of[: self._space.size] >= 0
        old = np.flatnonzero(is_live)
        pages = page_of[old]
        new = self._space.keep(is_live)
        page_of[:] = _NONE
        page_of[new] = pages
        content_of[pages] = new + (content_of[pages] & _TWIN)
        twins = {int(new[np.searchsorted(old, number)]): further for number, further in self._twins.items()}
        for number, further in twins.items():
            content_of[further] = number + _TWIN
        self._twins = twins
