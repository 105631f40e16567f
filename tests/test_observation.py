"""Planted mistakes are noticed to the last one, and are no interruption."""

import json
from pathlib import Path

import pytest

import cli
from simulator.allocators.bulk import page_array
from simulator.allocators.eviction import ReleaseQueue
from simulator.metrics import RunResult
from simulator.planning.explain_oom import explain_oom
from simulator.scenario import parse_scenario
from simulator.serving.oom_state import Wanted
from simulator.simulation import simulate

WORLD = """
device: {preset: 910B3}
model: {preset: llama-3.1-8b}
workload: {arrivals: {process: fixed, rate: 5}, prompt_tokens: 300, output_tokens: 20, requests: 30}
engine: {step_time: 20ms, max_model_len: 4096, max_num_seqs: 16, on_oom: fail}
allocators: [{kind: paged, page_size: 16, max_pages: 2000}]
"""


def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> tuple[int, dict[str, object]]:
    file = tmp_path / "world.yaml"
    file.write_text(WORLD + f"faults: [{{kind: {kind}, every: 10}}]\n")
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(file), "--no-report", "--quiet", "--format", "json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)["runs"][0]["faults"]


@pytest.mark.parametrize("kind", ["missed_end_of_sequence", "forgotten_decrement"])
def test_a_leak_shorter_than_a_check_interval_is_noticed(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run(tmp_path, capsys, kind)
    assert code == 0
    # every tenth of thirty releases goes wrong, and each leaves at least a page that nobody has
    assert found["planted"] == 3
    assert int(str(found["noticed"])) >= 3


@pytest.mark.parametrize("kind", ["stale_page_table", "double_release"])
def test_a_mistake_that_stops_a_run_is_a_finding_and_no_interruption(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run(tmp_path, capsys, kind)
    assert code == 0
    assert int(str(found["planted"])) >= 1
    assert int(str(found["noticed"])) >= 1


# ---- what a leak takes


LEAK = """
device: {preset: 910B3}
model: {preset: llama-3.1-8b}
workload: {arrivals: {process: fixed, rate: 1}, prompt_tokens: 160, output_tokens: 17, requests: 4}
engine: {step_time: 10ms, max_model_len: 256, max_num_seqs: 4, on_oom: fail}
allocators: [{kind: paged, page_size: 16, max_pages: 100}]
"""
# One request a second, each in its prompt step for 10 ms and decoding for 160 ms: 11 pages, all full at its end.
PAGE_BYTES = 16 * 131_072


def waste_of(*changes: str) -> tuple[dict[str, float], RunResult]:
    (run,) = simulate(parse_scenario(LEAK, Path(), changes)).runs
    return run.summary["kv"]["waste"], run


@pytest.mark.parametrize(
    "allocator",
    [
        "{kind: paged, page_size: 16, max_pages: 100}",
        "{kind: paged_cow, page_size: 16, max_pages: 100, enable_prefix_caching: false}",
        "{kind: paged_cow, page_size: 16, max_pages: 100}",
        "{kind: paged_defrag, page_size: 16, max_pages: 100, run_length: 2}",
        "{kind: contiguous, reserve: exact, page_size: 16, max_pages: 100}",
    ],
)
def test_what_a_missed_end_keeps_is_leaked_and_not_reserved(allocator: str) -> None:
    right, _ = waste_of(f"allocators=[{allocator}]")
    wrong, run = waste_of(f"allocators=[{allocator}]", "faults=[{kind: missed_end_of_sequence, every: 2}]")
    assert right["leaked"] == 0.0
    # requests 1 and 3 end at 1.17 s and 3.17 s; the run ends with the latter
    assert run.summary["simulated_s"] == pytest.approx(3.17)
    assert wrong["leaked"] == pytest.approx(11 * (3.17 - 1.17) / (100 * 3.17), rel=1e-12)
    for kind in ("reserved", "internal", "external"):
        assert wrong[kind] == pytest.approx(right[kind], abs=1e-12), kind
    assert run.timeline["leaked_bytes"].max() == 11 * PAGE_BYTES
    free = run.timeline["allocated_bytes"] - run.timeline["used_bytes"] - run.timeline["internal_bytes"]
    assert ((free - run.timeline["reserved_bytes"]) == run.timeline["leaked_bytes"]).all()


def test_a_lost_reference_leaks_its_page_and_a_shared_page_only_when_nobody_has_it_any_more() -> None:
    wrong, _ = waste_of("faults=[{kind: forgotten_decrement, every: 2}]")
    assert wrong["leaked"] == pytest.approx(1 * (3.17 - 1.17) / (100 * 3.17), rel=1e-12)
    # ten pages of a prompt that all share, found again from the second request on
    shared = (
        "allocators=[{kind: paged_cow, page_size: 16, max_pages: 100}]",
        "workload.shared_prefix={groups: 1, tokens: 160}",
        "workload.arrivals.rate=10",
    )
    right, _ = waste_of(*shared)
    wrong, run = waste_of(*shared, "faults=[{kind: missed_end_of_sequence, every: 3}]")
    # at 0.1 s distance the third ends when the fourth runs, which shares nine pages with it until its own end
    ends = run.summary["simulated_s"]
    third_end_s = float(run.requests["finish_s"][2])
    assert wrong["leaked"] == pytest.approx(2 * (ends - third_end_s) / (100 * ends), rel=1e-9)
    assert wrong["reserved"] == pytest.approx(right["reserved"], rel=1e-9)
    assert run.summary["kv"]["mean_utilization"] > 0


def test_the_split_at_a_failure_says_what_has_leaked() -> None:
    scenario = parse_scenario(
        LEAK,
        Path(),
        ["allocators.0.max_pages=20", "faults=[{kind: missed_end_of_sequence, every: 1}]", "workload.requests=3"],
    )
    document = explain_oom(scenario, Wanted())
    assert document["event"]["request_id"] == 1
    waste = document["pool"]["waste"]
    assert waste["leaked_bytes"] == 11 * PAGE_BYTES
    assert (waste["used_bytes"], waste["reserved_bytes"], waste["internal_bytes"]) == (0, 0, 0)
    assert sum(waste.values()) == document["pool"]["kv_capacity_bytes"]


def test_a_mistake_that_had_no_occasion_is_said_to_have_had_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "world.yaml"
    file.write_text(LEAK + "faults: [{kind: missed_end_of_sequence}]\n")
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(file), "--no-report", "--format", "json"])
    assert ended.value.code in (0, None)
    said = capsys.readouterr()
    found = json.loads(said.out)["runs"][0]["faults"]
    assert (found["planted"], found["never_planted"]) == (
        0,
        [{"kind": "missed_end_of_sequence", "every": 100, "releases": 4}],
    )
    assert "paged: missed_end_of_sequence was never planted (every 100 releases, and there were 4)" in said.err


