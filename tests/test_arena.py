"""The arena against a bitmap that searches by brute force, and against what is proven about free lists."""

import copy
import random
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from simulator.allocators.arena import Arena, Fit

FITS: tuple[Fit, ...] = ("first", "best", "next", "worst")


class Bitmap:
    """The same store, one list entry a unit. Knows nothing of coalescing: a hole is whatever run of units is free."""

    def __init__(self, capacity: int, fit: Fit) -> None:
        self.used = [False] * capacity
        self.fit = fit
        self.cursor = 0

    def holes(self) -> list[tuple[int, int]]:
        holes = []
        for start, used in enumerate(self.used):
            if not used and (start == 0 or self.used[start - 1]):
                end = start
                while end < len(self.used) and not self.used[end]:
                    end += 1
                holes.append((start, end - start))
        return holes

    def allocate(self, size: int) -> int | None:
        fitting = [hole for hole in self.holes() if hole[1] >= size]
        if not fitting:
            return None
        start = self._pick(fitting)
        self.used[start : start + size] = [True] * size
        self.cursor = start + size
        return start

    def _pick(self, fitting: list[tuple[int, int]]) -> int:
        if self.fit == "best":
            return min(fitting, key=lambda hole: (hole[1], hole[0]))[0]
        if self.fit == "worst":
            return min(fitting, key=lambda hole: (-hole[1], hole[0]))[0]
        begin = self.cursor if self.fit == "next" else 0
        for address in [*range(begin, len(self.used)), *range(begin)]:
            for start, size in fitting:
                if start <= address < start + size:
                    return start
        raise AssertionError("a fitting hole was not met")

    def extend(self, start: int, size: int, new_size: int) -> bool:
        wanted = range(start + size, start + new_size)
        if any(address >= len(self.used) or self.used[address] for address in wanted):
            return False
        self.used[start : start + new_size] = [True] * new_size
        return True

    def free(self, start: int, size: int) -> None:
        self.used[start : start + size] = [False] * size


def assert_same(arena: Arena, model: Bitmap) -> None:
    holes = model.holes()
    assert list(arena.free_ranges()) == holes
    assert arena.largest_free == max((size for _, size in holes), default=0)
    assert arena.total_free == model.used.count(False)
    arena.check()


class ArenaMachine(RuleBasedStateMachine):
    fit: Fit = "first"
    capacity = 48

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(self.capacity, self.fit)
        self.model = Bitmap(self.capacity, self.fit)
        self.live: list[tuple[int, int]] = []

    @rule(size=st.integers(1, 20))
    def allocate(self, size: int) -> None:
        start = self.arena.allocate(size)
        assert start == self.model.allocate(size)
        if start is not None:
            self.live.append((start, size))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        start, size = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.arena.free(start, size)
        self.model.free(start, size)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), extra=st.integers(0, 8))
    def extend(self, data: st.DataObject, extra: int) -> None:
        index = data.draw(st.integers(0, len(self.live) - 1))
        start, size = self.live[index]
        extended = self.arena.extend_in_place(start, size, size + extra)
        assert extended == self.model.extend(start, size, size + extra)
        if extended:
            self.live[index] = (start, size + extra)

    @invariant()
    def agrees(self) -> None:
        assert_same(self.arena, self.model)


class BestMachine(ArenaMachine):
    fit = "best"


class NextMachine(ArenaMachine):
    fit = "next"


class WorstMachine(ArenaMachine):
    fit = "worst"


for machine in (ArenaMachine, BestMachine, NextMachine, WorstMachine):
    machine.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestFirstFitAgainstABitmap = ArenaMachine.TestCase
TestBestFitAgainstABitmap = BestMachine.TestCase
TestNextFitAgainstABitmap = NextMachine.TestCase
TestWorstFitAgainstABitmap = WorstMachine.TestCase


State = tuple[Arena, Bitmap, tuple[tuple[int, int], ...]]


