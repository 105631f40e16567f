"""Every invariant that an allocator asserts, broken by hand in a state that was sound: the check says which it was."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from contiguous_pool import build as contiguous_pool

from simulator.allocators.arena import Arena
from simulator.allocators.base import Life as PlainLife
from simulator.allocators.buddy import Buddy
from simulator.allocators.bulk import page_array
from simulator.allocators.group_pools import GroupPools, own_pages
from simulator.allocators.host_pool import HostPool
from simulator.allocators.page_pool import LIST_CYCLES_PER_PAGE, SCAN_CYCLES_PER_PAGE
from simulator.allocators.paged import PagedAllocator, PageGroup, PageLayout, plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.paged_defrag import PagedDefragAllocator
from simulator.allocators.prefix_cache import SharedPages
from simulator.allocators.run_pool import RunPool
from simulator.allocators.sharing import CowHolding, SharedTail
from simulator.allocators.verify import VerifyingAllocator
from simulator.config import DefragTrigger, EvictionPolicy


@dataclass
class Life:
    """Ten tokens that grow to 14, and what sharing asks."""

    request_id: int
    prompt_tokens: int = 10
    output_tokens: int = 5
    sample: int = 0
    prefix: None = None
    priority: int = 0
    target_tokens: int = 10
    computed_tokens: int = 10
    final_tokens: int = field(default=14)


PLAIN = plain_layout(page_tokens=4, bytes_per_token=10)
WINDOWS = PageLayout(4, 80, (PageGroup(20), PageGroup(10, 1, 5)))


class State:
    """An allocator with three sequences of ten tokens each; the third has been forked where that can be."""

    def __init__(self, allocator: Any) -> None:
        self.allocator = allocator
        self.live: list[Any] = []
        for request_id in (1, 2, 3):
            holding = allocator.admit(Life(request_id), 10)
            assert holding is not None
            self.live.append(holding)
        if allocator.can_fork:
            self.live.append(allocator.fork(self.live[2], Life(3, sample=1), 10))

    def check(self) -> None:
        self.allocator.check(self.live)


def paged() -> State:
    return State(PagedAllocator(PLAIN, max_pages=20, null_page=True))


def windowed() -> State:
    return State(PagedAllocator(WINDOWS, max_pages=20))


def cow() -> State:
    return State(PagedCowAllocator(PLAIN, max_pages=20, host=HostPool(4)))


def defrag() -> State:
    return State(PagedDefragAllocator(PLAIN, max_pages=20, run_length=2, trigger=DefragTrigger()))


def grouped() -> State:
    return State(GroupPools(own_pages(4, (PageGroup(20), PageGroup(10, 1, 5))), sizes=(12, 12)))


def ranges() -> State:
    return State(contiguous_pool(64, 16, bytes_per_token=10, reserve="grow", grow_tokens=4))


Break = Callable[[State], object]


def counter(name: str, by: int) -> Break:
    return lambda state: setattr(state.allocator, name, getattr(state.allocator, name) + by)


def held(state: State) -> None:
    state.live[0].capacity_tokens = state.live[0].held_tokens + 1


def lose(state: State) -> None:
    state.allocator.pool.take(1)


def free_twice(state: State) -> None:
    state.allocator.pool.give(state.allocator.pool.free_ids()[:1])


def free_owned(state: State) -> None:
    state.allocator.pool.give(state.live[0].tables[0][:1])


def own_twice(state: State) -> None:
    state.live[1].tables[0][0] = state.live[0].tables[0][0]


def own_in_itself(state: State) -> None:
    state.live[0].tables[0][1] = state.live[0].tables[0][0]


def shorten(state: State) -> None:
    tables = state.live[0].tables
    tables[0] = tables[0][:-1]


def drop_unsaid(state: State) -> None:
    state.live[0].dropped[-1] += 1


def alone(state: State) -> None:
    state.live[3].shared_tail.sharers.pop()


def forget_tail(state: State) -> None:
    state.live[3].shared_tail = None


CASES: list[tuple[Callable[[], State], Break, str]] = [
    (paged, counter("allocated_bytes", 10), "allocated bytes drifted"),
    (paged, counter("allocated_bytes", -10), "allocated bytes drifted"),
    (paged, counter("tail_bytes", 1), "tail bytes drifted"),
    (paged, counter("discount_bytes", 1), "dropped bytes drifted"),
    (paged, held, "capacity beyond what is held"),
    (paged, lose, "a page was lost"),
    (paged, free_twice, "has a page twice"),
    (paged, free_owned, "a page is owned and free"),
    (paged, own_twice, "in more than one table"),
    (paged, shorten, "request 1: wrong table"),
    (windowed, drop_unsaid, "request 1: wrong table"),
    (windowed, counter("discount_bytes", 40), "dropped bytes drifted"),
    (windowed, counter("tail_bytes", 40), "tail bytes drifted"),
    (cow, counter("allocated_bytes", 40), "allocated bytes drifted"),
    (cow, counter("tail_bytes", 10), "tail .* expected"),
    (cow, counter("discount_bytes", 10), "discount .* expected"),
    (cow, held, "request 1: capacity beyond what is held"),
    (cow, shorten, "request 1: wrong table"),
    (cow, own_in_itself, "request 1 has a page twice"),
    (cow, own_twice, "has 1 references, but is in the tables of requests"),
    (cow, lose, "references, but is in the tables of requests"),
    (cow, alone, "called shared, but has one holder"),
    (cow, forget_tail, "a last page is called shared|left unnoticed"),
    (defrag, counter("allocated_bytes", 10), "allocated bytes drifted"),
    (defrag, lose, "a page was lost"),
    (defrag, own_twice, "in more than one table"),
    (defrag, shorten, "request 1: wrong table"),
    (grouped, counter("allocated_bytes", 10), "allocated bytes drifted"),
    (grouped, counter("tail_bytes", 10), "tail bytes drifted"),
    (grouped, counter("discount_bytes", 10), "dropped bytes drifted"),
    (grouped, held, "capacity beyond what is held"),
    (grouped, own_twice, "a page is in two places"),
    (grouped, free_owned, "a page is in two places"),
    (ranges, counter("allocated_bytes", 10), "bytes are held"),
    (ranges, counter("tail_bytes", 10), "bytes will never be used"),
    (ranges, held, "a range has the wrong capacity"),
    (ranges, lambda state: setattr(state.allocator._store, "total_free", 1), "holes hold"),
]


@pytest.mark.parametrize(
    ("build", "broken", "says"), CASES, ids=[f"{build.__name__} {says}" for build, _, says in CASES]
)
def test_a_broken_invariant_is_named(build: Callable[[], State], broken: Break, says: str) -> None:
    state = build()
    state.check()
    broken(state)
    with pytest.raises(AssertionError, match=says):
        state.check()


@pytest.mark.parametrize("build", [paged, windowed, cow, defrag, grouped, ranges], ids=lambda build: build.__name__)
def test_a_sequence_that_is_left_out_is_missed(build: Callable[[], State]) -> None:
    state = build()
    state.live.pop(0)
    with pytest.raises(AssertionError):
        state.check()


def test_a_page_of_another_group_is_in_the_wrong_pool() -> None:
    state = grouped()
    first, second = state.live[0].tables
    first[0], second[0] = second[0], first[0]
    with pytest.raises(AssertionError, match="a page was lost, or is another group's"):
        state.check()


# ---- what is said of the books by the observer


def test_a_page_in_two_tables_of_a_pool_that_shares_nothing_is_told_of_the_second() -> None:
    state = State(VerifyingAllocator(PagedAllocator(PLAIN, max_pages=20), every=10**6, stop=False))
    own_twice(state)
    state.check()
    found = {(one.kind, one.request_id, one.page) for one in state.allocator.violations}
    # the first page of request 2, page 3, is in no table any more
    assert found == {("stale_table", 2, 0), ("leak", 2, 3), ("wrong_read", 2, 0)}


def test_a_reference_too_many_is_told_of_the_only_holder() -> None:
    state = State(VerifyingAllocator(PagedCowAllocator(PLAIN, max_pages=20), every=10**6, stop=False))
    page = state.live[0].tables[0][0]
    state.allocator.inner.pages._references.items[page] += 1
    state.check()
    found = [(one.kind, one.request_id, one.page) for one in state.allocator.violations]
    assert found == [("references", 1, page)]
    message = f"page {page} has 2 references but is in 1 page tables; request 1 wrote it last"
    assert state.allocator.violations[0].message == message


# ---- choices that only a case at the edge shows


def test_two_that_share_their_last_page_and_grow_together_part() -> None:
    allocator = PagedCowAllocator(PLAIN, max_pages=20)
    parent = allocator.admit(Life(1), 10)
    assert parent is not None
    child = allocator.fork(parent, Life(1, sample=1), 10)
    allocator.grow_each([parent, child])
    assert [len(one.tables[0]) for one in (parent, child)] == [3, 3]
    assert parent.tables[0][:2] == child.tables[0][:2] and parent.tables[0][2] != child.tables[0][2]
    allocator.check([parent, child])


@pytest.mark.parametrize(("free", "taken"), [(4, 2), (3, 2), (2, 2), (1, 1)])
def test_a_loose_run_is_taken_to_the_last_one_that_is_whole(free: int, taken: int) -> None:
    """Runs of two pages; of the last pages of the pool a whole run, or one single page, is left."""
    never = DefragTrigger(on_failure=False)
    allocator = PagedDefragAllocator(PLAIN, max_pages=8, run_length=2, trigger=never, grow_by="run", strict_runs=False)
    grows = allocator.admit(Life(1), 4)
    fills = allocator.admit(Life(2), (7 - free) * 4)
    assert grows is not None and fills is not None and len(allocator.pool) == free
    before = len(grows.tables[0])
    assert allocator.grow(grows, 5)
    assert len(grows.tables[0]) - before == taken


def test_the_largest_new_sequence_takes_every_table_of_a_row() -> None:
    twice = PageLayout(4, 40, (PageGroup(20, 2),))
    allocator = PagedDefragAllocator(twice, max_pages=21, run_length=2, trigger=DefragTrigger(), strict_runs=False)
    # ten rows of two pages, and one page that makes no row
    assert allocator.occupancy().largest_free_bytes == 20 * 40
    assert allocator.free_and_largest_bytes() == (21 * 40, 20 * 40)


def test_what_a_window_has_dropped_is_still_dropped_after_a_swap() -> None:
    allocator = PagedAllocator(WINDOWS, max_pages=20, host=HostPool(20))
    holding = allocator.admit(Life(1), 10)
    assert holding is not None and allocator.grow(holding, 13)
    # position 12 sees positions 8 to 12: two rows of 4 tokens, 10 bytes each, are gone
    assert (holding.dropped, allocator.discount_bytes) == ([0, 2], 80)
    # 16 slots held, 14 will be used, 30 bytes each; two rows of the second group have 40 bytes of padding each
    assert allocator.tail_bytes == 2 * 30 + 2 * 40
    assert allocator.swap_out([holding])
    assert (allocator.discount_bytes, allocator.tail_bytes, allocator.allocated_bytes) == (0, 0, 0)
    assert allocator.swap_in([(holding, 13)])
    assert (holding.dropped, allocator.discount_bytes, allocator.tail_bytes) == ([0, 2], 80, 2 * 30 + 2 * 40)
    allocator.check([holding])


def test_host_pages_are_counted_like_those_of_the_device_where_tables_grow_in_step() -> None:
    """A row of two tables is one unit: five host pages hold two of them, not five."""
    twice = PageLayout(4, 40, (PageGroup(20, 2),))
    allocator = PagedCowAllocator(twice, max_pages=20, host=HostPool(5))
    held = [allocator.admit(Life(request_id), 8) for request_id in (1, 2)]
    first, second = (one for one in held if one is not None)
    assert allocator.swap_out([first]) == 2 * 2 * 40
    assert allocator.swap_out([second]) is None


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo", "mru", "filo", "priority"])
def test_a_page_that_is_neither_held_nor_cached_cannot_be_shared(policy: EvictionPolicy) -> None:
    pages = SharedPages(8, "lifo", eviction_policy=policy)
    (page,) = pages.take(1)
    pages.drop(page_array([page]), 1)
    with pytest.raises(AssertionError, match=f"page {page} is free and cannot be shared"):
        pages.share(page_array([page]))


def test_each_pool_of_a_group_is_searched_from_its_own_first_page() -> None:
    """A scan looks at every page before the one it takes: at 1, 2 and 3 pages for the first three of a pool."""
    groups = own_pages(4, (PageGroup(20), PageGroup(10, 1, 99)))
    allocator = GroupPools(groups, sizes=(12, 12), free_order="first_fit_scan", null_page=False)
    assert allocator.admit(Life(1), 10) is not None
    assert allocator.work.search_cycles == 2 * SCAN_CYCLES_PER_PAGE * (1 + 2 + 3)


@pytest.mark.parametrize(
    ("layout", "free", "sequences", "tokens", "sure"),
    [
        # one more token takes one page; five may begin in the middle of a page and reach into a third
        (PLAIN, 1, 1, 1, True),
        (PLAIN, 1, 2, 1, False),
        (PLAIN, 2, 1, 5, False),
        (PLAIN, 3, 1, 5, True),
        # two groups take two pages
        (WINDOWS, 1, 1, 1, False),
        (WINDOWS, 2, 1, 1, True),
        (WINDOWS, 3, 2, 1, False),
    ],
)
def test_growth_is_sure_when_every_table_finds_its_pages(
    layout: PageLayout, free: int, sequences: int, tokens: int, sure: bool
) -> None:
    allocator = PagedCowAllocator(layout, max_pages=free)
    assert allocator.sure_to_grow(sequences, tokens) == sure


def test_the_search_for_runs_and_single_pages_is_charged_by_the_piece() -> None:
    """Seven pages are three runs of two and one single page: four pieces, each the head of a list."""
    allocator = PagedDefragAllocator(PLAIN, max_pages=20, run_length=2, trigger=DefragTrigger())
    assert allocator.admit(Life(1), 28) is not None
    assert allocator.work.search_cycles == 4 * LIST_CYCLES_PER_PAGE
    assert (allocator.work.table_bytes, allocator.work.new_pages, allocator.totals.pages_taken) == (28, 7, 7)


@pytest.mark.parametrize(("pages", "holds"), [(7, False), (8, True), (9, True)])
def test_windows_in_strict_runs_need_room_for_runs_that_are_partly_dropped(pages: int, holds: bool) -> None:
    """Seventeen tokens, a window of five, whole prompts: five rows, and a run of four of which three are dropped."""
    layout = PageLayout(4, 40, (PageGroup(10, 1, 5),))
    allocator = PagedDefragAllocator(layout, max_pages=pages, run_length=4, trigger=DefragTrigger())
    assert allocator.can_ever_hold(Life(1, 17, 1, final_tokens=17)) == holds


def test_the_largest_page_of_the_groups_is_the_page() -> None:
    assert own_pages(4, (PageGroup(20), PageGroup(10, 1, 5))).page_bytes == 4 * 20


def test_the_plain_demand_keeps_what_it_is_given() -> None:
    life = PlainLife(1, 2, 3, 4)
    assert (life.request_id, life.prompt_tokens, life.output_tokens, life.final_tokens) == (1, 2, 3, 4)


def test_sharers_of_a_last_page_count_in_vain_what_the_longest_of_them_will_fill() -> None:
    """A page up to token 12 is filled to 10 by the first, 11 by the second, 12 by the third: 2 + 1 + 0 slots too many,
    none of which is empty in the end."""
    holdings = [CowHolding(Life(number, final_tokens=final), 1) for number, final in ((1, 10), (2, 11), (3, 12))]
    tail = SharedTail(9, 12, holdings[0])
    for holding in holdings[1:]:
        tail.join(holding)
    assert tail.excess_tokens() == 3
    tail.leave(holdings[2])
    # the one slot that both leave empty is wasted once, and counted twice
    assert tail.excess_tokens() == 2


def test_a_pool_of_runs_is_made_of_runs_and_at_most_a_null_page() -> None:
    for pages, length, first in ((4, 0, 0), (4, -1, 0), (4, 2, 2), (4, 2, -1), (0, 2, 1)):
        with pytest.raises(AssertionError):
            RunPool(pages, length, first_page=first)
    assert len(RunPool(0, 2)) == 0
    assert len(RunPool(1, 1, first_page=1)) == 0


# ---- stores


def arena() -> Arena:
    made = Arena(40)
    for size in (10, 10, 10):
        made.allocate(size)
    made.free(10, 10)
    made.check()
    return made


def test_an_arena_is_asked_for_ranges_that_exist() -> None:
    made = arena()
    for size in (0, -1):
        with pytest.raises(AssertionError, match=f"a range of {size} units was asked for"):
            made.allocate(size)
    with pytest.raises(AssertionError, match="cannot be extended to 9"):
        made.extend_in_place(0, 10, 9)
    for start, size in ((-1, 5), (35, 6), (5, 0)):
        with pytest.raises(AssertionError, match="is not a range of this arena"):
            made.free(start, size)
    for start, size in ((10, 10), (5, 10), (15, 10), (30, 1)):
        with pytest.raises(AssertionError, match="is released, but part of it is free"):
            made.free(start, size)
    made.check()
    made.total_free += 1
    with pytest.raises(AssertionError, match="holes hold 20 units, 21 counted"):
        made.check()


@pytest.mark.parametrize(("starts", "sizes"), [([10, 30], [0, 10]), ([10, 20], [10, 10]), ([10, 15], [10, 10])])
def test_holes_of_an_arena_are_apart_and_not_empty(starts: list[int], sizes: list[int]) -> None:
    made = arena()
    assert list(made.free_ranges()) == [(10, 10), (30, 10)]
    made._starts[:], made._sizes[:] = starts, sizes
    made.total_free = sum(sizes)
    with pytest.raises(AssertionError, match="hole"):
        made.check()


def buddy() -> Buddy:
    made = Buddy(16)
    assert [made.allocate(4), made.allocate(2)] == [0, 4]
    made.check()
    return made


def test_a_buddy_is_asked_for_blocks_that_exist() -> None:
    for size in (0, -1):
        with pytest.raises(AssertionError, match=f"a block of {size} units was asked for"):
            buddy().allocate(size)
    with pytest.raises(AssertionError, match="12 is no power of two"):
        Buddy(16, 12)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda made: setattr(made, "total_free", made.total_free + 1), "free units are counted wrong"),
        (lambda made: made._live.update({0: 1}), "follows one that ends at 2"),
        (lambda made: made._live.update({2: 1}), "follows one that ends at 4"),
        (lambda made: made._live.pop(0), "follows one that ends at 0"),
        (lambda made: setattr(made, "capacity", 17), "blocks end at 16, the pool at 17"),
        (lambda made: made._free[3].clear(), "blocks end at 8, the pool at 16"),
        (lambda made: (made._free[3].clear(), made._free[2].extend([8, 12])), "free buddies of order 2 stand apart"),
    ],
)
def test_a_broken_buddy_is_named(broken: Callable[[Buddy], object], says: str) -> None:
    made = buddy()
    broken(made)
    with pytest.raises(AssertionError, match=says):
        made.check()


def test_free_blocks_of_a_buddy_are_in_order() -> None:
    made = Buddy(16, 2)
    starts = [made.allocate(2) for _ in range(8)]
    assert starts == [0, 2, 4, 6, 8, 10, 12, 14]
    made.free(0, 2)
    made.free(8, 2)
    made.check()
    made._free[1].reverse()
    with pytest.raises(AssertionError, match="free blocks of order 1 are out of order"):
        made.check()


def test_a_host_pool_loses_nothing() -> None:
    pool = HostPool(4)
    pages = pool.take(2)
    assert pages is not None
    with pytest.raises(AssertionError, match="a host page is taken but nobody holds it"):
        pool.check()
    pool.hold(pages)
    pool.check()
    del pool._references[pages[0]]
    with pytest.raises(AssertionError, match="a host page was lost"):
        pool.check()


def runs() -> RunPool:
    """Run 1 has one free page, run 2 and 3 have none, run 4 is whole again, the rest is fresh."""
    pool = RunPool(21, 3)
    pool.take_runs(4)
    head = pool.head_pages
    pool.give([head])
    pool.give([head + 9, head + 10, head + 11])
    pool.check()
    return pool


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda pool: setattr(pool, "_free_pages", pool._free_pages + 1), "miscounted"),
        (lambda pool: setattr(pool, "whole_runs", pool.whole_runs - 1), "miscounted"),
        (lambda pool: setattr(pool, "_nonempty", pool._nonempty | 1 << 2), "queue 2 is marked wrongly"),
        (lambda pool: setattr(pool, "_nonempty", 0), "is marked wrongly"),
        (lambda pool: pool._prev.__setitem__(pool._first[1], 4), "is linked wrongly"),
        (lambda pool: pool._last.__setitem__(1, 2), "queue 1 ends wrongly"),
        (lambda pool: pool._last.__setitem__(2, 2), "queue 2 ends wrongly"),
        (lambda pool: pool._is_free.__setitem__(pool.head_pages + 1, 1), "run 1 has 2 free pages, not 1"),
        (lambda pool: pool._free_in_run.__setitem__(2, 1), "run 2 has 0 free pages, not 1"),
    ],
)
def test_a_broken_pool_of_runs_is_named(broken: Callable[[RunPool], object], says: str) -> None:
    pool = runs()
    broken(pool)
    with pytest.raises(AssertionError, match=says):
        pool.check()


def test_a_pool_of_runs_gives_what_it_has() -> None:
    pool = runs()
    for count in (-1, pool.whole_runs + 1):
        with pytest.raises(AssertionError, match=f"{count} runs asked"):
            pool.take_runs(count)
    for count in (-1, len(pool) + 1):
        with pytest.raises(AssertionError, match=f"{count} pages asked"):
            pool.take(count)
    for page in (-1, 21, 20, pool.head_pages):
        with pytest.raises(AssertionError, match=f"page {page} is free already"):
            pool.give([page])
    assert pool.is_free(pool.head_pages) and not pool.is_free(pool.head_pages + 1)
    assert pool.is_free(20) and not pool.is_free(21) and not pool.is_free(-1)
    assert not RunPool(7, 3, first_page=1).is_free(0)


# ---- what tables of runs know of their pages


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda state: setattr(state.allocator.tables, "bursts", 0), "the sum of pieces drifted"),
        (lambda state: state.live[0].bursts.__setitem__(0, 9), "request 1: pieces of adjacent pages miscounted"),
        (lambda state: setattr(state.live[0], "slot", 1), "request 1 lost its slot"),
        (lambda state: setattr(state.live[0], "slot", -1), "request 1 lost its slot"),
        (lambda state: state.allocator.tables._owner.items.__setitem__(state.live[0].pages[0], 2), "page 0"),
        (lambda state: state.allocator.tables._entry.items.__setitem__(state.live[0].pages[0], 2), "page 0"),
    ],
)
def test_broken_knowledge_of_runs_is_named(broken: Break, says: str) -> None:
    state = defrag()
    state.check()
    broken(state)
    with pytest.raises(AssertionError, match=says):
        state.check()


def test_a_seat_that_nobody_is_said_to_have_is_missed() -> None:
    state = defrag()
    with pytest.raises(AssertionError, match="a holding was lost or is unknown"):
        state.allocator.tables.check(state.live[:2])


def test_a_page_that_its_table_does_not_name_cannot_be_moved() -> None:
    state = defrag()
    tables = state.allocator.tables
    state.live[0].pages[0] = 19
    with pytest.raises(AssertionError, match="does not hold page 0 at entry 0"):
        tables.rename(0, 18)
