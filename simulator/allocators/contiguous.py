"""One unbroken range of addresses a sequence: what serving engines did before pages.

How much is set aside is ``reserve``, Orca's three variants as the PagedAttention paper (arXiv 2309.06180) rebuilt
them, and a growing buffer:

``max_model_len``  the longest sequence the engine accepts, whatever comes (Orca Max, FasterTransformer)
``pow2``           the prompt and the output rounded up to a power of two: 25 -> 32 (Orca Pow2)
``exact``          the length it will reach, known beforehand (Orca Oracle)
``grow``           what is needed now, rounded up to ``grow_tokens``; later like ``realloc``

Where the range lies is ``fit``: ``first best next worst`` place exact sizes; ``buddy`` places blocks of a power of
two granules, none larger than the block for ``max_model_len``.
"""

from collections.abc import Iterable

from simulator.allocators.arena import Arena, RangeStore
from simulator.allocators.base import Allocator, Demand, Holding, Occupancy, Shortfall
from simulator.allocators.buddy import Buddy, power_of_two_at_least
from simulator.config import ContiguousConfig
from simulator.units import align_up, ceil_div


class RangeHolding(Holding):
    """A sequence's range, in granules: ``[start, start + units)``; ``units`` is 0 once it is released."""

    __slots__ = ("start", "units")

    def __init__(self, demand: Demand) -> None:
        super().__init__(demand)
        self.start = 0
        self.units = 0


