"""Memory-management mistakes on purpose: what happens when an engine forgets to give back, or gives back twice.

Each is a mistake that paged KV caches are known for. It is planted into one allocator, everything else about which
stays as it is; whether and when it is noticed is the business of ``Allocator.check`` and ``verify``.
"""

from dataclasses import dataclass
from itertools import chain

from simulator.allocators.base import Allocator, Demand, Holding, Leak
from simulator.allocators.bulk import page_array
from simulator.allocators.forwarding import ForwardingAllocator, innermost
from simulator.allocators.leak import leak_of
from simulator.allocators.paged import PagedAllocator, PagedHolding
from simulator.allocators.shared_tables import SharedTables
from simulator.config import FaultKind

__all__ = ["FaultKind", "FaultyAllocator", "Injected"]


@dataclass(frozen=True, slots=True)
class Injected:
    """One mistake made: by whose sequence, and the first page concerned (-1 where there are no pages)."""

    kind: FaultKind
    request_id: int
    page: int


class FaultyAllocator(ForwardingAllocator):
    """Makes every ``every``-th release of ``inner`` go wrong, or for ``stale_page_table`` the admission after it.

    ``missed_end_of_sequence``
        the sequence ends, its memory is never given back.
    ``forgotten_decrement``
        its last page keeps a reference that nobody holds.
    ``stale_page_table``
        the next sequence gets a row that was not cleared: its first entry still names a page of the one that ended,
        and the page it should name is lost (the pool looks full: "false full").
    ``double_release``
        its pages are given back twice.

    ``missed_end_of_sequence`` works on every allocator, the others need pages; else ``ValueError``. ``injected`` lists
    the mistakes made.
    """

    def __init__(self, inner: Allocator, kind: FaultKind, *, every: int = 1) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, not {every}")
        if kind != "missed_end_of_sequence" and not isinstance(innermost(inner), PagedAllocator):
            raise ValueError(f"{kind} needs pages; {inner.kind} has none")
        super().__init__(inner)
        self.fault: FaultKind = kind
        self.every = every
        self.injected: list[Injected] = []
        self.leaks = True
        #: releases so far
        self.releases = 0
        self._stale: list[int] = []
        self._live: dict[int, Holding] = {}
        self._leak: Leak | None = None

    def leak(self) -> Leak:
        if self._leak is None:
            self._leak = leak_of(innermost(self.inner), list(self._live.values())) if self.injected else Leak()
        return self._leak

    def _follow(self) -> None:
        super()._follow()
        self._leak = None

    def release(self, holding: Holding) -> None:
        self.releases += 1
        self._live.pop(id(holding), None)
        if self.releases % self.every:
            self.inner.release(holding)
        else:
            self._release_wrongly(holding)
        self._follow()

    def admit(self, demand: Demand, tokens: int, *, whole_tokens: int = 0, keep_free_bytes: int = 0) -> Holding | None:
        holding = super().admit(demand, tokens, whole_tokens=whole_tokens, keep_free_bytes=keep_free_bytes)
        if holding is not None:
            self._live[id(holding)] = holding
        if self._stale and isinstance(holding, PagedHolding):
            self._leave_stale_entry(holding)
        return holding

    def fork(self, parent: Holding, demand: Demand, tokens: int) -> Holding:
        child = super().fork(parent, demand, tokens)
        self._live[id(child)] = child
        return child

    def _release_wrongly(self, holding: Holding) -> None:
        if self.fault == "missed_end_of_sequence" or not isinstance(holding, PagedHolding):
            self._note(holding)
            return
        pages = list(chain.from_iterable(holding.tables))
        if not pages:  # it is in host memory, where none of these mistakes is made
            self.inner.release(holding)
            return
        if self.fault == "forgotten_decrement":
            self._keep_reference(holding)
        self.inner.release(holding)
        if self.fault == "double_release":
            self._release_again(holding, pages)
        elif self.fault == "stale_page_table":
            self._stale = pages

    def _note(self, holding: Holding, page: int | None = None) -> None:
        first = holding.tables[0][0] if isinstance(holding, PagedHolding) and len(holding.tables[0]) else -1
        self.injected.append(Injected(self.fault, holding.demand.request_id, first if page is None else page))

    def _keep_reference(self, holding: PagedHolding) -> None:
        allocator = innermost(self.inner)
        page = holding.tables[0][-1]
        self._note(holding, page)
        if isinstance(allocator, SharedTables):
            allocator._share(0, page_array([page]))
        else:
            holding.tables[0].pop()

    def _release_again(self, holding: PagedHolding, pages: list[int]) -> None:
        allocator = innermost(self.inner)
        assert isinstance(allocator, PagedAllocator)
        self._note(holding, pages[0])
        if isinstance(allocator, SharedTables):
            allocator.pages.drop(page_array(pages), holding.demand.request_id)
        else:
            allocator.pool.give(pages)

    def _leave_stale_entry(self, holding: PagedHolding) -> None:
        """Wait for an admission that did not happen to get the old pages anyway."""
        table = holding.tables[0]
        stale = next((page for page in self._stale if page not in table), None)
        if stale is not None and table:
            table[0] = stale
            self._stale = []
            self._note(holding, stale)
