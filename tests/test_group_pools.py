"""A pool for each group of layers, by the rules of cann-recipes-infer (fbc225d), by hand and beside a naive world."""

import random
from pathlib import Path

import pytest

from simulator.allocators.base import Life, Shortfall
from simulator.allocators.group_pools import GroupPools, own_pages, window_pool_pages
from simulator.allocators.paged import PagedAllocator, PagedHolding, PageGroup
from simulator.errors import InputError
from simulator.scenario import parse_scenario
from simulator.serving.pool import build_allocator
from simulator.simulation import pool_parts, simulate

#: 8 bytes of a token in full attention, 6 in window layers
FULL_BYTES, WINDOW_BYTES = 8, 6


def build(full: int, window: int, *, width: int = 5, page_tokens: int = 4, **options: object) -> GroupPools:
    layout = own_pages(page_tokens, (PageGroup(FULL_BYTES), PageGroup(WINDOW_BYTES, 1, width)))
    return GroupPools(layout, sizes=(full, window), **options)  # type: ignore[arg-type]


def life(tokens: int, outputs: int = 20, request_id: int = 0) -> Life:
    return Life(request_id, tokens, outputs, tokens + outputs - 1)


def test_window_pools_are_as_large_as_the_windows_of_all_seats() -> None:
    """Concurrency 4, window 512, one token ahead, pages of 128: 4 * (cdiv(514, 128) + 1) and the null page."""
    assert window_pool_pages(512, page_tokens=128, sequences=4, next_tokens=1) + 1 == 25


def test_groups_of_several_tables_have_no_pools_of_their_own() -> None:
    with pytest.raises(AssertionError):
        own_pages(4, (PageGroup(FULL_BYTES), PageGroup(WINDOW_BYTES, copies=2)))


def test_a_prompt_takes_window_pages_only_for_its_last_window() -> None:
    allocator = build(10, 10)
    holding = allocator.admit(life(17), 17)
    assert holding is not None
    # tokens 12 to 16 are the last five: rows 3 and 4 of five
    assert [len(table) for table in holding.tables] == [5, 2]
    assert holding.dropped == [0, 3]
    assert allocator.allocated_bytes == 5 * 4 * FULL_BYTES + 2 * 4 * WINDOW_BYTES
    # ids 0 and 1 are the null pages of the two pools
    assert holding.tables == [[2, 3, 4, 5, 6], [12, 13]]
    allocator.check([holding])
    # 17 tokens are stored in full attention, tokens 12 to 16 in the window layers: 12 are not there
    assert allocator.discount_bytes == 12 * WINDOW_BYTES


@pytest.mark.parametrize("ahead", [0, 1, 3, 6])
@pytest.mark.parametrize("page_tokens", [1, 3, 4])
def test_slots_ahead_of_a_piece_of_a_prompt_take_no_page_from_what_comes_next(ahead: int, page_tokens: int) -> None:
    """A piece of ``computed`` tokens is given ``ahead`` slots more. The token after it, at position ``computed``, sees
    itself and the four before it."""
    for computed in range(1, 30):
        allocator = build(60, 60, page_tokens=page_tokens, lookahead_tokens=ahead)
        holding = allocator.admit(life(60), computed + ahead)
        assert holding is not None
        first_seen = max(0, computed - 4)
        assert holding.dropped[1] <= first_seen // page_tokens, f"{computed} tokens: a page in the window is missing"
        # what is not needed is at most what the last token computed sees and the next one does not
        assert holding.dropped[1] >= max(0, computed - 5) // page_tokens
        assert (holding.dropped[1] + len(holding.tables[1])) * page_tokens >= computed + ahead
        allocator.check([holding])


def test_growth_gives_back_what_has_left_the_window_even_when_it_then_fails() -> None:
    allocator = build(3, 2)
    holding = allocator.admit(life(10), 10)
    assert holding is not None
    # tokens 5 to 9 lie in rows 1 and 2
    assert [len(table) for table in holding.tables] == [3, 2]
    # token 12 sees 8 to 12: row 1 goes, but full attention has no fourth page
    assert not allocator.grow(holding, 13)
    assert (len(holding.tables[1]), holding.dropped) == (1, [0, 2])
    assert allocator.shortfall is not None and allocator.shortfall.cause == "capacity"
    allocator.check([holding])