def successors(arena: Arena, model: Bitmap, live: tuple[tuple[int, int], ...]) -> Iterator[State]:
    """What every possible operation leads to; asserts on the way that both stores answer alike."""
    for size in range(1, arena.capacity + 1):
        after, model_after = copy.deepcopy((arena, model))
        start = after.allocate(size)
        assert start == model_after.allocate(size)
        if start is not None:
            yield after, model_after, tuple(sorted((*live, (start, size))))
    for start, size in live:
        rest = tuple(item for item in live if item[0] != start)
        after, model_after = copy.deepcopy((arena, model))
        after.free(start, size)
        model_after.free(start, size)
        yield after, model_after, rest
        after, model_after = copy.deepcopy((arena, model))
        extended = after.extend_in_place(start, size, size + 1)
        assert extended == model_after.extend(start, size, size + 1)
        if extended:
            yield after, model_after, tuple(sorted((*rest, (start, size + 1))))


@pytest.mark.parametrize(("fit", "capacity"), [("first", 6), ("best", 6), ("next", 5), ("worst", 6)])
def test_every_reachable_state_of_a_small_arena_equals_the_bitmap(fit: Fit, capacity: int) -> None:
    frontier: list[State] = [(Arena(capacity, fit), Bitmap(capacity, fit), ())]
    seen = set()
    while frontier:
        for state in successors(*frontier.pop()):
            arena, model, live = state
            key = (live, model.cursor if fit == "next" else 0)
            if key not in seen:
                assert_same(arena, model)
                seen.add(key)
                frontier.append(state)
    # tilings of n units by holes of one unit and ranges of any size: Fibonacci number F(2n + 1)
    layouts = {5: 89, 6: 233}[capacity]
    reached = {live for live, _ in seen}
    assert len(reached) <= layouts
    assert len(reached) == layouts or fit != "first", "first fit with frees in any order reaches every layout"


