"""Runs, compaction, triggers and their cost: hand-computed cases, and random use against invariants."""

import math
import random
import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from simulator.allocators.compaction import compaction_break_even
from simulator.allocators.host_pool import HostPool
from simulator.allocators.paged import PageGroup, PageLayout, plain_layout
from simulator.allocators.paged_defrag import PagedDefragAllocator
from simulator.allocators.run_tables import RunHolding, mean_run_pages
from simulator.config import DefragTrigger, PagedDefragConfig
from simulator.units import NS_PER_S

NEVER = DefragTrigger(on_failure=False)
ON_FAILURE = DefragTrigger()


@dataclass
class Life:
    """A demand; lengths in tokens."""

    request_id: int
    prompt_tokens: int
    output_tokens: int = 1
    final_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.final_tokens = self.prompt_tokens + self.output_tokens - 1


def build(max_pages: int, *, run_length: int = 8, page_tokens: int = 1, **options: Any) -> PagedDefragAllocator:
    options.setdefault("trigger", ON_FAILURE)
    layout = options.pop("layout", plain_layout(page_tokens=page_tokens, bytes_per_token=100))
    return PagedDefragAllocator(layout, max_pages=max_pages, run_length=run_length, **options)


def admit(allocator: PagedDefragAllocator, request_id: int, pages: int, output_tokens: int = 1) -> RunHolding:
    tokens = pages * allocator.layout.page_tokens
    holding = allocator.admit(Life(request_id, tokens, output_tokens), tokens)
    assert holding is not None
    return holding


def scatter(allocator: PagedDefragAllocator, keep: set[int]) -> list[RunHolding]:
    """Fill the pool with one-page sequences (sequence i has page i) and end all but those in ``keep``."""
    holdings = [admit(allocator, index, 1) for index in range(allocator.max_pages)]
    assert [holding.pages for holding in holdings] == [[index] for index in range(allocator.max_pages)]
    for index, holding in enumerate(holdings):
        if index not in keep:
            allocator.release(holding)
    return [holding for index, holding in enumerate(holdings) if index in keep]


# ---- placement


def test_a_prompt_takes_runs_and_single_pages_for_the_rest() -> None:
    allocator = build(64)
    first, second = admit(allocator, 1, 19), admit(allocator, 2, 10)
    assert first.pages == [*range(16), 16, 17, 18]
    assert second.pages == [*range(24, 32), 19, 20]
    assert allocator.runs.whole_runs == 4
    # the first table is one piece (0..18), the second is two (24..31, 19..20)
    assert allocator.mean_run_pages == 29 / 3
    assert mean_run_pages([first, second], allocator.layout.groups) == 29 / 3
    allocator.check([first, second])


def test_decode_grows_by_one_page_from_a_broken_run() -> None:
    allocator = build(64)
    holding = admit(allocator, 1, 8, output_tokens=5)
    assert allocator.grow(holding, 9) and allocator.grow(holding, 10)
    assert holding.pages == [*range(8), 8, 9]
    assert holding.capacity_tokens == 10


def test_growth_by_run_takes_a_whole_run_and_needs_no_call_for_run_length_pages() -> None:
    allocator = build(64, grow_by="run")
    holding = admit(allocator, 1, 3, output_tokens=20)
    assert allocator.grow(holding, 4)
    assert holding.pages == [0, 1, 2, *range(8, 16)]
    assert holding.capacity_tokens == holding.held_tokens == 11
    allocator.check([holding])


def test_growth_by_run_falls_back_to_one_page_when_runs_are_not_strict() -> None:
    allocator = build(16, grow_by="run", strict_runs=False, trigger=NEVER)
    holding, other = admit(allocator, 1, 3, output_tokens=20), admit(allocator, 2, 8)
    assert other.pages == [*range(8, 16)]
    assert allocator.grow(holding, 4)
    assert holding.pages == [0, 1, 2, 3]
    assert allocator.totals.unmerged_runs == 0


# ---- the story of eight contiguous pages


