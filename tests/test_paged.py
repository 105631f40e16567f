"""Plain paging: hand-computed ids, cases known from engines' own tests, and a machine against naive lists."""

import random
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from simulator.allocators.page_pool import (
    HEAP_CYCLES_PER_LEVEL,
    LIST_CYCLES_PER_PAGE,
    SCAN_CYCLES_PER_PAGE,
    PagePool,
)
from simulator.allocators.paged import (
    PagedAllocator,
    PagedHolding,
    PageGroup,
    PageLayout,
    plain_layout,
    table_bytes,
)
from simulator.config import FreeOrder

ORDERS: list[FreeOrder] = ["lifo", "fifo", "address_ordered", "first_fit_scan"]


@dataclass
class Life:
    """A demand; lengths in tokens."""

    request_id: int
    prompt_tokens: int
    output_tokens: int = 1
    final_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.final_tokens = self.prompt_tokens + self.output_tokens - 1


def build(max_pages: int, page_tokens: int = 4, **options: Any) -> PagedAllocator:
    layout = options.pop("layout", plain_layout(page_tokens=page_tokens, bytes_per_token=10))
    return PagedAllocator(layout, max_pages=max_pages, **options)


def admit(allocator: PagedAllocator, tokens: int, request_id: int = 0, **life: Any) -> PagedHolding:
    holding = allocator.admit(Life(request_id, tokens, **life), tokens)
    assert holding is not None
    return holding


# ---- free orders


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        # 0..4 taken, 3 then 1 given back, four asked; 5, 6, 7 have never been used
        ("lifo", [1, 3, 5, 6]),
        ("fifo", [5, 6, 7, 3]),
        ("address_ordered", [1, 3, 5, 6]),
        ("first_fit_scan", [1, 3, 5, 6]),
    ],
)
def test_each_order_reuses_pages_as_named(order: FreeOrder, expected: list[int]) -> None:
    pool = PagePool(8, order)
    assert pool.take(5) == [0, 1, 2, 3, 4]
    pool.give([3])
    pool.give([1])
    free = pool.free_ids()
    assert free[:4] == expected
    assert pool.take(4) == expected


def test_a_lower_page_given_back_later_is_taken_first_only_by_address() -> None:
    for order, expected in (("lifo", 4), ("fifo", 0), ("address_ordered", 0)):
        pool = PagePool(5, order)  # type: ignore[arg-type]
        pool.take(5)
        pool.give([0, 4])
        assert pool.take(1) == [expected], order


def test_the_scan_is_charged_for_every_page_it_passes() -> None:
    pool = PagePool(100, "first_fit_scan")
    pool.take(10)
    pool.give([7])
    taken = pool.take(2)
    assert taken == [7, 10]
    # each search starts at page 0: eight pages are looked at for page 7, eleven for page 10
    assert pool.search_cycles(taken) == SCAN_CYCLES_PER_PAGE * (8 + 11)


def test_a_list_costs_the_same_wherever_the_page_lies_and_a_heap_its_height() -> None:
    assert PagePool(10**6, "lifo").search_cycles([999_999, 5]) == 2 * LIST_CYCLES_PER_PAGE
    pool = PagePool(1000, "address_ordered")
    # a heap over 1,000 pages has ten levels, and the cost of several pages is that of one after the other
    assert pool.search_cycles(pool.take(1)) == 10 * HEAP_CYCLES_PER_LEVEL
    assert pool.search_cycles(pool.take(3)) == 30 * HEAP_CYCLES_PER_LEVEL


