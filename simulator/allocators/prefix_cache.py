"""Pages with reference counts that remember what they hold after the last reader has left.

A page is *owned* (one reference or more), *cached* (none, but its content is known and can be found again) or *free*.
Cached pages are given up one by one, in the order of an ``EvictionOrder``, only when nothing free is left; until then a
request that begins with the same content takes them back. So cached pages count as available.

Everything that is known of a page stands in columns of integers (``content_index``, ``eviction``), some 40 bytes
a page.
"""

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from simulator.allocators.bulk import Column, Pages
from simulator.allocators.content_index import ContentIndex
from simulator.allocators.content_space import Numbers
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
        self._references = Column(0)
        #: sum of all references: the entries of all page tables
        self.total_references = 0
        #: cached pages now, and pages whose content has been given up so far
        self.cached_pages = 0
        self.evictions = 0
        #: another object whenever a look-up may be answered differently
        self.version = object()
        self.contents = ContentIndex()
        self._released = eviction_order(eviction_policy)
        #: whether pages are given up by what was built on them
        self.watches_use = self._released.watches_use

    def __len__(self) -> int:
        """Pages that could be taken now: free and cached."""
        return super().__len__() + self._released.count

    @property
    def references(self) -> "vec[i32]":
        """References to each page handed out so far."""
        return self._references.items

    # ---- references

    def take_many(self, count: int) -> Pages:
        """``count`` pages, each with one reference, in the order of reuse; the caller has checked that they exist."""
        free = min(super().__len__(), count)
        assert 0 <= count <= free + self._released.count, f"{count} pages asked, {len(self)} available"
        taken = vec[i64](capacity=count)
        if free:
            for page in super().take(free):
                taken = append(taken, page)
            self._cover(self._fresh)
        if count > free:
            for page in self._reclaim(count - free):
                taken = append(taken, page)
        references = self._references.items
        for taken_page in taken:
            references[taken_page] = 1
        self.total_references += count
        return taken

    def take(self, count: int) -> list[int]:
        """``take_many`` as a list."""
        return list(self.take_many(count))

    def cycles_to_find(self, pages: Pages) -> int:
        """``search_cycles`` of pages just taken."""
        each = self.cycles_per_page
        return self.search_cycles(list(pages)) if each is None else each * len(pages)

    def share(self, pages: Pages, *, priority: int = 0) -> int:
        """One more reference to each page, of a request of ``priority``; how many had none (were cached) before."""
        references = self._references.items
        revived = vec[i64](capacity=len(pages))
        for page in pages:
            if references[page] == 0:
                revived = append(revived, page)
        self._released.remove(revived)
        for page in pages:
            references[page] += 1
        self.cached_pages -= len(revived)
        if self.watches_use:
            self._released.used(pages, priority=priority)
        self.total_references += len(pages)
        return len(revived)

    def count_unreferenced(self, pages: Pages) -> int:
        """How many of ``pages`` nobody holds."""
        references, count = self._references.items, 0
        for page in pages:
            if references[page] == 0:
                count += 1
        return count

    def drop(self, pages: Pages, request_id: int) -> int:
        """One reference less to each page, in this order; how many of them have none left.

        Raises ``AssertionError`` naming the request and the page if nobody holds it.
        """
        references = self._references.items
        gone = vec[i64](capacity=len(pages))
        for page in pages:
            left = references[page] - 1
            assert left >= 0, f"request {request_id} releases page {page}, which nobody holds"
            references[page] = left
            if left == 0:
                gone = append(gone, page)
        self.total_references -= len(pages)
        self._let_go(gone)
        return len(gone)

    def _let_go(self, pages: Pages) -> None:
        """Nobody holds ``pages`` any more: those that can be found queue up, the others are free or queue up, too."""
        if self.order == "fifo":
            self.cached_pages += self.contents.count_known(pages)
            self._released.extend(pages)
            return
        known = vec[i64](capacity=len(pages))
        unknown: list[int] = []
        for page in pages:
            if self.contents.knows(page):
                known = append(known, page)
            else:
                unknown.append(page)
        self.cached_pages += len(known)
        self._released.extend(known)
        # of one release, the page released first is reused first
        unknown.reverse()
        self.give(unknown)

    # ---- content

    def built(self, pages: Pages, *, on: int, priority: int) -> None:
        """Tell the order of eviction, if it ``watches_use``, of pages that follow each other in a table and are about
        to be named for a request of ``priority``. The first one follows the page ``on`` (-1: none)."""
        for page in pages:
            if not self.contents.knows(page):
                self._released.built(page, on=on, priority=priority)
            on = page

    def name(self, pages: Pages, numbers: Numbers) -> None:
        """Record the content of ``pages`` where it is not known. A page found earlier for a content stays the one
        found."""
        self.version = object()
        self.contents.name(pages, numbers)

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
        self._references.cover(pages)
        self.contents.cover(pages)
        self._released.cover(pages)

    def _reclaim(self, count: int) -> Pages:
        """The next ``count`` pages to be given up; what they held is forgotten."""
        taken = self._released.take(count)
        self.version = object()
        known = self.contents.forget(taken)
        self.cached_pages -= known
        self.evictions += known
        return taken
