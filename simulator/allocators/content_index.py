"""Which page holds a given content, and which content a given page holds.

Content is named by ``page_keys``: a *line* (part of a prompt, what one sample generates) and a position in it. Pages of
one line stand in one column, so looking up or naming neighbouring pages is one slice; a page knows its line and
position by number. Per page that is three integers of four bytes and no object of its own.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from simulator.allocators.bulk import BULK_PAGES, Pages, append, count_last, page_array, view

Span = tuple[int, int, int]
"""``(name, first, last)``: the pages ``first .. last - 1`` of the line ``name``."""

_NONE = -1


class Line:
    """Pages of one name: ``pages[i]`` holds position ``first + i``, -1 where none does.

    ``twins`` lists, by position, further pages with the same content, oldest first. ``known`` counts all of them.
    """

    __slots__ = ("first", "known", "name", "number", "pages", "twins")

    def __init__(self, name: int, number: int, first: int) -> None:
        self.name = name
        self.number = number
        self.first = first
        self.pages = array("i")
        self.known = 0
        self.twins: dict[int, list[int]] = {}

    def leave(self, position: int) -> None:
        """Nobody holds ``position`` any more; others are still there."""
        column, at = self.pages, position - self.first
        if at < len(column) - 1:
            column[at] = _NONE
        else:
            column.pop()
            self.trim()

    def leave_many(self, positions: Pages) -> None:
        """As ``leave`` for each of ``positions``."""
        view(self.pages)[positions - self.first] = _NONE
        del self.pages[count_last(self.pages, _NONE) :]

    def trim(self) -> None:
        """Let the column end with a page."""
        column = self.pages
        while column and column[-1] < 0:
            column.pop()


#: stands where a number is not in use
_GONE = Line(_NONE, _NONE, 0)


class ContentIndex:
    """Both directions of the map. Pages must be announced by ``cover`` before they are named."""

    def __init__(self) -> None:
        self._lines: dict[int, Line] = {}
        self._numbered: list[Line] = []
        self._spare: list[int] = []
        #: the line of each page covered, by number; negative where the content is not known
        self.line_of = array("i")
        self._position = array("i")

    def cover(self, pages: int) -> None:
        """Make room for the page ids below ``pages``."""
        missing = pages - len(self.line_of)
        self.line_of.extend(array("i", (_NONE,)) * missing)
        self._position.extend(array("i", (0,)) * missing)

    # ---- asking

    def knows(self, page: int) -> bool:
        """Whether the content of ``page`` is known."""
        return page < len(self.line_of) and self.line_of[page] >= 0

    def find(self, name: int, position: int) -> int | None:
        """The page that has held this content for longest, or ``None``."""
        line = self._lines.get(name)
        if line is None or not 0 <= position - line.first < len(line.pages):
            return None
        page = line.pages[position - line.first]
        return None if page < 0 else page

    def leading(self, spans: Iterable[Span]) -> list[int]:
        """Pages of the spans up to the first content that is not there."""
        found: list[int] = []
        for name, first, last in spans:
            line = self._lines.get(name)
            if line is None or first < line.first:
                break
            part = line.pages[first - line.first : last - line.first].tolist()
            if _NONE in part:
                found += part[: part.index(_NONE)]
                break
            found += part
            if len(part) < last - first:
                break
        return found

    # ---- changing

    def name(self, pages: Sequence[int], spans: Iterable[Span]) -> None:
        """Record the content of ``pages``, in order, where it is not known; who was found stays the one."""
        if len(pages) >= BULK_PAGES:
            at = page_array(pages)
            if (view(self.line_of)[at] < 0).all():
                self._name_many(at, spans)
                return
        start = 0
        for name, first, last in spans:
            self._put(name, first, pages[start : start + last - first])
            start += last - first
        assert start == len(pages), f"{len(pages)} pages for {start} names"

    def _name_many(self, pages: Pages, spans: Iterable[Span]) -> None:
        """``name`` for pages of which none is known: spans that continue their lines are copied as they are."""
        numbers: list[int] = []
        firsts: list[int] = []
        counts: list[int] = []
        start = 0
        for name, first, last in spans:
            line, part = self._lines.get(name) or self._begin(name, first), pages[start : start + last - first]
            if first - line.first == len(line.pages):
                append(line.pages, part)
                line.known += len(part)
                numbers.append(line.number)
            else:
                self._put(name, first, part.tolist())
                numbers.append(_NONE)
            firsts.append(first - start)
            counts.append(len(part))
            start += len(part)
        assert start == len(pages), f"{len(pages)} pages for {start} names"
        if len(numbers) == 1:
            if numbers[0] >= 0:
                view(self.line_of)[pages] = numbers[0]
                view(self._position)[pages] = np.arange(firsts[0], firsts[0] + start)
            return
        number, position = np.repeat(numbers, counts), np.repeat(firsts, counts) + np.arange(start)
        copied = number >= 0
        view(self.line_of)[pages[copied]] = number[copied]
        view(self._position)[pages[copied]] = position[copied]

    def forget(self, pages: Sequence[int]) -> int:
        """The contents of ``pages`` will be overwritten; how many of them were known."""
        if len(pages) >= BULK_PAGES:
            return self._forget_many(page_array(pages))
        return self._forget(pages)

    def _forget(self, pages: Iterable[int]) -> int:
        line_of, positions, numbered = self.line_of, self._position, self._numbered
        forgotten = 0
        for page in pages:
            number = line_of[page]
            if number < 0:
                continue
            line = numbered[number]
            line_of[page] = _NONE
            line.known -= 1
            forgotten += 1
            if not line.known:
                self._end(line)
            elif line.twins and positions[page] in line.twins:
                self._forget_one_of_equals(line, positions[page], page)
            else:
                line.leave(positions[page])
        return forgotten

    def _forget_many(self, pages: Pages) -> int:
        """Neighbours that belong to one line are forgotten together."""
        numbers = view(self.line_of)[pages]
        stops = [*(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(pages)]
        forgotten = start = 0
        for stop in stops:
            number, part = int(numbers[start]), pages[start:stop]
            start = stop
            if number < 0:
                continue
            line = self._numbered[number]
            if len(part) < line.known and (line.twins or len(part) < BULK_PAGES):
                forgotten += self._forget(part.tolist())
                continue
            forgotten += len(part)
            line.known -= len(part)
            view(self.line_of)[part] = _NONE
            if not line.known:
                self._end(line)
            else:
                line.leave_many(view(self._position)[part])
        return forgotten

    # ---- looking, for checks

    def contents(self) -> Iterator[tuple[int, int, list[int]]]:
        """Every content known: name, position and the pages that hold it, the one that is found first."""
        for line in self._lines.values():
            for position, page in enumerate(line.pages, line.first):
                if page >= 0:
                    yield line.name, position, [page, *line.twins.get(position, ())]

    def check(self) -> None:
        """Assert that both directions agree; O(pages)."""
        named = 0
        for name, position, pages in self.contents():
            line = self._lines[name]
            for page in pages:
                assert self.line_of[page] == line.number, f"page {page} is found under another name"
                assert self._position[page] == position, f"page {page} is found at another position"
            named += len(pages)
        assert named == len(self.line_of) - self.line_of.count(_NONE), "a page is known but not found, or twice"
        assert named == sum(line.known for line in self._lines.values()), "known pages of a line miscounted"
        assert all(self._numbered[line.number] is line for line in self._lines.values()), "a line lost its number"

    # ---- how

    def _put(self, name: int, first: int, pages: Sequence[int]) -> None:
        line = self._lines.get(name) or self._begin(name, first)
        column, line_of, positions, number = line.pages, self.line_of, self._position, line.number
        if first < line.first:
            column[0:0] = array("i", (_NONE,)) * (line.first - first)
            line.first = first
        at = first - line.first
        if at > len(column):
            column.extend(array("i", (_NONE,)) * (at - len(column)))
        fresh = len(column)
        known = line.known
        for position, page in enumerate(pages, first):
            is_new = line_of[page] < 0
            if is_new:
                line_of[page] = number
                positions[page] = position
                known += 1
            if at == fresh:
                column.append(page if is_new else _NONE)
                fresh += 1
            elif is_new:
                self._put_beside(line, position, page)
            at += 1
        line.known = known
        if column[-1] < 0:
            line.trim()
            if not known:
                self._end(line)

    def _begin(self, name: int, first: int) -> Line:
        if self._spare:
            line = Line(name, self._spare.pop(), first)
            self._numbered[line.number] = line
        else:
            line = Line(name, len(self._numbered), first)
            self._numbered.append(line)
        self._lines[name] = line
        return line

    def _end(self, line: Line) -> None:
        del self._lines[line.name]
        self._numbered[line.number] = _GONE
        self._spare.append(line.number)

    @staticmethod
    def _put_beside(line: Line, position: int, page: int) -> None:
        """``page`` has a content that the column reaches to already."""
        if line.pages[position - line.first] < 0:
            line.pages[position - line.first] = page
        else:
            line.twins.setdefault(position, []).append(page)

    @staticmethod
    def _forget_one_of_equals(line: Line, position: int, page: int) -> None:
        """Another page than ``page`` still holds the content."""
        twins, at = line.twins[position], position - line.first
        if line.pages[at] == page:
            line.pages[at] = twins.pop(0)
        else:
            twins.remove(page)
        if not twins:
            del line.twins[position]
