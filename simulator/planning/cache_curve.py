"""Prefix-cache hits against capacity: what a pool of N blocks would have found of a trace's prompts.

One pool for all requests, in the order of the file, without timing and without outputs. A request's hits are the
blocks at its start that are resident when it comes, up to the first that is not; then each of its blocks, the partial
last one included, is used in order, and inserted where it is missing. ``hit_ratio`` is hits over full blocks
(prompt tokens // block tokens). The rule is the one of Mooncake's FAST'25 figure 9.

Every miss inserts, so evictions are misses less what stays: min(capacity, different blocks).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from simulator.planning.block_stream import BlockStream, Chunk
from simulator.planning.cache_policies import Fifo, Lfu, Policy, belady_hits, items
from simulator.planning.stack_distance import LruCurve
from simulator.traffic.requests import IntArray

PolicyName = Literal["lru", "fifo", "lfu", "belady"]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One capacity, in blocks; ``None`` is a pool without limit."""

    capacity_blocks: int | None
    hits: int
    evictions: int
    hit_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCurve:
    """The answer for one policy. ``block_refs`` counts references with partial blocks, ``full_blocks`` without."""

    requests: int
    block_refs: int
    full_blocks: int
    unique_blocks: int
    policy: PolicyName
    curve: tuple[CurvePoint, ...]

    def to_dict(self) -> dict[str, Any]:
        """The document of ``simulate cache-curve --format json``."""
        return {**asdict(self), "curve": [asdict(point) for point in self.curve]}


def cache_curves(
    path: Path,
    policies: Sequence[PolicyName] = ("lru",),
    capacities: Sequence[int] | None = None,
    *,
    block_tokens: int = 512,
) -> list[CacheCurve]:
    """One curve a policy, each with the point of a pool without limit at its end.

    Without ``capacities``: 1, 2, 5, 10, ... up to the number of different blocks. LRU takes one pass for all
    capacities, FIFO and LFU one each beside one another; Belady's optimum holds the whole trace, the others only what
    grows with the number of different blocks. Raises ``InputError``.
    """
    stream = BlockStream(path, block_tokens)
    runs: _Runs | None = None
    for chunk in stream.chunks():
        if runs is None:
            sizes = capacities or default_capacities(_unique_blocks(chunk, path, block_tokens))
            runs = _Runs(policies, sizes)
        runs.feed(chunk)
    assert runs is not None, "a stream without a chunk raises"
    return [runs.curve(policy, stream) for policy in dict.fromkeys(policies)]


def default_capacities(unique_blocks: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... below ``unique_blocks``."""
    series = (digit * 10**power for power in range(len(str(unique_blocks))) for digit in (1, 2, 5))
    return [capacity for capacity in series if capacity < unique_blocks]


def _unique_blocks(first: Chunk, path: Path, block_tokens: int) -> int:
    """Of the whole trace; one that is longer than a chunk is read once more for it."""
    if first.whole:
        return first.known_blocks
    counted = BlockStream(path, block_tokens)
    for _ in counted.chunks():
        pass
    return counted.unique_blocks


class _Runs:
    """The simulations under way: one of LRU, one a capacity of FIFO and LFU, the references for Belady."""

    def __init__(self, policies: Sequence[PolicyName], capacities: Sequence[int]) -> None:
        self._capacities = tuple(capacities)
        self._lru = LruCurve()
        self._passes: dict[str, list[Policy]] = {}
        if "fifo" in policies:
            self._passes["fifo"] = [Fifo(capacity) for capacity in capacities]
        if "lfu" in policies:
            self._passes["lfu"] = [Lfu(capacity) for capacity in capacities]
        self._references: list[IntArray] | None = [] if "belady" in policies else None

    def feed(self, chunk: Chunk) -> None:
        """The next references of the trace."""
        self._lru.feed(chunk)
        if self._passes:
            requests = items(chunk)
            for policy in chain(*self._passes.values()):
                policy.feed(requests, chunk.known_blocks)
        if self._references is not None:
            self._references.append(chunk.blocks)

    def curve(self, policy: PolicyName, stream: BlockStream) -> CacheCurve:
        """The finished curve of one policy."""
        found = [*self._counts(policy), (None, self._lru.hits(None), self._lru.misses(None))]
        if policy == "belady":
            found[-1] = None, stream.references - stream.unique_blocks, stream.unique_blocks
        points = tuple(_point(*one, stream=stream) for one in found)
        return CacheCurve(
            requests=stream.requests,
            block_refs=stream.references,
            full_blocks=stream.full_blocks,
            unique_blocks=stream.unique_blocks,
            policy=policy,
            curve=points,
        )

    def _counts(self, policy: PolicyName) -> list[tuple[int | None, int, int]]:
        """Capacity, hits and misses of each capacity asked for."""
        if policy == "lru":
            return [(capacity, self._lru.hits(capacity), self._lru.misses(capacity)) for capacity in self._capacities]
        if policy == "belady":
            assert self._references is not None
            blocks = np.concatenate(self._references)
            hits = belady_hits(blocks, self._capacities)
            return [(capacity, hit, len(blocks) - hit) for capacity, hit in zip(self._capacities, hits, strict=True)]
        pairs = zip(self._capacities, self._passes[policy], strict=True)
        return [(capacity, run.hits, run.misses) for capacity, run in pairs]


def _point(capacity: int | None, hits: int, misses: int, *, stream: BlockStream) -> CurvePoint:
    held = stream.unique_blocks if capacity is None else min(capacity, stream.unique_blocks)
    return CurvePoint(
        capacity_blocks=capacity,
        hits=hits,
        evictions=misses - held,
        hit_ratio=hits / stream.full_blocks if stream.full_blocks else 0.0,
    )