def test_a_pool_that_is_full_beside_one_that_is_not_is_fragmentation() -> None:
    allocator = build(4, 20)
    first = allocator.admit(life(12), 12)
    assert first is not None
    # three of four full pages and three of twenty window pages are taken; two of each are asked for
    assert allocator.admit(life(8), 8) is None
    shortfall = allocator.shortfall
    assert shortfall is not None
    needed = 2 * 4 * (FULL_BYTES + WINDOW_BYTES)
    free = 1 * 4 * FULL_BYTES + 18 * 4 * WINDOW_BYTES
    assert (shortfall.cause, shortfall.needed_bytes, shortfall.free_bytes) == ("fragmentation", needed, free)
    # one page of each is the most that a new sequence could have
    assert shortfall.largest_free_bytes == 4 * (FULL_BYTES + WINDOW_BYTES)
    assert allocator.free_and_largest_bytes() == (free, shortfall.largest_free_bytes)


@pytest.mark.parametrize(("rows", "admitted"), [(90, True), (91, False)])
def test_room_for_live_requests_is_kept_free_in_full_attention_only(rows: int, admitted: bool) -> None:
    """100 blocks free, 10 live requests, one block reserved for each: 90 are admitted, 91 are not."""
    allocator = build(110, 22, width=4, page_tokens=128, null_page=False)
    live = [allocator.admit(life(100, request_id=i), 100) for i in range(10)]
    assert all(live) and len(allocator.pools.pools[0]) == 100
    keep = 10 * (allocator.capacity_bytes // allocator.max_pages)
    holding = allocator.admit(life(rows * 128), rows * 128, keep_free_bytes=keep)
    assert (holding is not None) == admitted
    # the window pool has 12 free pages and keeps none: a prompt there takes at most two
    if holding is not None:
        assert len(holding.tables[1]) == 1


def test_a_life_that_can_be_held_can_be_lived_and_another_cannot() -> None:
    draw = random.Random(5)
    for _ in range(600):
        width, page_tokens = draw.choice([1, 3, 5, 12]), draw.choice([1, 3, 4])
        chunk = draw.choice([0, 0, 2, 6])
        allocator = build(
            draw.randint(1, 8), draw.randint(1, 5), width=width, page_tokens=page_tokens, chunk_tokens=chunk
        )
        one = life(draw.randint(1, 20), draw.randint(1, 12))
        assert lived(allocator, one, chunk or one.prompt_tokens) or not allocator.can_ever_hold(one)
        if not chunk and lived(build(8, 5, width=width, page_tokens=page_tokens), one, one.prompt_tokens):
            fits = build(8, 5, width=width, page_tokens=page_tokens).can_ever_hold(one)
            # the bound for a window is that of the worst alignment: it may refuse one page too many, never too few
            assert fits or -(-width // page_tokens) + 1 > 5


def lived(allocator: PagedAllocator, one: Life, chunk: int) -> bool:
    computed = min(chunk, one.prompt_tokens)
    holding = allocator.admit(one, computed)
    while holding is not None and computed < one.final_tokens:
        step = min(chunk, one.prompt_tokens - computed) if computed < one.prompt_tokens else 1
        computed += step
        if computed > holding.capacity_tokens and not allocator.grow(holding, computed, step):
            return False
        allocator.check([holding])
    return holding is not None


class World:
    """Which rows each sequence must have in each group, from its length alone; pages are whatever is free."""

    def __init__(self, draw: random.Random) -> None:
        self.width, self.page_tokens = draw.choice([1, 3, 5, 12]), draw.choice([1, 2, 4])
        self.sizes = draw.randint(4, 24), draw.randint(2, 16)
        self.null = draw.random() < 0.5
        self.allocator = build(
            *self.sizes,
            width=self.width,
            page_tokens=self.page_tokens,
            null_page=self.null,
            reverse_release=draw.random() < 0.5,
            free_order=draw.choice(["fifo", "lifo"]),
        )
        self.live: list[tuple[PagedHolding, set[int], set[int]]] = []
        self.pages_taken = 0
        self.page_bytes = self.page_tokens * FULL_BYTES, self.page_tokens * WINDOW_BYTES

    def used(self, group: int) -> int:
        return sum(len(rows[group]) for _, *rows in self.live)

    def fits(self, rows: int, window_rows: int) -> bool:
        return self.used(0) + rows <= self.sizes[0] and self.used(1) + window_rows <= self.sizes[1]

    def rows_of(self, tokens: int) -> tuple[set[int], set[int]]:
        """Rows that a new sequence takes in full attention and in window layers."""
        last = range(max(0, tokens - self.width), tokens)
        return set(range(-(-tokens // self.page_tokens))), {position // self.page_tokens for position in last}

    def admit(self, tokens: int, whole_tokens: int = 0, keep: int = 0) -> None:
        """``keep`` pages, in bytes of a mean page, stay free in full attention."""
        rows, window = self.rows_of(tokens)
        more, more_window = self.rows_of(max(tokens, whole_tokens))
        asked = max(len(rows), len(more)) + keep, max(len(window), len(more_window))
        shortfall = self.shortfall(*asked)
        self.allocator.work.clear()
        mean_bytes = self.allocator.capacity_bytes // self.allocator.max_pages
        holding = self.allocator.admit(
            life(tokens), tokens, whole_tokens=whole_tokens, keep_free_bytes=(keep + 1) * mean_bytes - 1
        )
        assert (holding is not None) == self.fits(*asked)
        if holding is not None:
            self.live.append((holding, rows, window))
            self.charge(len(rows) + len(window))
            assert holding.capacity_tokens == self.without_asking(rows, window)
        else:
            assert self.allocator.shortfall == shortfall
            self.charge(0)

    def without_asking(self, rows: set[int], window: set[int]) -> int:
        """Longest length for which there is room and at which the window has no page that it does not see."""
        length = len(rows) * self.page_tokens
        first = min(window, default=len(rows))
        while (first + 1) * self.page_tokens <= length - self.width:
            length -= 1
        return length

    def charge(self, pages: int) -> None:
        work = self.allocator.work
        self.pages_taken += pages
        assert self.allocator.totals.pages_taken == self.pages_taken
        # four bytes an entry, and the head of a list for each page
        assert (work.new_pages, work.table_bytes, work.search_cycles) == (pages, 4 * pages, 8 * pages)
        assert work.copied_bytes == 0

    def bytes_of(self, full: int, window: int) -> int:
        return full * self.page_bytes[0] + window * self.page_bytes[1]

    def shortfall(self, full: int, window: int) -> Shortfall:
        """What a refusal of so many pages would say now."""
        needed, free = self.bytes_of(full, window), self.bytes_of(*self.left())
        return Shortfall("capacity" if free < needed else "fragmentation", needed, free, self.largest())

    def left(self) -> tuple[int, int]:
        return self.sizes[0] - self.used(0), self.sizes[1] - self.used(1)

    def largest(self) -> int:
        """The longest sequence that finds room in both pools, in the window pool wherever in a page it begins."""
        full, window = self.left()
        most, rows = -(-(self.width - 1) // self.page_tokens) + 1, 0
        while rows < full and min(rows + 1, most) <= window:
            rows += 1
        return self.bytes_of(rows, min(rows, most))

    def grow(self, which: int, new: int) -> None:
        holding, rows, window = self.live[which % len(self.live)]
        tokens = holding.capacity_tokens + new
        seen = max(0, tokens - new - self.width + 1)
        window -= {row for row in window if (row + 1) * self.page_tokens <= seen}
        more = set(range(len(rows), -(-tokens // self.page_tokens)))
        fits = self.fits(len(more), len(more))
        shortfall = self.shortfall(len(more), len(more))
        self.allocator.work.clear()
        assert self.allocator.grow(holding, tokens, new) == fits
        if fits:
            rows |= more
            window |= more
            assert holding.capacity_tokens == self.without_asking(rows, window)
        else:
            assert self.allocator.shortfall == shortfall
        self.charge(2 * len(more) if fits else 0)

    def check(self) -> None:
        free = self.bytes_of(*self.left())
        assert self.allocator.free_and_largest_bytes() == (free, self.largest())
        occupancy = self.allocator.occupancy()
        assert (occupancy.free_bytes, occupancy.largest_free_bytes) == (free, self.largest())
        assert (occupancy.cached_bytes, occupancy.unusable_bytes) == (0, self.bytes_of(1, 1) if self.null else 0)
        assert occupancy.allocated_bytes + occupancy.free_bytes + occupancy.unusable_bytes == occupancy.capacity_bytes
        assert self.allocator.free_rows() == min(self.left())
        for sequences, tokens in ((1, self.page_tokens), (2, self.page_tokens + 1), (3, 1)):
            pages = sequences * -(-tokens // self.page_tokens)
            assert self.allocator.sure_to_grow(sequences, tokens) == (pages <= min(self.left()))
        self.allocator.check([holding for holding, *_ in self.live])
        for holding, rows, window in self.live:
            assert len(holding.tables[0]) == len(rows)
            assert self.allocator.holding_bytes(holding) == self.bytes_of(len(rows), len(window))
            first = holding.dropped[1]
            assert set(range(first, first + len(holding.tables[1]))) == window


@pytest.mark.parametrize("steps", [4_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_random_use_agrees_with_rows_reckoned_from_lengths(steps: int) -> None:
    draw = random.Random(13)
    for _ in range(steps // 400):
        world = World(draw)
        for step in range(400):
            choice = draw.random()
            if choice < 0.35 or not world.live:
                world.admit(draw.randint(1, 30), draw.choice([0, 0, 12, 40]), draw.choice([0, 0, 1, 3]))
            elif choice < 0.8:
                world.grow(draw.randrange(100), draw.choice([1, 1, 1, 5]))
            else:
                world.allocator.release(world.live.pop(draw.randrange(len(world.live)))[0])
            if step % 10 == 0:
                world.check()


HYBRID = """
device: {preset: 910B3}
model: {preset: gpt-oss-20b}
workload:
  arrivals: {process: poisson, rate: 40}
  prompt_tokens: {dist: uniform, min: 20, max: 700}
  output_tokens: {dist: uniform, min: 5, max: 60}
  requests: 150
engine: {profile: cann-recipes, max_num_seqs: 16, max_model_len: 2048, step_time: 10ms, on_oom: fail}
allocators: [{kind: paged, page_size: 128, max_pages: 70}]
"""


def test_a_scenario_has_the_pools_of_its_profile() -> None:
    scenario = parse_scenario(HYBRID, Path())
    allocator = build_allocator(scenario.allocators[0], pool_parts(scenario, scenario.requests()), key="")
    assert isinstance(allocator, GroupPools)
    # gpt-oss-20b: 12 layers of each kind, window 128; 16 seats of cdiv(128, 128) + 1 pages, a null page for each pool
    assert sorted(allocator.sizes) == [16 * 2, 70 - 16 * 2 - 2]
    assert allocator.max_pages == 70 and allocator.capacity_bytes == 70 * 128 * 12 * 2 * 8 * 64 * 2
    whole = parse_scenario(HYBRID, Path(), ["allocators.0.max_pages=null"])
    pool = build_allocator(whole.allocators[0], pool_parts(whole, whole.requests()), key="")
    tables = 16 * 2 * 128
    assert 0 <= whole.budget.kv_capacity_bytes - tables - pool.capacity_bytes < 128 * 12 * 2 * 8 * 64 * 2
    for change in ("engine.profile=vllm-0.33", "allocators.0.pools=shared", "allocators.0.page_size=64KiB"):
        other = parse_scenario(HYBRID, Path(), ["allocators.0.max_pages=200", change])
        built = build_allocator(other.allocators[0], pool_parts(other, other.requests()), key="")
        assert type(built) is PagedAllocator, change


@pytest.mark.parametrize("leap", [True, False])
def test_a_run_is_verified_and_loses_requests_that_a_shared_pool_serves(leap: bool) -> None:
    lost = {}
    for pools in ("per_group", "shared"):
        scenario = parse_scenario(HYBRID, Path(), [f"allocators.0.pools={pools}"])
        (run,) = simulate(scenario, verify=True, leap=leap).runs
        lost[pools] = run.summary["oom_rate"]
        if pools == "per_group":
            assert run.summary["oom_events"]["fragmentation"] > 0
            assert run.summary["kv"]["fragmentation"]["mean"] > 0
    assert lost["per_group"] > lost["shared"]


def test_a_leak_in_one_pool_is_found_and_counted() -> None:
    scenario = parse_scenario(HYBRID, Path(), ["faults=[{kind: missed_end_of_sequence, every: 10}]"])
    (run,) = simulate(scenario).runs
    assert run.summary["faults"]["planted"] > 0 and run.summary["kv"]["waste"]["leaked"] > 0
    assert "neither free nor in the page table" in run.summary["faults"]["messages"][0]


def test_window_pools_that_take_everything_are_refused_with_both_numbers() -> None:
    scenario = parse_scenario(HYBRID, Path(), ["allocators.0.max_pages=34"])
    with pytest.raises(InputError, match=r"34 pages leave nothing for full attention: .* lower engine.max_num_seqs"):
        simulate(scenario)
