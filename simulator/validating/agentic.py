"""Prefix sharing within and across agentic coding sessions, against integers of an independent program."""

import gzip
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator.planning.block_stream import Chunk
from simulator.planning.stack_distance import LruCurve
from simulator.traffic.requests import IntArray
from simulator.validating.check import Check, Source

FAMILY = "prefix"
BLOCK_TOKENS = 64
#: requests looked up at once
TOGETHER = 256
_FILE = Path(__file__).parents[1] / "presets" / "validation" / "agentic_sessions.csv.gz"
_GOLDEN = "kv-cache-tester, 109 agentic coding sessions, figures of an independent program"
#: hits of one LRU cache over all sessions, by its blocks
_HITS = {16_384: 1_735_507, 65_536: 3_101_867, 131_072: 3_832_287, None: 4_121_104}


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """One request of a session; ``blocks`` are numbered within the session."""

    session: int
    at_s: float
    prompt_tokens: int
    blocks: IntArray


def checks() -> Iterator[Check]:
    """Each session by itself without limit, and all of them in one cache."""
    requests = _read()
    source = Source(FAMILY, "sessions", f"{_GOLDEN} (published for all 739 sessions: quartiles 92, 96 and 97 %)")
    ratios = _session_ratios(requests)
    quartiles = np.percentile(ratios, (25, 50, 75))
    for name, expected, got in zip(("p25", "p50", "p75"), (0.8653, 0.9218, 0.9454), quartiles, strict=True):
        what = f"{name} over sessions of the share of prompt tokens seen before in the session"
        yield source.near(name, what, expected=expected, got=float(got), within=6e-5, grade="rounding")
    got = float(np.mean(ratios))
    yield source.near("mean", "mean of the same", expected=0.8932, got=got, within=6e-5, grade="rounding")
    yield from _together(requests)


def _read() -> list[_Request]:
    with gzip.open(_FILE, "rt") as lines:
        next(lines)
        return [_request(line.rstrip()) for line in lines]


def _request(line: str) -> _Request:
    session, at_s, tokens, runs = line.split(",")
    pairs = [tuple(map(int, run.split("+"))) for run in runs.split(";") if run]
    blocks = [np.arange(first, first + count) for first, count in pairs]
    ids = np.concatenate(blocks) if blocks else np.empty(0, np.int64)
    return _Request(int(session), float(at_s), int(tokens), ids)


def _session_ratios(requests: list[_Request]) -> list[float]:
    """Tokens of leading blocks seen before, over all prompt tokens, for each session."""
    sessions: dict[int, list[_Request]] = defaultdict(list)
    for request in requests:
        sessions[request.session].append(request)
    return [_ratio(rows) for rows in sessions.values()]


def _ratio(rows: list[_Request]) -> float:
    cache, seen = LruCurve(), 0
    numbers: dict[int, int] = {}
    for row in rows:
        before = cache.hits(None)
        cache.feed(_chunk([row.blocks], numbers))
        seen += min(BLOCK_TOKENS * (cache.hits(None) - before), row.prompt_tokens)
    return seen / sum(row.prompt_tokens for row in rows)


def _together(requests: list[_Request]) -> Iterator[Check]:
    """All sessions as if they had begun together, in one cache; their ids stay apart."""
    source = Source(FAMILY, "agentic", _GOLDEN)
    apart = max(int(row.blocks.max(initial=0)) for row in requests) + 1
    order = sorted(range(len(requests)), key=lambda place: (requests[place].at_s, requests[place].session, place))
    cache, numbers = LruCurve(), dict[int, int]()
    blocks = [requests[place].session * apart + requests[place].blocks for place in order]
    for start in range(0, len(blocks), TOGETHER):
        cache.feed(_chunk(blocks[start : start + TOGETHER], numbers))
    references = sum(map(len, blocks))
    yield source.exact("references", "block references", expected=4_447_488, got=references)
    yield source.exact("unique", "different blocks", expected=326_384, got=len(numbers))
    for capacity, expected in _HITS.items():
        size = "without limit" if capacity is None else f"of {capacity:,} blocks"
        what = f"hits of one LRU cache {size} for all sessions"
        yield source.exact(f"hits-{capacity}", what, expected=expected, got=cache.hits(capacity))


def _chunk(requests: list[IntArray], numbers: dict[int, int]) -> Chunk:
    blocks = np.concatenate(requests)
    known = np.fromiter((numbers.setdefault(block, len(numbers)) for block in blocks.tolist()), np.int64, len(blocks))
    request = np.repeat(np.arange(len(requests)), [len(one) for one in requests])
    return Chunk(blocks=known, request=request, known_blocks=len(numbers), whole=False)
