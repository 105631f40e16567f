"""What a run's summary says about compaction, against figures worked out by hand."""

from pathlib import Path
from typing import Any

import pytest

from simulator.allocators.paged import plain_layout
from simulator.allocators.paged_defrag import PagedDefragAllocator
from simulator.config import DefragTrigger
from simulator.engine import EngineRun
from simulator.scenario import parse_scenario
from simulator.serving.compaction_worth import compaction_worth
from simulator.serving.ledger import Ledger
from simulator.serving.recorder import Recorder
from simulator.simulation import simulate


class TransferCost:
    """A step takes a microsecond for every piece of adjacent pages that it reads."""

    def __init__(self, run_pages: float) -> None:
        self.run_pages = run_pages

    def decode_ns(self, sequences: int, context_tokens: int, pages: int, windowed_tokens: int) -> int:
        return round(1000 * pages / self.run_pages)


def worth(
    *, runs_gained: int = 5, moved_pages: int = 20, lifetime_s: float = 1.0, cost: Any = TransferCost
) -> dict[str, Any]:
    """Pages of 1,000 bytes in runs of 4; 100 steps of 10 ms with 400 pages held."""
    allocator = PagedDefragAllocator(
        plain_layout(page_tokens=10, bytes_per_token=100), max_pages=1000, run_length=4, trigger=DefragTrigger()
    )
    allocator.totals.defrag_runs = runs_gained
    allocator.totals.moved_bytes = moved_pages * 1000
    recorder = Recorder(allocator)
    recorder.steps, recorder.sequence_steps, recorder.busy_ns = 100, 800, 10**9
    recorder.allocated.total = 400 * 1000 * 10**9
    recorder.used_byte_ns = 380 * 1000 * 10**9
    run = EngineRun(Ledger(0), recorder, "completed", 10**9)
    return compaction_worth(run, allocator, cost, copy_bandwidth=1e9, lifetime_s=lifetime_s)


def test_a_run_costs_its_moves_and_saves_its_share_of_the_transfers() -> None:
    found = worth()
    # 400 pieces against 100, a microsecond each
    assert found["step_s_single_pages"] == pytest.approx(400e-6)
    assert found["step_s_whole_runs"] == pytest.approx(100e-6)
    # 20 pages for 5 runs: 4 KB each, read and written at 1 GB/s; a run of 4 saves 3 pieces
    assert found["run_cost_s"] == pytest.approx(8e-6)
    assert found["run_gain_s_per_step"] == pytest.approx(3e-6)
    assert found["break_even_s"] == pytest.approx(8 / 3 * 10e-3)
    assert found["cost_s"] == pytest.approx(40e-6)


@pytest.mark.parametrize(("lifetime_s", "pays"), [(0.026, False), (0.027, True)])
def test_it_pays_if_requests_keep_their_pages_for_longer(lifetime_s: float, pays: bool) -> None:
    assert worth(lifetime_s=lifetime_s)["pays"] is pays


def test_moves_that_made_no_run_whole_or_saved_nothing_do_not_pay() -> None:
    assert worth(runs_gained=0)["pays"] is False
    assert worth(cost=lambda run_pages: TransferCost(1.0))["break_even_s"] is None
    assert worth(cost=lambda run_pages: TransferCost(1.0))["pays"] is False


def test_where_nothing_moved_there_is_nothing_to_judge() -> None:
    found = worth(runs_gained=0, moved_pages=0)
    assert (found["cost_s"], found["break_even_s"], found["pays"]) == (0, None, None)


def test_a_model_with_window_layers_is_judged_too() -> None:
    world = """
device: {preset: 910B3}
model: {preset: gpt-oss-20b}
workload: {arrivals: {process: closed, users: 6}, prompt_tokens: 20, output_tokens: 13, requests: 60}
engine: {max_num_seqs: 8, max_model_len: 64}
allocators: [{kind: paged_defrag, page_size: 1, max_pages: 160, run_length: 4, trigger: {period: 5ms}}]
"""
    found = simulate(parse_scenario(world, Path())).runs[0].summary["kv"]["compaction"]
    # window layers read no more than full ones do, so a step costs what one of either kind costs, and not nothing
    assert found["step_s_single_pages"] >= found["step_s_whole_runs"] > 0
