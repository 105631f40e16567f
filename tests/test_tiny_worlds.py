"""Every small workload on every small pool, run by the engine: it always ends, and a standstill is always named.

All pairs of requests with prompts and outputs of one to three tokens, on pools of two and three pages of two tokens,
for each allocator and each ``on_oom``, under observation by a shadow memory.
"""

from itertools import product
from typing import Any

import pytest
from engine_worlds import World, requests_of
from test_termination import check_end

from simulator.config import EngineConfig, OnOom
from simulator.serving.sequence import Outcome

LENGTHS = list(product((1, 2, 3), (1, 2, 3)))
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("paged", {}),
    ("paged_cow", {}),
    ("paged_defrag", {}),
    ("contiguous", {"reserve": "grow", "grow_tokens": 1}),
    ("contiguous", {"reserve": "exact", "fit": "buddy"}),
]


def tiny(kind: str, options: dict[str, Any], on_oom: OnOom, pages: int, rows: list[tuple[int, int, int]]) -> World:
    engine = EngineConfig(on_oom=on_oom, max_num_seqs=2, max_num_batched_tokens=8)
    return World(requests_of(rows), engine, kind, pages, page_tokens=2, max_model_len=8, options=options)


@pytest.mark.parametrize("on_oom", ["fail", "wait", "preempt_recompute", "preempt_swap"])
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_every_pair_of_tiny_requests_ends_and_only_a_named_standstill_loses_nobody(
    kind: str, options: dict[str, Any], on_oom: OnOom
) -> None:
    if on_oom == "preempt_swap" and kind == "contiguous":
        pytest.skip("ranges are not swapped")
    ends = set()
    for pages, first, second in product((2, 3), LENGTHS, LENGTHS):
        world = tiny(kind, options, on_oom, pages, [(0, *first), (1, *second)])
        check_end(world)
        run, engine = world.run(verify=True)
        ends.add(run.ended_because)
        names = [Outcome(outcome).name for outcome in run.ledger.outcome]
        assert run.ended_because in ("completed", "livelock")
        if run.ended_because == "livelock":
            assert run.detail, "a standstill says who holds what"
            assert "unfinished" in names
        else:
            assert "unfinished" not in names
            assert engine.allocator.allocated_bytes == 0
        alone = [-(-(prompt + output - 1) // 2) <= pages for prompt, output in (first, second)]
        if on_oom == "preempt_recompute" and kind == "paged":
            assert names == ["completed" if fits else "too_large" for fits in alone]
    assert "completed" in ends
