"""Host memory that holds the pages of preempted sequences until there is room on the device again.

The sequences of one request move together, and a page they share moves once. A move is all or nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, cast

from simulator.allocators.base import Allocator, Holding
from simulator.allocators.page_pool import PagePool
from simulator.units import ceil_div

if TYPE_CHECKING:
    from simulator.allocators.paged import PagedHolding, PageLayout


@dataclass(frozen=True, slots=True)
class HostCopy:
    """The page tables of a sequence while it is on the host: ``tables`` as on the device, of host page ids.

    ``tail_page`` is the host page of a last page that was shared while filled only up to token ``shared_length`` (-1:
    there was none); ``registered`` the number of leading rows that could be found by their content.
    """

    tables: tuple[tuple[int, ...], ...]
    dropped: tuple[int, ...]
    held_tokens: int
    tail_page: int = -1
    shared_length: int = 0
    registered: int = 0

    def pages(self) -> Iterable[int]:
        """Every table entry."""
        return chain.from_iterable(self.tables)


class HostPool:
    """``max_pages`` pages of host memory, reference-counted like those of the device."""

    def __init__(self, max_pages: int) -> None:
        self.max_pages = max_pages
        self._pool = PagePool(max_pages, "lifo")
        self._references: dict[int, int] = {}

    @property
    def free_pages(self) -> int:
        """Pages that could be taken now."""
        return len(self._pool)

    def take(self, count: int) -> list[int] | None:
        """``count`` page ids without references yet, or ``None`` when fewer are free."""
        if count > len(self._pool):
            return None
        pages = self._pool.take(count)
        self._references.update(dict.fromkeys(pages, 0))
        return pages

    def hold(self, pages: Iterable[int]) -> None:
        """One more reference to each page."""
        for page in pages:
            self._references[page] += 1

    def drop(self, pages: Iterable[int]) -> None:
        """One reference less to each page; without any it is free again."""
        for page in pages:
            left = self._references[page] - 1
            self._references[page] = left
            if left == 0:
                del self._references[page]
                self._pool.give((page,))

    def check(self) -> None:
        """Assert that every page is free or referenced."""
        assert len(self._pool) + len(self._references) == self.max_pages, "a host page was lost"
        assert all(count > 0 for count in self._references.values()), "a host page is taken but nobody holds it"


class HostSwap(Allocator):
    """An allocator of pages that can move sequences to ``host`` and back."""

    layout: "PageLayout"
    host: HostPool | None = None

    def swap_out(self, holdings: list[Holding]) -> int | None:
        host = self.host
        if host is None:
            return None
        leaving = [paged(holding) for holding in holdings]
        pages = dict.fromkeys(chain.from_iterable(chain.from_iterable(holding.tables) for holding in leaving))
        host_pages = host.take(len(pages))
        if host_pages is None:
            return None
        place = dict(zip(pages, host_pages, strict=True))
        self._tell((page, -1 - host_page) for page, host_page in place.items())
        for holding in leaving:
            holding.host_copy = self._host_copy(holding, place)
            host.hold(holding.host_copy.pages())
        for holding in leaving:
            self._detach(holding)
        return len(pages) * self.layout.page_bytes

    def swap_in_pages(self, wanted: Sequence[tuple[Holding, int]]) -> int:
        """Pages the device must have available to take holdings back and let each reach the number of tokens given."""
        page_tokens = self.layout.page_tokens
        pages: set[int] = set()
        tails: set[int] = set()
        rows = 0
        for holding, tokens in wanted:
            copy = host_copy_of(paged(holding))
            pages.update(copy.pages())
            rows += max(0, ceil_div(tokens - copy.held_tokens, page_tokens))
            if copy.tail_page >= 0 and tokens > copy.shared_length:
                # all who write into a shared last page get a copy of it, except the last one
                rows += copy.tail_page in tails
                tails.add(copy.tail_page)
        return len(pages) + rows * self.layout.row_pages

    def swap_in(self, wanted: list[tuple[Holding, int]], *, keep_free_bytes: int = 0) -> int | None:
        host = self.host
        assert host is not None, "nothing can be on the host"
        if not self._enough(self.swap_in_pages(wanted) + keep_free_bytes // self.layout.page_bytes):
            return None
        moved = [(paged(holding), host_copy_of(paged(holding))) for holding, _ in wanted]
        pages = self._take_for([copy for _, copy in moved])
        self._tell((-1 - host_page, page) for host_page, page in pages.items())
        self._restore(moved, pages)
        for holding, copy in moved:
            host.drop(copy.pages())
            holding.host_copy = None
        for returned, tokens in wanted:
            grown = tokens <= returned.capacity_tokens or self._grow_back(returned, tokens)
            assert grown, f"request {returned.demand.request_id} was brought back without room to go on"
        return len(pages) * self.layout.page_bytes

    def _grow_back(self, holding: Holding, tokens: int) -> bool:
        """``grow``, of one of several sequences that have just been brought back, for which there is room."""
        return self.grow(holding, tokens)

    def _drop_host_copy(self, holding: "PagedHolding") -> bool:
        """Give back what ``holding`` has on the host, if that is where it is."""
        copy = holding.host_copy
        if copy is None or self.host is None:
            return False
        self.host.drop(copy.pages())
        holding.host_copy = None
        return True

    def _take_for(self, copies: Sequence[HostCopy]) -> dict[int, int]:
        """Device pages, by host page, for what comes back."""
        host_pages = dict.fromkeys(chain.from_iterable(copy.pages() for copy in copies))
        return dict(zip(host_pages, self._take(len(host_pages)), strict=True))

    def _host_copy(self, holding: "PagedHolding", place: dict[int, int]) -> HostCopy:
        assert holding.host_copy is None, f"request {holding.demand.request_id} is on the host already"
        tables = tuple(tuple(place[page] for page in table) for table in holding.tables)
        return HostCopy(tables, tuple(holding.dropped), holding.held_tokens)

    def _tell(self, copies: Iterable[tuple[int, int]]) -> None:
        if self.on_copy is not None:
            for source, target in copies:
                self.on_copy(source, target, 1)

    def _detach(self, holding: "PagedHolding") -> None:
        """Give back all device pages of ``holding``."""
        raise NotImplementedError

    def _restore(self, moved: Sequence[tuple["PagedHolding", HostCopy]], pages: dict[int, int]) -> None:
        """Rebuild the tables of ``moved`` from ``pages`` (host id -> device id), which have just been taken."""
        raise NotImplementedError

    def _take(self, count: int) -> list[int]:
        raise NotImplementedError

    def _enough(self, pages: int) -> bool:
        raise NotImplementedError


def paged(holding: Holding) -> "PagedHolding":
    """``holding``, known to have page tables."""
    return cast("PagedHolding", holding)


def host_copy_of(holding: "PagedHolding") -> HostCopy:
    """Where ``holding`` is on the host. ``AssertionError`` if it is not there."""
    assert holding.host_copy is not None, f"request {holding.demand.request_id} is not on the host"
    return holding.host_copy
