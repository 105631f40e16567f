"""Attention computed through page tables equals dense attention, whatever allocators have done to the pages.

A small float64 memory is moved exactly as the allocators say they move it. Each sequence keeps, apart from that, the
plain list of its own keys and values; the two must give the same output.
"""

import math
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from simulator.allocators.host_pool import HostPool
from simulator.allocators.paged import PagedAllocator, PagedHolding, PageGroup, PageLayout, plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.paged_defrag import PagedDefragAllocator
from simulator.config import DefragTrigger

Array = NDArray[np.float64]

HEAD_DIM = 8
PAGE_TOKENS = 4
HOST_PAGES = 24
PLAIN = plain_layout(page_tokens=PAGE_TOKENS, bytes_per_token=16)
WINDOW_TOKENS = 9
WINDOWED = PageLayout(PAGE_TOKENS, 64, (PageGroup(16, window_tokens=WINDOW_TOKENS),))


def dense_attention(query: Array, keys: Array, values: Array) -> Array:
    """``softmax(K q / sqrt(d)) V`` in one go; keys and values are [tokens, d]."""
    scores = keys @ query / math.sqrt(len(query))
    weights = np.exp(scores - scores.max())
    result: Array = weights @ values / weights.sum()
    return result


def paged_attention(query: Array, memory: Array, table: list[int], first: int, last: int, dropped: int) -> Array:
    """The same for positions ``first .. last - 1`` page by page, with the softmax kept up online: whenever the running
    maximum rises, what has been summed so far is scaled down. ``memory`` is [2, pages, page_tokens, d]."""
    maximum, total, output = -math.inf, 0.0, np.zeros(len(query))
    for row in range(first // PAGE_TOKENS, -(-last // PAGE_TOKENS)):
        page, start = table[row - dropped], row * PAGE_TOKENS
        inside = slice(max(first, start) - start, min(last, start + PAGE_TOKENS) - start)
        keys, values = memory[0, page, inside], memory[1, page, inside]
        scores = keys @ query / math.sqrt(len(query))
        raised = max(maximum, float(scores.max()))
        weights, scale = np.exp(scores - raised), math.exp(maximum - raised)
        output = output * scale + weights @ values
        total = total * scale + float(weights.sum())
        maximum = raised
    return output / total


def test_the_online_softmax_is_right_where_exponents_overflow() -> None:
    memory = np.zeros((2, 2, PAGE_TOKENS, 1))
    memory[0, 1, :, 0], memory[0, 0, :, 0] = 800.0, 801.0
    memory[1, 1, :, 0], memory[1, 0, :, 0] = 1.0, 2.0
    # weights e^800 : e^801 = 1 : e, four of each
    expected = (1 + 2 * math.e) / (1 + math.e)
    assert paged_attention(np.ones(1), memory, [1, 0], 0, 8, 0)[0] == pytest.approx(expected, rel=1e-14)


@dataclass
class Life:
    """A demand with what sharing asks; lengths in tokens."""

    request_id: int
    prompt_tokens: int
    output_tokens: int = 40
    sample: int = 0
    prefix: tuple[list[int], list[int]] | None = None
    priority: int = 0
    computed_tokens: int = 0
    final_tokens: int = field(init=False)
    target_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.final_tokens = self.prompt_tokens + self.output_tokens - 1
        self.target_tokens = self.prompt_tokens


@dataclass(eq=False)
class Story:
    """A sequence and its own list of [2, d] keys and values."""

    holding: PagedHolding
    past: list[Array]

    @property
    def request_id(self) -> int:
        return self.holding.demand.request_id


class World:
    """Random life of many sequences in one allocator, with real numbers in the pages."""

    def __init__(self, allocator: PagedAllocator, seed: int, window_tokens: int | None) -> None:
        self.allocator = allocator
        self.draw = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.window_tokens = window_tokens
        self.memory = np.full((2, allocator.max_pages + HOST_PAGES, PAGE_TOKENS, HEAD_DIM), np.nan)
        self.live: list[Story] = []
        self.away: list[Story] = []
        self.requests = 0
        self.moves = 0
        allocator.on_copy = self.copied

    def copied(self, source: int, target: int, count: int) -> None:
        # host page -1 - h is the h-th from the end
        for page in range(count):
            self.memory[:, target + page] = self.memory[:, source + page]

    def write(self, story: Story, position: int) -> None:
        row = position // PAGE_TOKENS - story.holding.dropped[0]
        if row >= 0:
            self.memory[:, story.holding.tables[0][row], position % PAGE_TOKENS] = story.past[position]

    def check(self) -> None:
        for story in self.live:
            length = len(story.past)
            # what the next token sees of the past: a window counts that token too, and a growth that was refused has
            # given back what lies before
            first = max(0, length + 1 - self.window_tokens) if self.window_tokens else 0
            query = self.numbers.normal(size=HEAD_DIM) * 3
            past = np.array(story.past[first:])
            dense = dense_attention(query, past[:, 0], past[:, 1])
            table, dropped = story.holding.tables[0], story.holding.dropped[0]
            through_pages = paged_attention(query, self.memory, table, first, length, dropped)
            np.testing.assert_allclose(through_pages, dense, rtol=1e-12, atol=1e-12)

    def admit(self) -> None:
        self.requests += 1
        tokens, prefix = self.draw.randint(1, 22), None
        past = list(self.numbers.normal(size=(tokens, 2, HEAD_DIM)))
        if self.draw.random() < 0.7:
            group, length = self.draw.randrange(2), min(tokens, 12)
            prefix = ([group], [length])
            if length == 12:
                past[:length] = list(np.random.default_rng(group).normal(size=(length, 2, HEAD_DIM)))
            else:
                prefix = None
        demand = Life(self.requests, tokens, prefix=prefix, computed_tokens=tokens)
        holding = self.allocator.admit(demand, tokens)
        if holding is not None:
            story = Story(holding, past)
            self.live.append(story)
            for position in range(holding.hit_tokens, tokens):
                self.write(story, position)

    def grow(self) -> None:
        if not self.live:
            return
        story = self.draw.choice(self.live)
        length = len(story.past) + 1
        if length <= story.holding.capacity_tokens or self.allocator.grow(story.holding, length):
            self.append(story)

    def append(self, story: Story) -> None:
        story.past.append(self.numbers.normal(size=(2, HEAD_DIM)))
        story.holding.demand.computed_tokens = len(story.past)  # type: ignore[attr-defined]
        self.write(story, len(story.past) - 1)

    def fork(self) -> None:
        if self.live and self.allocator.can_fork:
            parent, old = (story := self.draw.choice(self.live)), story.holding.demand
            assert isinstance(old, Life)
            self.requests += 1
            length = len(parent.past)
            demand = Life(old.request_id, old.prompt_tokens, 40, self.requests, old.prefix, length)
            child = self.allocator.fork(parent.holding, demand, length)
            assert isinstance(child, PagedHolding)
            self.live.append(Story(child, list(parent.past)))

    def release(self) -> None:
        if self.live:
            self.allocator.release(self.live.pop(self.draw.randrange(len(self.live))).holding)

    def swap_out(self) -> None:
        if self.live:
            request_id = self.draw.choice(self.live).request_id
            leaving = [story for story in self.live if story.request_id == request_id]
            if self.allocator.swap_out([story.holding for story in leaving]) is not None:
                self.live = [story for story in self.live if story.request_id != request_id]
                self.away += leaving

    def swap_in(self) -> None:
        if self.away:
            request_id = self.draw.choice(self.away).request_id
            coming = [story for story in self.away if story.request_id == request_id]
            if self.allocator.swap_in([(story.holding, len(story.past) + 1) for story in coming]) is not None:
                self.away = [story for story in self.away if story.request_id != request_id]
                self.live += coming
                for story in coming:
                    self.append(story)

    def run(self, steps: int) -> None:
        acts = [self.admit, self.admit, self.grow, self.grow, self.grow, self.fork, self.release]
        acts += [self.swap_out, self.swap_in]
        for step in range(steps):
            self.draw.choice(acts)()
            self.allocator.maintain(step, [])
            self.check()


def _build(which: str) -> PagedAllocator:
    host = HostPool(HOST_PAGES)
    options: dict[str, Any] = {"max_pages": 26, "host": host}
    trigger = DefragTrigger(fragmentation=0.2)
    match which:
        case "paged":
            return PagedAllocator(PLAIN, free_order="fifo", **options)
        case "paged_window":
            return PagedAllocator(WINDOWED, null_page=True, **options)
        case "paged_cow":
            return PagedCowAllocator(PLAIN, **options)
        case "paged_cow_window":
            return PagedCowAllocator(WINDOWED, **options)
        case "paged_defrag":
            return PagedDefragAllocator(PLAIN, run_length=4, trigger=trigger, **options)
        case "paged_defrag_loose":
            return PagedDefragAllocator(
                PLAIN, run_length=4, trigger=trigger, strict_runs=False, null_page=True, **options
            )
        case _:
            return PagedDefragAllocator(WINDOWED, run_length=3, trigger=trigger, grow_by="run", **options)


KINDS = [
    "paged",
    "paged_window",
    "paged_cow",
    "paged_cow_window",
    "paged_defrag",
    "paged_defrag_loose",
    "paged_defrag_window",
]


@pytest.mark.parametrize("which", KINDS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_attention_through_page_tables_equals_dense_attention(which: str, seed: int) -> None:
    allocator = _build(which)
    World(allocator, seed, WINDOW_TOKENS if "window" in which else None).run(40)


def test_compaction_and_copy_on_write_do_happen_in_these_worlds() -> None:
    defrag, cow = _build("paged_defrag"), _build("paged_cow")
    for allocator in (defrag, cow):
        World(allocator, 1, None).run(300)
    assert defrag.totals.moves > 5
    assert cow.totals.cow_copies > 5 and cow.totals.prefix_hit_tokens > 0


def test_a_copy_that_is_left_out_would_be_noticed() -> None:
    allocator = _build("paged_defrag")
    world = World(allocator, 1, None)
    allocator.on_copy = None
    with pytest.raises(AssertionError, match="Not equal"):
        world.run(300)
