"""Every sequence of operations on tiny pools, for each allocator and each ``on_oom``, against independent models.

How far: up to three requests, pools of at most 4 pages (8 granules where ranges are contiguous). Every state that
exists is visited, whatever the number of operations; of shared pages, where one request may be forked once, only states
within four operations; with ``-m long`` all of them, or where requests are preempted those within eight.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from contiguous_pool import FITS, RESERVES, build
from cow_world import Sequence, World
from exhaustive import Life, TinyWorld, explore, forget_counts
from shared_states import state_of

from simulator.allocators.contiguous import RangeHolding
from simulator.allocators.host_pool import HostPool
from simulator.allocators.paged import PagedAllocator, PagedHolding, PageGroup, PageLayout, plain_layout
from simulator.allocators.paged_defrag import PagedDefragAllocator
from simulator.allocators.sharing import RULES
from simulator.config import DefragTrigger, FreeOrder, OnOom
from simulator.units import ceil_div

POLICIES: list[OnOom] = ["fail", "wait", "preempt_recompute", "preempt_swap"]
FOREVER = 100
PAGE = 2
#: of the contiguous pools, those that are tried in the default suite
SOON = [("first", "grow"), ("buddy", "grow"), ("next", "pow2")]


def later(*values: Any) -> Any:
    """A world for ``-m long``: others much like it are tried always."""
    return pytest.param(*values, marks=pytest.mark.long)


def three() -> list[Life]:
    """Prompts of 1, 3 and 2 tokens that grow to 4, 4 and 3; a page holds two tokens."""
    return [Life(0, 1, 4), Life(1, 3, 2), Life(2, 2, 2)]


# ---- paged


def pages_fit(world: TinyWorld, life: Life, tokens: int) -> bool:
    """Rows that are missing, times the tables they are in, against the pages that nobody has."""
    allocator = world.allocator
    assert isinstance(allocator, PagedAllocator)
    tables = sum(group.copies for group in allocator.layout.groups)
    free = allocator.usable_pages - len(world.owned())
    needed = ceil_div(tokens, PAGE) * tables
    holding = life.holding
    if life.state == "live" and holding is not None:
        rows = holding.held_tokens // PAGE
        needed = max(0, ceil_div(tokens, PAGE) - rows) * tables
        free += unseen(allocator, holding, tokens - 1)
    elif life.state == "swapped":
        assert isinstance(holding, PagedHolding) and holding.host_copy is not None
        copy = holding.host_copy
        needed = sum(map(len, copy.tables)) + max(0, ceil_div(tokens, PAGE) - copy.held_tokens // PAGE) * tables
    return needed <= free


def unseen(allocator: PagedAllocator, holding: Any, computed: int) -> int:
    """Pages that the next token cannot see and that are given back before it asks for room."""
    pages = 0
    for index, group in enumerate(allocator.layout.groups):
        if group.window_tokens is not None:
            held = range(holding.dropped[index], holding.held_tokens // PAGE)
            pages += group.copies * sum((row + 1) * PAGE <= computed - group.window_tokens + 1 for row in held)
    return pages


def plain() -> PageLayout:
    return plain_layout(page_tokens=PAGE, bytes_per_token=10)


def hybrid() -> PageLayout:
    """Full attention beside layers that see two tokens: a table for each."""
    return PageLayout(PAGE, PAGE * 5, (PageGroup(5), PageGroup(5, window_tokens=2)))


@pytest.mark.parametrize("on_oom", POLICIES)
@pytest.mark.parametrize(
    ("order", "null", "reverse"),
    [
        ("lifo", False, False),
        later("fifo", True, True),
        later("address_ordered", False, True),
        later("first_fit_scan", True, False),
    ],
)
def test_every_state_of_a_paged_pool(on_oom: OnOom, order: FreeOrder, null: bool, reverse: bool) -> None:
    allocator = PagedAllocator(
        plain(), max_pages=4, free_order=order, null_page=null, reverse_release=reverse, host=HostPool(2)
    )
    states, transitions = explore(TinyWorld(allocator, three(), on_oom, pages_fit), FOREVER)
    assert transitions > states > 100


@pytest.mark.parametrize("on_oom", POLICIES)
def test_every_state_of_a_paged_pool_with_windows(on_oom: OnOom) -> None:
    allocator = PagedAllocator(hybrid(), max_pages=4, chunk_tokens=8, host=HostPool(2))
    states, transitions = explore(TinyWorld(allocator, three(), on_oom, pages_fit), FOREVER)
    assert transitions > states > 50


# ---- runs


@dataclass
class RunsFit:
    """Enough pages, and as many whole runs as are asked for: those there are, or those that moving pages could make."""

    run_length: int
    compacts: bool
    strict: bool = True
    null: int = 0

    def __call__(self, world: TinyWorld, life: Life, tokens: int) -> bool:
        allocator, holding = world.allocator, life.holding
        used = set(world.owned())
        pages = ceil_div(tokens, PAGE)
        runs = pages // self.run_length
        if life.state == "live" and holding is not None:
            pages = max(0, pages - holding.held_tokens // PAGE)
            runs = pages // self.run_length
        elif life.state == "swapped":
            assert isinstance(holding, PagedHolding) and holding.host_copy is not None
            before = len(holding.host_copy.tables[0])
            runs = before // self.run_length + max(0, pages - before) // self.run_length
            pages = max(pages, before)
        total = allocator.max_pages - self.null
        if pages > total - len(used):
            return False
        return not self.strict or runs <= self.whole(allocator.max_pages, used)

    def whole(self, max_pages: int, used: set[int]) -> int:
        """Runs of which every page is free; after compaction the used pages fill the head and as few runs as can be."""
        length = self.run_length
        head = max_pages % length or (length if self.null else 0)
        starts = range(head, max_pages, length)
        if not self.compacts:
            return sum(not used & set(range(start, start + length)) for start in starts)
        beyond = max(0, len(used) - (head - self.null))
        return len(starts) - ceil_div(beyond, length)


@pytest.mark.parametrize("on_oom", POLICIES)
@pytest.mark.parametrize(
    ("pages", "run_length", "compacts", "strict", "order", "null"),
    [
        later(4, 2, True, True, "lifo", False),
        later(4, 2, False, True, "fifo", False),
        later(4, 2, True, False, "lifo", False),
        later(4, 2, True, True, "fifo", True),
        (3, 2, True, True, "lifo", False),
    ],
)
def test_every_state_of_a_pool_in_runs(
    on_oom: OnOom, pages: int, run_length: int, compacts: bool, strict: bool, order: Any, null: bool
) -> None:
    allocator = PagedDefragAllocator(
        plain(),
        max_pages=pages,
        run_length=run_length,
        trigger=DefragTrigger(on_failure=compacts),
        strict_runs=strict,
        free_order=order,
        null_page=null,
        host=HostPool(2),
    )
    fits = RunsFit(run_length, compacts, strict, int(null))
    states, transitions = explore(Refreshed(allocator, three(), on_oom, fits), FOREVER)
    assert transitions > states > 50


class Refreshed(TinyWorld):
    """A compacting pool is given its moves anew before each operation, as at every scheduling point."""

    def apply(self, operation: tuple[str, int]) -> None:
        self.allocator.maintain(0, ())
        super().apply(operation)


# ---- contiguous


@dataclass
class RangesFit:
    """Some hole, or for the buddy system some aligned block, takes the range; a longer one may also grow in place."""

    fit: str
    reserve: str
    units: int
    longest: int
    step: int

    def size(self, life: Life, tokens: int) -> int:
        reserved = {
            "max_model_len": self.longest,
            "exact": life.final_tokens,
            "pow2": life.prompt_tokens + next(2**k for k in range(9) if 2**k >= life.output_tokens),
            "grow": ceil_div(tokens, self.step) * self.step,
        }[self.reserve]
        tokens = max(min(reserved, self.longest), tokens)
        return tokens if self.fit != "buddy" else next(2**k for k in range(9) if 2**k >= tokens)

    def __call__(self, world: TinyWorld, life: Life, tokens: int) -> bool:
        size, used = self.size(life, tokens), set(world.owned())
        holding = life.holding
        if life.state == "live" and isinstance(holding, RangeHolding):
            if self.reserve != "grow":
                return False
            own = set(range(holding.start, holding.start + holding.units))
            if self.free(holding.start, size, used - own):
                return True
        return any(self.free(start, size, used) for start in range(self.units))

    def free(self, start: int, size: int, used: set[int]) -> bool:
        aligned = self.fit != "buddy" or start % size == 0
        return aligned and start + size <= self.units and not used & set(range(start, start + size))


@pytest.mark.parametrize("on_oom", POLICIES[:3])
@pytest.mark.parametrize(
    ("fit", "reserve"),
    [pair if pair in SOON else later(*pair) for pair in product(FITS, RESERVES)],
)
def test_every_state_of_a_contiguous_pool(on_oom: OnOom, fit: str, reserve: str) -> None:
    longest, step = 5, 2
    allocator = build(8, longest, bytes_per_token=3, fit=fit, reserve=reserve, grow_tokens=step)
    fits = RangesFit(fit, reserve, 8, longest, step)
    states, transitions = explore(TinyWorld(allocator, three(), on_oom, fits), FOREVER)
    assert transitions > states > 20


# ---- shared pages


class SharedWorld(World):
    """``World`` with operations by name. Two prompts begin alike; anything that runs may be forked, once in all."""

    def __init__(self, on_oom: OnOom, **options: Any) -> None:
        super().__init__(max_pages=4, page_tokens=PAGE, segment_tokens=PAGE, host_pages=2, **options)
        self.on_oom = on_oom
        self.fresh = [self.new(0, 1, 1, 3), self.new(0, 1, 0, 4), self.new(1, 0, 3, 2)]
        self.forked = False

    def operations(self) -> list[tuple[str, int]]:
        found = [("admit", number) for number in range(len(self.fresh))]
        for number, sequence in enumerate(self.sequences):
            if sequence.on_device:
                if sequence.computed_tokens < sequence.final_tokens:
                    found.append(("extend", number))
                if not self.forked:
                    found.append(("fork", number))
                if self.on_oom == "preempt_swap":
                    found.append(("swap_out", number))
            else:
                found.append(("swap_in", number))
            found.append(("release", number))
        return found

    def apply(self, operation: tuple[str, int]) -> None:
        name, number = operation
        if name == "admit":
            self._admit(self.fresh[number])
            return
        sequence = self.sequences[number]
        if name == "extend":
            if not self.extend(sequence, 1):
                self._refused(sequence)
        elif name == "fork":
            self.forked = True
            self.fork(sequence)
        elif name == "release":
            self.release(sequence)
        else:
            group = [one for one in self.sequences if one.request_id == sequence.request_id]
            getattr(self, name)([one for one in group if one.on_device == (name == "swap_out")])

    def forget(self) -> None:
        forget_counts(self.allocator)

    def key(self) -> Hashable:
        return state_of(self), self.forked, tuple(_waiting(one) for one in self.fresh)

    def _admit(self, sequence: Sequence) -> None:
        if self.admit(sequence, sequence.target_tokens) or self.on_oom == "fail":
            self.fresh.remove(sequence)

    def _refused(self, sequence: Sequence) -> None:
        """``fail`` ends it, ``preempt_recompute`` sends the youngest back to the queue with its tokens."""
        if self.on_oom == "fail":
            self.release(sequence)
        elif self.on_oom == "preempt_recompute":
            victim = [one for one in self.sequences if one.on_device][-1]
            self.release(victim)
            self.fresh.append(victim)


def _waiting(one: Sequence) -> Hashable:
    return one.request_id, one.sample, tuple(one.tokens)


RULE_NAMES = ["generic", "vllm-0.33", "vllm-0.11", "cann-recipes"]


def shared(on_oom: OnOom, rules: str, depth: int) -> int:
    states, transitions = explore(SharedWorld(on_oom, rules=RULES[rules]), depth)  # type: ignore[index]
    assert transitions >= states
    return states


@pytest.mark.parametrize("on_oom", POLICIES)
@pytest.mark.parametrize("rules", RULE_NAMES)
def test_every_sequence_of_four_operations_on_shared_pages(on_oom: OnOom, rules: str) -> None:
    assert shared(on_oom, rules, 4) > 50


@pytest.mark.long
@pytest.mark.parametrize(
    ("on_oom", "depth"), [("fail", FOREVER), ("wait", FOREVER), *((one, 8) for one in POLICIES[2:])]
)
@pytest.mark.parametrize("rules", RULE_NAMES)
def test_every_state_of_shared_pages_or_every_sequence_of_eight_operations(
    on_oom: OnOom, depth: int, rules: str
) -> None:
    assert shared(on_oom, rules, depth) > 1000
