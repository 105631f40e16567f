"""A compacting pool under random use: what is granted, what it costs and what is left, by counting."""

import random

import pytest
from counted_runs import CountedRuns

from simulator.allocators.base import Life
from simulator.allocators.paged import PageGroup, PageLayout, plain_layout

PLAIN = plain_layout(page_tokens=2, bytes_per_token=4)
COPIES = PageLayout(1, 8, (PageGroup(16, copies=2),))
#: the second group is shorter than the first and padded
HYBRID = PageLayout(2, 16, (PageGroup(8), PageGroup(10, 2, window_tokens=6)))
WINDOW = PageLayout(1, 100, (PageGroup(100, window_tokens=4),))


def play(pool: CountedRuns, draw: random.Random, operations: int) -> None:
    longest = pool.max_pages * pool.layout.page_tokens // pool.row_pages
    for step in range(operations):
        choice = draw.random()
        device = [one for one in pool.sequences if not one.on_host]
        host = [one for one in pool.sequences if one.on_host]
        if choice < 0.3:
            tokens, more = draw.randint(1, max(1, longest // 2)), draw.choice([0, 0, draw.randint(1, longest)])
            life = Life(step, tokens, 10, tokens + 9)
            pool.admit(life, tokens, whole_tokens=more, keep_pages=draw.choice([0, 0, 1, 3]))
        elif choice < 0.65 and device:
            pool.grow(draw.choice(device), draw.choice([1, 1, 1, 2, 7]))
        elif choice < 0.8 and pool.sequences:
            pool.release(draw.choice(pool.sequences))
        elif choice < 0.88 and device:
            pool.swap_out(draw.sample(device, draw.randint(1, min(2, len(device)))))
        elif choice < 0.96 and host:
            pool.swap_in(draw.sample(host, draw.randint(1, min(2, len(host)))), draw.choice([0, 0, 1]))
        else:
            pool.maintain(step)


@pytest.mark.parametrize("layout", [PLAIN, COPIES, HYBRID, WINDOW], ids=["plain", "copies", "hybrid", "window"])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("by_run", [True, False])
def test_what_is_granted_and_what_it_costs_is_what_counting_says(
    layout: PageLayout, strict: bool, by_run: bool
) -> None:
    for seed in range(6):
        draw = random.Random(seed)
        pool = CountedRuns(
            layout,
            max_pages=draw.choice([12, 19, 24, 33]),
            run_length=draw.choice([2, 3, 4]),
            compacts=draw.random() < 0.7,
            strict=strict,
            by_run=by_run,
            null=draw.random() < 0.5,
            chunk_tokens=draw.choice([0, 3]),
            threshold=draw.choice([None, 0.25, 0.5]),
            order=draw.choice(["lifo", "fifo"]),
        )
        play(pool, draw, 80)