class ContiguousAllocator(Allocator):
    """One range a sequence, in a pool of ``capacity_bytes``.

    Sizes are whole granules of ``config.page_size`` (tokens, or bytes when it is a text such as ``"4096B"``). A pool
    that is no multiple of the granule has an unusable tail.

    ``search_cycles_per_hole`` is the modelled cost of looking at one entry of the free list: a dependent load. The
    default of 20 cycles is an assumption (a hit in the second-level cache of the host core). ``first`` and ``next``
    look at each hole they pass, ``best`` and ``worst`` at log2(holes) + 1, ``buddy`` at one free list an order.
    """

    kind = "contiguous"
    max_pages = 0
    fragments = True

    def __init__(
        self,
        config: ContiguousConfig,
        *,
        capacity_bytes: int,
        bytes_per_token: int,
        max_model_len: int,
        tile_tokens: int = 128,
        search_cycles_per_hole: int = 20,
    ) -> None:
        super().__init__()
        self.capacity_bytes = capacity_bytes
        self.bytes_per_token = bytes_per_token
        self.max_model_len = max_model_len
        self.tile_tokens = tile_tokens
        self.search_cycles_per_hole = search_cycles_per_hole
        # read at every call, where a plain attribute costs a third of a validated model's
        self._reserve = config.reserve
        self._grow_tokens = config.grow_tokens
        page = config.page_size
        self.granule_bytes = int(page[:-1]) if isinstance(page, str) else page * bytes_per_token
        granules = capacity_bytes // self.granule_bytes
        self._store: RangeStore
        if config.fit == "buddy":
            self._store = Buddy(granules, power_of_two_at_least(self._granules(max_model_len)))
        else:
            self._store = Arena(granules, config.fit)

    def can_ever_hold(self, demand: Demand) -> bool:
        """Whether the range that ``demand`` ends up with fits an empty pool, and covers its whole life.

        Enough for ``grow`` too: a sequence alone from the start lies at the low end of a free block and
        grows in place; where a smaller buddy block ends, a larger one is free to move to.
        """
        reserved_tokens = self._reserved_tokens(demand, demand.final_tokens)
        return demand.final_tokens <= self.max_model_len and self._units(reserved_tokens) <= self._store.largest_ever

    def admit(
        self, demand: Demand, tokens: int, *, whole_tokens: int = 0, keep_free_bytes: int = 0
    ) -> RangeHolding | None:
        """The whole reservation at once, or for ``grow`` room for ``tokens`` rounded up to ``grow_tokens``.

        ``whole_tokens`` matters to ``grow`` only: some hole must take a range of that many tokens.
        """
        units = whole_units = self._units(self._reserved_tokens(demand, tokens))
        if whole_tokens > tokens:
            whole_units = self._units(self._reserved_tokens(demand, whole_tokens))
        needed_bytes = whole_units * self.granule_bytes + keep_free_bytes
        if needed_bytes > self.free_bytes or (whole_units > units and whole_units > self._store.largest_free):
            self._refuse(needed_bytes)
            return None
        start = self._search(units)
        if start is None:
            self._refuse(needed_bytes)
            return None
        holding = RangeHolding(demand)
        self._place(holding, start, units)
        return holding

    def grow(self, holding: Holding, tokens: int, new_tokens: int = 1) -> bool:
        """Lengthen a ``grow`` range, in place if the right neighbour is free, else by a move; others never change.

        The new length is ``tokens`` rounded up to ``grow_tokens``, but not above ``max_model_len``. A move holds the
        old range until the new one is written, as ``realloc`` does, and copies all of it (read and written). The
        shortfall counts the missing bytes only: if so many are free somewhere, the cause is ``fragmentation``.
        """
        assert isinstance(holding, RangeHolding) and holding.units, "growth of a range that is not held"
        if tokens <= holding.capacity_tokens:
            return True
        units = self._units(self._stepped_tokens(tokens))
        if self._reserve == "grow" and (self._extend(holding, units) or self._move(holding, units)):
            return True
        self._refuse((units - holding.units) * self.granule_bytes)
        return False

    def release(self, holding: Holding) -> None:
        """Give the range back. Releasing twice is an ``AssertionError``."""
        assert isinstance(holding, RangeHolding) and holding.units, "release of a range that is not held"
        self._store.free(holding.start, holding.units)
        self._place(holding, 0, 0)

    @property
    def free_bytes(self) -> int:
        """Free bytes in whole granules; the unusable tail of the pool is not among them."""
        return self._store.total_free * self.granule_bytes

    def free_ranges(self) -> Iterable[tuple[int, int]]:
        """Start and size of each hole, in granules, by rising address."""
        return self._store.free_ranges()

    def free_and_largest_bytes(self) -> tuple[int, int]:
        return self.free_bytes, self._store.largest_free * self.granule_bytes

    def occupancy(self) -> Occupancy:
        """The pool now. With ``buddy`` the largest free block counts, adjacent free blocks do not add up."""
        return Occupancy(
            capacity_bytes=self.capacity_bytes,
            allocated_bytes=self.allocated_bytes,
            cached_bytes=0,
            free_bytes=self.capacity_bytes - self.allocated_bytes,
            largest_free_bytes=self._store.largest_free * self.granule_bytes,
            unusable_bytes=self.capacity_bytes % self.granule_bytes,
        )

    def check(self, holdings: Iterable[Holding]) -> None:
        """Assert that the live ranges and the holes cover the pool exactly once, and that the counts agree."""
        self._store.check()
        live = [holding for holding in holdings if isinstance(holding, RangeHolding)]
        pieces = [(holding.start, holding.units) for holding in live] + list(self._store.free_ranges())
        end = 0
        for start, size in sorted(pieces):
            assert size > 0 and start == end, f"range [{start}, {start + size}) follows one that ends at {end}"
            end = start + size
        assert end == self._store.capacity, f"ranges and holes end at {end}, the pool at {self._store.capacity}"
        held_bytes = sum(self.holding_bytes(holding) for holding in live)
        assert held_bytes == self.allocated_bytes, f"{held_bytes} bytes are held, {self.allocated_bytes} counted"
        tail_bytes = sum(self.unused_bytes(holding) for holding in live)
        assert tail_bytes == self.tail_bytes, f"{tail_bytes} bytes will never be used, {self.tail_bytes} counted"
        for holding in live:
            fitting_tokens = self.holding_bytes(holding) // self.bytes_per_token
            assert holding.held_tokens == holding.capacity_tokens == fitting_tokens, "a range has the wrong capacity"

    def holding_bytes(self, holding: Holding) -> int:
        """Bytes of the range, slack of a granule in bytes included."""
        assert isinstance(holding, RangeHolding)
        return holding.units * self.granule_bytes

    def _granules(self, tokens: int) -> int:
        return ceil_div(tokens * self.bytes_per_token, self.granule_bytes)

    def _units(self, tokens: int) -> int:
        """Granules that a range for ``tokens`` takes from the pool, at least one."""
        return self._store.footprint(max(self._granules(tokens), 1))

    def _stepped_tokens(self, tokens: int) -> int:
        return max(min(align_up(tokens, self._grow_tokens), self.max_model_len), tokens)

    def _reserved_tokens(self, demand: Demand, tokens: int) -> int:
        """Tokens to set aside for ``demand`` when ``tokens`` of them are needed now."""
        match self._reserve:
            case "grow":
                return self._stepped_tokens(tokens)
            case "max_model_len":
                reserved_tokens = self.max_model_len
            case "pow2":
                reserved_tokens = demand.prompt_tokens + power_of_two_at_least(demand.output_tokens)
            case "exact":
                reserved_tokens = demand.final_tokens
        return max(min(reserved_tokens, self.max_model_len), tokens)

    def _search(self, units: int) -> int | None:
        start = self._store.allocate(units)
        self.work.search_cycles += self._store.examined * self.search_cycles_per_hole
        return start

    def _place(self, holding: RangeHolding, start: int, units: int) -> None:
        """Record where ``holding`` now lies and how long it is, and keep the sums over all holdings exact."""
        self.allocated_bytes += (units - holding.units) * self.granule_bytes
        self.tail_bytes -= self.unused_bytes(holding)
        holding.start, holding.units = start, units
        self.tail_bytes += self.unused_bytes(holding)
        holding.held_tokens = holding.capacity_tokens = units * self.granule_bytes // self.bytes_per_token

    def unused_bytes(self, holding: RangeHolding) -> int:
        """Held bytes past the last token that ``holding`` will ever have."""
        return max(0, self.holding_bytes(holding) - holding.demand.final_tokens * self.bytes_per_token)

    def _extend(self, holding: RangeHolding, units: int) -> bool:
        extended = self._store.extend_in_place(holding.start, holding.units, units)
        self.work.search_cycles += self._store.examined * self.search_cycles_per_hole
        if extended:
            self._place(holding, holding.start, units)
        return extended

    def _move(self, holding: RangeHolding, units: int) -> bool:
        start = self._search(units)
        if start is None:
            return False
        moved_bytes = holding.units * self.granule_bytes
        self.work.copied_bytes += 2 * moved_bytes
        self.totals.moved_bytes += moved_bytes
        self.totals.moves += 1
        if self.on_copy is not None:
            self.on_copy(holding.start * self.granule_bytes, start * self.granule_bytes, moved_bytes)
        self._store.free(holding.start, holding.units)
        self._place(holding, start, units)
        return True

    def _refuse(self, needed_bytes: int) -> None:
        free_bytes = self.free_bytes
        self.shortfall = Shortfall(
            cause="capacity" if free_bytes < needed_bytes else "fragmentation",
            needed_bytes=needed_bytes,
            free_bytes=free_bytes,
            largest_free_bytes=self._store.largest_free * self.granule_bytes,
        )
