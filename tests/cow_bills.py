"""``World`` with bills: what each operation on shared pages must cost, count and leave, by looking at the tables.

For plain pages (one table) whose rules neither merge equal pages nor share whole prompts. The order in which pages are
taken is kept as a list: without known content, last given back first; then never used; then cached, first released
first. With ``fifo`` all queue up together.
"""

from typing import Any

from cow_world import Sequence, World

from simulator.allocators.base import Shortfall, Totals, Work
from simulator.units import ceil_div

_ENTRY_BYTES = 4


class BilledWorld(World):
    """Every operation of ``World``, and what the engine will be told of it."""

    def __init__(self, *arguments: Any, page_cycles: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        assert self.exact and self.unit == 1
        self.page_cycles = page_cycles
        self.totals = Totals()
        self.admitted_once: set[int] = set()
        self.copies: list[tuple[int, int]] = []
        self.order = list(range(int(self.rules.null_page), self.usable_pages + int(self.rules.null_page)))

    # ---- operations

    def admit(self, sequence: Sequence, chunk_tokens: int) -> bool:
        hits = self.expected_hits(sequence)
        tokens = min(sequence.target_tokens, len(hits) * self.page_tokens + chunk_tokens)
        rows = ceil_div(tokens, self.page_tokens)
        revived = set(hits) - self.distinct_pages()
        before, shortfall = self.begin(), self.short(rows - len(hits) + len(revived))
        if not super().admit(sequence, chunk_tokens):
            if self.rules.counts_refused:
                self.looked_up(sequence, len(hits))
            self.refused(before, shortfall)
            return False
        self.looked_up(sequence, len(hits))
        self.admitted_once.add(sequence.request_id)
        self.order = [page for page in self.order if page not in revived]
        self.charge(rows - len(hits), entries=rows, unshared=rows)
        return True

    def looked_up(self, sequence: Sequence, hits: int) -> None:
        """The first admission of a request counts for the hit rate, a later one apart."""
        if self.caching and sequence.request_id in self.admitted_once:
            self.totals.resumed_look_ups += 1
        elif self.caching:
            self.totals.look_ups += 1
            self.totals.prefix_query_tokens += sequence.target_tokens
            self.totals.prefix_hit_tokens += hits * self.page_tokens

    def extend(self, sequence: Sequence, new_tokens: int) -> bool:
        holding, start = sequence.holding, sequence.computed_tokens
        assert holding is not None
        length = start + new_tokens
        called = length > holding.capacity_tokens or start < sequence.target_tokens
        pages = self._pages_to_reach(sequence, length)
        copied = pages - max(0, ceil_div(length, self.page_tokens) - len(holding.tables[0]))
        before, shortfall, last = self.begin(), self.short(pages), start // self.page_tokens
        shared = list(holding.tables[0][last : last + 1]) * copied
        if not super().extend(sequence, new_tokens):
            self.refused(before, shortfall)
            return False
        assert called or not pages
        assert self.copies == [(page, holding.tables[0][last]) for page in shared]
        copied_bytes = 2 * (start % self.page_tokens) * self.layout.bytes_per_token * copied
        self.totals.cow_copies += copied
        self.charge(pages, entries=pages, unshared=pages - copied, copied_bytes=copied_bytes)
        return True

    def fork(self, sequence: Sequence) -> Sequence:
        before = self.begin()
        rows = ceil_div(sequence.computed_tokens, self.page_tokens)
        child = super().fork(sequence)
        assert child.holding is not None and sequence.holding is not None
        assert self.tables()[:-1] == before
        assert list(child.holding.tables[0]) == list(sequence.holding.tables[0][:rows])
        self.charge(0, entries=rows, unshared=rows)
        return child

    def release(self, sequence: Sequence) -> None:
        self.begin()
        gone = self.given_back([sequence] if sequence.on_device else [])
        super().release(sequence)
        self.queue_up(gone)
        self.charge(0)

    def swap_out(self, group: list[Sequence]) -> bool:
        before, gone = self.begin(), self.given_back(group)
        left = super().swap_out(group)
        if left:
            self.queue_up(gone)
        else:
            assert self.tables() == before
        self.charge(0)
        return left

    def swap_in(self, group: list[Sequence]) -> bool:
        """Each page comes back once; of those who share a last page all but one then copy it."""
        copies = [one.holding.host_copy for one in group if one.holding and one.holding.host_copy]
        entries = sum(len(copy.tables[0]) for copy in copies)
        distinct = len({page for copy in copies for page in copy.tables[0]})
        rows = copied = filled = 0
        ends: set[int] = set()
        for copy, one in zip(copies, group, strict=True):
            length = one.computed_tokens
            rows += max(0, ceil_div(length + 1, self.page_tokens) - len(copy.tables[0]))
            if length % self.page_tokens and copy.tables[0][-1] in ends:
                copied, filled = copied + 1, filled + length % self.page_tokens
            ends.add(copy.tables[0][-1])
        pages = distinct + rows + copied
        before, shortfall, free = self.begin(), self.short(pages), len(self.order)
        returned = super().swap_in(group)
        assert returned == (pages <= free)
        if not returned:
            self.refused(before, shortfall)
            return False
        self.totals.cow_copies += copied
        copied_bytes = 2 * filled * self.layout.bytes_per_token
        # a page that comes back is taken once; whoever else has it adds a reference
        self.charge(pages, entries=pages + entries - distinct, unshared=rows + entries, copied_bytes=copied_bytes)
        return True

    def _copied(self, source: int, target: int, count: int) -> None:
        super()._copied(source, target, count)
        self.copies += [(source + offset, target + offset) for offset in range(count)]

    # ---- the order of pages

    def given_back(self, group: list[Sequence]) -> list[list[tuple[int, bool]]]:
        """Pages that nobody holds once ``group`` has left, in the order of leaving, and whether they are known."""
        tables = {id(one): list(one.holding.tables[0]) for one in self.sequences if one.on_device and one.holding}
        found = []
        for one in group:
            leaving = tables.pop(id(one))
            kept = {page for table in tables.values() for page in table}
            leaving = leaving[::-1] if self.rules.reverse_release else leaving
            found.append([(page, page in self.known) for page in leaving if page not in kept])
        return found

    def queue_up(self, given_back: list[list[tuple[int, bool]]]) -> None:
        for gone in given_back:
            if self.rules.free_order == "fifo":
                self.order += [page for page, _ in gone]
            else:
                self.order = [page for page, known in gone if not known] + self.order
                self.order += [page for page, known in gone if known]

    # ---- bills

    def begin(self) -> list[list[int]]:
        self.allocator.work.clear()
        self.copies = []
        self.cached = set(self.known) - self.distinct_pages()
        return self.tables()

    def tables(self) -> list[list[int]]:
        return [list(one.holding.tables[0]) for one in self.sequences if one.holding]

    def short(self, pages: int) -> Shortfall:
        """What a refusal of so many pages says."""
        size = self.layout.page_bytes
        return Shortfall("capacity", pages * size, len(self.order) * size, len(self.order) * size)

    def refused(self, before: list[list[int]], shortfall: Shortfall) -> None:
        assert self.allocator.shortfall == shortfall
        assert self.tables() == before
        self.charge(0)

    def charge(self, pages: int, *, entries: int = 0, unshared: int = 0, copied_bytes: int = 0) -> None:
        """The next ``pages`` in order were taken, and what they held is gone."""
        totals, allocator = self.totals, self.allocator
        taken, self.order = self.order[:pages], self.order[pages:]
        assert set(taken) <= self.distinct_pages()
        totals.pages_taken += pages
        totals.unshared_pages += unshared
        totals.evictions += len(self.cached.intersection(taken))
        # no step ends here, so all look-ups are recent
        totals.recent_query_tokens, totals.recent_hit_tokens = totals.prefix_query_tokens, totals.prefix_hit_tokens
        assert allocator.totals == totals
        assert allocator.work == Work(copied_bytes, pages * self.page_cycles, entries * _ENTRY_BYTES, pages)
        assert allocator.pages.free_ids() == self.order
        here = [one for one in self.sequences if one.on_device and one.holding]
        assert allocator.table_entries == sum(len(one.holding.tables[0]) for one in here if one.holding)
        assert allocator.owned_pages == len(self.distinct_pages())
        for one in self.sequences:
            assert one.holding is not None
            room = len(one.holding.tables[0]) * self.page_tokens
            assert one.holding.capacity_tokens in ((room, one.computed_tokens) if one.on_device else (0,))
