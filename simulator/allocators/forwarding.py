"""An allocator that stands in for another one: the base of those that watch it or make it go wrong."""

from collections.abc import Iterable

from simulator.allocators.base import Allocator, Demand, Holding, Leak, Occupancy


class ForwardingAllocator(Allocator):
    """Passes every call on to ``inner`` and shows its numbers. Subclasses override the calls that they care about and
    finish each with ``_follow``."""

    def __init__(self, inner: Allocator) -> None:
        super().__init__()
        self.inner = inner
        self.kind = inner.kind
        self.bytes_per_token = inner.bytes_per_token
        self.tile_tokens = inner.tile_tokens
        self.max_pages = inner.max_pages
        self.capacity_bytes = inner.capacity_bytes
        self.can_fork = inner.can_fork
        self.caches_prefixes = inner.caches_prefixes
        self.fragments = inner.fragments
        self.compacts_on_failure = inner.compacts_on_failure
        self.leaks = inner.leaks
        self.work = inner.work
        self.totals = inner.totals
        self._follow()

    def _follow(self) -> None:
        """An operation is over: show what it left behind."""
        inner = self.inner
        self.allocated_bytes = inner.allocated_bytes
        self.discount_bytes = inner.discount_bytes
        self.tail_bytes = inner.tail_bytes
        self.shortfall = inner.shortfall

    def leak(self) -> Leak:
        return self.inner.leak()

    @property
    def mean_run_pages(self) -> float | None:
        """The inner allocator's."""
        return self.inner.mean_run_pages

    @property
    def table_entries(self) -> int:
        """The inner allocator's."""
        return self.inner.table_entries

    # ---- asking

    def can_ever_hold(self, demand: Demand) -> bool:
        return self.inner.can_ever_hold(demand)

    def free_rows(self) -> int:
        return self.inner.free_rows()

    def sure_to_grow(self, sequences: int, tokens: int) -> bool:
        return self.inner.sure_to_grow(sequences, tokens)

    def maintenance_due_ns(self, now_ns: int) -> int | None:
        return self.inner.maintenance_due_ns(now_ns)

    def hit_tokens(self, demand: Demand, tokens: int) -> int:
        return self.inner.hit_tokens(demand, tokens)

    def occupancy(self) -> Occupancy:
        return self.inner.occupancy()

    def free_and_largest_bytes(self) -> tuple[int, int]:
        return self.inner.free_and_largest_bytes()

    def holding_bytes(self, holding: Holding) -> int:
        return self.inner.holding_bytes(holding)

    def check(self, holdings: Iterable[Holding]) -> None:
        self.inner.check(holdings)

    # ---- acting

    def admit(self, demand: Demand, tokens: int, *, whole_tokens: int = 0, keep_free_bytes: int = 0) -> Holding | None:
        holding = self.inner.admit(demand, tokens, whole_tokens=whole_tokens, keep_free_bytes=keep_free_bytes)
        self._follow()
        return holding

    def grow(self, holding: Holding, tokens: int, new_tokens: int = 1) -> bool:
        grown = self.inner.grow(holding, tokens, new_tokens)
        self._follow()
        return grown

    def grow_each(self, holdings: list[Holding]) -> None:
        self.inner.grow_each(holdings)
        self._follow()

    def fork(self, parent: Holding, demand: Demand, tokens: int) -> Holding:
        child = self.inner.fork(parent, demand, tokens)
        self._follow()
        return child

    def release(self, holding: Holding) -> None:
        self.inner.release(holding)
        self._follow()

    def swap_out(self, holdings: list[Holding]) -> int | None:
        moved_bytes = self.inner.swap_out(holdings)
        self._follow()
        return moved_bytes

    def swap_in(self, wanted: list[tuple[Holding, int]], *, keep_free_bytes: int = 0) -> int | None:
        moved_bytes = self.inner.swap_in(wanted, keep_free_bytes=keep_free_bytes)
        self._follow()
        return moved_bytes

    def refused_again(self, demand: Demand, times: int) -> None:
        self.inner.refused_again(demand, times)
        self._follow()

    def maintain(self, now_ns: int, holdings: Iterable[Holding]) -> bool:
        moved = self.inner.maintain(now_ns, holdings)
        self._follow()
        return moved


def innermost(allocator: Allocator) -> Allocator:
    """The allocator that has the memory, behind whoever stands in for it."""
    while isinstance(allocator, ForwardingAllocator):
        allocator = allocator.inner
    return allocator
