"""Paged KV memory whose pages are shared: prefixes among requests, samples of one request, copy-on-write.

A page has as many references as page tables name it. Full pages are found again by content (``page_keys``), also after
their last reader has left (``prefix_cache``). A fork shares every page, the last, partly filled one too; who first
writes into such a page gets a copy of its filled part, and the last holder writes in place.

Full pages become findable when the step that computes them is scheduled: ``admit`` and ``grow`` see to it for the
tokens they are asked for. A page filled by decoding becomes findable at the next ``grow`` or at ``release``, whichever
comes first; until then it is private to the sequence, so nobody can tell. Nothing here walks the pool.
"""

from collections.abc import Iterable, Sequence
from typing import cast

from librt.vecs import append

from simulator.allocators.base import Demand, Holding
from simulator.allocators.bulk import page_array
from simulator.allocators.cow_check import check_sharing
from simulator.allocators.host_pool import HostCopy, HostPool
from simulator.allocators.look_ups import LookUps
from simulator.allocators.page_contents import PageContents, page_contents
from simulator.allocators.page_keys import SharedDemand
from simulator.allocators.paged import PagedHolding, PageLayout
from simulator.allocators.prefix_hits import Asked, Hits, find_hits, no_hits
from simulator.allocators.shared_tables import SharedTables
from simulator.allocators.sharing import RULES, CowHolding, SharingRules, priority_of, table_of
from simulator.config import EvictionPolicy
from simulator.units import ceil_div