class PoolMachine(RuleBasedStateMachine):
    """Each order against the obvious list."""

    @initialize(order=st.sampled_from(ORDERS), pages=st.integers(0, 30), null=st.booleans())
    def start(self, order: FreeOrder, pages: int, null: bool) -> None:
        first = int(null and pages > 0)
        self.order = order
        self.pool = PagePool(pages, order, first_page=first)
        self.fresh = list(range(first, pages))
        self.recycled: list[int] = []
        self.used: list[int] = []

    def expected(self) -> list[int]:
        match self.order:
            case "lifo":
                return self.recycled[::-1] + self.fresh
            case "fifo":
                return self.fresh + self.recycled
            case _:
                return sorted(self.recycled + self.fresh)

    @rule(count=st.integers(0, 8))
    def take(self, count: int) -> None:
        free = self.expected()
        count = min(count, len(free))
        taken = self.pool.take(count)
        assert taken == free[:count]
        self.recycled = [page for page in self.recycled if page not in taken]
        self.fresh = [page for page in self.fresh if page not in taken]
        self.used += taken

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        pages = data.draw(st.lists(st.sampled_from(self.used), unique=True))
        self.pool.give(pages)
        self.recycled += pages
        self.used = [page for page in self.used if page not in pages]

    @invariant()
    def knows_what_is_free(self) -> None:
        assert self.pool.free_ids() == self.expected()
        assert len(self.pool) == len(self.expected())


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestPoolAgainstLists = PoolMachine.TestCase


# ---- hand-computed tables and bytes


def test_pages_cover_the_tokens_and_bytes_add_up() -> None:
    allocator = build(8)
    holding = admit(allocator, 9, output_tokens=2)
    assert (holding.pages, holding.held_tokens, holding.capacity_tokens) == ([0, 1, 2], 12, 12)
    # 10 tokens in the end: two slots of three pages will never be used
    assert (allocator.allocated_bytes, allocator.tail_bytes) == (3 * 40, 2 * 10)
    occupancy = allocator.occupancy()
    assert (occupancy.free_bytes, occupancy.allocated_bytes, occupancy.capacity_bytes) == (200, 120, 320)
    assert occupancy.fragmentation_ratio == 0.0
    assert allocator.holding_bytes(holding) == 120


def test_growth_takes_a_page_only_when_the_last_is_full() -> None:
    allocator = build(8)
    holding = admit(allocator, 4, output_tokens=9)
    assert allocator.grow(holding, 5) and holding.pages == [0, 1]
    for tokens in (6, 7, 8):
        assert allocator.grow(holding, tokens)
    assert holding.pages == [0, 1]
    assert allocator.grow(holding, 9) and holding.pages == [0, 1, 2]
    assert (allocator.work.new_pages, allocator.work.table_bytes) == (3, 12)


def test_a_refusal_says_how_much_was_missing_and_changes_nothing() -> None:
    allocator = build(4)
    first = admit(allocator, 12)
    before = (list(first.pages), allocator.allocated_bytes, allocator.pool.free_ids())
    assert allocator.admit(Life(1, 5), 5) is None
    assert not allocator.grow(first, 17)
    shortfall = allocator.shortfall
    assert shortfall is not None
    assert (shortfall.cause, shortfall.needed_bytes, shortfall.free_bytes) == ("capacity", 80, 40)
    assert (list(first.pages), allocator.allocated_bytes, allocator.pool.free_ids()) == before
    assert first.capacity_tokens == 12
    allocator.check([first])


def test_a_reversed_release_with_lifo_reuses_the_first_page_first() -> None:
    allocator = build(8, reverse_release=True)
    allocator.release(admit(allocator, 12))
    assert admit(allocator, 12).pages == [0, 1, 2]
    allocator = build(8)
    allocator.release(admit(allocator, 12))
    assert admit(allocator, 12).pages == [2, 1, 0]


def test_releasing_twice_is_an_assertion() -> None:
    allocator = build(8)
    holding = admit(allocator, 12, request_id=41)
    allocator.release(holding)
    with pytest.raises(AssertionError, match="request 41 released twice"):
        allocator.release(holding)


def test_admission_by_the_whole_prompt_and_the_watermark_hold_back() -> None:
    allocator = build(4)
    assert allocator.admit(Life(1, 20), 4, whole_tokens=20) is None
    assert allocator.admit(Life(1, 16), 4, whole_tokens=16, keep_free_bytes=40) is None
    holding = allocator.admit(Life(1, 16), 4, whole_tokens=16)
    assert holding is not None and holding.pages == [0]
    assert allocator.admit(Life(2, 8), 8, keep_free_bytes=80) is None
    assert allocator.admit(Life(2, 8), 8, keep_free_bytes=40) is not None


