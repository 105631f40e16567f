"""Who holds which addresses of the pool, over time: snapshots for the page-pool map.

A recorder looks at the pool now and then, from the engine's ``watch`` hook, never from its inner loop. It looks at one
address in every ``n`` (``MAX_ADDRESSES`` in all, evenly spaced), so shares of colours in the map are unbiased, and
keeps at most ``MAX_SNAPSHOTS`` instants: when there are more, the interval grows and some are dropped. A
snapshot costs time proportional to the pages in all page tables (or to the number of ranges). Of a pool of pages it
also looks at ``CLOSE_PAGES`` neighbours not far from its beginning, which is used first: there one sees runs, holes,
shared pages and moves.

The instants are scheduling points, so they lie where the leaps of the engine end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from simulator.allocators.base import Allocator, Holding
from simulator.allocators.contiguous import ContiguousAllocator, RangeHolding
from simulator.allocators.paged import PagedAllocator, PagedHolding
from simulator.traffic.requests import Requests
from simulator.units import NS_PER_S

Owners = npt.NDArray[np.int64]

#: what an address is when no single request holds it
FREE, CACHED, SHARED = -1, -2, -3
MAX_ADDRESSES = 256
MAX_SNAPSHOTS = 160
CLOSE_PAGES = 128
#: page-table entries looked at in all snapshots together, about half a second; large pools get fewer snapshots
_MAX_VISITS = 6_000_000
_LEAST_SNAPSHOTS = 24
_FIRST_INTERVAL_NS = 1_000_000
_UNLIMITED_BYTES = 1 << 45


class PoolMaps:
    """The maps of all runs of a simulation, in the order in which they begin: an ``Observe`` for ``simulate``."""

    def __init__(self) -> None:
        self.maps: list[PoolMap] = []

    def __call__(self, allocator: Allocator, requests: Requests) -> Callable[[Any], None]:
        self.maps.append(PoolMap(allocator, requests.last_arrival_ns))
        return self.maps[-1].observe


@dataclass(slots=True)
class PoolMap:
    """Snapshots of one pool. ``observe`` is called at every scheduling point.

    ``last_arrival_ns`` is when the last request is known to come (0 if unknown): a run lasts about as long.
    """

    allocator: Allocator
    last_arrival_ns: int = 0
    _rows: list[tuple[int, Owners, int]] = field(default_factory=list)
    _next_ns: int = 0
    _interval_ns: int = 0
    _limit: int = 0
    _addresses: Owners = field(default_factory=lambda: np.zeros(0, np.int64))
    _close: Owners = field(default_factory=lambda: np.zeros(0, np.int64))
    _looked_at: Owners = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        units = pool_units(self.allocator)
        # No device has such a pool: it was called unlimited, most of it is never touched, and a map would be empty.
        count = 0 if self.allocator.capacity_bytes >= _UNLIMITED_BYTES else min(units, MAX_ADDRESSES)
        self._addresses = (np.arange(count) * units + units // 2) // max(count, 1)
        if self.allocator.max_pages and count:
            self._close = np.arange(min(units, CLOSE_PAGES)) + max(0, units - CLOSE_PAGES) // 16
        self._looked_at = np.union1d(self._addresses, self._close)
        visits = units if self.allocator.max_pages else 1
        self._limit = int(np.clip(_MAX_VISITS // max(visits, 1), _LEAST_SNAPSHOTS, MAX_SNAPSHOTS))
        self._interval_ns = max(_FIRST_INTERVAL_NS, 2 * self.last_arrival_ns // self._limit)

    def observe(self, running: Any) -> None:
        """Take a snapshot of the engine ``running`` if it is time.

        A replay has no scheduler, and gets no map; of a fleet the first instance has one.
        """
        scheduler = None if running.place else getattr(running, "scheduler", None)
        if scheduler is None or running.now_ns < self._next_ns or not len(self._addresses):
            return
        now = running.now_ns
        held = owners(self.allocator, scheduler.live_holdings(), self._looked_at)
        self._rows.append((now, held, self.allocator.totals.moved_bytes))
        if len(self._rows) > self._limit:
            self._coarsen()
        self._next_ns = now - now % self._interval_ns + self._interval_ns

    def _coarsen(self) -> None:
        """A grid of half as many intervals over the time so far, and the first snapshot in each of them."""
        span_ns = self._rows[-1][0] - self._rows[0][0]
        self._interval_ns = max(2 * self._interval_ns, 2 * span_ns // self._limit)
        first = {row[0] // self._interval_ns: row for row in reversed(self._rows)}
        self._rows = [first[cell] for cell in sorted(first)]

    def columns(self, end_s: float) -> dict[str, npt.NDArray[Any]]:
        """One row an instant and address: seconds, byte address, request id (``FREE``, ``CACHED``, ``SHARED``).

        ``sampled`` and ``close_up`` say of which look an address is part, ``moved_bytes`` what was moved within the
        pool until the instant. ``end_s`` is when the run ended; if nobody holds memory any more, the pool then is the
        last snapshot.
        """
        rows, addresses = list(self._rows), self._looked_at
        if rows and not self.allocator.allocated_bytes:
            left = owners(self.allocator, [], addresses)
            rows.append((round(end_s * NS_PER_S), left, self.allocator.totals.moved_bytes))
        unit_bytes = self.allocator.capacity_bytes // max(1, pool_units(self.allocator))
        times = np.array([now for now, _, _ in rows], np.int64) / NS_PER_S
        held = np.concatenate([row for _, row, _ in rows]) if rows else np.zeros(0, np.int64)
        return {
            "time_s": np.repeat(times, len(addresses)),
            "address_bytes": np.tile(addresses * unit_bytes, len(rows)),
            "request_id": held,
            "sampled": np.tile(np.isin(addresses, self._addresses).astype(np.int8), len(rows)),
            "close_up": np.tile(np.isin(addresses, self._close).astype(np.int8), len(rows)),
            "moved_bytes": np.repeat(np.array([moved for _, _, moved in rows], np.int64), len(addresses)),
        }


def pool_units(allocator: Allocator) -> int:
    """Addressable units of a pool: pages, or granules of a contiguous one; 0 for an allocator that has neither."""
    if isinstance(allocator, ContiguousAllocator):
        return allocator.capacity_bytes // allocator.granule_bytes
    return allocator.max_pages if isinstance(allocator, PagedAllocator) else 0


def owners(allocator: Allocator, holdings: list[Holding], addresses: Owners) -> Owners:
    """The request that holds each of the ascending ``addresses`` (in units), or what it is otherwise."""
    if isinstance(allocator, ContiguousAllocator):
        return _range_owners(cast("list[RangeHolding]", holdings), addresses)
    return _page_owners(allocator, cast("list[PagedHolding]", holdings), addresses)


def _range_owners(holdings: list[RangeHolding], addresses: Owners) -> Owners:
    found = np.full(len(addresses), FREE, np.int64)
    starts = np.array([holding.start for holding in holdings], np.int64)
    ends = starts + np.array([holding.units for holding in holdings], np.int64)
    first, last = np.searchsorted(addresses, starts), np.searchsorted(addresses, ends)
    for holding, begin, end in zip(holdings, first.tolist(), last.tolist(), strict=True):
        found[begin:end] = holding.demand.request_id
    return found


def _page_owners(allocator: Allocator, holdings: list[PagedHolding], addresses: Owners) -> Owners:
    found = np.full(len(addresses), FREE, np.int64)
    pages = getattr(allocator, "pages", None)
    _mark_unreferenced(pages, found, addresses)
    tables = [list(chain.from_iterable(holding.tables)) for holding in holdings]
    if not any(tables):
        return found
    entries = np.array(list(chain.from_iterable(tables)), np.int64)
    names = np.repeat([holding.demand.request_id for holding in holdings], [len(table) for table in tables])
    at = np.minimum(np.searchsorted(addresses, entries), len(addresses) - 1)
    seen = addresses[at] == entries
    at, names = at[seen], names[seen]
    found[at] = names
    found[np.bincount(at, minlength=len(addresses)) > 1] = SHARED
    return found


def _mark_unreferenced(pages: Any, found: Owners, addresses: Owners) -> None:
    """Pages without a reader whose content can still be found."""
    references = getattr(pages, "references", None)
    if references is None:
        return
    for index, page in enumerate(addresses.tolist()):
        if page < len(references) and not references[page] and pages.has_content(page):
            found[index] = CACHED


def grid(columns: Mapping[str, npt.NDArray[Any]], part: str = "sampled") -> tuple[npt.NDArray[np.float64], Owners]:
    """The columns of a map as instants [T] in seconds and owners [T, addresses]; parts: ``sampled``, ``close_up``."""
    chosen = np.asarray(columns[part], bool)
    times = columns["time_s"][chosen]
    addresses = int(np.searchsorted(times, times[0], side="right")) if len(times) else 1
    held: Owners = np.asarray(columns["request_id"][chosen], np.int64).reshape(-1, addresses)
    return np.asarray(times[::addresses], np.float64), held
