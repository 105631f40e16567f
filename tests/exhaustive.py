"""Every sequence of operations on a tiny pool, each beside a model that knows only who wrote what where.

``TinyWorld`` lets up to three requests be admitted, grow a token at a time, be preempted, swapped, given up or
finished in any order, under the rules of one ``on_oom``. ``explore`` visits every state that can be reached in so many
steps; two ways into the same state are followed once.
"""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from simulator.allocators.base import Allocator, Holding, Totals
from simulator.allocators.contiguous import RangeHolding
from simulator.allocators.paged import PagedAllocator, PagedHolding
from simulator.config import OnOom

Operation = tuple[str, int]
State = Literal["new", "live", "swapped", "waiting", "over"]


@dataclass
class Life:
    """A request, and how far it is. ``swapped`` ones keep their holding."""

    request_id: int
    prompt_tokens: int
    output_tokens: int
    state: State = "new"
    length: int = 0
    holding: Holding | None = None

    @property
    def final_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens - 1


Fits = Callable[["TinyWorld", "Life", int], bool]
"""Whether a request can have room for so many tokens now, by counting, without asking the allocator."""


@dataclass
class TinyWorld:
    """An allocator, its requests, and what every address holds: ``(request, position)`` for each group of layers."""

    allocator: Allocator
    lives: list[Life]
    on_oom: OnOom
    fits: Fits
    memory: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.allocator.on_copy = self.copied

    # ---- what can happen, and does

    def operations(self) -> list[Operation]:
        """What may happen next: an end may come at any time (a time-out, a user who goes away)."""
        found: list[Operation] = []
        for number, life in enumerate(self.lives):
            if life.state in ("new", "waiting"):
                found.append(("admit", number))
            if life.state == "live":
                found += [("grow", number)] if life.length < life.final_tokens else []
                found.append(("end", number))
            if life.state == "swapped":
                found += [("return", number), ("end", number)]
        return found

    def apply(self, operation: Operation) -> None:
        name, number = operation
        {"admit": self.admit, "grow": self.grow, "return": self.swap_in, "end": self.end}[name](self.lives[number])

    def admit(self, life: Life) -> None:
        tokens = max(life.prompt_tokens, life.length)
        expected = self.fits(self, life, tokens)
        life.holding = self.allocator.admit(life, tokens)
        assert (life.holding is not None) == expected, f"{life} was {'not ' * expected}admitted"
        if life.holding is None:
            self.refused()
            life.state = "over" if self.on_oom == "fail" else life.state
            return
        life.state, life.length = "live", tokens
        self.order.append(life.request_id)
        self.write(life, 0)

    def grow(self, life: Life) -> None:
        assert life.holding is not None
        tokens = life.length + 1
        if tokens > life.holding.capacity_tokens:
            expected = self.fits(self, life, tokens)
            grown = self.allocator.grow(life.holding, tokens)
            assert grown == expected, f"{life} was {'not ' * expected}lengthened"
            if not grown:
                self.refused()
                self.make_room(life)
                return
        life.length = tokens
        self.write(life, tokens - 1)

    def make_room(self, asking: Life) -> None:
        """What the scenario's ``on_oom`` does about a refusal."""
        if self.on_oom == "fail":
            self.end(asking)
        elif self.on_oom in ("preempt_recompute", "preempt_swap"):
            victim = self.lives[self.order[-1]]
            assert victim.holding is not None
            self.order.remove(victim.request_id)
            if self.on_oom == "preempt_swap" and self.allocator.swap_out([victim.holding]) is not None:
                victim.state = "swapped"
            else:
                self.allocator.release(victim.holding)
                victim.state, victim.holding = "waiting", None

    def swap_in(self, life: Life) -> None:
        assert life.holding is not None
        tokens = min(life.length + 1, life.final_tokens)
        expected = self.fits(self, life, tokens)
        moved = self.allocator.swap_in([(life.holding, tokens)])
        assert (moved is not None) == expected, f"{life} was {'not ' * expected}brought back"
        if moved is not None:
            life.state = "live"
            self.order.append(life.request_id)
            start, life.length = life.length, tokens
            self.write(life, start)

    def end(self, life: Life) -> None:
        assert life.holding is not None
        self.allocator.release(life.holding)
        if life.request_id in self.order:
            self.order.remove(life.request_id)
        life.state, life.holding = "over", None

    def refused(self) -> None:
        """A refusal says truly how much is free."""
        shortfall = self.allocator.shortfall
        assert shortfall is not None
        assert shortfall.free_bytes == self.allocator.capacity_bytes - self.unusable_bytes() - self.held_bytes()
        assert (shortfall.cause == "capacity") == (shortfall.free_bytes < shortfall.needed_bytes)

    # ---- what is where

    def places(self, holding: Holding, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """``(address, group, position)`` of positions ``first .. last - 1``; an address is a token slot."""
        if isinstance(holding, RangeHolding):
            tokens = self.allocator.granule_bytes // self.allocator.bytes_per_token  # type: ignore[attr-defined]
            for position in range(first, last):
                yield holding.start * tokens + position, 0, position
            return
        assert isinstance(holding, PagedHolding) and isinstance(self.allocator, PagedAllocator)
        size = self.allocator.layout.page_tokens
        for index, group in enumerate(self.allocator.layout.groups):
            for position in range(max(first, holding.dropped[index] * size), last):
                row = position // size - holding.dropped[index]
                for page in holding.tables[index][row * group.copies : (row + 1) * group.copies]:
                    yield page * size + position % size, index, position

    def write(self, life: Life, first: int) -> None:
        assert life.holding is not None
        for address, group, position in self.places(life.holding, first, life.length):
            self.memory[address] = life.request_id, group, position

    def copied(self, source: int, target: int, count: int) -> None:
        """Pages, host pages (negative), or bytes of a contiguous pool."""
        if isinstance(self.allocator, PagedAllocator):
            scale, divisor = self.allocator.layout.page_tokens, 1
        else:
            scale, divisor = 1, self.allocator.bytes_per_token
        held = [self.memory.get(source * scale // divisor + slot) for slot in range(count * scale // divisor)]
        for slot, content in enumerate(held):
            if content is not None:
                self.memory[target * scale // divisor + slot] = content

    def owned(self) -> dict[int, int]:
        """Who has each page or granule; nobody else may."""
        owners: dict[int, int] = {}
        for life in self.lives:
            holding = life.holding
            if life.state != "live" or holding is None:
                continue
            if isinstance(holding, RangeHolding):
                units = list(range(holding.start, holding.start + holding.units))
            else:
                assert isinstance(holding, PagedHolding)
                units = [page for table in holding.tables for page in table]
            for unit in units:
                assert unit not in owners, f"{unit} belongs to {owners[unit]} and {life.request_id}"
                owners[unit] = life.request_id
        return owners

    def unit_bytes(self) -> int:
        allocator: Any = self.allocator
        return int(allocator.layout.page_bytes if isinstance(allocator, PagedAllocator) else allocator.granule_bytes)

    def unusable_bytes(self) -> int:
        return self.allocator.occupancy().unusable_bytes

    def held_bytes(self) -> int:
        return len(self.owned()) * self.unit_bytes()

    def check(self) -> None:
        """Every law: own content at every position, owners, bytes, and the allocator's own invariants."""
        live = [life for life in self.lives if life.state == "live"]
        self.allocator.check([life.holding for life in live if life.holding is not None])
        for life in live:
            assert life.holding is not None and life.holding.capacity_tokens >= 0
            for address, group, position in self.places(life.holding, 0, life.length):
                found = self.memory.get(address)
                assert found == (life.request_id, group, position), f"{life} finds {found} at its {position}"
        occupancy = self.allocator.occupancy()
        assert occupancy.allocated_bytes == self.allocator.allocated_bytes == self.held_bytes()
        parts = occupancy.allocated_bytes + occupancy.cached_bytes + occupancy.free_bytes
        assert parts + (occupancy.unusable_bytes if isinstance(self.allocator, PagedAllocator) else 0) == (
            occupancy.capacity_bytes
        )
        if not live:
            assert self.allocator.allocated_bytes == self.allocator.tail_bytes == self.allocator.discount_bytes == 0

    def forget(self) -> None:
        """Drop what nobody can read any more, and counts: what is left decides what can happen next."""
        forget_counts(self.allocator)
        held = [life for life in self.lives if life.state == "live" and life.holding is not None]
        readable = {address for life in held for address, *_ in self.places(life.holding, 0, life.length)}  # type: ignore[arg-type]
        self.memory = {
            address: self.memory[address] for address in sorted(self.memory) if address < 0 or address in readable
        }


def forget_counts(allocator: Allocator) -> None:
    """Drop what does not decide what happens next."""
    allocator.work.clear()
    allocator.totals, allocator.shortfall = Totals(), None


def explore(start: Any, depth: int) -> tuple[int, int]:
    """Check every state within ``depth`` operations of ``start``; how many states and transitions there were.

    ``start`` has ``operations``, ``apply``, ``check`` and ``forget``; its pickle is its copy and, unless it has a
    ``key``, its identity.
    """
    level = [pickle.dumps(start)]
    seen, transitions = {_identity(start)}, 0
    while level and depth:
        depth -= 1
        following = []
        for state in level:
            first = pickle.loads(state)
            for number, operation in enumerate(first.operations()):
                world = pickle.loads(state) if number else first
                world.apply(operation)
                world.check()
                world.forget()
                transitions += 1
                identity = _identity(world)
                if identity not in seen:
                    seen.add(identity)
                    following.append(identity if isinstance(identity, bytes) else pickle.dumps(world))
        level = following
    return len(seen), transitions


def _identity(world: Any) -> bytes | int:
    """64 bits tell the keys of a million states apart, with odds of one in ten million against it."""
    return hash(world.key()) if hasattr(world, "key") else pickle.dumps(world)
