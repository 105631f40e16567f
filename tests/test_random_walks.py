"""Long random walks of page allocators beside naive worlds; the million of steps is the long run's."""

import random

import pytest
from test_paged import ORDERS, PagedMachine

from simulator.allocators.base import Life
from simulator.allocators.paged import plain_layout
from simulator.allocators.paged_defrag import PagedDefragAllocator
from simulator.allocators.run_tables import RunHolding
from simulator.config import DefragTrigger

STEPS = pytest.mark.parametrize("steps", [4_000, pytest.param(1_000_000, marks=pytest.mark.long)])
#: steps in one world
LIFE = 400


@STEPS
def test_page_tables_agree_with_a_world_that_looks_everything_up(steps: int) -> None:
    draw = random.Random(11)
    for _ in range(steps // LIFE):
        world = PagedMachine()
        world.start(
            order=draw.choice(ORDERS),
            pages=draw.randint(1, 40),
            null=draw.random() < 0.5,
            reverse=draw.random() < 0.5,
            groups=[
                (draw.choice([4, 8]), draw.randint(1, 3), draw.choice([None, 1, 5, 12]))
                for _ in range(draw.randint(1, 2))
            ],
            page_tokens=draw.randint(1, 5),
        )
        for step in range(LIFE):
            choice = draw.random()
            if choice < 0.35 or not world.live:
                world.admit(draw.randint(1, 30), draw.randint(1, 30))
            elif choice < 0.75:
                world.grow(draw.randrange(100), draw.choice([1, 1, 1, 6]))
            else:
                world.release(draw.randrange(100))
            if step % 10 == 0:
                world.same_tables_same_free_pages_same_bytes()


class Runs:
    """A pool of runs as sets of pages. It believes nothing but the pages it is shown and the moves it is told of."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.length = draw.choice([1, 2, 4, 8])
        pages = draw.choice([33, 65, 130])
        self.strict = draw.random() < 0.7
        self.trigger = DefragTrigger(
            on_failure=draw.random() < 0.6,
            fragmentation=draw.choice([None, None, 0.3]),
            period=draw.choice([None, None, 1e-8]),
        )
        self.max_moves = draw.choice([2, 5, 100])
        self.allocator = PagedDefragAllocator(
            plain_layout(page_tokens=2, bytes_per_token=4),
            max_pages=pages,
            run_length=self.length,
            trigger=self.trigger,
            max_moves_per_step=self.max_moves,
            strict_runs=self.strict,
            free_order=draw.choice(["lifo", "fifo"]),
        )
        self.allocator.on_copy = self.moved
        head = pages % self.length
        self.blocks = [set(range(start, start + self.length)) for start in range(head, pages, self.length)]
        self.free = set(range(pages))
        self.live: list[tuple[RunHolding, list[int]]] = []
        self.moves = 0
        self.now_ns = 0

    def whole(self) -> int:
        return sum(block <= self.free for block in self.blocks)

    def moved(self, source: int, target: int, count: int) -> None:
        """One table entry names another page from now on; the old page is free."""
        assert count == 1 and target in self.free and source not in self.free
        (table,) = [table for _, table in self.live if source in table]
        table[table.index(source)] = target
        self.free.remove(target)
        self.free.add(source)
        self.moves += 1
        assert self.moves <= self.max_moves, "more pages moved than a step allows"

    def admit(self) -> None:
        tokens = self.draw.randint(1, 24)
        before, moves = self.whole(), self.moves
        holding = self.allocator.admit(Life(len(self.live), tokens, 9, tokens + 8), tokens)
        self.settle(holding, [], -(-tokens // 2), before, moves)

    def grow(self) -> None:
        holding, table = self.draw.choice(self.live)
        more = self.draw.choice([1, 1, 2, 9, 16])
        before, moves = self.whole(), self.moves
        grown = self.allocator.grow(holding, holding.held_tokens + more, more)
        self.settle(holding if grown else None, table, -(-more // 2), before, moves)

    def settle(self, holding: RunHolding | None, table: list[int], rows: int, before: int, moves: int) -> None:
        """``rows`` more rows were asked for; ``before`` runs were whole then, and so many pages had been moved."""
        runs = rows // self.length
        if holding is None:
            self.refused(rows, runs)
            return
        assert rows <= len(self.free) and (not self.strict or runs <= self.whole())
        if runs <= before or not self.trigger.on_failure:
            assert self.moves == moves, "pages moved though no run was missing, or none may be made"
        new = holding.tables[0][len(table) :]
        assert len(new) == rows and set(new) <= self.free and len(set(new)) == rows
        got = min(runs, self.whole())
        for start in range(0, got * self.length, self.length):
            assert set(new[start : start + self.length]) in self.blocks, "a whole run was there and not used"
            assert new[start : start + self.length] == sorted(new[start : start + self.length])
        self.free -= set(new)
        if not table:
            self.live.append((holding, list(new)))
        else:
            table += new

    def refused(self, rows: int, runs: int) -> None:
        shortfall = self.allocator.shortfall
        assert shortfall is not None
        if rows > len(self.free):
            assert shortfall.cause == "capacity"
            return
        assert shortfall.cause == "fragmentation" and self.strict and runs > self.whole()
        scattered = len(self.free) - self.whole() * self.length
        could_help = runs <= min(len(self.blocks), self.whole() + scattered // self.length)
        if self.trigger.on_failure and could_help and any(len(block & self.free) > 0 for block in self.blocks):
            unbroken = all(block <= self.free or not block & self.free for block in self.blocks)
            assert unbroken or self.moves == self.max_moves, "pages could have been moved to make the run whole"

    def release(self) -> None:
        holding, table = self.live.pop(self.draw.randrange(len(self.live)))
        self.allocator.release(holding)
        self.free |= set(table)

    def maintain(self) -> None:
        self.moves = 0
        self.now_ns += self.draw.randint(1, 20)
        self.allocator.maintain(self.now_ns)
        if self.trigger.fragmentation is None and not self.trigger.on_failure and self.trigger.period is None:
            assert self.moves == 0

    def check(self) -> None:
        self.allocator.check([holding for holding, _ in self.live])
        for holding, table in self.live:
            assert holding.tables == [table]
        assert set(self.allocator.runs.free_ids()) == self.free
        assert self.allocator.runs.whole_runs == self.whole()
        assert self.allocator.allocated_bytes == sum(len(table) for _, table in self.live) * 8


@STEPS
def test_runs_agree_with_sets_of_pages_and_moves_with_their_limits(steps: int) -> None:
    draw = random.Random(12)
    moves = refusals = 0
    for _ in range(steps // LIFE):
        world = Runs(draw)
        for step in range(LIFE):
            choice = draw.random()
            if choice < 0.3 or not world.live:
                world.admit()
            elif choice < 0.6:
                world.grow()
            elif choice < 0.85:
                world.release()
            else:
                world.maintain()
            if step % 10 == 0:
                world.check()
        moves += world.allocator.totals.moves
        refusals += world.allocator.shortfall is not None and world.allocator.shortfall.cause == "fragmentation"
    assert moves > steps // 100 and refusals
