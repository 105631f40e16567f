"""Pages with reference counts that remember what they hold after the last reader has left.

A page is *owned* (one reference or more), *cached* (none, but its content is known and can be found again) or *free*.
Cached pages are given up one by one, in the order of an ``EvictionOrder``, only when nothing free is left; until then a
request that begins with the same content takes them back. So cached pages count as available.

Everything that is known of a page stands in columns of integers (``content_index``, ``eviction``), some 30 bytes
a page.
"""

from array import array
from collections.abc import Iterable, Sequence

from simulator.allocators.bulk import BULK_PAGES, page_array, view
from simulator.allocators.content_index import ContentIndex, Span
from simulator.allocators.eviction import eviction_order
from simulator.allocators.page_pool import PagePool
from simulator.config import EvictionPolicy, FreeOrder


class SharedPages(PagePool):
    """A pool that counts the references to its pages and finds pages by content.

    ``order`` is that of pages without known content. With ``fifo`` they queue up together with the cached ones (vLLM
    0.11, ``lru`` only); with any other they, and pages never used, are taken before any cached page (vLLM 0.6 and 0.33:
    ``lifo``).
    """

    def __init__(
        self, max_pages: int, order: FreeOrder, *, first_page: int = 0, eviction_policy: EvictionPolicy = "lru"
    ) -> None:
        assert order != "fifo" or eviction_policy == "lru", "one queue of free and cached pages is lru"
        super().__init__(max_pages, order, first_page=first_page)
        #: references to each page handed out so far
        self.references = array("i")
        #: sum of all references: the entries of all page tables
        self.total_references = 0
        #: cached pages now, and pages whose content has been given up so far
        self.cached_pages = 0
        self.evictions = 0
        #: changes whenever a look-up may be answered differently
        self.version = 0
        self.contents = ContentIndex()
        self._released = eviction_order(eviction_policy)

    def __len__(self) -> int:
        """Pages that could be taken now: free and cached."""
        free = self.max_pages - self._fresh + len(self._recycled) - self._head
        return free + self._released.count

    # ---- references

    def take(self, count: int) -> list[int]:
        """``count`` pages, each with one reference, in the order of reuse; the caller has checked that they exist."""
        free = len(self) - self._released.count
        assert 0 <= count <= free + self._released.count, f"{count} pages asked, {len(self)} available"
        taken = super().take(min(count, free)) if free else []
        if self._fresh > len(self.references):
            self._cover(self._fresh)
        if len(taken) < count:
            taken += self._reclaim(count - len(taken))
        self.total_references += count
        if count >= BULK_PAGES:
            view(self.references)[page_array(taken)] = 1
            return taken
        references = self.references
        for page in taken:
            references[page] = 1
        return taken

    def share(self, pages: Sequence[int], *, priority: int = 0) -> int:
        """One more reference to each page, of a request of ``priority``; how many had none (were cached) before."""
        released = self._released
        revived = self._refer_to_many(pages) if len(pages) >= BULK_PAGES else self._refer_to(pages)
        if released.watches_use:
            released.used(pages, priority=priority)
        self.cached_pages -= revived
        self.total_references += len(pages)
        return revived

    def _refer_to(self, pages: Sequence[int]) -> int:
        revived = 0
        references, released = self.references, self._released
        for page in pages:
            if references[page] == 0:
                released.remove(page)
                revived += 1
            references[page] += 1
        return revived

    def _refer_to_many(self, pages: Sequence[int]) -> int:
        at, references = page_array(pages), view(self.references)
        cached = at[references[at] == 0].tolist()
        for page in cached:
            self._released.remove(page)
        references[at] += 1
        return len(cached)

    def drop(self, pages: Sequence[int], request_id: int) -> int:
        """One reference less to each page, in this order; how many of them have none left.

        Raises ``AssertionError`` naming the request and the page if nobody holds it.
        """
        gone = self._let_go_of_many(pages) if len(pages) >= BULK_PAGES else None
        kept, unknown, cached = gone or self._let_go_of(pages, request_id)
        if kept:
            self._released.extend(kept)
        if unknown:
            # of one release, the page released first is reused first
            self.give(reversed(unknown))
        self.cached_pages += cached
        self.total_references -= len(pages)
        return len(kept) + len(unknown)

    def _let_go_of(self, pages: Sequence[int], request_id: int) -> tuple[list[int], list[int], int]:
        """Of the pages that have no reference left: those that queue up, the others, and how many of all are known."""
        references, line_of = self.references, self.contents.line_of
        one_queue = self.order == "fifo"
        kept: list[int] = []
        unknown: list[int] = []
        cached = 0
        for page in pages:
            left = references[page] - 1
            assert left >= 0, f"request {request_id} releases page {page}, which nobody holds"
            references[page] = left
            if left:
                continue
            if line_of[page] >= 0:
                kept.append(page)
                cached += 1
            elif one_queue:
                kept.append(page)
            else:
                unknown.append(page)
        return kept, unknown, cached

    def _let_go_of_many(self, pages: Sequence[int]) -> tuple[list[int], list[int], int] | None:
        """``_let_go_of``, unless somebody holds one of them no more."""
        at, references = page_array(pages), view(self.references)
        left = references[at] - 1
        if left.min() < 0:
            return None
        references[at] = left
        free = at[left == 0]
        known = view(self.contents.line_of)[free] >= 0
        if self.order == "fifo":
            return free.tolist(), [], int(known.sum())
        kept: list[int] = free[known].tolist()
        return kept, free[~known].tolist(), len(kept)

    # ---- content

    def find(self, name: int, position: int) -> int | None:
        """The page that has held this content for longest, or ``None``."""
        return self.contents.find(name, position)

    def leading(self, spans: Iterable[Span]) -> list[int]:
        """Pages of the spans up to the first content that is not there."""
        return self.contents.leading(spans)

    def name(self, pages: Sequence[int], spans: Iterable[Span], *, below: int | None = None, priority: int = 0) -> None:
        """Record the content of pages that follow each other in a table, the first after the page ``below``, where it
        is not known. A page found earlier for a content stays the one found. ``priority`` is that of the request."""
        self.version += 1
        if self._released.watches_use:
            for page in pages:
                if not self.contents.knows(page):
                    self._released.built(page, on=below, priority=priority)
                below = page
        self.contents.name(pages, spans)

    def has_content(self, page: int) -> bool:
        """Whether the content of ``page`` is known and can be found."""
        return self.contents.knows(page)

    # ---- looking

    def free_ids(self) -> list[int]:
        """Every page that could be taken, in the order of taking; O(pages), for checks and pictures only."""
        return super().free_ids() + list(self._released)

    def check(self) -> None:
        """Assert that references, contents and the order of eviction agree; O(pages), mostly at C speed: it runs at
        every step."""
        references, knows = self.references, self.contents.knows
        assert self.total_references == sum(references), "the sum of references drifted"
        assert min(references, default=0) >= 0, "a page has a negative reference count"
        free, fresh = self.free_ids(), len(references)
        assert len(set(free)) == len(free) == len(self), "a page is free twice"
        assert not any(references[page] for page in free if page < fresh), "an owned page is free"
        assert sum(map(knows, self._released)) == self.cached_pages, "the number of cached pages drifted"
        assert not any(map(knows, PagePool.free_ids(self))), "a free page has a content"
        self.contents.check()

    # ---- how

    def _cover(self, pages: int) -> None:
        """Make room in the columns for page ids handed out for the first time, all below ``pages``."""
        self.references.extend(array("i", (0,)) * (pages - len(self.references)))
        self.contents.cover(pages)
        self._released.cover(pages)

    def _reclaim(self, count: int) -> list[int]:
        """The next ``count`` pages to be given up; what they held is forgotten."""
        taken = self._released.take(count)
        self.version += count
        known = self.contents.forget(taken)
        self.cached_pages -= known
        self.evictions += known
        return taken
