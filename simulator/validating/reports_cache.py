"""Public reports about prefix caches: what a log calls the hit rate, and a prompt that nearly fills the pool."""

from collections.abc import Iterator

import numpy as np

from simulator.allocators.hit_window import HitWindow
from simulator.traffic.requests import Prefixes, offsets_of
from simulator.validating.bench import requests_of, serve, shared_pages
from simulator.validating.check import Check, Source
from simulator.validating.parts import settings

FAMILY = "prefix"
_STILL_THERE = (
    "by vLLM's rules, as here, blocks of an ended request are found until somebody takes them; a repeat takes none; "
    "the same with a window group beside. What that engine keeps besides blocks, and loses, is not public"
)


def checks() -> Iterator[Check]:
    """One report after the other."""
    yield from _hit_rates()
    yield from _near_limit()


def _hit_rates() -> Iterator[Check]:
    source = Source(FAMILY, "window", "vLLM 0.33 tests/v1/core/test_kv_cache_utils.py::test_metrics, 5 requests")
    window = HitWindow(5)
    for (looked_up, queries, hits), expected in zip(
        ((1, 20, 9), (4, 80, 16), (1, 10, 2)), (0.45, 0.25, 0.20), strict=True
    ):
        window.observe(looked_up, queries, hits)
        what = f"recent hit rate after {looked_up} more with {hits} of {queries} tokens hit"
        yield source.near(f"{queries}", what, expected=expected, got=window.hit_rate, within=1e-12, grade="exact")
    text = "1Cat-vLLM thread 90 (5 users, 3 rounds, one prompt of 50,000): logs show the last requests only"
    source = Source(FAMILY, "window", text)
    engine = settings(profile="vllm-0.33", max_num_batched_tokens=8192)
    pool = shared_pages(20_000, 16, engine, hit_rate_window=10)
    prefix = _same_prefix(15, 50_000)
    requests = requests_of(np.zeros(15, np.int64), np.full(15, 50_000), np.full(15, 20), prefix=prefix, users=5)
    serve(requests, pool, engine)
    totals = pool.totals
    whole = totals.prefix_hit_tokens / totals.prefix_query_tokens
    recent = totals.recent_hit_tokens / totals.recent_query_tokens
    # the first computes all of it; of 3,125 blocks the last is computed by everybody
    yield source.near("whole", "hit rate of the whole run", expected=14 / 15 * 3124 / 3125, got=whole, within=1e-9,
                      grade="exact")  # fmt: skip
    yield source.near("recent", "hit rate of the last ten", expected=3124 / 3125, got=recent, within=1e-9,
                      grade="exact")  # fmt: skip


def _same_prefix(count: int, tokens: int) -> Prefixes:
    return Prefixes(
        offsets=offsets_of(np.ones(count, np.int64)),
        ids=np.zeros(count, np.int64),
        ends=np.full(count, tokens, np.int64),
    )


def _near_limit() -> Iterator[Check]:
    text = "DeepSeek-v4.1-Flash-EXL3 thread 19: 599,840 tokens in a pool of 785,676, the same again: nothing is cached"
    source = Source(FAMILY, "near-limit", text)
    engine = settings(profile="vllm-0.33", max_num_batched_tokens=8192, max_num_seqs=4)
    requests = requests_of(np.array([0, 10**9]), np.full(2, 599_840), np.full(2, 200), prefix=_same_prefix(2, 599_840))
    pool = shared_pages(785_676 // 16, 16, engine)
    run = serve(requests, pool, engine)
    yield source.exact(
        "again", "tokens hit by the second run", expected=0, got=int(run.ledger.hit_tokens[1]), grade="ordering",
        note=_STILL_THERE,
    )  # fmt: skip
    other = requests_of(
        np.array([0, 10**9, 2 * 10**9]), np.array([599_840, 300_000, 599_840]), np.full(3, 200),
        prefix=Prefixes(offsets=offsets_of(np.ones(3, np.int64)), ids=np.array([0, 1, 0]),
                        ends=np.array([599_840, 300_000, 599_840])),
    )  # fmt: skip
    run = serve(other, shared_pages(785_676 // 16, 16, engine), engine)
    # 49,103 blocks; the first leaves 37,502 full ones, of which the other's 18,763 take the deepest 7,162.
    what = "tokens hit when another prompt of 300,000 came between"
    yield source.exact("between", what, expected=16 * 30_340, got=int(run.ledger.hit_tokens[2]))
