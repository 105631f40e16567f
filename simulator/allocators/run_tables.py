"""Which table entry names each page, and into how many pieces of adjacent pages the tables fall.

Compaction moves a page and must rewrite the one entry that names it, in O(1): so every page in use knows its
holding, group and entry. The number of pieces (*bursts*) is kept exact with every change, because the length of
a piece is what a transfer can read at once.
"""

from collections.abc import Iterable, Sequence

from simulator.allocators.base import Demand
from simulator.allocators.bulk import Column
from simulator.allocators.paged import PagedHolding, PageGroup


class RunHolding(PagedHolding):
    """A paged holding that knows its number among all holdings (``slot``, -1 when it has ended) and, for each group,
    how many pieces of adjacent pages its tables consist of (``bursts``)."""

    __slots__ = ("bursts", "slot")

    def __init__(self, demand: Demand, groups: int) -> None:
        super().__init__(demand, groups)
        self.slot = -1
        self.bursts = [0] * groups


class RunTables:
    """Owners of pages and pieces of tables, for all live holdings of one allocator.

    Entries are counted from the start of the sequence, dropped rows included, ``copies`` to a row.
    """

    def __init__(self, groups: Sequence[PageGroup]) -> None:
        #: pieces of adjacent pages over all tables
        self.bursts = 0
        self._copies = [group.copies for group in groups]
        self._slots: list[RunHolding | None] = []
        self._spare_slots: list[int] = []
        # by page
        self._owner = Column(0)
        self._entry = Column(0)

    def seat(self, holding: RunHolding) -> None:
        """Take up a new holding, whose tables are still empty."""
        if self._spare_slots:
            holding.slot = self._spare_slots.pop()
            self._slots[holding.slot] = holding
        else:
            holding.slot = len(self._slots)
            self._slots.append(holding)

    def unseat(self, holding: RunHolding) -> None:
        """Forget a holding that has given everything back."""
        self.bursts -= sum(holding.bursts)
        holding.bursts = [0] * len(holding.bursts)
        self._slots[holding.slot] = None
        self._spare_slots.append(holding.slot)
        holding.slot = -1

    def append(self, holding: RunHolding, index: int, pages: list[int]) -> None:
        """Add whole rows of pages to the table of group ``index``."""
        before = len(holding.tables[index])
        holding.tables[index] += pages
        self._know(holding, index, before)

    def adopt(self, holding: RunHolding) -> None:
        """Take up a holding whose tables have been filled already."""
        self.seat(holding)
        for index in range(len(self._copies)):
            self._know(holding, index, 0)

    def _know(self, holding: RunHolding, index: int, first: int) -> None:
        """Take note of the pages in a table from its entry ``first`` on."""
        table, copies = holding.tables[index], self._copies[index]
        pages = table[first:]
        if not pages:
            return
        self._add(holding, index, _count_bursts(table, first, copies))
        self._cover(max(pages))
        owner = holding.slot * len(self._copies) + index
        owners, entries = self._owner.items, self._entry.items
        for entry, page in enumerate(pages, first + holding.dropped[index] * copies):
            owners[page] = owner
            entries[page] = entry

    def bursts_of_first_rows(self, holding: RunHolding, index: int, rows: int) -> int:
        """Pieces that begin in the oldest ``rows`` rows of a table."""
        copies = self._copies[index]
        return _count_bursts(holding.tables[index][: rows * copies], 0, copies)

    def forget(self, holding: RunHolding, index: int, bursts: int) -> None:
        """Take note that a table consists of ``bursts`` pieces fewer."""
        self._add(holding, index, -bursts)

    def rename(self, source: int, target: int) -> None:
        """Let the entry that names page ``source`` name ``target``."""
        slot, index = divmod(self._owner.items[source], len(self._copies))
        holding, copies = self._slots[slot], self._copies[index]
        assert holding is not None, f"page {source} belongs to nobody"
        table, entry = holding.tables[index], self._entry.items[source] - holding.dropped[index] * copies
        assert 0 <= entry < len(table) and table[entry] == source, (
            f"request {holding.demand.request_id} does not hold page {source} at entry {entry}"
        )
        before = _bursts_around(table, entry, copies)
        table[entry] = target
        self._add(holding, index, _bursts_around(table, entry, copies) - before)
        self._cover(target)
        owners, entries = self._owner.items, self._entry.items
        owners[target], entries[target] = owners[source], entries[source]

    def check(self, live: Sequence[RunHolding]) -> None:
        """Assert that ``live`` is who is seated, that every page knows its entry, and that pieces are counted right."""
        seated = [holding for holding in self._slots if holding is not None]
        assert len(seated) == len(live), "a holding was lost or is unknown"
        bursts = 0
        for holding in live:
            name = f"request {holding.demand.request_id}"
            assert holding.slot >= 0 and self._slots[holding.slot] is holding, f"{name} lost its slot"
            for index, copies in enumerate(self._copies):
                counted = _count_bursts(holding.tables[index], 0, copies)
                assert counted == holding.bursts[index], f"{name}: pieces of adjacent pages miscounted"
                bursts += counted
                self._check_owners(holding, index)
        assert bursts == self.bursts, "the sum of pieces drifted"

    def _check_owners(self, holding: RunHolding, index: int) -> None:
        owner = holding.slot * len(self._copies) + index
        first = holding.dropped[index] * self._copies[index]
        for entry, page in enumerate(holding.tables[index], first):
            assert (self._owner.items[page], self._entry.items[page]) == (owner, entry), (
                f"page {page} does not know that request {holding.demand.request_id} holds it at entry {entry}"
            )

    def _add(self, holding: RunHolding, index: int, bursts: int) -> None:
        holding.bursts[index] += bursts
        self.bursts += bursts

    def _cover(self, page: int) -> None:
        """Make room for what is to be known of ``page``."""
        self._owner.cover(page + 1)
        self._entry.cover(page + 1)


def mean_run_pages(holdings: Iterable[PagedHolding], groups: Sequence[PageGroup]) -> float:
    """Mean length of the pieces of adjacent pages in the tables of any paged allocator; 1 when there are none.

    Walks all tables: for samples of allocators that do not keep count.
    """
    pages = bursts = 0
    for holding in holdings:
        for table, group in zip(holding.tables, groups, strict=True):
            pages += len(table)
            bursts += _count_bursts(table, 0, group.copies)
    return pages / bursts if bursts else 1.0


def _count_bursts(table: Sequence[int], first: int, copies: int) -> int:
    """Entries from ``first`` on that do not continue the page one row above them."""
    start = max(first, copies)
    starts = max(0, min(copies, len(table)) - first)
    above = table[start - copies :]
    return starts + sum(page - before != 1 for before, page in zip(above, table[start:], strict=False))


def _bursts_around(table: Sequence[int], entry: int, copies: int) -> int:
    """Pieces that begin at ``entry`` or at the row below it."""
    starts_here = entry < copies or table[entry] - table[entry - copies] != 1
    below = entry + copies
    return starts_here + (below < len(table) and table[below] - table[entry] != 1)
