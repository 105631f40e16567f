"""How far a key may go: against Erlang's loss formula, in both directions."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import cli
from simulator.planning.sizing import Effort
from simulator.planning.solve import Solved, solve
from simulator.planning.target import Goal, Target
from simulator.planning.tasks import one_by_one
from simulator.scenario import Scenario
from tests.test_size import PAGES, erlang_b, loss_system


def solved(scenarios: list[Scenario], values: Sequence[float], limit: float) -> Solved:
    return solve(
        values,
        scenarios,
        0,
        Goal((Target("oom", limit),)),
        effort=Effort(first=4, most=8),
        confidence=0.95,
        runner=one_by_one,
    )


def with_pages(slots: int, load: float) -> Scenario:
    scenario = loss_system(load, requests=500)
    config = scenario.allocators[0].model_copy(update={"max_pages": slots * PAGES})
    return scenario.model_copy(update={"allocators": (config,)})


def test_the_highest_rate_that_ten_slots_sustain_is_erlangs() -> None:
    """Losses of 10 slots below 5 %: B(6, 10) = .043, B(7, 10) = .079, so 6/s of the rates offered."""
    rates = [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    limit = 0.058
    assert erlang_b(6, 10) < limit < erlang_b(7, 10)
    found = solved([with_pages(10, rate) for rate in rates], rates, limit)
    assert found.best is not None
    assert (found.best.value, found.largest, found.whole_range) == (6.0, True, False)
    assert found.best.estimates[0].high < limit


def test_the_smallest_value_is_found_where_large_ones_are_easy() -> None:
    slots = [4, 6, 8, 10, 12, 14]
    limit = 0.04
    assert erlang_b(5, 10) < limit < erlang_b(5, 8)
    found = solved([with_pages(one, 5) for one in slots], slots, limit)
    assert found.best is not None
    assert (found.best.value, found.largest) == (10, False)


def test_a_range_that_holds_everywhere_and_one_that_holds_nowhere_are_answers() -> None:
    rates = [1.0, 2.0]
    everywhere = solved([with_pages(30, rate) for rate in rates], rates, 0.05)
    assert everywhere.best is not None and everywhere.best.value == 2.0
    assert everywhere.whole_range
    nowhere = solved([with_pages(1, rate) for rate in rates], rates, 0.05)
    assert nowhere.best is None


TEXT = """\
name: erlang
device: {preset: 910B3}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: poisson, rate: 5}
  prompt_tokens: {dist: fixed, value: 49}
  output_tokens: {dist: fixed, value: 10}
  requests: 300
engine: {scheduler: replay, on_oom: fail, step_time: 100ms, max_num_seqs: 64, max_model_len: 4096}
allocators: [{kind: paged, page_size: 16, max_pages: 40}]
"""


def test_the_command_answers_the_reverse_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "erlang.yaml"
    path.write_text(TEXT)
    words = ["size", str(path), "--target-oom", "0.1", "--solve", "workload.arrivals.rate=2:14:4"]
    options = ["--max-replications", "4", "--jobs", "1", "--quiet", "--no-report"]
    with pytest.raises(SystemExit) as left:
        cli.main([*words, *options, "--format", "json"])
    assert not left.value.code
    document = json.loads(capsys.readouterr().out)
    assert document["value"] == 6  # B(6, 10) = .043, B(10, 10) = .215
    assert "workload.arrivals.rate 6 is the largest" in document["verdict"]


def test_a_range_without_an_answer_exits_with_no(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "erlang.yaml"
    path.write_text(TEXT)
    words = ["size", str(path), "--target-oom", "0.01", "--solve", "workload.arrivals.rate=20,30"]
    with pytest.raises(SystemExit) as left:
        cli.main([*words, "--max-replications", "2", "--jobs", "1", "--quiet", "--no-report"])
    assert left.value.code == 3
    assert "No value of workload.arrivals.rate" in capsys.readouterr().out


def test_two_margins_trade_as_erlang_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Losses below 10 %: B(2, 6) = .012, B(4, 6) = .117; B(6, 10) = .043, B(8, 10) = .122; B(2, 2) = .4."""
    path = tmp_path / "erlang.yaml"
    path.write_text(TEXT)
    words = ["size", str(path), "--target-oom", "0.1", "--set", "workload.requests=600"]
    words += ["--solve", f"allocators.0.max_pages={2 * PAGES},{6 * PAGES},{10 * PAGES}"]
    words += ["--solve", "workload.arrivals.rate=2:8:2", "--max-replications", "4", "--jobs", "1", "--quiet"]
    with pytest.raises(SystemExit) as left:
        cli.main([*words, "--format", "json", "--out", str(tmp_path / "out")])
    assert not left.value.code
    document = json.loads(capsys.readouterr().out)
    assert [one["workload.arrivals.rate"] for one in document["frontier"]] == [None, 2, 6]
    assert "1 of 3 rows without an answer" in document["verdict"]
    assert {"report.html", "trade.svg", "trade.png", "frontier.parquet"} <= {
        one.name for one in (tmp_path / "out").iterdir()
    }
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == document


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--solve", "seed=1,2", "--solve", "seed=3,4"], "solved for already"),
        (["--solve", "seed=1,2"] * 3, "at most two"),
        (["--solve", "seed=1,2", "--pool-interval", "1GiB:2GiB"], "is for sizing"),
        (["--pool-interval", "2GiB:1GiB"], "low <= high"),
        (["--pool-interval", "2GiB"], "low:high"),
        (["--slo", "ttft_p95=2s", "--target", "ttft_p95=3s"], "two limits"),
    ],
)
def test_questions_that_contradict_themselves_are_refused(
    more: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "erlang.yaml"
    path.write_text(TEXT)
    with pytest.raises(SystemExit) as left:
        cli.main(["size", str(path), "--quiet", *more])
    assert left.value.code == 2
    assert complaint in capsys.readouterr().err
