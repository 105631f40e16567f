"""What every allocator answers to: one small protocol, and the values that cross it.

The engine asks, the allocator answers with a value: failure to fit is ``None`` or ``False`` and the reason is
``allocator.shortfall``; it is never an exception. A broken invariant is an ``AssertionError``.

How the engine and an allocator talk about one sequence::

    holding = allocator.admit(demand, tokens)     # room for the first `tokens` tokens, or None
    while holding.capacity_tokens < length:       # the engine calls again only past this length
        allocator.grow(holding, length)           # True, or False and nothing has changed
    allocator.release(holding)                    # everything the sequence held

``capacity_tokens`` is the length up to which the sequence needs no further call. A paged allocator sets it to
the end of the last page, a maximal reservation sets it to ``max_model_len`` and is never asked again.

Work that an allocator causes on the device or the host (bytes copied, free-list search) is modelled traffic: it
piles up in ``allocator.work`` and the engine charges it to the step that caused it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

Cause = Literal["capacity", "fragmentation"]

CopyHook = Callable[[int, int, int], None]
"""Told of a copy of KV that an allocator has made: source, destination, count. In a paged pool these are the first
page ids and how many pages follow each other, in a contiguous one byte addresses and bytes. A page in host memory
is named by a negative number (host page ``h`` is ``-1 - h``), one page a call."""


class Demand(Protocol):
    """What an allocator may know of a sequence: who it is and how long it will get.

    ``prompt_tokens`` are computed before the first output token. ``final_tokens`` is the number of tokens whose KV
    is ever written (prompt + outputs - 1: the last output is never fed back). ``output_tokens`` is the number
    of output tokens. Only reservations that are meant to know the future (``exact``) read the last two.
    """

    request_id: int
    prompt_tokens: int
    output_tokens: int
    final_tokens: int


class Life:
    """A plain ``Demand``, for questions about sequences that do not run. One is made for every request, so it is no
    dataclass, whose ``__init__`` is never compiled."""

    __slots__ = ("final_tokens", "output_tokens", "prompt_tokens", "request_id")

    def __init__(self, request_id: int, prompt_tokens: int, output_tokens: int, final_tokens: int) -> None:
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.final_tokens = final_tokens


class Holding:
    """What one sequence holds. Allocators subclass it; the engine reads only these numbers.

    ``capacity_tokens``: no call is needed until the sequence is longer than this (never above ``held_tokens``).
    ``held_tokens``: token slots set aside for this sequence (shared pages count for each sharer).
    ``hit_tokens``: leading tokens whose KV was already there at admission and need no computing.
    ``final_tokens``: those of the demand, which is how long the sequence will get.
    """

    __slots__ = ("capacity_tokens", "demand", "final_tokens", "held_tokens", "hit_tokens")

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.final_tokens = demand.final_tokens
        self.capacity_tokens = 0
        self.held_tokens = 0
        self.hit_tokens = 0


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why the last request for memory was refused, in bytes, at that moment.

    ``capacity``: fewer bytes were free than needed. ``fragmentation``: enough were free, but no placement exists.
    """

    cause: Cause
    needed_bytes: int
    free_bytes: int
    largest_free_bytes: int


@dataclass(slots=True)
class Work:
    """Traffic caused since the engine last looked; the engine charges it to the running step and clears it."""

    copied_bytes: int = 0
    search_cycles: int = 0
    table_bytes: int = 0
    new_pages: int = 0

    def clear(self) -> None:
        self.copied_bytes = self.search_cycles = self.table_bytes = self.new_pages = 0

    def any(self) -> bool:
        return bool(self.copied_bytes or self.search_cycles or self.table_bytes or self.new_pages)


