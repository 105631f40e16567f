"""The pool at the moment an allocation fails: who holds what, and where every byte of it has gone.

A recorder looks on through the ledger's ``on_oom``; nothing is looked at unless an event is the one asked for.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from simulator.allocators.base import Allocator, Cause, Holding, Shortfall
from simulator.allocators.contiguous import ContiguousAllocator, RangeHolding
from simulator.allocators.forwarding import innermost
from simulator.allocators.leak import leak_of
from simulator.allocators.paged import PagedHolding
from simulator.allocators.paged_defrag import PagedDefragAllocator
from simulator.allocators.shared_tables import SharedTables
from simulator.serving.ledger import During
from simulator.serving.sequence import LINGERING, Sequence

#: page ids named of each holder, holes named of a pool
_PAGES_NAMED = 8
_HOLES_NAMED = 3


@dataclass(frozen=True, slots=True)
class Holder:
    """One sequence that holds memory. ``tokens``: KV it has; ``final_tokens``: what it will have at its end.

    ``first_pages`` are the first ids of its page table, ``shared_pages`` those of its entries that others have too;
    a contiguous one has the addresses ``start_byte .. end_byte - 1`` instead.
    """

    request_id: int
    sample: int
    state: str
    tokens: int
    final_tokens: int
    held_bytes: int
    pages: int = 0
    shared_pages: int = 0
    first_pages: tuple[int, ...] = ()
    start_byte: int | None = None
    end_byte: int | None = None


@dataclass(frozen=True, slots=True)
class Waste:
    """Where the pool's bytes are; the six add up to it.

    ``used`` holds KV, ``reserved`` is held for tokens to come, ``internal`` for tokens that never come, ``external``
    is free but of no use to who asks, ``unusable`` can serve nobody (the null page, a tail smaller than a page),
    ``leaked`` is held by nobody who lives (mistakes planted on purpose).
    """

    used_bytes: int
    reserved_bytes: int
    internal_bytes: int
    external_bytes: int
    unusable_bytes: int
    leaked_bytes: int = 0

    @property
    def allocated_bytes(self) -> int:
        """Held, by anybody or nobody."""
        return self.used_bytes + self.reserved_bytes + self.internal_bytes + self.leaked_bytes


@dataclass(frozen=True, slots=True)
class OomState:
    """One failed allocation and the pool around it; ``holders`` by size, ``free`` what is known of the free room."""

    time_ns: int
    request_id: int
    sample: int
    during: During
    shortfall: Shortfall
    waste: Waste
    cached_bytes: int
    holders: tuple[Holder, ...]
    free: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The ``event``-th failed allocation (from 1) among those of ``request_id`` and of ``cause``, where given."""

    event: int = 1
    request_id: int | None = None
    cause: Cause | None = None