class PagedCowAllocator(SharedTables):
    """Paged with reference counts. Demands must be ``SharedDemand``; ``host`` is where pages are swapped to.

    Layouts with several groups are supported. With window layers a hit needs the last window of pages in each window
    group, and starts with the earlier rows dropped.
    """

    kind = "paged_cow"
    can_fork = True

    def __init__(
        self,
        layout: PageLayout,
        *,
        max_pages: int,
        rules: SharingRules = RULES["generic"],
        enable_prefix_caching: bool = True,
        chunk_tokens: int = 0,
        host: HostPool | None = None,
        eviction_policy: EvictionPolicy = "lru",
        hit_rate_window: int = 1000,
    ) -> None:
        super().__init__(
            layout,
            max_pages=max_pages,
            rules=rules,
            chunk_tokens=chunk_tokens,
            host=host,
            eviction_policy=eviction_policy,
        )
        self.rules = rules
        self.enable_prefix_caching = self.caches_prefixes = enable_prefix_caching
        one_table = self._row_pages == 1 and not self._windowed
        self._names_at_once = one_table and not (rules.deduplicate or rules.computed_next_step)
        # a page is named when the next one is taken, never in the step that begins it
        self._grows_simply = self._names_at_once and layout.page_tokens > 1
        self._cycles_per_page = self._cycles_per_page if self._grows_simply else None
        self.cycles_per_page = self._cycles_per_page
        self._uncomputed: set[int] = set()
        # a blocked request asks again at every step
        self._asked_last: Asked | None = None
        self._look_ups = LookUps(hit_rate_window)
        # what the request refused last knows and hits, in tokens
        self._refused = (0, 0)

    # ---- asking

    def hit_tokens(self, demand: Demand, tokens: int) -> int:
        return self._computed_tokens(self._hits(demand, tokens), tokens)

    def check(self, holdings: Iterable[Holding]) -> None:
        check_sharing(self, [holding for holding in holdings if isinstance(holding, CowHolding)])

    def sure_to_grow(self, sequences: int, tokens: int) -> bool:
        # A single token needs a new row or a copy of the last one, never both.
        return super().sure_to_grow(sequences, tokens if tokens == 1 else tokens + self.layout.page_tokens)

    # ---- acting

    def admit(
        self, demand: Demand, tokens: int, *, whole_tokens: int = 0, keep_free_bytes: int = 0
    ) -> CowHolding | None:
        known_tokens = cast(SharedDemand, demand).target_tokens
        hits = self._hits(demand, known_tokens)
        needed = max(0, ceil_div(tokens, self.layout.page_tokens) - hits.rows) * self._row_pages
        asked = self._pages_asked(hits, needed, tokens, whole_tokens)
        if not self._enough(asked + keep_free_bytes // self.layout.page_bytes):
            if self.rules.counts_refused:
                self._refused = known_tokens, self._computed_tokens(hits, known_tokens)
                self._count_look_up(demand, *self._refused)
            return None
        holding = CowHolding(demand, len(self.layout.groups))
        holding.hit_tokens = self._computed_tokens(hits, known_tokens)
        holding.registered = hits.rows
        holding.contents = self._asked_last.contents if self._asked_last is not None else None
        self._attach(holding, rows=hits.rows, tables=hits.tables, dropped=hits.dropped)
        self._set_early(holding, max(0, hits.rows * self.layout.page_tokens - tokens))
        self._count_look_up(demand, known_tokens, holding.hit_tokens)
        self._look_ups.admit(demand)
        self._extend(holding, needed)
        self.register(holding, min(tokens, known_tokens))
        return holding

    def refused_again(self, demand: Demand, times: int) -> None:
        if self.rules.counts_refused and times:
            self._count_look_up(demand, *self._refused, more_steps=times)

    def grow(self, holding: Holding, tokens: int, new_tokens: int = 1) -> bool:
        assert isinstance(holding, CowHolding)
        start = tokens - new_tokens
        if self._windowed:
            self._drop_unseen(holding, start)
        self.register(holding, start)
        needed = self._pages_missing(holding, tokens)
        tail = holding.shared_tail
        if not self._enough(needed if tail is None else needed + self._row_pages):
            return False
        if tail is not None:
            self._copy_tail(holding, tail)
        if holding.early_tokens:
            self._set_early(holding, max(0, holding.early_tokens - new_tokens))
        self._extend(holding, needed)
        known_tokens = max(cast(SharedDemand, holding.demand).target_tokens, start + 1)
        self.register(holding, min(tokens, known_tokens))
        return True

    def grow_each(self, holdings: list[Holding]) -> None:
        # One new page each and one that has become full: what decoding asks for all the time.
        if not self._grows_simply or _any_writes_into_shared(holdings):
            super().grow_each(holdings)
            return
        for holding in holdings:
            self.register(holding, holding.capacity_tokens)
        page_tokens = self.layout.page_tokens
        pages = self._take_many(len(holdings))
        for at, holding in enumerate(holdings):
            assert isinstance(holding, CowHolding)
            table = append(table_of(holding, 0), pages[at])
            holding.tables[0] = table
            self._set_held(holding, holding.held_tokens + page_tokens)
            holding.capacity_tokens = holding.held_tokens
        self._count(0, owned=len(holdings))

    def fork(self, parent: Holding, demand: Demand, tokens: int) -> CowHolding:
        """A second sequence with the ``tokens`` tokens that ``parent`` has now. Takes no page."""
        assert isinstance(parent, CowHolding)
        assert 0 < tokens <= parent.held_tokens, (
            f"request {demand.request_id}: fork at {tokens} of {parent.held_tokens}"
        )
        self.register(parent, tokens)
        rows = ceil_div(tokens, self.layout.page_tokens)
        child = CowHolding(demand, len(self.layout.groups))
        child.hit_tokens = tokens
        child.registered = min(parent.registered, rows)
        self._attach(
            child,
            rows=rows,
            tables=[
                table_of(parent, index)[: (rows - parent.dropped[index]) * group.copies]
                for index, group in enumerate(self.layout.groups)
            ],
            dropped=parent.dropped,
        )
        if tokens < child.held_tokens:
            self._share_tail(parent, child, tokens)
        return child

    def register(self, holding: Holding, tokens: int) -> None:
        """Make the full pages among the first ``tokens`` tokens findable: their KV is there or is scheduled to be."""
        assert isinstance(holding, CowHolding)
        if not self.rules.names_outputs and tokens < holding.demand.final_tokens:
            tokens = min(tokens, holding.demand.prompt_tokens)
        rows = tokens // self.layout.page_tokens
        first = holding.registered
        if rows <= first or not self.enable_prefix_caching:
            return
        holding.registered = rows
        contents = self._contents_of(holding, tokens)
        if not self._names_at_once:
            for row in range(first, rows):
                self._name_row(holding, row, contents)
            return
        table, numbers = table_of(holding, 0), contents.numbers[0]
        if self.pages.watches_use:
            below = table[first - 1] if first else -1
            self.pages.built(table[first:rows], on=below, priority=priority_of(holding))
        self.pages.name(table[first:rows], numbers[first:rows])

    def release(self, holding: Holding) -> None:
        assert isinstance(holding, CowHolding)
        if holding.host_copy is None:
            self._register_computed(holding)
        super().release(holding)

    def maintenance_due_ns(self, now_ns: int) -> int | None:
        return now_ns if self._uncomputed else None

    def maintain(self, now_ns: int, holdings: Iterable[Holding] = ()) -> bool:
        """A step is over: what it computed saves computing from now on."""
        del now_ns, holdings
        self._look_ups.end_step(self.totals)
        self._uncomputed.clear()
        return False

    # ---- how: hits

    def _hits(self, demand: Demand, known_tokens: int) -> Hits:
        if not self.enable_prefix_caching:
            return no_hits(len(self.layout.groups))
        asked = self._asked_last
        if asked is not None and asked.demand is demand and asked.known_tokens == known_tokens:
            if asked.version is self.pages.version:
                return asked.hits
        else:
            asked = self._asked_last = Asked(demand, known_tokens, self._contents(demand, known_tokens))
        if asked.contents.epoch != self.pages.contents.epoch:
            asked.contents = self._contents(demand, known_tokens)
        limit = known_tokens if self.rules.share_whole_prompt else known_tokens - 1
        rows = limit // self.layout.page_tokens
        asked.hits = find_hits(self.pages, self.layout, asked.contents.numbers, rows)
        asked.version = self.pages.version
        if self._windowed:
            # What is computed again must see its window, and a hit brings only the window of its end.
            while (
                rows := self._computed_tokens(asked.hits, known_tokens) // self.layout.page_tokens
            ) < asked.hits.rows:
                asked.hits = find_hits(self.pages, self.layout, asked.contents.numbers, rows)
            if self._uncomputed:
                asked.version = None  # they will be computed without a new version
        return asked.hits

    def _computed_tokens(self, hits: Hits, known_tokens: int) -> int:
        """Tokens of a hit that need no computing: never the last one known, whole pages."""
        page_tokens = self.layout.page_tokens
        rows = min(hits.rows, (known_tokens - 1) // page_tokens)
        if self._uncomputed:
            for at, page in enumerate(list(hits.pages())):
                if page in self._uncomputed:
                    rows = min(rows, at // self._row_pages)
                    break
        return rows * page_tokens

    def _pages_asked(self, hits: Hits, needed: int, tokens: int, whole_tokens: int) -> int:
        """Pages that must be available to admit: new ones, and one for each cached page that stops being available."""
        whole_tokens = max(tokens, whole_tokens)
        if self.rules.charge_hits:
            return self.peak_pages(whole_tokens, whole_tokens)
        pages = hits.pages()
        if whole_tokens > tokens:
            missing_tokens = whole_tokens - hits.rows * self.layout.page_tokens
            needed = max(needed, self.peak_pages(missing_tokens, whole_tokens) - len(pages))
        return needed + self.pages.count_unreferenced(pages)

    def _count_look_up(self, demand: Demand, known_tokens: int, hit_tokens: int, more_steps: int = 0) -> None:
        if self.enable_prefix_caching:
            self._look_ups.count(self.totals, demand, known_tokens, hit_tokens, more_steps=more_steps)

    # ---- how: content

    def _register_computed(self, holding: CowHolding) -> None:
        self.register(holding, min(cast(SharedDemand, holding.demand).computed_tokens, holding.held_tokens))

    def _contents_of(self, holding: CowHolding, tokens: int) -> PageContents:
        contents = holding.contents
        if contents is None or contents.epoch != self.pages.contents.epoch:
            holding.contents = contents = self._contents(holding.demand, tokens)
        return contents

    def _contents(self, demand: Demand, tokens: int) -> PageContents:
        return page_contents(
            self.pages.contents,
            cast(SharedDemand, demand),
            tokens,
            page_tokens=self.layout.page_tokens,
            slots=self._row_pages,
        )

    def _name_row(self, holding: CowHolding, row: int, contents: PageContents) -> None:
        """Give the pages of one row their contents, one for each group and copy."""
        slot = 0
        for index, group in enumerate(self.layout.groups):
            table = holding.tables[index]
            entry = (row - holding.dropped[index]) * group.copies
            for copy in range(group.copies if entry >= 0 else 0):
                # a sibling that shares the page may have named it
                if not self.pages.has_content(table[entry + copy]):
                    self._name(holding, index, entry + copy, contents.numbers[slot + copy][row])
            slot += group.copies

    def _name(self, holding: CowHolding, index: int, entry: int, number: int) -> None:
        """Record what a page holds; if equal pages are merged, one that holds the same already takes its place."""
        table, demand = holding.tables[index], holding.demand
        page, priority = table[entry], priority_of(holding)
        # a page with other readers stays: taking up a cached twin would then cost a page that nobody has asked for
        alone = self.pages.references[page] == 1
        twin = self.pages.contents.find(number) if self.rules.deduplicate and alone else None
        if twin is None:
            below = entry - self.layout.groups[index].copies
            self.pages.built(page_array([page]), on=table[below] if below >= 0 else -1, priority=priority)
            self.pages.name(page_array([page]), page_array([number]))
            # generated pages are found by nobody but their own sequence, when it resumes
            if self.rules.computed_next_step and holding.registered * self.layout.page_tokens <= demand.prompt_tokens:
                self._uncomputed.add(page)
        else:
            self._share(index, page_array([twin]), priority=priority)
            self._unshare(holding, index, page_array([page]))
            table[entry] = twin
            self.totals.unshared_pages -= self.unit

    def _host_copy(self, holding: PagedHolding, place: dict[int, int]) -> HostCopy:
        assert isinstance(holding, CowHolding)
        self._register_computed(holding)
        return super()._host_copy(holding, place)

    def _restore(self, moved: Sequence[tuple[PagedHolding, HostCopy]], pages: dict[int, int]) -> None:
        super()._restore(moved, pages)
        for holding, copy in moved:
            self.register(holding, copy.registered * self.layout.page_tokens)


def _any_writes_into_shared(holdings: list[Holding]) -> bool:
    """Whether the next token of one goes to a page that others read, or that was hit and is computed again."""
    for holding in holdings:
        assert isinstance(holding, CowHolding)
        if holding.shared_tail is not None or holding.early_tokens > 0:
            return True
    return False
