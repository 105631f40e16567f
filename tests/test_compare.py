"""Paired comparisons: what is found does not depend on the number of processes, and is what single runs find."""

import json
from pathlib import Path

import pytest

import cli
from simulator.errors import InputError
from simulator.planning.compare import Comparison, compare
from simulator.planning.grid import parse_axis
from simulator.planning.tasks import in_order, one_by_one, processes
from simulator.scenario import Scenario, parse_scenario
from simulator.simulation import simulate

#: contiguous reservations for 256 requests do not fit, pages do
TIGHT = """\
name: tight
device: {preset: 910B3, kv_capacity_bytes: 1GiB}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: poisson, rate: 10/s}
  prompt_tokens: {dist: uniform, min: 10, max: 400}
  output_tokens: {dist: fixed, value: 20}
  requests: 60
engine: {max_num_seqs: 64, max_model_len: 2048, on_oom: fail, step_time: 20ms}
allocators:
  - {kind: contiguous}
  - {kind: paged, page_size: 16}
  - {kind: paged, page_size: 16, label: paged_again}
"""


@pytest.fixture(scope="module")
def tight() -> Scenario:
    return parse_scenario(TIGHT, Path())


@pytest.fixture(scope="module")
def found(tight: Scenario) -> Comparison:
    return compare([tight], replications=4, runner=one_by_one)[0]


def test_rates_are_those_of_the_runs(tight: Scenario, found: Comparison) -> None:
    result = simulate(tight, replications=4)
    for standing in found.standings:
        rates = [run.summary["oom_rate"] for run in result.runs if run.summary["label"] == standing.label]
        assert standing.oom_rates == pytest.approx(rates)
        assert standing.oom_rate.value == pytest.approx(sum(rates) / 4)


def test_a_settled_difference_is_in_the_verdict(found: Comparison) -> None:
    difference = next(one for one in found.differences if (one.label, one.than) == ("paged", "contiguous"))
    assert difference.settled
    assert difference.difference.value < 0
    assert found.verdict.startswith("paged and paged_again lose the fewest requests")
    assert "contiguous loses" in found.verdict


def test_equal_allocators_differ_by_nothing_and_nothing_is_settled(found: Comparison) -> None:
    difference = next(one for one in found.differences if (one.label, one.than) == ("paged_again", "paged"))
    assert difference.difference.value == 0
    assert not difference.settled


def test_two_processes_find_the_same_as_one(tight: Scenario, found: Comparison) -> None:
    with processes(2) as runner:
        assert compare([tight], replications=4, runner=runner)[0].to_dict() == found.to_dict()


def test_results_come_in_the_order_of_the_tasks() -> None:
    def backwards(function, tasks):  # type: ignore[no-untyped-def]
        yield from reversed([(index, function(task)) for index, task in enumerate(tasks)])

    assert in_order(backwards, abs, [-1, -2, -3]) == [1, 2, 3]


def test_a_single_replication_settles_only_what_exact_intervals_settle(tight: Scenario) -> None:
    alone = compare([tight], replications=1, runner=one_by_one)[0]
    for standing in alone.standings:
        assert standing.oom_rate.low < standing.oom_rate.high


# ---- grids


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a.b=8:32:8", (8, 16, 24, 32)),
        ("a=1:3", (1, 2, 3)),
        ("a=0.1:0.5:0.1", (0.1, 0.2, 0.3, 0.4, 0.5)),
        ("a=4,8,16", (4, 8, 16)),
        ("a=fail,wait", ("fail", "wait")),
        ("a=[1/s, 2/s]", ("1/s", "2/s")),
        ("a=7", (7,)),
        ("a=4,4", (4,)),
    ],
)
def test_axes_are_ranges_with_both_ends_or_lists(text: str, values: tuple[object, ...]) -> None:
    axis = parse_axis(text, "--vary")
    assert axis.values == values


@pytest.mark.parametrize("text", ["a", "a=", "=1:2", "a=3:1:1", "a=1:2:0", "a=1:x:1", "a=0:1e9:1", "a=1:2:3:4"])
def test_what_is_no_axis_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--vary"):
        parse_axis(text, "--vary")


# ---- the command


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(["compare", "--no-report", *words])
    return int(left.value.code or 0)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "tight.yaml"
    path.write_text(TIGHT)
    return str(path)


def test_the_command_prints_one_document(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "--replications", "2", "--format", "json", "--quiet") == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["label"] for one in document["allocators"]] == ["contiguous", "paged", "paged_again"]
    assert document["replications"] == 2
    assert document["verdict"]


def test_vary_gives_the_rate_against_the_key(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--replications", "2", "--vary", "workload.arrivals.rate=5,40", "--quiet")
    assert run(file, *words, "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["vary"]["key"] == "workload.arrivals.rate"
    low, high = document["vary"]["points"]
    assert (low["value"], high["value"]) == (5, 40)
    assert low["allocators"][0]["oom_rate"] < high["allocators"][0]["oom_rate"]
    assert run(file, *words) == 0
    assert "against workload.arrivals.rate" in capsys.readouterr().out


def test_a_value_that_the_key_cannot_take_is_named(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "--vary", "engine.max_num_seqs=0:2:1") == 2
    assert "--vary engine.max_num_seqs=0" in capsys.readouterr().err


def test_the_table_has_an_allocator_a_row(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "--replications", "2", "--allocator", "paged") == 0
    assert "paged" in capsys.readouterr().out


def test_an_unknown_allocator_is_refused(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "--allocator", "pagde") == 2
    assert "did you mean 'paged'" in capsys.readouterr().err


def test_a_recorded_trace_is_compared_on_one_replication(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recorded.yaml"
    path.write_text(
        "device: {preset: 910B3}\nmodel: {preset: llama-3.1-8b}\n"
        "workload: {arrivals: {process: trace, path: azure_conv, limit: 30}}\n"
        "engine: {on_oom: fail, max_num_seqs: 64, max_model_len: 16384}\n"
    )
    assert run(str(path), "--replications", "5", "--format", "json", "--jobs", "1") == 0
    assert json.loads(capsys.readouterr().out)["replications"] == 1