@pytest.mark.parametrize("operations", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("fit", FITS)
def test_a_long_random_run_places_every_range_where_the_bitmap_does(fit: Fit, operations: int) -> None:
    rng = random.Random(20)
    arena, model = Arena(64, fit), Bitmap(64, fit)
    live: list[tuple[int, int]] = []
    for step in range(operations):
        if live and rng.random() < 0.5:
            start, size = live.pop(rng.randrange(len(live)))
            arena.free(start, size)
            model.free(start, size)
        else:
            size = rng.randint(1, 12)
            found = arena.allocate(size)
            assert found == model.allocate(size)
            if found is not None:
                live.append((found, size))
        if step % 97 == 0:
            assert_same(arena, model)


def churn(arena: Arena, *, live_ranges: int, replacements: int, largest: int) -> tuple[float, float]:
    """Mean holes, and the share of allocations that did not fit their hole exactly, once settled."""
    rng = random.Random(4)
    live = []
    for _ in range(live_ranges):
        size = rng.randint(1, largest)
        live.append((arena.allocate(size), size))
    holes = inexact = 0
    for step in range(2 * replacements):
        index = rng.randrange(live_ranges)
        start, size = live[index]
        assert start is not None
        arena.free(start, size)
        size = rng.randint(1, largest)
        before = arena.hole_count
        live[index] = (arena.allocate(size), size)
        if step >= replacements:
            inexact += arena.hole_count == before
            holes += arena.hole_count
    return holes / replacements, inexact / replacements


@pytest.mark.parametrize("fit", FITS)
def test_half_as_many_holes_as_live_ranges_knuths_fifty_percent_rule(fit: Fit) -> None:
    live_ranges = 300
    holes, inexact_share = churn(Arena(2**45, fit), live_ranges=live_ranges, replacements=6_000, largest=1_000)
    assert holes == pytest.approx(inexact_share * live_ranges / 2, rel=0.10)


def covering(live: list[tuple[int, int]], residue: int, modulus: int) -> list[tuple[int, int]]:
    """The ranges that cover an address equal to ``residue`` modulo ``modulus``."""
    return [(start, size) for start, size in live if (residue - start) % modulus < size]


def robson_adversary(arena: Arena, *, live_units: int, log_largest: int) -> int:
    """Robson's program (J. ACM 18, 1971): at each size keep just what blocks the next.

    Keeps the ranges that cover an address of a chosen residue modulo the size of the round, releases all else, and
    spends what became free on ranges of that size. Live units never exceed ``live_units``. Returns the end of the
    highest range ever placed.
    """
    live = [(start, 1) for _ in range(live_units) if (start := arena.allocate(1)) is not None]
    top = max(start + size for start, size in live)
    residue = 0
    for log_size in range(1, log_largest + 1):
        modulus = 2**log_size
        # each range kept spoils ``modulus`` units for ranges of that size and costs its own: keep what spoils most
        choices = [covering(live, residue + shift, modulus) for shift in (0, modulus // 2)]
        spoiled = [sum(modulus - size for _, size in kept) for kept in choices]
        if spoiled[1] > spoiled[0]:
            residue += modulus // 2
        survivors = choices[spoiled[1] > spoiled[0]]
        for start, size in sorted(set(live) - set(survivors)):
            arena.free(start, size)
        live = survivors
        while sum(size for _, size in live) + modulus <= live_units:
            found = arena.allocate(modulus)
            assert found is not None, "first fit ran out"
            live.append((found, modulus))
        top = max(top, *(start + size for start, size in live))
    return top


@pytest.mark.parametrize("log_largest", [3, 4, 5])
def test_first_fit_meets_robsons_adversary_within_both_of_his_bounds(log_largest: int) -> None:
    live_units, largest = 256, 2**log_largest
    enough = live_units * (1 + log_largest)
    top = robson_adversary(Arena(enough), live_units=live_units, log_largest=log_largest)
    # any allocator that never moves can be driven this high: M/2 log2 n + M - n + 1
    assert live_units * log_largest // 2 + live_units - largest + 1 <= top <= enough
    with pytest.raises(AssertionError, match="ran out"):
        robson_adversary(Arena(live_units * 3 // 2), live_units=live_units, log_largest=log_largest)


def test_first_fit_never_fails_in_the_pool_that_robson_proves_enough() -> None:
    live_units, largest = 32, 8
    arena = Arena(live_units * (1 + 3))
    rng = random.Random(8)
    live: list[tuple[int, int]] = []
    for _ in range(30_000):
        size = rng.choice((1, 2, 3, 5, largest))
        while live and sum(held for _, held in live) + size > live_units:
            arena.free(*live.pop(rng.randrange(len(live))))
        start = arena.allocate(size)
        assert start is not None
        live.append((start, size))


def test_fits_choose_differently_among_the_same_holes() -> None:
    # holes of 3, 2 and 4 units at 1, 5 and 8; the last placement was the one that filled the hole at 1
    chosen = {}
    for fit in FITS:
        arena = Arena(12, fit)
        for size in (1, 3, 1, 2, 1, 4):
            arena.allocate(size)
        arena.free(1, 3)
        assert arena.allocate(3) == 1
        for start, size in ((1, 3), (5, 2), (8, 4)):
            arena.free(start, size)
        chosen[fit] = arena.allocate(2)
    assert chosen == {"first": 1, "best": 5, "next": 5, "worst": 8}


def test_the_search_examines_each_hole_it_passes_or_log2_of_them() -> None:
    expected: dict[Fit, int] = {"first": 5, "best": 3, "worst": 3, "next": 1}
    for fit, examined in expected.items():
        arena = Arena(100, fit)
        for _ in range(9):
            arena.allocate(1)
        for start in (0, 2, 4, 6):
            arena.free(start, 1)
        arena.allocate(10)
        assert arena.examined == examined, fit


def test_the_size_of_the_pool_is_just_a_number() -> None:
    arena = Arena(2**45, "best")
    assert arena.allocate(2**44) == 0
    assert arena.allocate(2**44) == 2**44
    assert arena.allocate(1) is None
    assert arena.largest_free == arena.total_free == 0
    arena.free(0, 2**44)
    assert arena.largest_free == 2**44


def test_an_empty_arena_places_nothing() -> None:
    arena = Arena(0)
    assert arena.allocate(1) is None
    assert arena.largest_free == 0
    arena.check()


@pytest.mark.parametrize(("start", "size"), [(0, 4), (2, 4), (4, 2), (6, 3), (-1, 1)])
def test_release_of_units_that_are_free_is_an_error(start: int, size: int) -> None:
    arena = Arena(8)
    arena.allocate(8)
    arena.free(2, 4)
    with pytest.raises(AssertionError):
        arena.free(start, size)