class OomRecorder:
    """Counts the failed allocations of one run, and keeps the state at one of them.

    ``wanted`` says at which; ``watch`` belongs into the run's watch hook.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.count = 0
        #: number of the event that was kept, 0: none
        self.number = 0
        self.state: OomState | None = None
        #: the instance it was kept of
        self.place = 0
        self._wanted = wanted
        self._matching = 0
        self._seen: set[int] = set()

    def watch(self, running: Any) -> bool:
        """Called at every scheduling point; the first comes before anything was asked for."""
        if running.place not in self._seen:
            self._seen.add(running.place)
            running.ledger.on_oom = partial(self._on_oom, running)
        return True

    def _on_oom(self, running: Any, sequence: Sequence, shortfall: Shortfall, now: int, during: During) -> None:
        self.count += 1
        wanted = self._wanted
        if wanted.request_id not in (None, sequence.request_id) or wanted.cause not in (None, shortfall.cause):
            return
        self._matching += 1
        if self._matching == wanted.event:
            self.number, self.place = self.count, running.place
            owner = getattr(running, "scheduler", running)
            self.state = capture(running.allocator, owner.residents(), sequence, shortfall, now, during)


def capture(
    allocator: Allocator,
    residents: list[tuple[Sequence, int]],
    asking: Sequence,
    shortfall: Shortfall,
    now: int,
    during: During,
) -> OomState:
    """The pool as it is now. ``residents`` hold memory, each with its tokens."""
    allocator = innermost(allocator)
    residents = residents + _half_admitted(residents, asking)
    holders = [_holder(allocator, sequence, tokens) for sequence, tokens in residents]
    holders.sort(key=lambda holder: (-holder.held_bytes, holder.request_id, holder.sample))
    return OomState(
        time_ns=now,
        request_id=asking.request_id,
        sample=asking.sample,
        during=during,
        shortfall=shortfall,
        waste=_waste(allocator, residents),
        cached_bytes=allocator.occupancy().cached_bytes,
        holders=tuple(holders),
        free=_free_room(allocator),
    )


def _half_admitted(residents: Iterable[tuple[Sequence, int]], asking: Sequence) -> list[tuple[Sequence, int]]:
    """Samples of the asking request that have memory already but do not run yet."""
    known = {id(sequence) for sequence, _ in residents}
    members = asking.group.members if asking.group is not None else [asking]
    return [
        (member, min(member.prompt_tokens, member.holding.held_tokens))
        for member in members
        if member.holding is not None and member.holding.held_tokens and id(member) not in known
    ]


def _holder(allocator: Allocator, sequence: Sequence, tokens: int) -> Holder:
    holding = sequence.holding
    assert holding is not None
    place = _place(allocator, holding)
    return Holder(
        sequence.request_id,
        sequence.sample,
        sequence.state.name.lower(),
        min(tokens, holding.held_tokens),
        sequence.final_tokens,
        allocator.holding_bytes(holding),
        **place,
    )


def _place(allocator: Allocator, holding: Holding) -> dict[str, Any]:
    if isinstance(holding, RangeHolding) and isinstance(allocator, ContiguousAllocator):
        start = holding.start * allocator.granule_bytes
        return {"start_byte": start, "end_byte": start + holding.units * allocator.granule_bytes}
    if not isinstance(holding, PagedHolding):
        return {}
    entries = list(chain.from_iterable(holding.tables))
    unit, shared = 1, 0
    if isinstance(allocator, SharedTables):
        unit, references = allocator.unit, allocator.pages.references
        shared = sum(references[page] > 1 for page in entries)
    return {
        "pages": len(entries) * unit,
        "shared_pages": shared * unit,
        "first_pages": tuple(entries[:_PAGES_NAMED]),
    }


def _waste(allocator: Allocator, residents: Iterable[tuple[Sequence, int]]) -> Waste:
    tokens = dead_tokens = 0
    live: list[Holding] = []
    for sequence, length in residents:
        assert sequence.holding is not None
        live.append(sequence.holding)
        length = min(length, sequence.holding.held_tokens)
        if sequence.state is LINGERING:
            dead_tokens += length
        else:
            tokens += length
    occupancy = allocator.occupancy()
    leak = leak_of(allocator, live)
    held = allocator.allocated_bytes - leak.allocated_bytes
    tail = allocator.tail_bytes - leak.tail_bytes
    internal = min(held, tail + dead_tokens * allocator.bytes_per_token)
    saved = allocator.discount_bytes - leak.discount_bytes
    used = min(max(0, tokens * allocator.bytes_per_token - saved), held - internal)
    free_bytes = allocator.capacity_bytes - allocator.allocated_bytes - occupancy.unusable_bytes
    return Waste(
        used, held - internal - used, internal, free_bytes, occupancy.unusable_bytes, leaked_bytes=leak.allocated_bytes
    )


def _free_room(allocator: Allocator) -> dict[str, Any]:
    """What the free bytes are made of."""
    largest = allocator.occupancy().largest_free_bytes
    if isinstance(allocator, ContiguousAllocator):
        scale = allocator.granule_bytes
        holes = sorted(((size * scale, start * scale) for start, size in allocator.free_ranges()), reverse=True)
        named = [{"start_byte": start, "size_bytes": size} for size, start in holes[:_HOLES_NAMED]]
        return {"largest_free_bytes": largest, "holes": len(holes), "largest_holes": named}
    if not allocator.max_pages:
        return {"largest_free_bytes": largest}
    room: dict[str, Any] = {"largest_free_bytes": largest}
    if isinstance(allocator, PagedDefragAllocator):
        room |= {"free_pages": len(allocator.runs), "whole_runs": allocator.runs.whole_runs}
        room["run_length"] = allocator.run_length
    elif hasattr(allocator, "free_pages"):
        room["free_pages"] = allocator.free_pages()
    return room
