"""An independent record of who wrote what where, against which every page table can be checked.

The shadow knows nothing of reference counts, free lists or hits. It knows what a sequence *should* find at each of
its positions (its ``Lineage``), it follows writes and copies address by address, and it reads through the page
tables as a kernel would. So an allocator that hands a page out twice, forgets a copy or rewrites a table wrongly
makes a sequence read something else than its own history, and the shadow says who, where and what.

Addresses are token slots in a paged pool (``page * page_tokens + offset``) and bytes in a contiguous one. Host
memory has negative addresses.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from simulator.allocators.base import Allocator, Demand, Holding
from simulator.allocators.content_map import ContentMap, Found
from simulator.allocators.contiguous import ContiguousAllocator, RangeHolding
from simulator.allocators.page_keys import SharedDemand
from simulator.allocators.paged import PagedAllocator, PagedHolding

Name = tuple[str, int, int]
"""``("segment", id, 0)`` of a shared prompt, ``("request", id, 0)`` for the rest of a prompt, which all samples have
in common, and ``("request", id, 1 + sample)`` for what a sample generates."""

_FOREVER = 1 << 62

#: violations named in one message
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must never happen; ``page`` is -1 where there are no pages or no single one is to blame."""

    kind: str
    request_id: int
    page: int
    message: str


class VerificationError(AssertionError):
    """Memory was corrupted, lost or given away twice; ``violations`` name the requests and pages."""

    def __init__(self, violations: list[Violation]) -> None:
        self.violations = violations
        more = len(violations) - _NAMED
        texts = [violation.message for violation in violations[:_NAMED]] + ([f"and {more} more"] if more > 0 else [])
        super().__init__("; ".join(texts))


@dataclass(frozen=True, slots=True)
class Lineage:
    """Whose content a sequence has: ``parts`` are ``(end, name)``, each up to position ``end`` (exclusive)."""

    parts: tuple[tuple[int, Name], ...]

    def spans(self, first: int, last: int) -> Iterator[tuple[int, int, Name]]:
        """Positions ``first .. last - 1`` as ``(start, end, name)``."""
        for end, name in self.parts:
            if first < min(end, last):
                yield first, min(end, last), name
                first = min(end, last)

    def cut(self, length: int) -> tuple[tuple[int, Name], ...]:
        """The parts of the first ``length`` positions."""
        return tuple((end, name) for _, end, name in self.spans(0, length))


def lineage_of(demand: Demand, inherited: tuple[tuple[int, Name], ...] = ()) -> Lineage:
    """What a sequence of ``demand`` should find, after what it ``inherited`` by a fork."""
    shared = cast(SharedDemand, demand)
    sample = getattr(shared, "sample", 0)
    prefix = getattr(shared, "prefix", None)
    parts = list(inherited)
    for segment, end in zip(*prefix, strict=True) if prefix is not None else ():
        parts.append((min(int(end), demand.prompt_tokens), ("segment", int(segment), 0)))
    parts.append((demand.prompt_tokens, ("request", demand.request_id, 0)))
    parts.append((_FOREVER, ("request", demand.request_id, 1 + sample)))
    return Lineage(tuple(parts))


@dataclass(frozen=True, slots=True)
class Place:
    """``size`` addresses from ``address`` hold the positions from ``position`` on, in one column of layers."""

    address: int
    size: int
    position: int
    column: tuple[int, int]