def test_table_rows_are_aligned() -> None:
    # 33 entries of 4 bytes = 132, aligned to 128: 256 bytes a row
    assert table_bytes(rows=3, max_model_len=33 * 16, page_tokens=16, align_bytes=128) == 768
    assert table_bytes(rows=3, max_model_len=32 * 16, page_tokens=16, align_bytes=128, tables=2) == 768


def test_copies_of_a_table_grow_together() -> None:
    # a page covers one of three layers: 3 ids a row, all bytes used
    layout = PageLayout(4, 40, (PageGroup(30, copies=3),))
    allocator = build(12, layout=layout)
    holding = admit(allocator, 5)
    assert holding.tables == [[0, 1, 2, 3, 4, 5]]
    assert (allocator.bytes_per_token, allocator.tail_bytes) == (30, 3 * 30)
    assert allocator.grow(holding, 9)
    assert len(holding.tables[0]) == 9
    allocator.check([holding])
    assert not allocator.can_ever_hold(Life(1, 17))
    assert allocator.can_ever_hold(Life(1, 16))


def test_the_shorter_group_is_padded_and_the_padding_counted() -> None:
    # group 0 uses 40 of 40 bytes of a page, group 1 only 20
    layout = PageLayout(4, 40, (PageGroup(10), PageGroup(5)))
    allocator = build(8, layout=layout)
    holding = admit(allocator, 8)
    assert holding.tables == [[0, 1], [2, 3]]
    assert allocator.tail_bytes == 2 * 20
    allocator.check([holding])
    allocator.release(holding)
    assert allocator.tail_bytes == 0


# ---- cases from engines' own tests


def test_look_ahead_slots_are_covered() -> None:
    """vLLM test_allocate_with_lookahead: page 4; 3 tokens with 2 or 4 look-ahead slots take 2 pages."""
    for slots in (3 + 2, 3 + 4):
        assert len(admit(build(10), slots).pages) == 2


def test_without_prefix_caching_a_full_pool_refuses_the_third_request() -> None:
    """vLLM test_basic_prefix_caching_disabled: page 4, 5 pages, of which the null page is never handed out."""
    allocator = build(5, null_page=True, free_order="fifo")
    first = admit(allocator, 10)
    assert first.pages == [1, 2, 3]
    allocator.release(first)
    second = admit(allocator, 16)
    assert len(second.pages) == 4 and 0 not in second.pages
    assert allocator.admit(Life(3, 4), 4) is None


def test_a_window_leaves_leading_rows_empty() -> None:
    """vLLM test_sliding_window_remove_skipped_blocks: page 2, window 4, 11 pages."""
    layout = PageLayout(2, 20, (PageGroup(10, window_tokens=4),))
    allocator = build(12, layout=layout, null_page=True, reverse_release=True)
    holding = admit(allocator, 22)
    assert holding.pages == list(range(1, 12))
    dropped = []
    for computed in (0, 4, 5, 6, 7, 11):
        assert allocator.grow(holding, computed + 1)
        dropped.append(holding.dropped[0])
        allocator.check([holding])
    assert dropped == [0, 0, 1, 1, 2, 4]
    # at 11 rows 2 and 3 (pages 3 and 4) go, the later one first; so page 3 is at the head of the LIFO list
    assert allocator.pool.free_ids()[:4] == [3, 4, 2, 1]


