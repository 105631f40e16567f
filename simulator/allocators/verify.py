"""``--verify``: an allocator under observation.

Every operation is passed on, every copy is followed in shadow memory, every page table touched is read back, and
every so many operations all tables are read, each page is looked for in them and in the free list, and the
allocator's own invariants are asserted. A sequence may write up
to its ``capacity_tokens`` without asking again, so the shadow writes that far at once: whatever an allocator lets
a sequence write must be its own.
"""

from collections.abc import Iterable

from simulator.allocators.base import Allocator, Demand, Holding
from simulator.allocators.blame import find_culprits
from simulator.allocators.contiguous import ContiguousAllocator
from simulator.allocators.forwarding import ForwardingAllocator, innermost
from simulator.allocators.page_shadow import PageShadow
from simulator.allocators.paged import PagedAllocator
from simulator.allocators.range_shadow import RangeShadow
from simulator.allocators.shadow import ShadowMemory
from simulator.allocators.violations import VerificationError, Violation


class VerifyingAllocator(ForwardingAllocator):
    """Stands in for ``inner``, which it observes.

    ``every``: operations between two complete checks. With ``stop=False`` violations are collected in
    ``violations``, each kind once for a request and page, and the run goes on. ``operations`` counts calls that move
    memory, ``tables_read`` sequences read back. Raises ``ValueError`` for a kind of allocator that cannot be read.
    """

    def __init__(self, inner: Allocator, *, every: int = 1, stop: bool = True) -> None:
        super().__init__(inner)
        self._owner = innermost(inner)
        self.shadow = _shadow_of(self._owner)
        self.violations: list[Violation] = []
        self._every = every
        self._stop = stop
        self.operations = 0
        self.tables_read = 0
        self._live: dict[int, Holding] = {}
        self._reported: set[tuple[str, int, int]] = set()
        self._owner.on_copy = self.shadow.copy

    # ---- the protocol

    def admit(self, demand: Demand, tokens: int, *, whole_tokens: int = 0, keep_free_bytes: int = 0) -> Holding | None:
        holding = super().admit(demand, tokens, whole_tokens=whole_tokens, keep_free_bytes=keep_free_bytes)
        if holding is not None:
            self._begin(holding)
            self.shadow.write_up_to(holding, tokens)
        self._done(*([holding] if holding is not None else []))
        return holding

    def grow(self, holding: Holding, tokens: int, new_tokens: int = 1) -> bool:
        self._expect_live(holding)
        grown = super().grow(holding, tokens, new_tokens)
        self._found(self.shadow.verify_view(holding, tokens - new_tokens))
        if grown:
            self.shadow.write_up_to(holding, tokens)
        self._done(holding)
        return grown

    def grow_each(self, holdings: list[Holding]) -> None:
        Allocator.grow_each(self, holdings)  # one by one, each of them observed

    def fork(self, parent: Holding, demand: Demand, tokens: int) -> Holding:
        self._expect_live(parent)
        child = super().fork(parent, demand, tokens)
        self.shadow.forked(parent, child, tokens)
        self._live[id(child)] = child
        self._done(parent, child)
        return child

    def release(self, holding: Holding) -> None:
        self._expect_live(holding)
        self._look_at(holding)
        try:
            super().release(holding)
        except AssertionError as error:
            self._report([Violation("release", holding.demand.request_id, -1, _named(holding, error))])
        self._live.pop(id(holding), None)
        self.shadow.end(holding)
        self._done()

    def swap_out(self, holdings: list[Holding]) -> int | None:
        moved_bytes = super().swap_out(holdings)
        self._done(*holdings)
        return moved_bytes

    def swap_in(self, wanted: list[tuple[Holding, int]], *, keep_free_bytes: int = 0) -> int | None:
        moved_bytes = super().swap_in(wanted, keep_free_bytes=keep_free_bytes)
        self._done(*(holding for holding, _ in wanted))
        return moved_bytes

    def maintain(self, now_ns: int, holdings: Iterable[Holding]) -> bool:
        moved = super().maintain(now_ns, holdings)
        if moved:
            self.check(self._live.values())
        return moved

    def check(self, holdings: Iterable[Holding]) -> None:
        """Read every table and assert every invariant. ``holdings``: all live ones, which must be those seen here."""
        given = list(holdings)
        unknown = [holding for holding in given if id(holding) not in self._live]
        wrong = [_violation("unknown", holding, "is live, but was never admitted or is over") for holding in unknown]
        for holding in self._live.values():
            found = self._read(holding)
            if found is not None:
                wrong.append(found)
        wrong += find_culprits(self._owner, self.shadow, list(self._live.values()))
        try:
            self.inner.check(self._live.values())
        except AssertionError as error:
            wrong += [] if wrong else [Violation("invariant", -1, -1, str(error))]
        self._report(wrong)

    # ---- how

    def _begin(self, holding: Holding) -> None:
        self.shadow.begin(holding)
        self._live[id(holding)] = holding
        self._look_at(holding)

    def _done(self, *touched: Holding) -> None:
        """After an operation: let the touched sequences write what they may, and read."""
        for holding in touched:
            if id(holding) in self._live:
                self.shadow.write_up_to(holding, holding.capacity_tokens)
        for holding in touched:
            self._look_at(holding)
        self.operations += 1
        if self.operations % self._every == 0:
            self.check(self._live.values())

    def _look_at(self, holding: Holding) -> None:
        if id(holding) in self._live:
            self._found(self._read(holding))

    def _read(self, holding: Holding) -> Violation | None:
        self.tables_read += 1
        return self.shadow.verify_read(holding, self.shadow.written(holding))

    def _found(self, violation: Violation | None) -> None:
        if violation is not None:
            self._report([violation])

    def _expect_live(self, holding: Holding) -> None:
        if id(holding) not in self._live:
            raise VerificationError([_violation("double_release", holding, "is used or released after its release")])

    def _report(self, found: list[Violation]) -> None:
        fresh = [v for v in found if (v.kind, v.request_id, v.page) not in self._reported]
        self._reported.update((violation.kind, violation.request_id, violation.page) for violation in fresh)
        self.violations += fresh
        if fresh and self._stop:
            raise VerificationError(fresh)


def _shadow_of(allocator: Allocator) -> ShadowMemory:
    if isinstance(allocator, PagedAllocator):
        return PageShadow(allocator)
    if isinstance(allocator, ContiguousAllocator):
        return RangeShadow(allocator)
    raise ValueError(f"allocator {allocator.kind!r} has neither page tables nor ranges that could be verified")


def _violation(kind: str, holding: Holding, what: str) -> Violation:
    return Violation(kind, holding.demand.request_id, -1, f"request {holding.demand.request_id} {what}")


def _named(holding: Holding, error: AssertionError) -> str:
    name = f"request {holding.demand.request_id}"
    return str(error) if name in str(error) else f"release of {name}: {error}"
