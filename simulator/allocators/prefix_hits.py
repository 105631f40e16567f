"""Which leading pages of a new sequence are there already.

Full attention needs every page from the first on. A window of ``W`` tokens needs only the pages that hold the last
``W - 1`` of the tokens hit, so a hit may end before a page that is missing further left. With both, a hit must satisfy
each group (``vllm/v1/core/single_type_kv_cache_manager.py``, ``kv_cache_coordinator.py``).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from simulator.allocators.content_index import Span
from simulator.allocators.paged import PageGroup, PageLayout
from simulator.allocators.prefix_cache import SharedPages
from simulator.units import ceil_div


@dataclass(frozen=True, slots=True)
class Hits:
    """``rows`` leading rows hit; ``tables[g]`` are the pages of group ``g`` for the rows after ``dropped[g]``."""

    rows: int
    tables: tuple[list[int], ...]
    dropped: tuple[int, ...]

    def pages(self) -> Iterable[int]:
        """All pages, group by group."""
        return chain.from_iterable(self.tables)


def no_hits(groups: int) -> Hits:
    """Nothing was there."""
    return Hits(0, tuple([] for _ in range(groups)), (0,) * groups)


def find_hits(pages: SharedPages, layout: PageLayout, spans: Iterable[Span]) -> Hits:
    """The longest hit among the rows of ``spans``. O(rows hit) with full attention, O(rows) with windows."""
    if len(layout.groups) == 1 and layout.row_pages == 1 and layout.groups[0].window_tokens is None:
        found = pages.leading(spans)
        return Hits(len(found), (found,), (0,))
    rows_named = [(name, position) for name, first, last in spans for position in range(first, last)]
    columns = _columns(pages, layout, rows_named)
    rows = min(len(column) for column in columns)
    for group, column in zip(layout.groups, columns, strict=True):
        if group.window_tokens is None:
            rows = min(rows, next((row for row, found in enumerate(column) if found is None), rows))
    while rows and not all(
        _window_is_there(column, rows, _window_rows(group, layout.page_tokens))
        for group, column in zip(layout.groups, columns, strict=True)
    ):
        rows -= 1
    dropped = tuple(max(0, rows - _window_rows(group, layout.page_tokens)) for group in layout.groups)
    tables = tuple(
        [page for found in column[first:rows] if found is not None for page in found]
        for column, first in zip(columns, dropped, strict=True)
    )
    return Hits(rows, tables, dropped)


def _columns(pages: SharedPages, layout: PageLayout, rows: list[tuple[int, int]]) -> list[list[list[int] | None]]:
    """For each group and row (a name and a position) the pages found, or ``None`` when one of them is missing."""
    columns: list[list[list[int] | None]] = []
    slot = 0
    for group in layout.groups:
        slots = range(slot, slot + group.copies)
        column: list[list[int] | None] = []
        for name, position in rows:
            found = [
                page for slot in slots if (page := pages.find(name * layout.row_pages + slot, position)) is not None
            ]
            column.append(found if len(found) == group.copies else None)
        columns.append(column)
        slot += group.copies
    return columns


def _window_rows(group: PageGroup, page_tokens: int) -> int:
    """Rows that the next token sees before it; more than any sequence has for full attention."""
    return 1 << 62 if group.window_tokens is None else ceil_div(group.window_tokens - 1, page_tokens)


def _window_is_there(column: list[list[int] | None], rows: int, window_rows: int) -> bool:
    return all(column[row] is not None for row in range(rows - 1, max(0, rows - window_rows) - 1, -1))
