"""Shadow memory: contents followed through writes and copies; corruption and planted mistakes named."""

import random
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

import pytest
from engine_worlds import World, worlds
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from simulator.allocators.base import Allocator, Holding
from simulator.allocators.content_map import ContentMap
from simulator.allocators.contiguous import ContiguousAllocator
from simulator.allocators.faults import FaultKind, FaultyAllocator
from simulator.allocators.host_pool import HostPool
from simulator.allocators.lineage import lineage_of
from simulator.allocators.page_keys import content_spans
from simulator.allocators.page_memory import PageMemory, Piece
from simulator.allocators.paged import PagedAllocator, PagedHolding, PageGroup, PageLayout, plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.paged_defrag import PagedDefragAllocator
from simulator.allocators.sharing import RULES
from simulator.allocators.verify import VerifyingAllocator
from simulator.allocators.violations import VerificationError, Violation
from simulator.config import ContiguousConfig, DefragTrigger


@dataclass
class Life:
    """A demand with what sharing asks; lengths in tokens."""

    request_id: int
    prompt_tokens: int
    output_tokens: int = 50
    sample: int = 0
    prefix: tuple[list[int], list[int]] | None = None
    priority: int = 0
    final_tokens: int = field(init=False)
    target_tokens: int = field(init=False)
    computed_tokens: int = 0

    def __post_init__(self) -> None:
        self.target_tokens = self.prompt_tokens
        self.final_tokens = self.prompt_tokens + self.output_tokens - 1


LAYOUT = plain_layout(page_tokens=4, bytes_per_token=10)


def paged(max_pages: int = 16, **options: Any) -> PagedAllocator:
    return PagedAllocator(LAYOUT, max_pages=max_pages, **options)


def cow(max_pages: int = 16, **options: Any) -> PagedCowAllocator:
    return PagedCowAllocator(LAYOUT, max_pages=max_pages, **options)


def defrag(max_pages: int = 16, **options: Any) -> PagedDefragAllocator:
    return PagedDefragAllocator(LAYOUT, max_pages=max_pages, run_length=4, trigger=DefragTrigger(), **options)


def contiguous(tokens: int = 64, **options: Any) -> ContiguousAllocator:
    config = ContiguousConfig.model_validate({"kind": "contiguous", **options})
    return ContiguousAllocator(config, capacity_bytes=tokens * 10, bytes_per_token=10, max_model_len=64)


def started(allocator: VerifyingAllocator, request_id: int, tokens: int, **options: Any) -> Any:
    holding = allocator.admit(Life(request_id, tokens, **options), tokens)
    assert holding is not None
    return holding


# ---- the map of contents, against one dictionary entry an address


class ContentMapMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.map = ContentMap()
        self.cells: dict[int, tuple[str, int]] = {}

    @rule(start=st.integers(-6, 12), size=st.integers(1, 7), name=st.sampled_from("abc"), position=st.integers(0, 9))
    def write(self, start: int, size: int, name: str, position: int) -> None:
        self.map.write(start, size, name, position)
        self.cells.update({start + i: (name, position + i) for i in range(size)})

    @rule(source=st.integers(-6, 12), goal=st.integers(-6, 12), size=st.integers(1, 7))
    def copy(self, source: int, goal: int, size: int) -> None:
        self.map.copy(source, goal, size)
        moved = [self.cells.get(source + i) for i in range(size)]
        for i, cell in enumerate(moved):
            self.cells.pop(goal + i, None)
            if cell is not None:
                self.cells[goal + i] = cell

    @invariant()
    def reads_from_everywhere(self) -> None:
        for start in range(-8, 22):
            for size in (0, 1, 4, 30):
                self.read(start, size)

    def read(self, start: int, size: int) -> None:
        seen: list[tuple[Any, int] | None] = []
        address = start
        for found in self.map.read(start, size):
            assert found.start == address < found.end
            address = found.end
            for i in range(found.end - found.start):
                seen.append(None if found.content is None else (found.content, found.position + i))
        assert address == start + size
        assert seen == [self.cells.get(start + i) for i in range(size)]


ContentMapMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
TestContentMapAgainstCells = ContentMapMachine.TestCase


