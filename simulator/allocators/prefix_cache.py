"""Pages with reference counts that remember what they hold after the last reader has left.

A page is *owned* (one reference or more), *cached* (none, but its content is known and can be found again) or *free*.
Cached pages are given up one by one, the least recently released first, only when nothing free is left; until then a
request that begins with the same content takes them back. So cached pages count as available.

The order of reuse is a queue of released pages, an ``OrderedDict``: append at the end, pop at the head, and removal
from the middle when a cached page is taken back are all O(1). Sequences release their last page first, so
of one chain the deepest page goes first and a prefix outlives what was built on it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain

from simulator.allocators.page_pool import PagePool
from simulator.config import FreeOrder


class SharedPages(PagePool):
    """A pool that counts the references to its pages and finds pages by key.

    ``order`` is that of pages without a key. With ``fifo`` they queue up together with the cached ones (vLLM 0.11);
    with any other they, and pages never used, are taken before any cached page (vLLM 0.6 and 0.33: ``lifo``).
    """

    def __init__(self, max_pages: int, order: FreeOrder, *, first_page: int = 0) -> None:
        super().__init__(max_pages, order, first_page=first_page)
        #: references to each page handed out so far
        self.references: list[int] = []
        #: sum of all references: the entries of all page tables
        self.total_references = 0
        #: cached pages now, and pages whose content has been given up so far
        self.cached_pages = 0
        self.evictions = 0
        #: changes whenever a look-up may be answered differently
        self.version = 0
        self._keys: list[int | None] = []
        self._pages: dict[int, int] = {}
        # key -> further pages with the same content, oldest first; vLLM v1 lets such pages live side by side
        self._twins: dict[int, list[int]] = {}
        self._released: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        """Pages that could be taken now: free and cached."""
        return super().__len__() + len(self._released)

    # ---- references

    def take(self, count: int) -> list[int]:
        """``count`` pages, each with one reference, in the order of reuse; the caller has checked that they exist."""
        assert 0 <= count <= len(self), f"{count} pages asked, {len(self)} available"
        taken = super().take(min(count, super().__len__()))
        self._know(taken)
        taken += self._reclaim(count - len(taken))
        references = self.references
        for page in taken:
            references[page] = 1
        self.total_references += count
        return taken

    def share(self, pages: Iterable[int]) -> int:
        """One more reference to each page; how many of them had none (were cached) before."""
        revived = count = 0
        references = self.references
        for page in pages:
            if references[page] == 0:
                assert page in self._released, f"page {page} is free and cannot be shared"
                del self._released[page]
                revived += 1
            references[page] += 1
            count += 1
        self.cached_pages -= revived
        self.total_references += count
        return revived

    def drop(self, pages: Sequence[int], request_id: int) -> int:
        """One reference less to each page, in this order; how many of them have none left.

        Raises ``AssertionError`` naming the request and the page if nobody holds it.
        """
        references, keys, released = self.references, self._keys, self._released
        one_queue = self.order == "fifo"
        unknown: list[int] = []
        kept = free = 0
        for page in pages:
            left = references[page] - 1
            assert left >= 0, f"request {request_id} releases page {page}, which nobody holds"
            references[page] = left
            if left:
                continue
            if keys[page] is not None:
                released[page] = None
                kept += 1
            elif one_queue:
                released[page] = None
                free += 1
            else:
                unknown.append(page)
        # of one release, the page released first is reused first
        self.give(reversed(unknown))
        self.cached_pages += kept
        self.total_references -= len(pages)
        return kept + free + len(unknown)

    # ---- content

    def find(self, key: int) -> int | None:
        """The page that has held the content ``key`` for longest, or ``None``."""
        return self._pages.get(key)

    def leading(self, keys: Iterable[range]) -> list[int]:
        """Pages of the keys up to the first that is not there."""
        found: list[int] = []
        pages = self._pages
        for key in chain.from_iterable(keys):
            page = pages.get(key)
            if page is None:
                break
            found.append(page)
        return found

    def name(self, pages: Iterable[int], keys: Iterable[int]) -> None:
        """Record the content of each page, unless it is known. A page found earlier for a key stays the one found."""
        known, found = self._keys, self._pages
        self.version += 1
        for page, key in zip(pages, keys, strict=True):
            if known[page] is None:
                assert self.references[page] > 0, f"page {page} is not held by anybody"
                known[page] = key
                if found.setdefault(key, page) != page:
                    self._twins.setdefault(key, []).append(page)

    # ---- looking

    def free_ids(self) -> list[int]:
        """Every page that could be taken, in the order of taking; O(pages), for checks and pictures only."""
        return super().free_ids() + list(self._released)

    def has_content(self, page: int) -> bool:
        """Whether the content of ``page`` is known and can be found."""
        return page < len(self._keys) and self._keys[page] is not None

    def check(self) -> None:
        """Assert that references, keys and the queue agree; O(pages), mostly at C speed: it runs at every step."""
        references, keys, pages, twins = self.references, self._keys, self._pages, self._twins
        assert self.total_references == sum(references), "the sum of references drifted"
        assert min(references, default=0) >= 0, "a page has a negative reference count"
        free, fresh = self.free_ids(), len(references)
        assert len(set(free)) == len(free) == len(self), "a page is free twice"
        assert not any(references[page] for page in free if page < fresh), "an owned page is free"
        unknown = list(map(keys.__getitem__, self._released)).count(None)
        assert len(self._released) - unknown == self.cached_pages, "the number of cached pages drifted"
        assert not any(map(self.has_content, PagePool.free_ids(self))), "a free page has a content"
        assert list(map(keys.__getitem__, pages.values())) == list(pages), "a page is found under another key"
        assert all(keys[twin] == key for key, others in twins.items() for twin in others), "a twin has another key"
        assert twins.keys() <= pages.keys(), "a twin has lost its first page"
        found = list(chain(pages.values(), *twins.values()))
        assert len(set(found)) == len(found) == len(keys) - keys.count(None), "the key map drifted"

    # ---- how

    def _know(self, pages: list[int]) -> None:
        """Make room in the per-page columns for pages handed out for the first time."""
        missing = max(pages, default=-1) + 1 - len(self.references)
        if missing > 0:
            self.references.extend([0] * missing)
            self._keys.extend([None] * missing)

    def _reclaim(self, count: int) -> list[int]:
        """The ``count`` pages released longest ago; what they held is forgotten."""
        released, keys, pages, twins = self._released, self._keys, self._pages, self._twins
        taken = []
        self.version += count
        for _ in range(count):
            page = released.popitem(last=False)[0]
            taken.append(page)
            key = keys[page]
            if key is None:
                continue
            keys[page] = None
            self.cached_pages -= 1
            self.evictions += 1
            if key in twins:
                self._forget_twin(page, key)
            else:
                del pages[key]
        return taken

    def _forget_twin(self, page: int, key: int) -> None:
        """Another page than ``page`` still holds the content ``key``."""
        twins = self._twins[key]
        if self._pages[key] == page:
            self._pages[key] = twins.pop(0)
        else:
            twins.remove(page)
        if not twins:
            del self._twins[key]
