"""``kv.fragmentation``: how far free memory is in pieces, over time and when an allocation fails, by hand."""

from typing import Any

import pytest
from engine_worlds import World, replay_of, requests_of

from simulator.config import EngineConfig
from simulator.metrics import summarise

STEP_NS = 1_000_000_000


def measured(rows: list[tuple[int, int, int]], kind: str = "contiguous") -> dict[str, Any]:
    """A pool of 100 tokens; ``rows`` of (second of arrival, prompt, output), a token each second."""
    world = World(
        requests=requests_of([(at * STEP_NS, prompt, output) for at, prompt, output in rows]),
        engine=EngineConfig(on_oom="fail"),
        kind=kind,
        pool_pages=25,
        max_model_len=100,
        options={"reserve": "exact"} if kind == "contiguous" else {},
    )
    run, replay = replay_of(world, STEP_NS)
    result = summarise(run, world.requests, replay.allocator, label="x", page_size=0, warmup_s=0.0, wall_s=0.0)
    fragmentation: dict[str, Any] = result.summary["kv"]["fragmentation"]
    return fragmentation


def test_the_mean_weighs_what_lies_outside_the_largest_hole_by_time() -> None:
    # 30 tokens for 10 s, and from second 1 on 40 for 20 s behind them. Free byte-seconds: 70 + 9 * 30 + 11 * 60, of
    # which in the last 11 s the hole of 30 in front is not part of the largest.
    found = measured([(0, 20, 10), (1, 20, 20)])
    assert found["mean"] == pytest.approx(11 * 30 / (70 + 9 * 30 + 11 * 60))
    assert found["at_oom"] == 0.0


def test_a_failure_is_measured_by_the_hole_it_found() -> None:
    # At second 11 two holes of 30 are free and 45 tokens are asked for.
    found = measured([(0, 20, 10), (1, 20, 20), (11, 30, 15)])
    assert found["at_oom"] == pytest.approx(0.5)


def test_gmlakes_measure_compares_the_peaks() -> None:
    # Just before second 10 the first has 30 tokens and the second 29, of 70 that are set aside.
    assert measured([(0, 20, 10), (1, 20, 20)])["gmlake"] == pytest.approx(1 - 59 / 70)


def test_equal_pages_are_never_in_pieces() -> None:
    found = measured([(0, 20, 10), (1, 20, 20), (11, 80, 15)], kind="paged")
    assert found["mean"] == found["at_oom"] == 0.0