STALE_RUNS = """
device: {preset: 910B3}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: closed, users: 6}
  prompt_tokens: {dist: uniform, min: 1, max: 59}
  output_tokens: {dist: uniform, min: 1, max: 27}
  requests: 484
engine: {on_oom: fail, max_num_seqs: 20, max_num_batched_tokens: 473, max_model_len: 86, step_time: 5ms}
allocators: [{kind: paged_defrag, page_size: 1, max_pages: 131, run_length: 8, trigger: {on_failure: true}}]
faults: [{kind: stale_page_table, every: 27}]
"""


@pytest.mark.parametrize("seed", [2, 4, 1615394334])
def test_an_allocator_that_breaks_down_after_a_mistake_is_a_finding_and_no_crash(seed: int) -> None:
    (run,) = simulate(parse_scenario(STALE_RUNS, Path()), seed=seed).runs
    assert run.summary["faults"]["planted"] >= 1
    assert run.summary["faults"]["noticed"] >= 1


def test_a_queue_that_a_mistake_has_emptied_is_not_searched_for_ever() -> None:
    queue = ReleaseQueue()
    queue.cover(8)
    queue.extend(page_array([3, 4, 4]))  # as a page table does that names a page twice
    queue.remove(page_array([3]))
    with pytest.raises(AssertionError, match="2 released pages are counted, but only 1 are found"):
        queue.take(2)