def test_what_is_written_in_order_is_one_piece_whatever_lay_there() -> None:
    memory = ContentMap()
    memory.write(3, 2, "old", 0)
    for position in range(20):
        memory.write(position, 1, "new", 100 + position)
    memory.write(20, 1, "other", 120)
    memory.write(21, 1, "other", 7)
    assert memory._pieces == [(0, 20, "new", -100), (20, 21, "other", -100), (21, 22, "other", 14)]


#: some slots of a page, and what they may hold
SLOTS = {
    "page": st.integers(-2, 3),
    "start": st.integers(0, 7),
    "size": st.integers(1, 8),
    "content": st.integers(0, 2),
    "origin": st.sampled_from([0, 8]),
}


class PageMemoryMachine(RuleBasedStateMachine):
    """Pages of eight slots, against one dictionary entry a slot."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = PageMemory()
        self.cells: dict[tuple[int, int], tuple[int, int]] = {}

    @rule(**SLOTS)
    def write(self, page: int, start: int, size: int, content: int, origin: int) -> None:
        end = min(8, start + size)
        self.memory.write(page, Piece(start, end, content, origin))
        self.cells.update({(page, slot): (content, origin + slot) for slot in range(start, end)})

    @rule(source=st.integers(-2, 3), goal=st.integers(-2, 3))
    def copy(self, source: int, goal: int) -> None:
        self.memory.copy(source, goal)
        held = {slot: self.cells.get((source, slot)) for slot in range(8)}
        for slot, cell in held.items():
            self.cells.pop((goal, slot), None)
            if cell is not None:
                self.cells[goal, slot] = cell

    @rule(**SLOTS)
    def read(self, page: int, start: int, size: int, content: int, origin: int) -> None:
        end = min(8, start + size)
        wrong = [slot for slot in range(start, end) if self.cells.get((page, slot)) != (content, origin + slot)]
        assert self.memory.unlike(page, start, end, content, origin) == (wrong[0] if wrong else -1)

    @rule(page=st.integers(-2, 3))
    def look(self, page: int) -> None:
        pieces = self.memory.pieces(page)
        seen = {(page, s): (piece.content, piece.origin + s) for piece in pieces for s in range(piece.start, piece.end)}
        assert seen == {place: cell for place, cell in self.cells.items() if place[0] == page}
        assert all(piece.start < piece.end for piece in pieces)
        assert all(one.end <= other.start for one, other in pairwise(pieces))
        same = [(one.content, one.origin) == (other.content, other.origin) for one, other in pairwise(pieces)]
        assert sum(same) <= 4, "what is written on and on is one piece"


PageMemoryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestPageMemoryAgainstCells = PageMemoryMachine.TestCase


def test_a_sequence_finds_shared_segments_then_its_prompt_then_its_own_outputs() -> None:
    lineage = lineage_of(Life(7, 10, sample=2, prefix=([40, 41], [4, 8])))
    assert list(lineage.spans(2, 12)) == [
        (2, 4, ("segment", 40, 0)),
        (4, 8, ("segment", 41, 0)),
        (8, 10, ("request", 7, 0)),
        (10, 12, ("request", 7, 3)),
    ]
    child = lineage_of(Life(7, 10, sample=3), lineage.cut(11))
    assert list(child.spans(9, 13)) == [
        (9, 10, ("request", 7, 0)),
        (10, 11, ("request", 7, 3)),
        (11, 13, ("request", 7, 4)),
    ]


# ---- allocators that do it right


def _swappable(host: HostPool) -> list[Allocator]:
    windows = PageLayout(4, 80, (PageGroup(10, 2), PageGroup(10, 2, 9)))
    trigger = DefragTrigger(fragmentation=0.3)
    return [
        paged(host=host),
        cow(host=host),
        cow(host=host, enable_prefix_caching=False, rules=RULES["vllm-0.11"]),
        cow(host=host, rules=RULES["vllm-0.6"]),
        cow(host=host, rules=RULES["sglang"]),
        defrag(host=host),
        defrag(host=host, grow_by="run"),
        defrag(host=host, grow_by="run", strict_runs=False),
        PagedDefragAllocator(LAYOUT, max_pages=19, run_length=4, trigger=trigger, null_page=True, host=host),
        PagedDefragAllocator(windows, max_pages=40, run_length=4, trigger=trigger, strict_runs=False, host=host),
        PagedAllocator(windows, max_pages=40, host=host),
        PagedCowAllocator(windows, max_pages=40, host=host),
    ]


def _fixed() -> list[Allocator]:
    kinds: list[dict[str, Any]] = [
        {"reserve": "grow", "grow_tokens": 4},
        {"reserve": "grow", "grow_tokens": 4, "fit": "best"},
        {"reserve": "grow", "grow_tokens": 4, "fit": "buddy"},
        {"reserve": "pow2", "fit": "buddy"},
        {"reserve": "exact", "fit": "worst"},
        {"reserve": "grow", "grow_tokens": 4, "page_size": "24B"},
    ]
    return [contiguous(160, **kind) for kind in kinds]


class Play:
    """Random use of one allocator under observation."""

    def __init__(self, inner: Allocator, draw: random.Random) -> None:
        self.allocator = VerifyingAllocator(inner)
        self.draw = draw
        self.lengths: dict[int, int] = {}
        self.live: list[Holding] = []
        self.away: list[Holding] = []
        self.requests = 0

    def step(self) -> None:
        moves = [self.admit, self.admit, self.grow, self.grow, self.grow, self.release, self.fork, self.swap, self.back]
        self.draw.choice(moves)()
        self.allocator.maintain(self.requests, self.live)

    def _reached(self, holding: Holding, length: int) -> None:
        self.lengths[id(holding)] = length
        assert isinstance(holding.demand, Life)
        holding.demand.computed_tokens = length

    def admit(self) -> None:
        self.requests += 1
        tokens = self.draw.randint(1, 20)
        prefix = None
        if self.draw.random() < 0.7:
            group, length = self.draw.randrange(2), min(12, tokens)
            prefix = ([group * 100 + end // 4 for end in range(4, length + 1, 4)], list(range(4, length + 1, 4)))
        demand = Life(self.requests, tokens, output_tokens=30, prefix=prefix)
        holding = self.allocator.admit(demand, tokens)
        if holding is not None:
            self.live.append(holding)
            self._reached(holding, tokens)

    def grow(self) -> None:
        if self.live:
            holding = self.draw.choice(self.live)
            length = self.lengths[id(holding)] + 1
            if length <= min(holding.demand.final_tokens, 60) and (
                length <= holding.capacity_tokens or self.allocator.grow(holding, length)
            ):
                self._reached(holding, length)

    def release(self) -> None:
        if self.live:
            holding = self.live.pop(self.draw.randrange(len(self.live)))
            self.allocator.release(holding)
            del self.lengths[id(holding)]

    def fork(self) -> None:
        if self.live and self.allocator.can_fork:
            parent = self.draw.choice(self.live)
            length = self.lengths[id(parent)]
            old = parent.demand
            assert isinstance(old, Life)
            self.requests += 1
            demand = Life(old.request_id, old.prompt_tokens, old.output_tokens, self.requests, old.prefix)
            child = self.allocator.fork(parent, demand, length)
            self.live.append(child)
            self._reached(child, length)

    def swap(self) -> None:
        if self.live and getattr(self.allocator, "host", None) is not None:
            request_id = self.draw.choice(self.live).demand.request_id
            leaving = [holding for holding in self.live if holding.demand.request_id == request_id]
            if self.allocator.swap_out(leaving) is not None:
                self.live = [holding for holding in self.live if holding not in leaving]
                self.away += leaving

    def back(self) -> None:
        if self.away:
            request_id = self.draw.choice(self.away).demand.request_id
            group = [holding for holding in self.away if holding.demand.request_id == request_id]
            wanted = [(holding, self.lengths[id(holding)] + 1) for holding in group]
            if self.allocator.swap_in(wanted) is not None:
                self.away = [holding for holding in self.away if holding not in group]
                self.live += group
                for holding, length in wanted:
                    self._reached(holding, length)


@pytest.mark.parametrize("which", range(len(_swappable(HostPool(20))) + len(_fixed())))
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_sequence_ever_reads_anything_but_its_own_history(which: int, seed: int) -> None:
    play = Play([*_swappable(HostPool(20)), *_fixed()][which], random.Random(seed))
    for _ in range(40):
        play.step()
    for holding in [*play.live, *play.away]:
        play.allocator.release(holding)
    play.allocator.check([])
    assert play.allocator.allocated_bytes == 0


class ObservedWorld(World):
    def allocator(self) -> Allocator:
        return VerifyingAllocator(super().allocator())


@settings(max_examples=40, deadline=None)
@given(world=worlds())
def test_an_engine_runs_under_observation_as_it_does_without(world: World) -> None:
    plain, _ = world.run()
    observed, _ = ObservedWorld(**{item.name: getattr(world, item.name) for item in fields(world)}).run()
    assert (observed.ended_because, observed.ended_ns) == (plain.ended_because, plain.ended_ns)
    assert observed.ledger.finished_ns == plain.ledger.finished_ns


# ---- corruption, seen by reading alone


def test_a_move_whose_copy_was_forgotten_is_named_with_request_page_and_position() -> None:
    allocator = VerifyingAllocator(paged())
    first, second = started(allocator, 1, 8), started(allocator, 2, 8)
    assert (first.pages, second.pages) == ([0, 1], [2, 3])
    second.pages[1] = 9
    found = allocator.shadow.verify_read(second, 8)
    assert found is not None
    assert found.message == "request 2 reads its position 4 at page 9, slot 0 and finds nothing that was ever written"
    second.pages[1] = 1
    found = allocator.shadow.verify_read(second, 8)
    assert found is not None and (found.request_id, found.page) == (2, 1)
    assert found.message.endswith("finds position 4 of request 1")


def test_a_copy_into_a_page_in_use_corrupts_its_owner_and_is_noticed() -> None:
    allocator = VerifyingAllocator(paged())
    first, second = started(allocator, 1, 4), started(allocator, 2, 4)
    allocator.shadow.copy(0, 1, 1)
    with pytest.raises(
        VerificationError, match="request 2 reads its position 0 at page 1, slot 0 and finds position 0"
    ):
        allocator.check([first, second])


def test_copy_on_write_without_the_copy_is_noticed() -> None:
    allocator = VerifyingAllocator(cow())
    parent = started(allocator, 1, 6)
    child = allocator.fork(parent, Life(1, 6, sample=1), 6)
    allocator.inner.on_copy = None  # the copy happens, nobody sees it: as if it had not happened
    with pytest.raises(VerificationError, match="request 1 reads its position 4 at page 2"):
        allocator.grow(child, 7)


def test_a_fork_that_writes_in_place_corrupts_its_parent_and_is_noticed() -> None:
    allocator = VerifyingAllocator(cow())
    parent = started(allocator, 1, 6)
    child = allocator.fork(parent, Life(1, 6, sample=1), 6)
    child.capacity_tokens = 8  # an engine that forgets copy-on-write writes on
    allocator.shadow.write_up_to(parent, 8)
    allocator.shadow.write_up_to(child, 8)
    with pytest.raises(
        VerificationError, match=r"request 1 reads its position 6 at page 1, slot 2 .*request 1 \(sample 1\)"
    ):
        allocator.check([parent, child])


def test_a_prefix_hit_on_the_wrong_content_is_noticed_at_admission() -> None:
    allocator = VerifyingAllocator(cow())
    first = started(allocator, 1, 9, prefix=([7], [8]))
    first.demand.computed_tokens = 9
    allocator.release(first)
    # the cache believes that the pages of segment 7 hold segment 8
    pages = allocator.inner.pages  # type: ignore[attr-defined]
    ((right, _, _),) = content_spans(first.demand, 0, 2, 4)
    ((wrong, _, _),) = content_spans(Life(5, 9, prefix=([8], [8])), 0, 2, 4)
    runs = pages.contents._space._named
    runs[wrong] = runs.pop(right)
    with pytest.raises(VerificationError, match=r"request 2 reads its position 0 .*finds position 0 of segment 7"):
        started(allocator, 2, 9, prefix=([8], [8]))


def test_a_table_that_lost_its_last_page_is_noticed_at_the_next_operation() -> None:
    allocator = VerifyingAllocator(paged(), every=10**6)
    holding = started(allocator, 1, 9)
    holding.pages.pop()
    with pytest.raises(VerificationError, match="request 1 has no page for its position 8, which has been written"):
        allocator.grow(holding, 10)


def test_two_tables_in_step_that_lost_their_last_row_are_too_short() -> None:
    layout = PageLayout(4, 20, (PageGroup(10, copies=2),))
    allocator = VerifyingAllocator(PagedAllocator(layout, max_pages=16), every=10**6)
    holding = started(allocator, 1, 9)
    del holding.tables[0][-2:]
    with pytest.raises(VerificationError, match="request 1 has no page for its position 8, which has been written"):
        allocator.grow(holding, 10)


def test_a_window_page_given_back_too_early_is_noticed() -> None:
    windows = PageLayout(4, 40, (PageGroup(10, 1, 9),))
    allocator = VerifyingAllocator(PagedAllocator(windows, max_pages=16), every=10**6)
    holding = started(allocator, 1, 12)
    assert allocator.grow(holding, 13)  # position 12 sees positions 4 to 12
    assert (holding.dropped, holding.pages) == ([1], [1, 2, 0])
    allocator.inner._drop_rows(holding, 0, 1)  # type: ignore[attr-defined]
    with pytest.raises(VerificationError, match="request 1 has no page for its position 5, which position 13 sees"):
        allocator.grow(holding, 14)


def test_what_is_in_host_memory_is_read_there() -> None:
    allocator = VerifyingAllocator(paged(host=HostPool(4)))
    first, second = started(allocator, 1, 8), started(allocator, 2, 8)
    assert allocator.swap_out([first, second])
    other = second.host_copy.tables[0][0]
    allocator.shadow.copy(-1 - other, -1 - first.host_copy.tables[0][1], 1)
    with pytest.raises(
        VerificationError, match=r"request 1 reads its position 4 at page -\d, slot 0 and finds position 0"
    ):
        allocator.release(first)


@pytest.mark.parametrize(("page", "where"), [(16, "in the page table of request 1"), (0, "in the page table")])
def test_a_page_that_is_not_of_the_pool_is_named(page: int, where: str) -> None:
    allocator = VerifyingAllocator(paged(null_page=True), every=10**6)
    holding = started(allocator, 1, 4)
    allocator.shadow.copy(holding.pages[0], page, 1)
    holding.pages[0] = page
    with pytest.raises(VerificationError, match=f"page {page} is not of this pool, but {where}"):
        allocator.check([holding])


def test_pages_are_counted_by_the_observer_itself_not_by_the_allocators_own_check() -> None:
    allocator = VerifyingAllocator(paged(), every=10**6)
    holding = started(allocator, 1, 4)
    allocator.inner.check = lambda holdings: None  # type: ignore[method-assign]
    assert isinstance(allocator.inner, PagedAllocator)
    allocator.inner.pool.take(1)
    with pytest.raises(VerificationError, match="page 1 is neither free nor in the page table of a live request"):
        allocator.check([holding])


def test_a_pool_without_a_page_can_be_observed() -> None:
    allocator = VerifyingAllocator(paged(1, null_page=True))
    assert allocator.admit(Life(1, 1), 1) is None
    assert (allocator.operations, allocator.tables_read) == (1, 0)


def test_operations_and_tables_are_counted() -> None:
    allocator = VerifyingAllocator(paged(), every=3)
    first, second = started(allocator, 1, 4), started(allocator, 2, 4)
    allocator.grow(first, 5)
    # an admission reads its table when it begins and when it is done; the third operation reads both tables again
    assert (allocator.operations, allocator.tables_read) == (3, 2 * 2 + 1 + 2)
    allocator.release(second)
    assert (allocator.operations, allocator.tables_read) == (4, 8)


def test_a_range_that_overlaps_another_is_named() -> None:
    allocator = VerifyingAllocator(contiguous(reserve="exact"), every=10**6)
    first, second = started(allocator, 1, 8, output_tokens=1), started(allocator, 2, 8, output_tokens=1)
    second.start = first.start + 4
    allocator.shadow.write(second, 0, 8)
    with pytest.raises(
        VerificationError, match="request 1 reads its position 4 at byte 40 and finds position 0 of request 2"
    ):
        allocator.check([first, second])


# ---- planted mistakes


PAGED_KINDS = [paged, cow, defrag]
#: with LIFO reuse the next sequence would get the stale pages anyway, so another one comes in between
EXPECTED: dict[FaultKind, set[str]] = {
    "missed_end_of_sequence": {"leak", "references"},
    "forgotten_decrement": {"leak", "references"},
    "stale_page_table": {"stale_table", "leak", "references", "wrong_read"},
    "double_release": {"double_release", "release"},
}


@pytest.mark.parametrize("build", PAGED_KINDS)
@pytest.mark.parametrize("kind", list(EXPECTED))
def test_a_planted_mistake_is_detected_at_once_and_names_request_and_page(kind: FaultKind, build: Any) -> None:
    faulty = FaultyAllocator(build(), kind, every=2)
    allocator = VerifyingAllocator(faulty)
    holdings = [started(allocator, request_id, 8) for request_id in (1, 2, 3)]
    allocator.release(holdings[0])
    with pytest.raises(VerificationError) as caught:
        _end_one_and_start_three(allocator, holdings[1])
    assert faulty.injected
    mistake, found = faulty.injected[0], caught.value.violations
    assert {violation.kind for violation in found} <= EXPECTED[kind]
    assert any(violation.request_id == mistake.request_id for violation in found)
    assert any(f"page {mistake.page}" in violation.message for violation in found)
    assert any(f"request {mistake.request_id}" in violation.message for violation in found)


def _end_one_and_start_three(allocator: VerifyingAllocator, holding: Holding) -> None:
    allocator.release(holding)
    for request_id in (4, 5, 6):
        started(allocator, request_id, 4)


def test_a_leak_goes_on_when_it_shall_be_watched_instead_of_stopped() -> None:
    faulty = FaultyAllocator(paged(max_pages=8), "missed_end_of_sequence", every=2)
    allocator = VerifyingAllocator(faulty, stop=False)
    served = 0
    for request_id in range(100):
        holding = allocator.admit(Life(request_id, 8), 8)
        if holding is None:
            break
        served += 1
        allocator.release(holding)
    # four leaks of two pages fill the pool: every second request of eight
    assert served == 8
    assert [injected.request_id for injected in faulty.injected] == [1, 3, 5, 7]
    assert {violation.request_id for violation in allocator.violations} == {1, 3, 5, 7}
    assert {violation.kind for violation in allocator.violations} == {"leak"}


def test_a_missed_end_in_a_contiguous_pool_is_named_too() -> None:
    allocator = VerifyingAllocator(FaultyAllocator(contiguous(reserve="exact"), "missed_end_of_sequence"))
    holding = started(allocator, 5, 8, output_tokens=1)
    with pytest.raises(
        VerificationError, match="granules 0 to 7 are neither free nor held; request 5 wrote there last"
    ) as caught:
        allocator.release(holding)
    (found,) = caught.value.violations
    assert (found.kind, found.request_id, found.page) == ("leak", 5, -1)


def test_granules_that_nobody_wrote_have_nobody_to_blame() -> None:
    allocator = VerifyingAllocator(contiguous(reserve="exact"))
    assert isinstance(allocator.inner, ContiguousAllocator)
    allocator.inner._store.allocate(5)
    with pytest.raises(VerificationError, match="granules 0 to 4 are neither free nor held; nobody wrote") as caught:
        allocator.check([])
    (found,) = caught.value.violations
    assert (found.kind, found.request_id, found.page) == ("leak", -1, -1)


def test_granules_that_are_held_twice_are_named_though_nothing_was_written_there_yet() -> None:
    allocator = VerifyingAllocator(contiguous(reserve="exact"), every=10**6, stop=False)
    first, second = started(allocator, 1, 8, output_tokens=1), started(allocator, 2, 8, output_tokens=1)
    second.start = first.start + 4
    allocator.check([first, second])
    found = {(one.kind, one.request_id, one.page): one.message for one in allocator.violations}
    # 4 to 7 are held by both, 12 to 15 by nobody, 8 to 11 by the second alone
    assert found["overlap", 2, -1] == "granules 4 to 7 of request 2 are free or held by another as well"
    assert found["leak", 2, -1] == "granules 12 to 15 are neither free nor held; request 2 wrote there last"
    assert found["wrong_read", 2, -1].startswith("request 2 reads its position 0 at byte 40")


def test_one_stale_entry_is_left_for_one_mistake() -> None:
    faulty = FaultyAllocator(paged(), "stale_page_table", every=2)
    allocator = VerifyingAllocator(faulty, every=10**6, stop=False)
    holdings = [started(allocator, request_id, 8) for request_id in (1, 2, 3)]
    for holding in holdings[:2]:
        allocator.release(holding)
    for request_id in (4, 5, 6, 7):
        started(allocator, request_id, 8)
    assert len(faulty.injected) == 1


def test_more_samples_than_can_be_told_apart_are_refused() -> None:
    allocator = VerifyingAllocator(paged())
    holding = started(allocator, 1, 8, sample=2**24 - 1)
    with pytest.raises(AssertionError, match="request 1 has more than 16777216 samples"):
        allocator.grow(holding, 9)  # the first token of its own


def test_what_a_sequence_has_is_read_once_more_before_it_ends() -> None:
    allocator = VerifyingAllocator(paged(), every=10**6)
    holding = started(allocator, 1, 8)
    holding.pages[1] = 9
    with pytest.raises(VerificationError, match="request 1 reads its position 4 at page 9"):
        allocator.release(holding)


def test_a_release_that_fails_names_its_request() -> None:
    allocator = VerifyingAllocator(defrag(), every=10**6)
    first, second = started(allocator, 1, 4), started(allocator, 2, 4)
    allocator.shadow.copy(first.pages[0], 12, 1)
    first.pages[0] = 12
    with pytest.raises(VerificationError, match="request 1") as caught:
        allocator.release(first)
    (found,) = caught.value.violations
    assert (found.kind, found.request_id, found.page) == ("release", 1, -1)
    assert second.held_tokens == 4


@pytest.mark.parametrize(("count", "ends"), [(1, "v0"), (3, "v0; v1; v2"), (4, "v0; v1; v2; and 1 more")])
def test_three_violations_are_named_and_the_rest_counted(count: int, ends: str) -> None:
    found = [Violation("leak", number, -1, f"v{number}") for number in range(count)]
    error = VerificationError(found)
    assert str(error) == ends and error.violations == found


@pytest.mark.parametrize("position", [3, 8])
def test_the_first_place_that_is_wrong_is_told_with_its_own_slot(position: int) -> None:
    allocator = VerifyingAllocator(paged(), every=10**6)
    first, second = started(allocator, 1, 12), started(allocator, 2, 12)
    page, slot = divmod(position, 4)
    allocator.shadow.write(second, 0, 12)
    memory = allocator.shadow._memory  # type: ignore[attr-defined]
    theirs = memory.pieces(second.pages[page])[0]
    memory.write(first.pages[page], Piece(slot, 4, theirs.content, theirs.origin))
    found = allocator.shadow.verify_read(first, 12)
    where = f"request 1 reads its position {position} at page {first.pages[page]}, slot {slot}"
    assert found is not None and found.message == f"{where} and finds position {position} of request 2"


def test_releasing_twice_is_named() -> None:
    allocator = VerifyingAllocator(paged())
    holding = started(allocator, 5, 8)
    allocator.release(holding)
    with pytest.raises(VerificationError, match="request 5 is used or released after its release") as caught:
        allocator.release(holding)
    (found,) = caught.value.violations
    assert (found.kind, found.request_id, found.page) == ("double_release", 5, -1)


def test_a_mistake_that_needs_pages_is_refused_where_there_are_none() -> None:
    with pytest.raises(ValueError, match="needs pages"):
        FaultyAllocator(contiguous(), "double_release")
    with pytest.raises(ValueError, match="at least 1"):
        FaultyAllocator(paged(), "double_release", every=0)


def test_what_is_not_defined_by_the_observer_is_the_inner_allocators() -> None:
    inner = paged()
    allocator = VerifyingAllocator(inner)
    assert isinstance(allocator, Allocator)
    assert (allocator.kind, allocator.max_pages, allocator.work) == ("paged", 16, inner.work)
    holding = started(allocator, 1, 8)
    assert isinstance(holding, PagedHolding)
    for name in ("allocated_bytes", "cached_bytes", "free_bytes", "largest_free_bytes", "unusable_bytes"):
        assert getattr(allocator.occupancy(), name) == getattr(inner.occupancy(), name)


def two_groups() -> VerifyingAllocator:
    """Two groups of two tables each, all of full attention; a row takes four pages."""
    layout = PageLayout(4, 80, (PageGroup(10, 2), PageGroup(10, 2, 99)))
    return VerifyingAllocator(PagedAllocator(layout, max_pages=40), every=10**6)


@pytest.mark.parametrize(
    ("group", "entry", "layers"),
    [(0, 1, " of layer group 0, table 1"), (1, 0, " of layer group 1, table 0"), (1, 1, " of layer group 1, table 1")],
)
def test_a_page_of_other_layers_is_told_from_ones_own(group: int, entry: int, layers: str) -> None:
    allocator = two_groups()
    holding = started(allocator, 1, 8)
    other = holding.tables[group][2 + entry]  # of the second row
    holding.tables[0][2] = other
    found = allocator.shadow.verify_read(holding, 8)
    assert found is not None
    where = f"request 1 reads its position 4 at page {other}, slot 0"
    assert found.message == f"{where} and finds position 4 of request 1{layers}"


def test_each_column_reads_its_own_pages_in_every_row() -> None:
    for group, entry in ((0, 0), (0, 3), (0, 5), (1, 2), (1, 5)):
        allocator = two_groups()
        holding = started(allocator, 1, 12)
        holding.tables[group][entry] = 39  # free, never written
        found = allocator.shadow.verify_read(holding, 12)
        assert found is not None
        assert f"reads its position {entry // 2 * 4} at page 39" in found.message


@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0), (0, 3)])
def test_pages_copied_over_each_other_keep_what_was_copied(source: int, target: int) -> None:
    allocator = VerifyingAllocator(paged())
    holding = started(allocator, 1, 16)
    assert holding.pages == [0, 1, 2, 3]
    allocator.shadow.copy(source, target, 3)
    kept = [page for page in (0, 1, 2, 3) if not target <= page < target + 3]
    names = {page: page for page in kept} | {target + i: source + i for i in range(3)}
    memory = allocator.shadow._memory  # type: ignore[attr-defined]
    assert {page: memory.pieces(page)[0].origin // 4 for page in names} == names


def test_full_attention_loses_no_page_and_says_so_of_its_first_position() -> None:
    allocator = two_groups()
    holding = started(allocator, 1, 12)
    holding.dropped[0] = 1
    del holding.tables[0][:2]
    with pytest.raises(VerificationError, match="request 1 has no page for its position 0, which position 12 sees"):
        allocator.grow(holding, 13)


def test_a_hit_on_pages_that_are_yet_to_be_computed_leaves_no_hole_in_a_window() -> None:
    """The second request computes the prompt again from its start, so it needs more than the window of its end."""
    windows = PageLayout(4, 40, (PageGroup(10), PageGroup(10, 1, 5)))
    allocator = VerifyingAllocator(PagedCowAllocator(windows, max_pages=40, rules=RULES["vllm-0.6"]))
    prefix = ([7], [16])
    started(allocator, 1, 17, prefix=prefix)
    second = allocator.admit(Life(2, 17, prefix=prefix), 3)
    assert second is not None and second.hit_tokens == 0
    for length in (5, 9, 17):
        assert allocator.grow(second, length, 2 if length == 5 else 4 if length == 9 else 8)
    # once it is computed, the next one hits it: four pages, of which the window needs the last
    allocator.maintain(1, [])
    third = allocator.admit(Life(3, 17, prefix=prefix), 17)
    assert third is not None and third.hit_tokens == 16
    assert isinstance(third, PagedHolding) and third.dropped == [0, 3]