class ShadowMemory:
    """The record of one pool. Raises ``ValueError`` for a kind of allocator it cannot read."""

    def __init__(self, allocator: Allocator) -> None:
        self.map = ContentMap()
        self._page_tokens = self._granule_bytes = 0
        self._copies: list[int] = []
        #: addresses a token takes
        self._scale = 1
        if isinstance(allocator, PagedAllocator):
            self._page_tokens = allocator.layout.page_tokens
            self._copies = [group.copies for group in allocator.layout.groups]
        elif isinstance(allocator, ContiguousAllocator):
            self._granule_bytes, self._scale = allocator.granule_bytes, allocator.bytes_per_token
        else:
            raise ValueError(f"allocator {allocator.kind!r} has neither page tables nor ranges that could be verified")
        self._lineages: dict[int, Lineage] = {}
        self._written: dict[int, int] = {}

    # ---- what happens

    def begin(self, holding: Holding) -> None:
        """A sequence has been admitted, with ``hit_tokens`` of its KV in place."""
        self._lineages[id(holding)] = lineage_of(holding.demand)
        self._written[id(holding)] = holding.hit_tokens

    def forked(self, parent: Holding, child: Holding, length: int) -> None:
        """``child`` goes on from the first ``length`` tokens of ``parent``; both now write from there on."""
        self.write_up_to(parent, length)
        inherited = self._lineages[id(parent)].cut(length)
        self._lineages[id(child)] = lineage_of(child.demand, inherited)
        self._written[id(child)] = self._written[id(parent)] = length

    def end(self, holding: Holding) -> None:
        """A sequence is over. What it wrote stays, as in real memory."""
        del self._lineages[id(holding)], self._written[id(holding)]

    def written(self, holding: Holding) -> int:
        """Tokens of ``holding`` whose KV is known to be there."""
        return self._written[id(holding)]

    def write_up_to(self, holding: Holding, length: int) -> None:
        """The kernel has computed ``holding`` up to ``length`` tokens and stored KV through its table."""
        first = self._written[id(holding)]
        if length > first:
            self.write(holding, first, length)
            self._written[id(holding)] = length

    def write(self, holding: Holding, first: int, last: int) -> None:
        """KV of positions ``first .. last - 1`` is stored where the table of ``holding`` says."""
        for start, end, name in self._lineages[id(holding)].spans(first, last):
            for place in self._places(holding, start, end):
                self.map.write(place.address, place.size, (name, place.column), place.position)

    def copy(self, source: int, target: int, count: int) -> None:
        """An allocator has copied; arguments as in ``base.CopyHook``."""
        scale = self._page_tokens or 1
        self.map.copy(source * scale, target * scale, count * scale)

    # ---- what is read

    def verify_read(self, holding: Holding, length: int) -> Violation | None:
        """Read the first ``length`` tokens through the table; the first place where something else is found."""
        for start, end, name in self._lineages[id(holding)].spans(0, length):
            for place in self._places(holding, start, end):
                position = place.position
                for found in self.map.read(place.address, place.size):
                    if found.content != (name, place.column) or found.position != position:
                        return self._wrong(holding, position, found)
                    position += found.end - found.start
        return None

    def last_writer(self, page: int) -> int | None:
        """The request whose own KV (not a shared prompt's) ``page`` holds, if any."""
        return self.last_writer_of(page * self._page_tokens, self._page_tokens)

    def last_writer_of(self, address: int, size: int) -> int | None:
        """The request whose own KV lies first in ``size`` addresses from ``address``, if any."""
        for found in self.map.read(address, size):
            name = found.content[0] if isinstance(found.content, tuple) else None
            if isinstance(name, tuple) and name[0] == "request":
                return int(name[1])
        return None

    # ---- how

    def _places(self, holding: Holding, first: int, last: int) -> Iterator[Place]:
        if isinstance(holding, RangeHolding):
            scale, base = self._scale, holding.start * self._granule_bytes
            yield Place(base + first * scale, (last - first) * scale, first * scale, (0, 0))
        elif isinstance(holding, PagedHolding):
            yield from self._page_places(holding, first, last)

    def _page_places(self, holding: PagedHolding, first: int, last: int) -> Iterator[Place]:
        """Slots of positions ``first .. last - 1`` in every column whose row is still there."""
        page_tokens = self._page_tokens
        for index, (copies, dropped) in enumerate(zip(self._copies, holding.dropped, strict=True)):
            table = holding.tables[index]
            for position in range(max(first, dropped * page_tokens) // page_tokens * page_tokens, last, page_tokens):
                start, end = max(first, position), min(last, position + page_tokens)
                entry = (position // page_tokens - dropped) * copies
                for copy in range(copies):
                    page = table[entry + copy] if entry + copy < len(table) else None
                    if page is not None:
                        slot = page * page_tokens + start - position
                        yield Place(slot, end - start, start, (index, copy))

    def _wrong(self, holding: Holding, position: int, found: Found) -> Violation:
        page, offset = divmod(found.start, self._page_tokens) if self._page_tokens else (-1, found.start)
        where = f"page {page}, slot {offset}" if self._page_tokens else f"byte {offset:,}"
        what = "nothing that was ever written" if found.content is None else _described(found, self._scale)
        request_id = holding.demand.request_id
        message = f"request {request_id} reads its position {position // self._scale} at {where} and finds {what}"
        return Violation("wrong_read", request_id, page, message)


def _described(found: Found, scale: int) -> str:
    name, column = cast(tuple[Name, tuple[int, int]], found.content)
    layers = f" of layer group {column[0]}, table {column[1]}" if column != (0, 0) else ""
    sample = f" (sample {name[2] - 1})" if name[2] > 1 else ""
    return f"position {found.position // scale} of {name[0]} {name[1]}{sample}{layers}"