@pytest.mark.parametrize("page_tokens", [8, 16])
@pytest.mark.parametrize("prompt_tokens", [10, 300, 1000])
@pytest.mark.parametrize("window_tokens", [20, 32, 200, 512])
def test_a_window_bounds_what_a_growing_sequence_holds(
    page_tokens: int, prompt_tokens: int, window_tokens: int
) -> None:
    """vLLM 0.6 test_sliding_window: never above window // page + 2 pages, and one for what is being appended."""
    layout = PageLayout(page_tokens, page_tokens * 10, (PageGroup(10, window_tokens=window_tokens),))
    allocator = build(1024, layout=layout)
    holding = admit(allocator, prompt_tokens, output_tokens=51)
    assert len(holding.pages) == -(-prompt_tokens // page_tokens)
    for tokens in range(prompt_tokens + 1, prompt_tokens + 51):
        assert allocator.grow(holding, tokens)
        assert len(holding.pages) <= window_tokens // page_tokens + 2 + 1
    allocator.check([holding])


@pytest.mark.parametrize("window_tokens", [1, 3, 4, 9])
def test_a_window_keeps_exactly_what_the_next_token_sees_and_is_called_for_no_more(window_tokens: int) -> None:
    layout = PageLayout(4, 40, (PageGroup(10, window_tokens=window_tokens),))
    allocator, eager = build(64, layout=layout), build(64, layout=layout)
    life = {"output_tokens": 60}
    lazy_one, eager_one = admit(allocator, 1, **life), admit(eager, 1, **life)
    for tokens in range(2, 60):
        assert eager.grow(eager_one, tokens)
        # the token at position tokens - 1 sees window_tokens positions, itself included
        first_seen = max(0, tokens - window_tokens)
        assert eager_one.dropped[0] == first_seen // 4
        if tokens > lazy_one.capacity_tokens:
            assert allocator.grow(lazy_one, tokens)
        # whoever calls only past capacity_tokens holds the same pages at every length
        assert (lazy_one.dropped, lazy_one.pages) == (eager_one.dropped, eager_one.pages)


@pytest.mark.parametrize("pages", [8, 40, 80])
@pytest.mark.parametrize("watermark", [0.0, 0.5])
def test_a_request_that_the_watermark_never_lets_in(pages: int, watermark: float) -> None:
    """vLLM 0.6 test_can_allocate_seq_group: never iff N - (k + 1) < int(watermark * N), the pool being empty."""
    keep_pages = int(watermark * pages)
    for prompt_pages in range(1, pages):
        allocator = build(pages, page_tokens=16)
        tokens = (prompt_pages + 1) * 16
        holding = allocator.admit(Life(1, tokens), tokens, keep_free_bytes=keep_pages * 160)
        assert (holding is None) == (pages - (prompt_pages + 1) < keep_pages)


@pytest.mark.parametrize("pages", [1, 1024])
def test_the_page_freed_last_comes_back_every_time(pages: int) -> None:
    """vLLM 0.6 test_allocate_ooms and test_free_prevents_oom."""
    allocator = build(pages, page_tokens=16, free_order="lifo")
    holdings = [admit(allocator, 16) for _ in range(pages)]
    assert allocator.admit(Life(1, 1), 1) is None
    page = holdings[-1].pages[0]
    for _ in range(100):
        allocator.release(holdings.pop())
        holdings.append(admit(allocator, 16))
        assert holdings[-1].pages == [page]
        assert allocator.admit(Life(1, 1), 1) is None


def test_five_requests_of_which_three_end_leave_two_pages() -> None:
    """inference-sim TestAllocateKVBlocks_BlockConservation."""
    allocator = build(10)
    holdings = [admit(allocator, 4) for _ in range(5)]
    for holding in holdings[:3]:
        allocator.release(holding)
    assert (allocator.allocated_bytes // 40, len(allocator.pool)) == (2, 8)
    allocator.check(holdings[3:])


# ---- what an empty pool can serve


def test_a_life_that_can_be_held_can_be_lived_and_another_cannot() -> None:
    for prompt_tokens, output_tokens, window_tokens, chunk_tokens in (
        (30, 20, None, 0),
        (30, 20, 9, 0),
        (30, 20, 9, 8),
        (7, 40, 16, 4),
        (1, 60, 5, 8),
    ):
        life = Life(1, prompt_tokens, output_tokens)
        layout = PageLayout(4, 40, (PageGroup(10, window_tokens=window_tokens),))
        needed = next(
            pages
            for pages in range(1, 40)
            if build(pages, layout=layout, chunk_tokens=chunk_tokens).can_ever_hold(life)
        )
        assert _live(build(needed, layout=layout, chunk_tokens=chunk_tokens), life, chunk_tokens or prompt_tokens)
        if window_tokens is None:
            assert not _live(build(needed - 1, layout=layout), life, prompt_tokens)


def _live(allocator: PagedAllocator, life: Life, chunk_tokens: int) -> bool:
    computed = min(chunk_tokens, life.prompt_tokens)
    holding = allocator.admit(life, computed)
    while holding is not None and computed < life.final_tokens:
        step = min(chunk_tokens, life.prompt_tokens - computed) if computed < life.prompt_tokens else 1
        computed += step
        if not allocator.grow(holding, computed, step):
            return False
    return holding is not None


# ---- against a naive world


class PagedMachine(RuleBasedStateMachine):
    """Page tables against a world that keeps, for each page, who has it, and looks everything up by brute force."""

    @initialize(
        order=st.sampled_from(ORDERS),
        pages=st.integers(1, 40),
        null=st.booleans(),
        reverse=st.booleans(),
        groups=st.lists(
            st.tuples(st.sampled_from([4, 8]), st.integers(1, 3), st.sampled_from([None, 1, 5, 12])),
            min_size=1,
            max_size=2,
        ),
        page_tokens=st.integers(1, 5),
    )
    def start(
        self,
        order: FreeOrder,
        pages: int,
        null: bool,
        reverse: bool,
        groups: list[tuple[int, int, int | None]],
        page_tokens: int,
    ) -> None:
        self.groups = [PageGroup(bytes_ * copies, copies, window) for bytes_, copies, window in groups]
        self.page_tokens = page_tokens
        layout = PageLayout(page_tokens, 8 * page_tokens, tuple(self.groups))
        self.allocator = build(
            pages, layout=layout, free_order=order, null_page=null, reverse_release=reverse, chunk_tokens=6
        )
        self.order, self.reverse = order, reverse
        self.fresh = list(range(int(null), pages))
        self.recycled: list[int] = []
        self.live: list[tuple[PagedHolding, list[dict[int, list[int]]]]] = []
        self.requests = 0

    def take(self) -> int:
        if self.order == "lifo" and self.recycled:
            return self.recycled.pop()
        if self.order == "fifo":
            return self.fresh.pop(0) if self.fresh else self.recycled.pop(0)
        lowest = min([*self.recycled, *self.fresh])
        (self.recycled if lowest in self.recycled else self.fresh).remove(lowest)
        return lowest

    def give(self, pages: list[int]) -> None:
        self.recycled += pages[::-1] if self.reverse else pages

    def extend(self, tables: list[dict[int, list[int]]], held: int, tokens: int) -> bool:
        rows = range(held // self.page_tokens, -(-tokens // self.page_tokens))
        needed = len(rows) * sum(group.copies for group in self.groups)
        if needed > len(self.fresh) + len(self.recycled):
            return False
        pages = [self.take() for _ in range(needed)]
        for table, group in zip(tables, self.groups, strict=True):
            for row in rows:
                table[row] = [pages.pop(0) for _ in range(group.copies)]
        return True

    @rule(tokens=st.integers(1, 30), more=st.integers(1, 30))
    def admit(self, tokens: int, more: int) -> None:
        self.requests += 1
        tables: list[dict[int, list[int]]] = [{} for _ in self.groups]
        holding = self.allocator.admit(Life(self.requests, tokens, more), tokens)
        assert (holding is not None) == self.extend(tables, 0, tokens)
        if holding is not None:
            self.live.append((holding, tables))

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 99), new=st.sampled_from([1, 1, 1, 6]))
    def grow(self, which: int, new: int) -> None:
        holding, tables = self.live[which % len(self.live)]
        tokens = holding.capacity_tokens + new
        for table, group in zip(tables, self.groups, strict=True):
            if group.window_tokens is not None:
                first_seen = tokens - new - group.window_tokens + 1
                dead = [row for row in sorted(table) if (row + 1) * self.page_tokens <= first_seen]
                self.give([page for row in dead for page in table.pop(row)])
        held = holding.held_tokens
        grown = self.allocator.grow(holding, tokens, new)
        assert grown == self.extend(tables, held, tokens)
        assert holding.held_tokens >= tokens or not grown

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 99))
    def release(self, which: int) -> None:
        pair = self.live.pop(which % len(self.live))
        for table in pair[1]:
            self.give([page for row in sorted(table) for page in table[row]])
        self.allocator.release(pair[0])

    @invariant()
    def same_tables_same_free_pages_same_bytes(self) -> None:
        allocator = self.allocator
        allocator.check([holding for holding, _ in self.live])
        for holding, tables in self.live:
            assert holding.tables == [[page for row in sorted(table) for page in table[row]] for table in tables]
        assert Counter(allocator.pool.free_ids()) == Counter(self.fresh + self.recycled)
        owned = sum(len(pages) for _, tables in self.live for table in tables for pages in table.values())
        assert allocator.allocated_bytes == owned * 8 * self.page_tokens
        # every owned byte is KV that was or will be written, or tail; what is not stored was counted as discount
        held_bytes = sum(holding.held_tokens for holding, _ in self.live) * allocator.bytes_per_token
        padding = sum(
            len(table) * (8 * self.page_tokens * group.copies - self.page_tokens * group.token_bytes)
            for _, tables in self.live
            for table, group in zip(tables, self.groups, strict=True)
        )
        assert held_bytes - allocator.discount_bytes + padding == allocator.allocated_bytes


PagedMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
TestPagedAgainstNaiveWorld = PagedMachine.TestCase


# ---- long use, much memory


@pytest.mark.parametrize("operations", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_held_after_many_operations(order: FreeOrder, operations: int) -> None:
    draw = random.Random(3)
    allocator = build(500, free_order=order)
    live: list[PagedHolding] = []
    for _ in range(operations // 4):
        choice = draw.random()
        if choice < 0.3:
            tokens = draw.randint(1, 60)
            holding = allocator.admit(Life(0, tokens, 40), tokens)
            live += [holding] if holding else []
        elif choice < 0.7 and live:
            grown = draw.choice(live)
            allocator.grow(grown, grown.capacity_tokens + 1)
        elif live:
            index = draw.randrange(len(live))
            live[index], live[-1] = live[-1], live[index]
            allocator.release(live.pop())
    allocator.check(live)
    for holding in live:
        allocator.release(holding)
    allocator.check([])
    assert allocator.allocated_bytes == allocator.tail_bytes == 0
    assert len(allocator.pool) == 500


@pytest.mark.parametrize("sequences", [5, pytest.param(50, marks=pytest.mark.long)])
def test_two_million_six_hundred_thousand_pages_take_less_than_200_mib(sequences: int) -> None:
    # 128K tokens in 16 KiB pages, 80 layers: 650 rows of 80 pages a sequence, 50 of which fill 2.6 M pages
    pages = sequences * 650 * 80
    allocator = build(pages, layout=PageLayout(1, 16 * 2**10, (PageGroup(80 * 16 * 2**10, copies=80),)))
    tracemalloc.start()
    try:
        holdings = [admit(allocator, 650, index) for index in range(sequences)]
        for holding in holdings[: sequences // 2]:
            allocator.release(holding)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(allocator.pool) == sequences // 2 * 650 * 80
    assert peak_bytes < 200 * 2**20 * pages / 2_600_000


def test_an_empty_pool_of_any_size_costs_nothing() -> None:
    allocator = build(10**12)
    assert admit(allocator, 9).pages == [0, 1, 2]
    assert len(allocator.pool) == 10**12 - 3