def test_of_two_samples_brought_back_the_first_leaves_the_second_its_page() -> None:
    """Four pages in runs of two: both need two pages, and a whole run for the growth of the first would be one more."""
    allocator = build(4, run_length=2, grow_by="run", strict_runs=False, trigger=NEVER, host=HostPool(2))
    samples = [admit(allocator, 1, 1, output_tokens=3) for _ in range(2)]
    assert allocator.swap_out(list(samples)) == 2 * 100
    assert allocator.swap_in([(sample, 2) for sample in samples]) == 2 * 100
    assert [len(sample.pages) for sample in samples] == [2, 2]
    allocator.check(samples)


def test_after_long_use_eight_adjacent_pages_are_missing_though_most_pages_are_free() -> None:
    allocator = build(64, trigger=NEVER)
    kept = scatter(allocator, keep=set(range(1, 64, 2)))
    assert allocator.runs.largest_gap_pages() == 1
    assert allocator.admit(Life(99, 8), 8) is None
    shortfall = allocator.shortfall
    assert shortfall is not None
    assert (shortfall.cause, shortfall.needed_bytes, shortfall.free_bytes) == ("fragmentation", 800, 3200)
    assert shortfall.largest_free_bytes == 700
    assert admit(allocator, 100, 7).held_tokens == 7
    assert len(kept) == 32


