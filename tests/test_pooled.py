"""Replications as one entry: what adds up, what is averaged, what interval the OOM rate has."""

from pathlib import Path
from typing import Any

import pytest

from simulator.planning.statistics import share
from simulator.scenario import parse_scenario
from simulator.showing.pooled import pooled, replications_of
from simulator.showing.terminal import print_runs
from simulator.simulation import simulate

TEXT = """
device: {preset: 910B3}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: poisson, rate: 20/s}
  prompt_tokens: {dist: uniform, min: 100, max: 2000}
  output_tokens: {dist: fixed, value: 40}
  requests: 60
engine: {max_num_seqs: 64, max_model_len: 4096, on_oom: fail, step_time: 50ms}
allocators: [{kind: contiguous, kv_capacity_bytes: 4GiB}, {kind: paged, kv_capacity_bytes: 4GiB}]
"""


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Any]]:
    result = simulate(parse_scenario(TEXT, Path()), replications=3)
    return [run.summary for run in result.runs]


def test_each_allocator_has_one_entry(runs: list[dict[str, Any]]) -> None:
    assert [one["label"] for one in pooled(runs)] == ["contiguous", "paged"]
    assert replications_of(runs) == 3
    assert all("replication" not in one for one in pooled(runs))


def test_counts_add_up_peaks_are_the_highest_and_times_are_averaged(runs: list[dict[str, Any]]) -> None:
    mine = [run for run in runs if run["label"] == "paged"]
    entry = next(one for one in pooled(runs) if one["label"] == "paged")
    assert entry["requests"]["arrived"] == 180
    assert entry["steps"] == sum(run["steps"] for run in mine)
    assert entry["kv"]["peak_used_bytes"] == max(run["kv"]["peak_used_bytes"] for run in mine)
    p95 = [run["latency"]["ttft_s"]["p95"] for run in mine]
    assert entry["latency"]["ttft_s"]["p95"] == pytest.approx(sum(p95) / 3)
    at_oom = [run["kv"]["fragmentation"]["mean"] for run in mine]
    assert entry["kv"]["fragmentation"]["mean"] == pytest.approx(sum(at_oom) / 3)
    assert entry["max_pages"] == mine[0]["max_pages"]


def test_the_interval_heeds_how_replications_differ(runs: list[dict[str, Any]]) -> None:
    mine = [run for run in runs if run["label"] == "contiguous"]
    entry = pooled(runs)[0]
    lost = [run["requests"]["oom_admission"] + run["requests"]["oom_decode"] for run in mine]
    assert sum(lost) > 0
    assert entry["oom_rate"] == pytest.approx(sum(lost) / 180)
    assert entry["oom_rate_ci"] == share(lost, [60, 60, 60]).interval


def test_a_run_that_ended_early_is_not_hidden(runs: list[dict[str, Any]]) -> None:
    stuck = {**runs[2], "ended_because": "livelock", "ended_detail": "nobody can go on"}
    entry = pooled([runs[0], stuck])[0]
    assert (entry["ended_because"], entry["ended_detail"]) == ("livelock", "nobody can go on")


def test_a_single_run_stays_as_it_is(runs: list[dict[str, Any]]) -> None:
    assert pooled(runs[:2]) == runs[:2]


def test_the_terminal_has_one_column_an_allocator(
    runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    print_runs(runs)
    out = capsys.readouterr().out
    assert out.startswith("3 replications")
    assert "of 180 requests" in out
    assert "paged-0" not in out
