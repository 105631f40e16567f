"""A workload of which nothing can be served: every prompt is longer than ``max_model_len``. Nobody has a latency."""

import json
from pathlib import Path

import pytest
import yaml

from cli import main
from simulator import planner
from simulator.planning.target import parse_goal
from simulator.scenario import parse_scenario
from simulator.showing.size_document import size_document
from simulator.units import format_seconds

TEXT = """
name: nobody
device: {preset: 910B3}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: fixed, rate: 10/s}
  prompt_tokens: {dist: fixed, value: 600}
  output_tokens: {dist: fixed, value: 10}
  requests: 20
engine: {on_oom: fail, max_num_seqs: 4, max_model_len: 500, step_time: 20ms}
allocators: [{kind: paged, page_size: 16, max_pages: 100}]
"""


def command(*words: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    command(*words, "--format", "json", "-q")
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "nobody.yaml"
    path.write_text(TEXT)
    return str(path)


def test_a_latency_that_nobody_has_is_null(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = document(capsys, "run", scenario, "--no-report")["runs"]  # type: ignore[misc]
    assert run["requests"]["too_large"] == 20
    assert {figure for group in run["latency"].values() for figure in group.values()} == {None}


def test_the_table_shows_a_dash_for_it(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    command("run", scenario, "--no-report", "-q")
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[-1] for row in rows if row.startswith(("TTFT", "TPOT"))] == ["-", "-", "-"]


def test_compare_has_no_latency_either(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    (standing,) = document(capsys, "compare", scenario, "--replications", "2", "--no-report")["allocators"]  # type: ignore[misc]
    assert standing["oom_rate"] == 1.0
    assert {one["mean"] for one in standing["latency_s"].values()} == {None}


def test_a_pool_that_serves_nobody_does_not_keep_a_latency_target() -> None:
    scenario = parse_scenario(TEXT, Path())
    goal = parse_goal(["ttft_p95=2s"])
    answer = planner.sized_answer(
        scenario, planner.Question(index=0, goal=goal, confidence=0.95, most_replications=2, jobs=1)
    )
    assert answer.recommended is None
    found = size_document(answer)
    assert found["feasible"] is False
    assert json.loads(json.dumps(found, allow_nan=False))["curve"][0]["ttft_p99_s"] is None


def test_requests_that_all_come_before_the_warm_up_ends_have_no_latency(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = yaml.safe_load(TEXT)
    served["workload"] |= {"prompt_tokens": {"dist": "fixed", "value": 100}, "warmup": "1h"}
    (tmp_path / "early.yaml").write_text(yaml.safe_dump(served))
    (run,) = document(capsys, "run", str(tmp_path / "early.yaml"), "--no-report")["runs"]  # type: ignore[misc]
    assert run["requests"]["completed"] == 20
    assert run["latency"]["ttft_s"]["p50"] is None


def test_a_time_that_is_no_number_is_a_dash() -> None:
    assert format_seconds(float("nan")) == "-"
