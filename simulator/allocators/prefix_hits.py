"""Which leading pages of a new sequence are there already.

Full attention needs every page from the first on. A window of ``W`` tokens needs only the pages that hold the last
``W - 1`` of the tokens hit, so a hit may end before a page that is missing further left. With both, a hit must satisfy
each group (``vllm/v1/core/single_type_kv_cache_manager.py``, ``kv_cache_coordinator.py``).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from simulator.allocators.base import Demand
from simulator.allocators.bulk import Pages, joined, page_array
from simulator.allocators.content_space import Numbers
from simulator.allocators.page_contents import PageContents
from simulator.allocators.paged import PageGroup, PageLayout
from simulator.allocators.prefix_cache import SharedPages
from simulator.units import ceil_div

Found = npt.NDArray[np.int64]


class Hits:
    """``rows`` leading rows hit; ``tables[g]`` are the pages of group ``g`` for the rows after ``dropped[g]``."""

    __slots__ = ("dropped", "rows", "tables")

    def __init__(self, rows: int, tables: list[Pages], dropped: list[int]) -> None:
        self.rows = rows
        self.tables = tables
        self.dropped = dropped

    def pages(self) -> Pages:
        """All pages, group by group."""
        pages = self.tables[0]
        for further in self.tables[1:]:
            pages = joined(pages, further)
        return pages


def no_hits(groups: int) -> Hits:
    """Nothing was there."""
    return Hits(0, [page_array(()) for _ in range(groups)], [0] * groups)


class Asked:
    """What the pool has, at one ``version`` of its pages, of ``demand`` with ``known_tokens`` known tokens. ``hits``
    and ``version`` are whoever's it is to look."""

    __slots__ = ("contents", "demand", "hits", "known_tokens", "version")

    hits: Hits
    version: object

    def __init__(self, demand: Demand, known_tokens: int, contents: PageContents) -> None:
        self.demand = demand
        self.known_tokens = known_tokens
        self.contents = contents


def find_hits(pages: SharedPages, layout: PageLayout, numbers: Sequence[Numbers], rows: int) -> Hits:
    """The longest hit among the first ``rows`` rows, whose contents are ``numbers``, by slot. O(rows)."""
    if layout.row_pages == 1 and layout.groups[0].window_tokens is None:
        found = pages.contents.leading(numbers[0][:rows])
        return Hits(len(found), [found], [0])
    columns = _columns(pages, layout, numbers, rows)
    fits = np.ones(rows, np.bool_)
    windows = [_window_rows(group, layout.page_tokens, rows) for group in layout.groups]
    for window, column in zip(windows, columns, strict=True):
        fits &= _there_since(column) <= np.maximum(0, np.arange(1, rows + 1) - window)
    there = np.flatnonzero(fits)
    rows = int(there[-1]) + 1 if len(there) else 0
    dropped = [max(0, rows - window) for window in windows]
    tables = [
        page_array(column[:, first:rows].T.ravel().tolist()) for column, first in zip(columns, dropped, strict=True)
    ]
    return Hits(rows, tables, dropped)


def _columns(pages: SharedPages, layout: PageLayout, numbers: Sequence[Numbers], rows: int) -> list[Found]:
    """For each group the pages found [copies, rows], negative where there are none."""
    columns: list[Found] = []
    slot = 0
    for group in layout.groups:
        slots = range(slot, slot + group.copies)
        columns.append(np.stack([pages.contents.find_each(numbers[slot])[:rows] for slot in slots]))
        slot += group.copies
    return columns


def _there_since(column: Found) -> Found:
    """For each row the first one from which on all pages up to it are there; the next one if it has none itself."""
    rows = np.arange(column.shape[1])
    return np.maximum.accumulate(np.where((column < 0).any(axis=0), rows + 1, 0))


def _window_rows(group: PageGroup, page_tokens: int, rows: int) -> int:
    """Rows, of ``rows``, that the next token sees before it."""
    return rows if group.window_tokens is None else ceil_div(group.window_tokens - 1, page_tokens)
