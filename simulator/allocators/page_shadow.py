"""Shadow memory of a paged pool, token slot by token slot, on the device and on the host.

Each group of layers has its own tables, so each column of tables has its own content. A content is a number made of
its name and its column: it can be compared at once, and be read back for a message.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simulator.allocators.base import Holding
from simulator.allocators.lineage import Name
from simulator.allocators.page_memory import PageMemory, Piece
from simulator.allocators.paged import PagedAllocator, PagedHolding
from simulator.allocators.shadow import NOTHING, ShadowMemory, described, wrong_read
from simulator.allocators.violations import Violation
from simulator.units import ceil_div

#: more samples of a request than any search has
_LINES: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Column:
    """One table of page ids: the ``copy``-th of group ``group``; ``number`` counts columns over all groups."""

    number: int
    group: int
    copy: int
    copies: int
    window_tokens: int | None


class PageShadow(ShadowMemory):
    """The record of ``allocator``'s memory."""

    def __init__(self, allocator: PagedAllocator) -> None:
        super().__init__()
        self._page_tokens = allocator.layout.page_tokens
        self._columns: list[Column] = []
        for index, group in enumerate(allocator.layout.groups):
            for copy in range(group.copies):
                self._columns.append(Column(len(self._columns), index, copy, group.copies, group.window_tokens))
        self._memory = PageMemory()
        ids = allocator.pool.free_ids()  # nobody has taken one yet
        #: pages that sequences may have
        self.pages = range(min(ids, default=0), max(ids, default=-1) + 1)
        assert len(self.pages) == len(ids), "a pool was in use before it was observed"

    def write(self, holding: Holding, first: int, last: int) -> None:
        memory, page_tokens = self._memory, self._page_tokens
        for start, end, name in self._stories[id(holding)].lineage.spans(first, last):
            for column in self._columns:
                content = self._content(name, column)
                pages, origin = self._pages_of(holding, column, start, end)
                for page in pages:
                    memory.write(page, Piece(max(0, start - origin), min(page_tokens, end - origin), content, origin))
                    origin += page_tokens

    def copy(self, source: int, target: int, count: int) -> None:
        for page in range(count) if source > target else range(count - 1, -1, -1):
            self._memory.copy(source + page, target + page)

    def verify_read(self, holding: Holding, length: int) -> Violation | None:
        memory, page_tokens = self._memory, self._page_tokens
        for start, end, name in self._stories[id(holding)].lineage.spans(0, length):
            for column in self._columns:
                content = self._content(name, column)
                pages, origin = self._pages_of(holding, column, start, end)
                for page in pages:
                    first, last = max(0, start - origin), min(page_tokens, end - origin)
                    slot = memory.unlike(page, first, last, content, origin)
                    if slot >= 0:
                        return self._wrong(holding, origin + slot, page, slot)
                    origin += page_tokens
        return self._too_short(holding, length)

    def verify_view(self, holding: Holding, position: int) -> Violation | None:
        _, dropped, _ = _tables(holding)
        for column in self._columns:
            seen = 0 if column.window_tokens is None else max(0, position - column.window_tokens + 1)
            first = dropped[column.group] * self._page_tokens
            if first > seen:
                request_id = holding.demand.request_id
                message = f"request {request_id} has no page for its position {seen}, which position {position} sees"
                return Violation("dropped", request_id, -1, message)
        return None

    def last_writer(self, page: int) -> int | None:
        """The request whose own KV (not a shared prompt's) ``page`` holds, if any."""
        for piece in self._memory.pieces(page):
            name, _ = self._name(piece.content)
            if name[0] == "request":
                return name[1]
        return None

    # ---- how

    def _pages_of(self, holding: Holding, column: Column, first: int, last: int) -> tuple[list[int], int]:
        """Pages of positions ``first .. last - 1`` in the rows of a table that are there, and the position at which the
        first of them begins."""
        tables, dropped_rows, on_host = _tables(holding)
        dropped = dropped_rows[column.group]
        start = max(first // self._page_tokens, dropped)
        stop = max(ceil_div(last, self._page_tokens), start)
        copies = column.copies
        pages = list(
            tables[column.group][(start - dropped) * copies + column.copy : (stop - dropped) * copies : copies]
        )
        return [-1 - page for page in pages] if on_host else pages, start * self._page_tokens

    def _content(self, name: Name, column: Column) -> int:
        return _base(name) * len(self._columns) + column.number

    def _too_short(self, holding: Holding, length: int) -> Violation | None:
        tables, dropped, _ = _tables(holding)
        for column in self._columns:
            rows = dropped[column.group] + len(tables[column.group]) // column.copies
            if rows * self._page_tokens < length:
                request_id, missing = holding.demand.request_id, rows * self._page_tokens
                message = f"request {request_id} has no page for its position {missing}, which has been written"
                return Violation("short_table", request_id, -1, message)
        return None

    def _wrong(self, holding: Holding, position: int, page: int, slot: int) -> Violation:
        what = NOTHING
        for piece in self._memory.pieces(page):
            if piece.start <= slot < piece.end:
                name, layers = self._name(piece.content)
                what = described(name, piece.origin + slot, layers)
        return wrong_read(holding, position, f"page {page}, slot {slot}", what, page=page)

    def _name(self, content: int) -> tuple[Name, str]:
        """The name of a content, and which layers it belongs to in words."""
        base, number = divmod(content, len(self._columns))
        column = self._columns[number]
        layers = f" of layer group {column.group}, table {column.copy}" if number else ""
        rest, is_request = divmod(base, 2)
        owner, line = divmod(rest, _LINES)
        return ("request" if is_request else "segment", owner, line), layers


def _base(name: Name) -> int:
    """A number for a name: no two names have the same."""
    kind, owner, line = name
    assert line < _LINES, f"request {owner} has more than {_LINES} samples"
    return (owner * _LINES + line) * 2 + (kind == "request")


def _tables(holding: Holding) -> tuple[Sequence[Sequence[int]], Sequence[int], bool]:
    """Page tables, rows dropped of each, and whether the pages are the host's."""
    assert isinstance(holding, PagedHolding)
    copy = holding.host_copy
    if copy is not None:
        return copy.tables, copy.dropped, True
    return holding.tables, holding.dropped, False
