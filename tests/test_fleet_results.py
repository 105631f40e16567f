"""What a fleet leaves for people and programs: summary, tables, report, terminal, planner questions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
from simulator.scenario import load_scenario, parse_scenario
from simulator.showing.terminal import print_runs
from simulator.simulation import Result, simulate

FLEET = """
device: {preset: 910B3, replicas: REPLICAS}
router: {policy: POLICY}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: poisson, rate: 20/s}
  prompt_tokens: {dist: lognormal, mean: 800, p95: 2500, max: 6000}
  output_tokens: {dist: lognormal, mean: 250, p95: 700, max: 2000}
  shared_prefix: {groups: 6, tokens: 400}
  requests: 240
engine: {max_num_seqs: 128, max_model_len: 8192, on_oom: fail}
allocators: [{kind: paged_cow, page_size: 128, max_pages: 200}, {kind: paged_defrag, max_pages: 200}]
"""


def text(replicas: int, policy: str) -> str:
    return FLEET.replace("REPLICAS", str(replicas)).replace("POLICY", policy)


def result(replicas: int, policy: str, **options: Any) -> Result:
    return simulate(parse_scenario(text(replicas, policy), Path()), **options)


def timeless(found: Result) -> list[dict[str, Any]]:
    return [{key: value for key, value in run.summary.items() if key != "wall_s"} for run in found.runs]


@pytest.mark.parametrize("policy", ["round_robin", "least_loaded", "prefix_affinity"])
def test_the_whole_is_the_sum_of_its_instances(policy: str) -> None:
    for run in result(3, policy).runs:
        whole, parts = run.summary, run.summary["instances"]
        assert (whole["replicas"], len(parts), whole["router"]["policy"]) == (3, 3, policy)
        for name in whole["requests"]:
            assert whole["requests"][name] == sum(part["requests"][name] for part in parts)
        for name in ("preemptions", "steps", "recomputed_tokens"):
            assert whole[name] == sum(part[name] for part in parts)
        assert whole["kv"]["evictions"] == sum(part["kv"]["evictions"] for part in parts)
        assert whole["max_pages"] == parts[0]["max_pages"]
        assert whole["kv"]["peak_pages"] == max(part["kv"]["peak_pages"] for part in parts)
        assert whole["simulated_s"] == max(part["simulated_s"] for part in parts)
        # Time averages weigh each instance by its own time; what comes after its end counts as unused.
        used = sum(part["kv"]["mean_utilization"] * part["simulated_s"] for part in parts)
        assert whole["kv"]["mean_utilization"] == pytest.approx(used / (3 * whole["simulated_s"]))
        rates = [part["oom_rate"] for part in parts]
        assert whole["spread"]["oom_rate"] == {"min": min(rates), "max": max(rates)}
        counts = np.bincount(run.requests["instance"], minlength=3).tolist()
        assert counts == [part["requests"]["arrived"] for part in parts]


@pytest.mark.parametrize("policy", ["least_loaded", "prefix_affinity"])
def test_a_fleet_is_the_same_again_and_step_by_step(policy: str) -> None:
    first = timeless(result(3, policy))
    assert first == timeless(result(3, policy)) == timeless(result(3, policy, leap=False))


def test_a_router_of_one_instance_changes_nothing() -> None:
    alone = parse_scenario(text(1, "round_robin").replace("router: {policy: round_robin}\n", ""), Path())
    runs = timeless(simulate(alone))
    assert runs == timeless(result(1, "prefix_affinity"))
    assert not {"instances", "replicas", "router"} & runs[0].keys()
    assert "router" not in alone.resolved()


def test_the_timeline_of_a_fleet_is_the_mean_instance_with_the_peak_of_the_fullest() -> None:
    run = result(3, "round_robin").runs[0]
    timeline, whole = run.timeline, run.summary
    assert timeline["time_s"][-1] < whole["simulated_s"]
    assert timeline["peak_allocated_bytes"].max() == whole["kv"]["peak_allocated_bytes"]
    assert timeline["allocated_bytes"].max() <= timeline["peak_allocated_bytes"].max()
    mean = timeline["used_bytes"].mean() / whole["kv_capacity_bytes"]
    assert mean == pytest.approx(whole["kv"]["mean_utilization"], rel=0.05)
    assert timeline["running"].max() > whole["batch"]["max"], "sequences of all instances are counted"


def test_the_terminal_and_the_page_show_every_instance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text(3, "least_loaded"))
    with pytest.raises(SystemExit) as left:
        cli.main(["run", str(path), "--out", str(tmp_path / "out"), "--quiet"])
    assert left.value.code == 0
    assert "paged_cow: 3 instances, least_loaded" in capsys.readouterr().out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Instances side by side" in page and "3 such instances behind a router, least_loaded" in page
    document = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert len(document["runs"][0]["instances"]) == 3
    with pytest.raises(SystemExit):
        cli.main(["report", str(tmp_path / "out"), "--lang", "zh"])
    chinese = (tmp_path / "out" / "report.html").read_text()
    assert "实例对比" in chinese and "Instances side by side" not in chinese


def test_replications_of_a_fleet_are_pooled_without_their_instances(capsys: pytest.CaptureFixture[str]) -> None:
    found = result(2, "round_robin", replications=2)
    print_runs([run.summary for run in found.runs])
    shown = capsys.readouterr().out
    assert "2 replications" in shown and "instances," not in shown


def test_a_planted_leak_in_a_fleet_is_noticed() -> None:
    scenario = parse_scenario(
        text(2, "round_robin") + "faults: [{kind: forgotten_decrement, every: 20}]\n",
        Path(),
        ["allocators=[{kind: paged_cow}]"],
    )
    faults = simulate(scenario).runs[0].summary["faults"]
    assert faults["planted"] > 0 and faults["noticed"] > 0


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    with pytest.raises(SystemExit) as left:
        cli.main([*words, "--format", "json"])
    return int(left.value.code or 0), json.loads(capsys.readouterr().out)


def test_size_answers_for_each_instance_and_counts_all_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text(2, "least_loaded"))
    words = (
        "size",
        str(path),
        "--target-oom",
        "0.3",
        "--max-replications",
        "4",
        "--jobs",
        "1",
        "--quiet",
        "--no-report",
    )
    words += ("--set", "workload.requests=60")  # what is asked for is the form of the answer
    code, found = answer(capsys, *words)
    assert code == 0 and found["recommended"]["devices"] == found["replicas"] == 2
    assert "in each of 2 instances" in found["verdict"]


def test_solve_finds_the_number_of_instances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text(1, "round_robin"))
    words = (
        "size",
        str(path),
        "--solve",
        "device.replicas=1,2,3,4,6",
        "--target-oom",
        "0.1",
        "--max-replications",
        "8",
    )
    code, found = answer(capsys, *words, "--jobs", "1", "--quiet", "--no-report")
    assert code == 0 and 1 < found["value"] <= 6


def test_explain_names_the_instance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text(2, "round_robin"))
    code, found = answer(capsys, "explain", str(path), "--event", "3")
    assert code == 0
    event = found["event"]
    assert event["instance"] == event["request_id"] % 2


def test_sixty_four_cards_ship() -> None:
    scenario = load_scenario("fleet_64_cards")
    assert scenario.loaded_device.fleet_count == 64
