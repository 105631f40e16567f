"""Contiguous reservations of every kind against a list of owners, one entry a granule, searched by brute force."""

from contiguous_pool import FITS, RESERVES, Sequence, build
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from simulator.allocators.contiguous import RangeHolding


class NaivePool:
    """A list of owners, one entry a granule. Finds room by looking at every hole or every aligned block."""

    def __init__(self, granules: int, fit: str, largest_block: int) -> None:
        self.owner: list[int | None] = [None] * granules
        self.fit = fit
        self.largest_block = largest_block
        self.cursor = 0

    def size(self, granules: int) -> int:
        return granules if self.fit != "buddy" else next(2**k for k in range(30) if 2**k >= granules)

    def is_free(self, start: int, end: int) -> bool:
        return end <= len(self.owner) and all(owner is None for owner in self.owner[start:end])

    def holes(self) -> list[tuple[int, int]]:
        """Maximal free runs; for the buddy system maximal free aligned blocks."""
        count = len(self.owner)
        runs = [(low, high) for low in range(count) for high in range(low + 1, count + 1) if self.is_free(low, high)]
        if self.fit == "buddy":
            sizes = [2**k for k in range(30) if 2**k <= self.largest_block]
            runs = [(low, high) for low, high in runs if high - low in sizes and low % (high - low) == 0]
        return [
            (low, high - low)
            for low, high in runs
            if not any(a <= low and high <= b and (a, b) != (low, high) for a, b in runs)
        ]

    def find(self, size: int) -> int | None:
        fitting = [hole for hole in self.holes() if hole[1] >= size]
        if not fitting:
            return None
        past = [hole for hole in fitting if sum(hole) > self.cursor]
        start = {
            "first": lambda: min(fitting),
            "next": lambda: min(past or fitting),
            "best": lambda: min(fitting, key=lambda hole: (hole[1], hole[0])),
            "buddy": lambda: min(fitting, key=lambda hole: (hole[1], hole[0])),
            "worst": lambda: min(fitting, key=lambda hole: (-hole[1], hole[0])),
        }[self.fit]()[0]
        self.cursor = start + size
        return start

    def can_extend(self, start: int, size: int, new_size: int) -> bool:
        legal = self.fit != "buddy" or (start % new_size == 0 and new_size <= self.largest_block)
        return legal and self.is_free(start + size, start + new_size)

    def set(self, start: int, size: int, owner: int | None) -> None:
        self.owner[start : start + size] = [owner] * size


GRANULE, STEP, LONGEST, BYTES = 2, 5, 24, 3  # tokens, tokens, tokens, bytes per token


def naive_granules(reserve: str, demand: Sequence, tokens: int) -> int:
    padded = {
        "max_model_len": LONGEST,
        "exact": demand.final_tokens,
        "pow2": demand.prompt_tokens + next(2**k for k in range(9) if 2**k >= demand.output_tokens),
        "grow": next(length for length in range(0, 99, STEP) if length >= tokens),
    }[reserve]
    length = max(min(padded, LONGEST), tokens)
    return next(count for count in range(99) if count * GRANULE >= length)


class ContiguousMachine(RuleBasedStateMachine):
    """The allocator beside ``NaivePool``; a sequence is known by its request id."""

    @initialize(
        fit=st.sampled_from(FITS), reserve=st.sampled_from(["grow", "grow", *RESERVES]), granules=st.integers(1, 32)
    )
    def start(self, fit: str, reserve: str, granules: int) -> None:
        self.allocator = build(
            granules * GRANULE,
            LONGEST,
            bytes_per_token=BYTES,
            fit=fit,
            reserve=reserve,
            page_size=GRANULE,
            grow_tokens=STEP,
        )
        self.reserve = reserve
        self.pool = NaivePool(granules, fit, 16)
        self.live: list[RangeHolding] = []
        self.moved = self.admissions = 0

    def expect_shortfall(self, needed: int) -> None:
        shortfall = self.allocator.shortfall
        free = self.pool.owner.count(None) * GRANULE * BYTES
        assert shortfall is not None
        assert (shortfall.needed_bytes, shortfall.free_bytes) == (needed, free)
        assert shortfall.cause == ("fragmentation" if free >= needed else "capacity")

    @rule(
        prompt=st.integers(1, 16),
        output=st.integers(1, 9),
        whole=st.integers(0, 24),
        keep_free_bytes=st.sampled_from([0, 0, 5, 30]),
    )
    def admit(self, prompt: int, output: int, whole: int, keep_free_bytes: int) -> None:
        demand = Sequence(prompt, output, self.admissions)
        size = self.pool.size(naive_granules(self.reserve, demand, prompt))
        whole = max(prompt, whole if self.reserve == "grow" else 0)
        whole_size = self.pool.size(naive_granules(self.reserve, demand, whole))
        holding = self.allocator.admit(demand, prompt, whole_tokens=whole, keep_free_bytes=keep_free_bytes)
        needed = whole_size * GRANULE * BYTES + keep_free_bytes
        enough = self.pool.owner.count(None) * GRANULE * BYTES >= needed
        placeable = any(length >= whole_size for _, length in self.pool.holes())
        if not (enough and placeable):
            assert holding is None
            self.expect_shortfall(needed)
            return
        assert holding is not None
        assert (holding.start, holding.units) == (self.pool.find(size), size)
        self.pool.set(holding.start, size, self.admissions)
        self.live.append(holding)
        self.admissions += 1

    @precondition(lambda self: self.live)
    @rule(data=st.data(), extra=st.integers(1, 8))
    def grow(self, data: st.DataObject, extra: int) -> None:
        holding = data.draw(st.sampled_from(self.live))
        tokens = min(holding.capacity_tokens + extra, LONGEST)
        before, start = holding.units, holding.start
        size = self.pool.size(naive_granules("grow", Sequence(1), tokens))
        grown = self.allocator.grow(holding, tokens)
        if tokens <= before * GRANULE:
            assert grown and (holding.start, holding.units) == (start, before)
            return
        target = None
        if self.reserve == "grow":
            in_place = self.pool.can_extend(start, before, size)
            target = start if in_place else self.pool.find(size)
        assert grown == (target is not None)
        if target is None:
            assert (holding.start, holding.units) == (start, before)
            self.expect_shortfall((size - before) * GRANULE * BYTES)
            return
        self.moved += before * GRANULE * BYTES * (target != start)
        self.pool.set(start, before, None)
        self.pool.set(target, size, holding.demand.request_id)
        assert (holding.start, holding.units) == (target, size)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        holding = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.pool.set(holding.start, holding.units, None)
        self.allocator.release(holding)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "allocator"):
            return
        self.allocator.check(self.live)
        for holding in self.live:
            owned = [index for index, owner in enumerate(self.pool.owner) if owner == holding.demand.request_id]
            assert owned == list(range(holding.start, holding.start + holding.units))
        occupancy = self.allocator.occupancy()
        assert occupancy.free_bytes == self.pool.owner.count(None) * GRANULE * BYTES
        assert occupancy.allocated_bytes + occupancy.free_bytes == occupancy.capacity_bytes
        largest = max((size for _, size in self.pool.holes()), default=0)
        assert occupancy.largest_free_bytes == largest * GRANULE * BYTES
        assert self.allocator.totals.moved_bytes == self.moved
        assert self.allocator.work.copied_bytes == 2 * self.moved


ContiguousMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestContiguousAgainstABitmap = ContiguousMachine.TestCase