class Occupancy:
    """A snapshot of the pool, in bytes unless named otherwise. One is made for every row of a timeline (so no
    dataclass, whose ``__init__`` is never compiled).

    ``allocated + cached + free = capacity``: *allocated* is held by at least one sequence, *cached* is kept for
    possible reuse and given up on demand, *free* is the rest. ``largest_free_bytes`` is the largest request
    that can be placed now. ``unusable_bytes`` is room that is free but can serve no page or range
    (a tail smaller than a page, the reserved null page).
    """

    __slots__ = (
        "allocated_bytes",
        "cached_bytes",
        "capacity_bytes",
        "free_bytes",
        "largest_free_bytes",
        "unusable_bytes",
    )

    def __init__(
        self,
        *,
        capacity_bytes: int,
        allocated_bytes: int,
        cached_bytes: int,
        free_bytes: int,
        largest_free_bytes: int,
        unusable_bytes: int = 0,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = allocated_bytes
        self.cached_bytes = cached_bytes
        self.free_bytes = free_bytes
        self.largest_free_bytes = largest_free_bytes
        self.unusable_bytes = unusable_bytes

    @property
    def fragmentation_ratio(self) -> float:
        """1 - largest free / total free (GMLake's and jemalloc's measure): 0 when all free bytes are one piece."""
        available = self.free_bytes + self.cached_bytes
        return 1.0 - self.largest_free_bytes / available if available else 0.0


@dataclass(frozen=True, slots=True)
class Leak:
    """What an allocator counts although no live sequence has it; all zero unless memory is lost by mistake."""

    allocated_bytes: int = 0
    discount_bytes: int = 0
    tail_bytes: int = 0


NO_LEAK: Final = Leak()


@dataclass(slots=True)
class Totals:
    """Counts since the start, for the report."""

    moved_bytes: int = 0
    moves: int = 0
    cow_copies: int = 0
    look_ups: int = 0
    resumed_look_ups: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    recent_query_tokens: int = 0
    recent_hit_tokens: int = 0
    evictions: int = 0
    unshared_pages: int = 0
    defrag_runs: int = 0
    pages_taken: int = 0
    unmerged_runs: int = 0


class Allocator:
    """One policy about KV memory. See the module docstring for the conversation it takes part in."""

    kind: str
    #: bytes of KV that one token costs on one device
    bytes_per_token: int
    #: tokens of KV a kernel finds contiguous (page size; the tile size for a contiguous range)
    tile_tokens: int
    #: pages in the pool; 0 when the pool is not made of pages
    max_pages: int
    #: bytes under the allocator's control
    capacity_bytes: int
    #: bytes held by sequences now (each shared page once)
    allocated_bytes: int
    #: bytes that ``tokens * bytes_per_token`` counts but the pool does not store: a shared page once more for each
    #: sharer after the first, and what window layers have dropped
    discount_bytes: int
    #: held bytes that no token will ever fill (past the sequence's end, padding); the `internal` waste
    tail_bytes: int
    #: whether one sequence can be forked into several that share memory
    can_fork: bool = False
    #: whether full pages of one sequence are found again by others
    caches_prefixes: bool = False
    #: whether free memory can be in pieces, so that the largest one that can be placed is smaller than all of it
    fragments: bool = False
    #: whether a refused request makes the allocator move pages, so that asking again may succeed
    compacts_on_failure: bool = False
    #: cycles of finding a page, where ``grow_each`` does nothing but give each sequence its next page and every page
    #: costs as many; ``None`` where more may happen
    cycles_per_page: int | None = None
    #: whether memory may be lost by mistakes planted on purpose
    leaks: bool = False

    def leak(self) -> Leak:
        """What has been lost so far."""
        return NO_LEAK

    @property
    def mean_run_pages(self) -> float | None:
        """Mean length of the pieces of adjacent pages in live page tables, if the allocator sees to it."""
        return None

    @property
    def table_entries(self) -> int:
        """Page-table entries of all sequences; a shared page counts once for each. 0 where nothing is shared."""
        return 0

    def __init__(self) -> None:
        self.work = Work()
        self.totals = Totals()
        self.shortfall: Shortfall | None = None
        #: called at each copy, after the destination is taken and before the source is given back
        self.on_copy: CopyHook | None = None
        #: makes another one with an empty pool like this one's, for a further instance; set by who has built it
        self.another: Callable[[], Allocator] | None = None
        self.allocated_bytes = 0
        self.discount_bytes = 0
        self.tail_bytes = 0

    def can_ever_hold(self, demand: Demand) -> bool:
        """Whether an empty pool could hold the whole life of ``demand``; if not the request is ``too_large``."""
        raise NotImplementedError

    def admit(self, demand: Demand, tokens: int, *, whole_tokens: int = 0, keep_free_bytes: int = 0) -> Holding | None:
        """Room for the first ``tokens`` tokens of a new sequence, or ``None`` with ``shortfall`` set.

        ``whole_tokens``: refuse unless this many tokens would fit now, though only ``tokens`` are taken (admission by
        the whole prompt). ``keep_free_bytes``: refuse unless this much stays free afterwards (watermark).
        """
        raise NotImplementedError

    def grow(self, holding: Holding, tokens: int, new_tokens: int = 1) -> bool:
        """Make room for a sequence of ``tokens`` tokens, the last ``new_tokens`` of them about to be computed.

        ``False``, with ``shortfall`` set, leaves the holding as it was, except that memory which none of the new
        tokens can see (window layers) is given back first, as vLLM does.
        """
        raise NotImplementedError

    def refused_again(self, demand: Demand, times: int) -> None:
        """``demand``, refused last, was refused so many times more in steps that nobody had to look at."""
        del demand, times

    def free_rows(self) -> int:
        """How many sequences could take one more page in each of their tables; without end where there are no pages."""
        return 1 << 62

    def sure_to_grow(self, sequences: int, tokens: int) -> bool:
        """Whether ``sequences`` holdings can each grow by ``tokens`` now, in any order, without a single refusal.

        A cheap bound that may say no where it would work out; it lets the engine leap without asking one by one.
        """
        del sequences, tokens
        return False

    def grow_each(self, holdings: list[Holding]) -> None:
        """``grow`` each by the one token that outgrows it, in order, after ``sure_to_grow`` has said yes."""
        for holding in holdings:
            grown = self.grow(holding, holding.capacity_tokens + 1)
            assert grown, f"request {holding.demand.request_id} was sure to grow"

    def release(self, holding: Holding) -> None:
        """Give back everything ``holding`` has. Releasing twice is an ``AssertionError``."""
        raise NotImplementedError

    def maintain(self, now_ns: int, holdings: Iterable[Holding]) -> bool:
        """Background work, called once at each scheduling point; whether anything moved (its cost is in ``work``)."""
        return False

    def maintenance_due_ns(self, now_ns: int) -> int | None:
        """When ``maintain`` must be called next even if no memory changes hands; ``None``: never."""
        return None

    def hit_tokens(self, demand: Demand, tokens: int) -> int:
        """Leading tokens, of the ``tokens`` to be computed, whose KV is already in the pool and can be shared."""
        del demand, tokens
        return 0

    def fork(self, parent: Holding, demand: Demand, tokens: int) -> Holding:
        """A second sequence that shares the first ``tokens`` tokens of ``parent`` (only if ``can_fork``)."""
        raise NotImplementedError(f"{self.kind} cannot share memory between sequences")

    def swap_out(self, holdings: list[Holding]) -> int | None:
        """Move what ``holdings`` have to host memory, together; bytes moved, ``None`` if the host has no room."""
        del holdings
        return None

    def swap_in(self, wanted: list[tuple[Holding, int]], *, keep_free_bytes: int = 0) -> int | None:
        """Bring ``holdings`` back, each with room for the given number of tokens; bytes moved, ``None`` if no room."""
        raise NotImplementedError(f"{self.kind} cannot swap")

    def occupancy(self) -> Occupancy:
        """The pool now."""
        raise NotImplementedError

    def free_and_largest_bytes(self) -> tuple[int, int]:
        """Bytes that could serve somebody, and the largest request among them that could be placed now."""
        now = self.occupancy()
        return now.free_bytes + now.cached_bytes, now.largest_free_bytes

    def check(self, holdings: Iterable[Holding]) -> None:
        """Assert every invariant, given all live holdings: conservation, no overlap, refcounts, capacities."""
        raise NotImplementedError

    def _set_held(self, holding: Holding, held_tokens: int) -> None:
        """Record that ``holding`` now holds ``held_tokens`` slots, keeping ``tail_bytes`` exact."""
        final, before = holding.final_tokens, holding.held_tokens
        holding.held_tokens = held_tokens
        if held_tokens > final or before > final:
            tail_tokens = max(0, held_tokens - final) - max(0, before - final)
            self.tail_bytes += tail_tokens * self.bytes_per_token

    def holding_bytes(self, holding: Holding) -> int:
        """Bytes that ``holding`` keeps from others, for explanations."""
        return holding.held_tokens * self.bytes_per_token