def test_compaction_on_failure_finds_the_run_by_the_fewest_moves() -> None:
    allocator = build(64)
    # runs of 8: one page used in run 2 (16..23), two in run 4 (32..39), all others half used
    keep = {16, 32, 33} | {page for page in range(64) if page // 8 not in (2, 4) and page % 8 < 4}
    kept = scatter(allocator, keep)
    longer = admit(allocator, 99, 8)
    assert longer.pages == [*range(16, 24)]
    assert (allocator.totals.moves, allocator.totals.defrag_runs, allocator.totals.moved_bytes) == (1, 1, 100)
    assert allocator.work.copied_bytes == 2 * 100
    moved = [holding for holding in kept if holding.demand.request_id == 16]
    assert len(moved[0].pages) == 1 and moved[0].pages[0] % 8 >= 4
    allocator.check([*kept, longer])


def test_two_runs_are_freed_when_two_are_missing() -> None:
    allocator = build(32)
    kept = scatter(allocator, keep={0, 8, 16, 24})
    longer = admit(allocator, 99, 16)
    assert allocator.totals.moves == 2
    assert longer.held_tokens == 16
    allocator.check([*kept, longer])


def test_compaction_that_cannot_help_moves_nothing_and_fails_for_fragmentation_or_capacity() -> None:
    allocator = build(16)
    scatter(allocator, keep={0, 1, 2, 3, 4, 8, 9, 10, 11})
    assert len(allocator.runs) == 7
    assert allocator.admit(Life(99, 8), 8) is None
    assert allocator.shortfall is not None and allocator.shortfall.cause == "capacity"
    # 10 pages in 2 runs' worth of room: 3 + 5 used, 8 free, so one run can be made, never two
    allocator = build(24, run_length=8)
    kept = scatter(allocator, keep={0, 1, 8, 9, 16, 17, 18, 19})
    assert allocator.admit(Life(99, 16), 16, whole_tokens=24) is None
    assert allocator.shortfall is not None and allocator.shortfall.cause == "capacity"
    assert allocator.totals.moves == 0
    allocator.check(kept)


def test_free_pages_that_cannot_become_a_run_are_a_fragmentation_failure() -> None:
    # head of 6 pages can never be a run: 6 + 2 free pages, one run of 8 with 6 used
    allocator = build(14)
    kept = scatter(allocator, keep=set(range(6, 12)))
    assert len(allocator.runs) == 8
    assert allocator.admit(Life(99, 8), 8) is not None, "the six pages move into the head"
    assert allocator.totals.moves == 6
    allocator = build(15, trigger=NEVER)
    kept = scatter(allocator, keep={14})
    assert allocator.admit(Life(98, 14), 14) is None
    assert allocator.shortfall is not None and allocator.shortfall.cause == "fragmentation"
    allocator.check(kept)


def test_a_run_is_not_made_piecemeal_beyond_the_moves_of_one_step() -> None:
    allocator = build(16, max_moves_per_step=2)
    kept = scatter(allocator, keep={0, 1, 2, 8, 9, 10, 11})
    for moves, served in ((2, False), (3, True)):
        allocator.maintain(0, kept)
        holding = allocator.admit(Life(99, 8), 8)
        assert (holding is not None, allocator.totals.moves) == (served, moves)


def test_work_left_over_is_due_at_once_and_done_by_maintain() -> None:
    allocator = build(16, max_moves_per_step=2)
    kept = scatter(allocator, keep={0, 1, 2, 8, 9, 10, 11})
    assert allocator.maintenance_due_ns(5) is None
    assert allocator.admit(Life(99, 8), 8) is None
    assert allocator.totals.moves == 2
    assert allocator.maintenance_due_ns(5) == 5
    assert allocator.maintain(5, kept) is True
    assert allocator.runs.whole_runs == 1
    assert allocator.maintenance_due_ns(6) is None
    assert allocator.maintain(6, kept) is False
    allocator.check(kept)


def test_with_loose_runs_single_pages_stand_in_and_are_counted() -> None:
    allocator = build(64, strict_runs=False, trigger=NEVER)
    kept = scatter(allocator, keep=set(range(1, 64, 2)))
    holding = admit(allocator, 99, 16)
    assert allocator.totals.unmerged_runs == 2
    assert holding.bursts == [16]
    assert allocator.occupancy().largest_free_bytes == allocator.occupancy().free_bytes
    allocator.check([*kept, holding])


# ---- triggers


def test_the_threshold_compacts_until_fragmentation_is_below_it_and_no_further() -> None:
    allocator = build(64, trigger=DefragTrigger(on_failure=False, fragmentation=0.5))
    kept = scatter(allocator, keep=set(range(0, 64, 8)))
    assert allocator.runs.fragmentation_ratio == 1.0
    assert allocator.maintain(0, kept) is True
    # 56 pages are free: more than half of them lie in whole runs from the fourth run on (32 > 28)
    assert (allocator.runs.whole_runs, allocator.totals.moves) == (4, 4)
    assert allocator.maintain(1, kept) is False
    allocator.check(kept)


def test_the_period_compacts_fully_at_its_multiples_only() -> None:
    allocator = build(64, trigger=DefragTrigger(on_failure=False, period=2.0))
    kept = scatter(allocator, keep=set(range(0, 64, 8)))
    assert allocator.maintain(2 * NS_PER_S - 1, kept) is False
    assert allocator.maintenance_due_ns(2 * NS_PER_S - 1) == 2 * NS_PER_S
    assert allocator.maintain(5 * NS_PER_S, kept) is True
    assert allocator.runs.whole_runs == 7
    assert allocator.maintenance_due_ns(5 * NS_PER_S) == 6 * NS_PER_S


def test_a_period_sweep_goes_on_step_by_step() -> None:
    allocator = build(64, trigger=DefragTrigger(on_failure=False, period=2.0), max_moves_per_step=3)
    kept = scatter(allocator, keep=set(range(0, 64, 8)))
    now_ns = 2 * NS_PER_S
    assert [allocator.maintain(now_ns + step, kept) for step in range(4)] == [True, True, True, False]
    assert allocator.totals.moves == 7


def test_without_a_trigger_nothing_ever_moves() -> None:
    allocator = build(64, trigger=NEVER)
    kept = scatter(allocator, keep=set(range(0, 64, 8)))
    assert allocator.maintain(10**12, kept) is False
    assert allocator.maintenance_due_ns(0) is None


# ---- what always holds


def test_a_move_changes_one_entry_and_reports_its_copy_before_the_page_is_given_back() -> None:
    allocator = build(16)
    kept = scatter(allocator, keep={0, 8, 9})
    seen: list[tuple[int, int, int, bool, bool]] = []

    def record(source: int, target: int, count: int) -> None:
        seen.append((source, target, count, allocator.runs.is_free(source), allocator.runs.is_free(target)))

    allocator.on_copy = record
    before = [list(holding.pages) for holding in kept]
    assert allocator.admit(Life(99, 8), 8) is not None
    assert seen == [(0, 10, 1, False, False)]
    assert [list(holding.pages) for holding in kept] == [[10], *before[1:]]


def test_a_window_gives_back_pages_one_by_one_and_moves_still_find_their_entry() -> None:
    layout = PageLayout(1, 100, (PageGroup(100, window_tokens=4),))
    allocator = build(24, layout=layout, trigger=DefragTrigger(on_failure=False, fragmentation=0.0))
    holding = admit(allocator, 1, 12, output_tokens=12)
    for tokens in range(13, 20):
        assert allocator.grow(holding, tokens)
        allocator.check([holding])
    # position 18 is about to be computed and sees 15..18: rows 0..14 are gone
    assert (holding.dropped, len(holding.pages)) == ([15], 4)
    allocator.maintain(0, [holding])
    allocator.check([holding])
    assert allocator.runs.whole_runs == 2


def test_tables_of_several_copies_get_a_run_each() -> None:
    layout = PageLayout(1, 50, (PageGroup(100, copies=2),))
    allocator = build(64, layout=layout)
    holding = admit(allocator, 1, 9)
    assert holding.tables[0] == [page for row in range(8) for page in (row, 8 + row)] + [16, 17]
    # copy 0: 0..7 then 16; copy 1: 8..15 then 17
    assert holding.bursts == [4]
    allocator.check([holding])


def test_a_request_that_no_empty_pool_can_serve_is_too_large() -> None:
    allocator = build(20)
    assert allocator.can_ever_hold(Life(1, 20))
    assert not allocator.can_ever_hold(Life(1, 21))
    two_tables = build(24, layout=PageLayout(1, 50, (PageGroup(100, copies=2),)))
    assert two_tables.can_ever_hold(Life(1, 8)), "two runs of three"
    assert two_tables.can_ever_hold(Life(1, 12))
    three_tables = build(40, layout=PageLayout(1, 50, (PageGroup(150, copies=3),)), run_length=16)
    assert three_tables.can_ever_hold(Life(1, 13))
    assert not build(48 + 15, layout=PageLayout(1, 50, (PageGroup(200, copies=4),)), run_length=16).can_ever_hold(
        Life(1, 16)
    ), "64 pages in 63"


def test_growth_by_run_reckons_with_the_worst_start_after_a_recompute() -> None:
    # one run of 8: admitted with 1 page that breaks the only run, the next run can never be found
    assert not build(8, grow_by="run").can_ever_hold(Life(1, 1, output_tokens=2))
    assert build(16, grow_by="run").can_ever_hold(Life(1, 1, output_tokens=2))
    assert build(8, grow_by="page").can_ever_hold(Life(1, 1, output_tokens=8))


def _random_use(seed: int, operations: int, check_every: int) -> PagedDefragAllocator:
    draw = random.Random(seed)
    layout = draw.choice(
        [
            plain_layout(page_tokens=2, bytes_per_token=4),
            PageLayout(2, 16, (PageGroup(8), PageGroup(4, 1, 6))),
            PageLayout(4, 8, (PageGroup(4, 2),)),
        ]
    )
    max_moves = draw.choice([1, 3, 100])
    allocator = build(
        draw.choice([33, 40, 64, 101]),
        run_length=draw.choice([1, 2, 4, 8]),
        layout=layout,
        trigger=DefragTrigger(
            on_failure=draw.random() < 0.7,
            fragmentation=draw.choice([None, 0.2, 0.5]),
            period=draw.choice([None, 1e-8]),
        ),
        max_moves_per_step=max_moves,
        grow_by=draw.choice(["page", "run"]),
        strict_runs=draw.random() < 0.6,
        free_order=draw.choice(["lifo", "fifo"]),
        null_page=draw.random() < 0.5,
        reverse_release=draw.random() < 0.5,
    )
    live: list[tuple[RunHolding, list[int]]] = []
    now_ns = 0
    for step in range(operations):
        choice = draw.random()
        if choice < 0.3:
            tokens = draw.randint(1, 40)
            holding = allocator.admit(Life(step, tokens, 10), tokens)
            live += [(holding, [tokens])] if holding else []
        elif choice < 0.7 and live:
            grown, length = draw.choice(live)
            more = draw.choice([1, 1, 1, 9])
            tables = [list(table) for table in grown.tables]
            if allocator.grow(grown, length[0] + more, more):
                length[0] += more
            else:
                assert [len(table) for table in grown.tables] <= [len(table) for table in tables]
                assert allocator.shortfall is not None
        elif choice < 0.85 and live:
            allocator.release(live.pop(draw.randrange(len(live)))[0])
        else:
            now_ns += draw.randint(1, 20)
            moves = allocator.totals.moves
            allocator.maintain(now_ns, [holding for holding, _ in live])
            assert allocator.totals.moves - moves <= max_moves
        if step % check_every == 0:
            allocator.check([holding for holding, _ in live])
    for holding, _ in live:
        allocator.release(holding)
    return allocator


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_invariant_holds_under_random_use(seed: int) -> None:
    allocator = _random_use(seed, 60, 1)
    allocator.check([])
    assert allocator.allocated_bytes == allocator.tail_bytes == allocator.discount_bytes == 0
    assert allocator.mean_run_pages == 1.0


@pytest.mark.parametrize("operations", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_nothing_is_held_after_many_operations(operations: int) -> None:
    for seed in range(4):
        _random_use(seed, operations // 4, 500).check([])


@pytest.mark.parametrize("sequences", [5, pytest.param(50, marks=pytest.mark.long)])
def test_two_million_six_hundred_thousand_pages_take_less_than_200_mib(sequences: int) -> None:
    # 128K tokens in 16 KiB pages, 80 layers: 650 rows of 80 pages a sequence, 50 of which fill 2.6 M pages
    pages = sequences * 650 * 80
    allocator = build(pages, layout=PageLayout(1, 16 * 2**10, (PageGroup(80 * 16 * 2**10, copies=80),)), run_length=5)
    tracemalloc.start()
    try:
        holdings = [admit(allocator, index, 650) for index in range(sequences)]
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(allocator.runs) == 0 and sum(len(holding.tables[0]) for holding in holdings) == pages
    assert peak_bytes < 200 * 2**20 * pages / 2_600_000


# ---- does it pay


def test_break_even_is_cost_over_gain() -> None:
    # 100 pages of 1 MB: 2 * 100 MB at 1 TB/s = 200 us. 1000 pages a step in pieces of 1 -> 4: 750 transfers fewer,
    # 10 ns each = 7.5 us a step. 200 / 7.5 = 26.67 steps; at 20 ms each 0.533 s.
    answer = compaction_break_even(
        moved_pages=100,
        page_bytes=10**6,
        copy_bandwidth=1e12,
        read_pages_per_step=1000,
        run_pages_before=1,
        run_pages_after=4,
        transfer_s=10e-9,
        step_s=20e-3,
    )
    assert answer.cost_s == pytest.approx(200e-6)
    assert answer.steps == pytest.approx(200 / 7.5)
    assert answer.period_s == pytest.approx(200 / 7.5 * 0.02)
    assert answer.pays(lifetime_s=0.6) and not answer.pays(lifetime_s=0.5)


def test_compaction_that_lengthens_nothing_never_pays() -> None:
    answer = compaction_break_even(
        moved_pages=1,
        page_bytes=1,
        copy_bandwidth=1.0,
        read_pages_per_step=10,
        run_pages_before=4,
        run_pages_after=4,
        transfer_s=1.0,
        step_s=1.0,
    )
    assert answer.period_s == math.inf and not answer.pays(lifetime_s=1e9)


def test_break_even_refuses_pieces_shorter_than_a_page() -> None:
    with pytest.raises(ValueError, match="below 1"):
        compaction_break_even(
            moved_pages=1,
            page_bytes=1,
            copy_bandwidth=1.0,
            read_pages_per_step=1,
            run_pages_before=0.5,
            run_pages_after=4,
            transfer_s=1.0,
            step_s=1.0,
        )


def test_an_order_that_needs_a_sorted_list_is_refused_by_the_settings() -> None:
    with pytest.raises(ValidationError, match="lifo or fifo"):
        PagedDefragConfig.model_validate({"kind": "paged_defrag", "free_order": "address_ordered"})
