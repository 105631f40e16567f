"""What the timeline leaves out, told against a run that leaves nothing out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.scenario import parse_scenario
from simulator.serving import recorder
from simulator.showing.thinning import Thinning, counts_remark, failures_remark, memory_remark, thinning
from simulator.simulation import simulate

TEXT = """\
device: {preset: 910B3, kv_capacity_bytes: 1GiB}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: poisson, rate: 4/s}
  prompt_tokens: {dist: uniform, min: 10, max: 900}
  output_tokens: {dist: uniform, min: 1, max: 40}
  requests: 25
engine: {max_num_seqs: 8, max_model_len: 2048, on_oom: wait, step_time: 7ms}
allocators: [{kind: paged, page_size: 16}]
"""


def timeline(monkeypatch: pytest.MonkeyPatch, rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
    monkeypatch.setattr(recorder, "MAX_ROWS", rows)
    (run,) = simulate(parse_scenario(TEXT, Path())).runs
    return run.summary, run.timeline


@pytest.mark.parametrize("most_rows", [16, 50, 300])
def test_what_lies_between_two_rows_is_within_the_bound(monkeypatch: pytest.MonkeyPatch, most_rows: int) -> None:
    whole_summary, whole = timeline(monkeypatch, 10**9)
    summary, thin = timeline(monkeypatch, most_rows)
    told = thinning("paged", summary, thin)
    assert told.rows == len(thin["time_s"]) <= most_rows < told.instants == len(whole["time_s"])
    assert told.interval_s == pytest.approx(np.diff(thin["time_s"])[0])
    assert not told.is_whole
    assert thinning("paged", whole_summary, whole).is_whole
    # Every instant that was dropped, against the two rows around it.
    at = np.searchsorted(thin["time_s"], whole["time_s"], side="right") - 1
    inside = at < told.rows - 1
    larger = np.maximum(thin["allocated_bytes"][at[inside]], thin["allocated_bytes"][at[inside] + 1])
    beyond = int((whole["allocated_bytes"][inside] - larger).max())
    assert told.hidden_bytes is not None
    assert 0 < beyond <= told.hidden_bytes
    exact = whole["used_bytes"].mean() / whole_summary["kv_capacity_bytes"]
    got = thin["used_bytes"].mean() / summary["kv_capacity_bytes"]
    assert told.mean_error == pytest.approx(abs(got - exact), abs=2e-3)


def told(**changes: Any) -> Thinning:
    usual: dict[str, Any] = {"name": "a", "rows": 2000, "instants": 4_000_000, "interval_s": 2.048}
    return Thinning(**usual | {"hidden_bytes": 2**30, "capacity_bytes": 2**32, "mean_error": 0.002} | changes)


def test_the_picture_says_how_many_rows_were_kept_and_how_far_they_may_be_off() -> None:
    said = memory_remark([told(), told(name="b", hidden_bytes=2**31)], str)
    assert "keeps 2,000 rows, one every 2.05 s, of 4,000,000 instants 1 ms apart, drawn as 240 points" in said
    assert "up to 2 GiB more was held (50 % of the pool, under b)" in said
    assert "within 0.2 % of the pool of the exact one" in said
    assert "batch.max in summary.json is exact" in counts_remark([told()], str)


def test_failures_without_a_row_are_told() -> None:
    assert failures_remark(100, 100, str) == ""
    # 101 to 200 failures: every second has a row; 201 to 400: every fourth.
    assert failures_remark(75, 150, str).startswith("Of 150 failed allocations 75 have a row")
    assert failures_remark(75, 150, str).endswith("exact to 2 in an interval.")
    assert failures_remark(90, 360, str).endswith("exact to 4 in an interval.")


def test_a_timeline_that_is_whole_is_called_so() -> None:
    whole = told(rows=500, instants=500, interval_s=0.001, hidden_bytes=0)
    said = memory_remark([whole], str)
    assert said.startswith("The timeline has all its 500 rows, one every 1 ms, drawn as 240 points.")
    assert "more was held" not in said
    assert "batch.max" not in counts_remark([whole], str)
