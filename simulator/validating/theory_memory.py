"""Dynamic storage and caches: buddy waste, the fifty-percent rule, Robson's bound, Che's approximation, page size."""

import math
from collections.abc import Iterator

import numpy as np

from simulator.allocators.arena import Arena
from simulator.allocators.buddy import Buddy
from simulator.planning.block_stream import Chunk
from simulator.planning.cache_policies import Fifo
from simulator.planning.stack_distance import LruCurve
from simulator.validating.bench import Ints, draws, paged, poisson, replay, requests_of
from simulator.validating.check import Check, Source
from simulator.validating.queues import che, zipf

FAMILY = "theory"


def checks() -> Iterator[Check]:
    """Rules of thumb and bounds of the literature, on the shipped allocators."""
    yield from _buddy()
    yield from _fifty_percent()
    yield from _robson()
    yield from _che()
    yield from _best_page()


def _buddy() -> Iterator[Check]:
    source = Source(
        FAMILY, "buddy", "blocks of 2^ceil(log2 s): a quarter is wasted when s is uniform on (2^(k-1), 2^k]"
    )
    store = Buddy(1 << 22, 1 << 10)
    sizes = draws(50).integers(513, 1025, 4000).tolist()
    held = [store.footprint(size) for size in sizes]
    assert all(store.allocate(size) is not None for size in sizes[:4000])
    waste = 1 - sum(sizes) / sum(held)
    yield source.near(
        "quarter", "share of the allocated that is wasted", expected=0.25, got=waste, rel=0.02, grade="statistical"
    )
    worst = max(1 - size / store.footprint(size) for size in range(1, 4097))
    yield source.holds("half", "less than half is wasted at any size", worst < 0.5, seen=worst, grade="exact")


def _fifty_percent() -> Iterator[Check]:
    """N live ranges of many sizes, a random one replaced again and again."""
    source = Source(FAMILY, "fifty-percent", "Knuth, TAOCP 2.5: free ranges are about p N / 2 in equilibrium")
    rng = draws(51)
    for fit in ("first", "best"):
        arena = Arena(1 << 40, fit)
        live: list[tuple[int, int]] = []
        for size in rng.integers(1, 1 << 20, 1000).tolist():
            live.append((arena.allocate(size) or 0, size))
        exact = changes = 0
        holes: list[int] = []
        for index, (size, victim) in enumerate(
            zip(rng.integers(1, 1 << 20, 40_000).tolist(), rng.integers(0, 1000, 40_000).tolist(), strict=True)
        ):
            arena.free(*live[victim])
            before = arena.hole_count
            start = arena.allocate(size)
            assert start is not None
            live[victim] = start, size
            if index >= 20_000:
                holes.append(arena.hole_count)
                exact += arena.hole_count < before
                changes += 1
        expected = (1 - exact / changes) * len(live) / 2
        got = float(np.mean(holes))
        yield source.near(
            fit,
            f"free ranges beside 1,000 live ones, {fit} fit",
            expected=expected,
            got=got,
            rel=0.10,
            grade="approximate",
        )


def _robson() -> Iterator[Check]:
    source = Source(
        FAMILY,
        "robson",
        "Robson 1977: first fit never fails in M (1 + ceil(log2 n)) while at most M live, sizes up to n",
    )
    rng = draws(52)
    for largest in (8, 64):
        bound, live_limit = 1 + math.ceil(math.log2(largest)), 4096
        arena = Arena(live_limit * bound, "first")
        live: list[tuple[int, int]] = []
        total = failures = 0
        for size, take in zip(rng.integers(1, largest + 1, 60_000).tolist(), rng.random(60_000).tolist(), strict=True):
            while total + size > live_limit:
                start, old = live.pop(int(take * len(live)))
                arena.free(start, old)
                total -= old
            found = arena.allocate(size)
            failures += found is None
            if found is not None:
                live.append((found, size))
                total += size
        yield source.exact(f"{largest}", f"failures in 60,000 allocations of up to {largest}", expected=0, got=failures)


def _che() -> Iterator[Check]:
    """A Zipf(0.9) catalogue of 10,000 blocks under independent references."""
    published = {100: (0.2612, 0.2244), 1000: (0.5565, 0.5101), 3000: (0.7460, 0.7037)}
    shares = zipf(10_000, 0.9)
    drawn = draws(53).choice(len(shares), 300_000, p=shares)
    warm, rest = drawn[:60_000], drawn[60_000:]
    lru = LruCurve()
    lru.feed(_chunk(warm))
    before = {capacity: lru.hits(capacity) for capacity in published}
    lru.feed(_chunk(rest))
    for capacity, expected in published.items():
        fifo = Fifo(capacity)
        fifo.feed([[block] for block in warm.tolist()], len(shares))
        early = fifo.hits
        fifo.feed([[block] for block in rest.tolist()], len(shares))
        hits = lru.hits(capacity) - before[capacity], fifo.hits - early
        source = Source(FAMILY, f"che-{capacity}", "Che's approximation, Zipf 0.9 over 10,000 blocks")
        for name, ratio, count in zip(("lru", "fifo"), expected, hits, strict=True):
            formula, what = che(shares, capacity, fifo=name == "fifo"), f"{name.upper()} hit ratio, {capacity:,} blocks"
            yield source.near(
                f"{name}-formula", f"{what}, by the formula", expected=ratio, got=formula, within=6e-5, grade="exact"
            )
            got = count / len(rest)
            yield source.near(name, what, expected=ratio, got=got, within=0.005, grade="approximate")


def _chunk(references: Ints) -> Chunk:
    """Each reference is a request of its own."""
    count = len(references)
    return Chunk(blocks=references, request=np.arange(count), known_blocks=10_000, whole=False)


def _best_page() -> Iterator[Check]:
    """Waste of the last page and of the table against page size; a table entry is worth ``entry`` tokens."""
    source = Source(FAMILY, "best-page", "waste B/2 + c L/B is least at sqrt(2 c L)")
    entry, length, count = 1.0, 512, 400
    rng = draws(54)
    prompts = rng.integers(1, 2 * length, count)
    requests = requests_of(poisson(rng, 1e5, count), prompts, np.ones(count, np.int64))
    waste = {}
    for size in (4, 8, 16, 32, 64, 128, 256):
        run = replay(requests, paged(1 << 30, size))
        held, used = run.recorder.allocated.total, run.recorder.used_byte_ns
        waste[size] = (held - used + entry * held / size) / run.recorder.sequence_steps
    best = min(waste, key=waste.__getitem__)
    expected = math.sqrt(2 * entry * length)
    yield source.exact(
        "size",
        f"page of least waste among powers of two (theory: {expected:.0f})",
        expected=32,
        got=best,
        grade="approximate",
    )
