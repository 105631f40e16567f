"""Sizes against Erlang's loss formula, and what the answer says of limits, cliffs and ways out."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import cli
from simulator import planner
from simulator.errors import InputError
from simulator.planning.demand import demand
from simulator.planning.limits import hbm_limit_pages
from simulator.planning.rare_targets import countable_rates, is_rare
from simulator.planning.size import SizeAnswer, size
from simulator.planning.sizing import Effort
from simulator.planning.statistics import share
from simulator.planning.target import Target, parse_target
from simulator.planning.tasks import one_by_one
from simulator.planning.trial import Observation, Trial, observe
from simulator.scenario import Scenario, parse_scenario
from simulator.showing.size_document import size_document
from simulator.simulation import simulate

PAGES = 4  # of each request, for its whole life


def erlang_b(load: float, servers: int) -> float:
    blocking = 1.0
    for number in range(1, servers + 1):
        blocking = load * blocking / (number + load * blocking)
    return blocking


def loss_system(load: float, *, requests: int, extra: str = "") -> Scenario:
    """Requests of one size that hold 4 pages of 16 tokens for one second; who finds no page is lost."""
    text = f"""
name: erlang
device: {{preset: 910B3}}
model: {{preset: llama-3.1-8b}}
workload:
  arrivals: {{process: poisson, rate: {load}}}
  prompt_tokens: {{dist: fixed, value: {16 * (PAGES - 1) + 1}}}
  output_tokens: {{dist: fixed, value: 10}}
  requests: {requests}
engine: {{scheduler: replay, on_oom: fail, step_time: 100ms, max_num_seqs: 64, max_model_len: 4096}}
allocators: [{{kind: paged, page_size: 16}}]
{extra}"""
    return parse_scenario(text, Path())


def sized(scenario: Scenario, limit: float, *, most: int = 16, name: str = "oom") -> SizeAnswer:
    effort = Effort(first=4, most=most)
    return size(scenario, 0, Target(name, limit), confidence=0.95, effort=effort, runner=one_by_one)


@pytest.fixture(scope="module")
def small() -> SizeAnswer:
    return sized(loss_system(5, requests=1500), 0.027)


def test_the_size_is_the_erlang_b_answer(small: SizeAnswer) -> None:
    """The limit lies between B(5, 9) = .0375 and B(5, 10) = .0184, so 10 slots are the answer."""
    assert erlang_b(5, 10) < 0.027 < erlang_b(5, 9)
    assert small.recommended is not None
    assert small.recommended.max_pages == 10 * PAGES


def test_the_bound_and_not_the_estimate_is_below_the_limit(small: SizeAnswer) -> None:
    assert small.recommended is not None
    assert small.recommended.target.value < small.recommended.target.high < 0.027


def test_the_safety_factor_is_that_of_the_formula(small: SizeAnswer) -> None:
    # max_pages = max_batch * avg_seq_len * safety_factor / page_size
    assert small.safety_factor(40) == pytest.approx(40 * 16 / (64 * (49 + 10)))
    # 59 tokens at the end in pages of 16: 64 are held
    assert small.page_rounding_ratio == pytest.approx(64 / 59 - 1)


def test_the_curve_falls_and_holds_the_answer(small: SizeAnswer) -> None:
    assert [one.max_pages for one in small.curve] == sorted({one.max_pages for one in small.curve})
    rates = [one.oom_rate.value for one in small.curve]
    assert rates[0] > rates[-1]
    assert small.recommended in small.curve


def test_the_document_has_the_documented_keys(small: SizeAnswer) -> None:
    document = json.loads(json.dumps(size_document(small), allow_nan=False))
    keys = ["max_pages", "safety_factor", "page_size", "max_num_seqs", "devices", "oom_rate", "oom_rate_ci"]
    assert list(document["recommended"]) == keys
    assert document["feasible"] is True
    assert document["hbm_limit_max_pages"] > 40
    assert {"max_pages", "safety_factor", "oom_rate", "oom_rate_ci", "preemption_rate"} <= set(document["curve"][0])


@pytest.mark.long
@pytest.mark.parametrize(("load", "servers"), [(5, 10), (12, 20), (30, 42), (60, 75)])
def test_sizes_of_larger_loss_systems_are_the_erlang_b_answers(load: float, servers: int) -> None:
    limit = math.sqrt(erlang_b(load, servers) * erlang_b(load, servers - 1))
    answer = sized(loss_system(load, requests=4000), limit, most=64)
    assert answer.recommended is not None
    found = answer.recommended.max_pages / PAGES
    # Never too small; at larger loads neighbours differ by less than the verification can tell: two more slots.
    assert servers <= found <= servers + 2 + load / 30


@pytest.mark.long
def test_a_rate_too_rare_to_count_is_bounded_from_above() -> None:
    """1e-5 would take a million requests; the log-concave bound must not fall short of Erlang's answer."""
    answer = sized(loss_system(5, requests=2000), 1e-5, most=16)
    servers = next(number for number in range(1, 100) if erlang_b(5, number) < 1e-5)
    assert answer.recommended is not None and answer.bound is not None
    assert answer.bound.high <= 1.001e-5
    assert servers <= answer.recommended.max_pages / PAGES <= servers + 8


@pytest.mark.long
def test_sizes_hold_on_fresh_seeds() -> None:
    """Out of sample: the OOM rate at recommended sizes stays below the target in at least 95 % of the sizings."""
    kept = 0
    for seed in range(20):
        scenario = loss_system(5, requests=1000, extra=f"seed: {seed}")
        answer = sized(scenario, 0.027)
        assert answer.recommended is not None
        kept += erlang_b(5, answer.recommended.max_pages // PAGES) < 0.027
    assert kept >= 19


@pytest.mark.long
def test_intervals_cover_erlangs_formula() -> None:
    """95 % intervals from 8 replications, 500 times: at least 93 % hold the true blocking probability."""
    scenario = loss_system(5, requests=400)
    observed = [observe(Trial(scenario, 0, number, 7 * PAGES, warmup_s=5.0)) for number in range(500 * 8)]
    covered = 0
    for start in range(0, len(observed), 8):
        row = observed[start : start + 8]
        found = share([one.lost for one in row], [one.arrived for one in row])
        covered += not found.excludes(erlang_b(5, 7))
    print(f"coverage of 95 % intervals: {covered / 500:.3f}")
    assert covered / 500 >= 0.93


def test_losses_of_a_known_pool_are_erlangs() -> None:
    scenario = loss_system(5, requests=20_000)
    found = observe(Trial(scenario, 0, 0, 7 * PAGES, warmup_s=5.0))
    assert found.lost / found.arrived == pytest.approx(0.120519, abs=0.012)


# ---- parts


def test_demand_without_a_limit_is_campbells_mean() -> None:
    """Live requests are Poisson with mean rate * life = 5; each holds 4 pages."""
    found = demand(Trial(loss_system(5, requests=5000), 0, 0))
    assert float(found.pages.mean()) == pytest.approx(20, rel=0.08)
    assert found.exceeded(1e-9) <= found.peak_pages
    assert found.page_bytes == 16 * 131_072  # llama-3.1-8b: 131,072 bytes of KV a token
    assert found.page_tokens == 16


def test_rare_means_that_no_losses_would_still_not_be_enough() -> None:
    assert is_rare(1e-5, 1000, Effort(most=16), 0.95)
    assert not is_rare(1e-3, 1000, Effort(most=16), 0.95)
    many, few = countable_rates(1000, Effort(most=16))
    assert many > few >= 200 / 16_000


def observation(**changes: float) -> Observation:
    latency = {"ttft_p95": changes.pop("ttft_p95", 1.0)}
    counts = {"arrived": 100, "lost": 0, "timed_out": 0, "preemptions": 0, "peak_pages": 1}
    values = counts | {name: int(value) for name, value in changes.items()}
    return Observation(**values, latency=latency, thrashing=False)


def test_targets_read_the_figure_they_name() -> None:
    row = [observation(lost=2, preemptions=150, timed_out=5, ttft_p95=3.0)] * 4
    assert parse_target("oom=0.1").estimate(row, 0.95).value == pytest.approx(0.02)
    assert parse_target("preemption=0.1").estimate(row, 0.95).value == pytest.approx(1.5)
    assert parse_target("timeout=0.1").estimate(row, 0.95).value == pytest.approx(0.05)
    assert parse_target("ttft_p95=2s").estimate(row, 0.95).value == pytest.approx(3.0)
    assert str(parse_target("ttft-p95=2s")) == "ttft_p95 below 2 s"


@pytest.mark.parametrize("text", ["ttft=2s", "oom", "oom=2", "oom=-1", "oom=x", "ttft_p95=2parsec"])
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--target"):
        parse_target(text)


def test_the_default_target_is_one_that_the_engine_can_miss() -> None:
    fails = loss_system(5, requests=10)
    preempts = fails.model_copy(update={"engine": fails.engine.model_copy(update={"on_oom": "preempt_recompute"})})
    assert planner.chosen_target(fails, None, None) == Target("oom", 0.001)
    assert planner.chosen_target(preempts, None, None) == Target("preemption", 0.01)
    assert planner.chosen_target(preempts, 0.01, None) == Target("oom", 0.01)
    with pytest.raises(InputError):
        planner.chosen_target(fails, 0.01, "oom=0.1")


# ---- what the device holds

TIGHT = """\
name: tight
device: {preset: 910B3, count: 2}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: poisson, rate: 20/s}
  prompt_tokens: {dist: uniform, min: 100, max: 2000}
  output_tokens: {dist: fixed, value: 40}
  requests: 120
engine: {tensor_parallel_size: 2, max_num_seqs: 64, max_model_len: 4096, on_oom: fail, step_time: 50ms,
         gpu_memory_utilization: 0.9, runtime_bytes: %s}
allocators:
  - {kind: contiguous}
  - {kind: paged, page_size: 16}
"""


@pytest.fixture
def roomy() -> Scenario:
    return parse_scenario(TIGHT % "1GiB", Path())


def test_the_limit_is_the_pool_that_a_run_would_get(roomy: Scenario) -> None:
    contiguous, paged = simulate(roomy).runs
    assert hbm_limit_pages(roomy, 1) == paged.summary["max_pages"]
    # A contiguous pool counts granules of one token.
    per_token = 131_072 // 2
    assert hbm_limit_pages(roomy, 0) == contiguous.summary["kv_capacity_bytes"] // per_token


def test_what_cannot_be_held_is_said_with_a_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tight.yaml"
    path.write_text(TIGHT % "45.4GiB")
    with pytest.raises(SystemExit) as left:
        cli.main(
            ["size", str(path), "--target-oom", "0.05", "--format", "json", "--max-replications", "8", "--jobs", "1"]
        )
    document = json.loads(capsys.readouterr().out)
    assert left.value.code == 3
    assert document["feasible"] is False
    assert document["recommended"]["max_pages"] > document["hbm_limit_max_pages"] > 0
    wider = document["ways_out"][0]
    assert wider["settings"] == {"engine.tensor_parallel_size": 4, "device.count": 4}
    assert wider["hbm_limit_max_pages"] > document["hbm_limit_max_pages"]
    assert "cannot be met" in document["verdict"]


def test_the_command_says_the_answer_and_its_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "roomy.yaml"
    path.write_text(TIGHT % "1GiB")
    words = ["size", str(path), "--target-oom", "0.05", "--max-replications", "8", "--jobs", "1"]
    with pytest.raises(SystemExit) as left:
        cli.main([*words, "--set", "engine.on_oom=wait"])
    assert not left.value.code
    out = capsys.readouterr().out
    assert "safety factor" in out
    assert "--target preemption=0.01" in out  # waiting hides the lack of memory from the OOM rate


def test_two_processes_find_the_same_size(roomy: Scenario) -> None:
    target = Target("oom", 0.05)
    documents = [
        size_document(planner.sized_answer(roomy, 1, target, confidence=0.95, most_replications=4, jobs=jobs))
        for jobs in (1, 2)
    ]
    assert documents[0] == documents[1]


def test_a_latency_target_that_no_pool_meets_is_an_answer(roomy: Scenario) -> None:
    answer = sized(roomy, 1e-6, name="ttft_p95", most=4)
    assert answer.recommended is None
    document = size_document(answer)
    assert document["feasible"] is False
    assert document["recommended"]["max_pages"] is None
    assert "No size" in document["verdict"]


def test_the_first_paged_allocator_is_sized_unless_told_otherwise(roomy: Scenario) -> None:
    assert planner.sizable(roomy, None) == 1
    assert planner.sizable(roomy, ("contiguous",)) == 0


def test_a_recorded_trace_is_run_once() -> None:
    text = """
device: {preset: 910B3}
model: {preset: llama-3.1-8b}
workload: {arrivals: {process: trace, path: azure_conv, limit: 60}}
engine: {on_oom: fail, max_num_seqs: 64, max_model_len: 16384, step_time: 20ms}
allocators: [{kind: paged}]
"""
    scenario = parse_scenario(text, Path())
    answer = planner.sized_answer(scenario, 0, Target("oom", 0.2), confidence=0.95, most_replications=16, jobs=1)
    assert {one.replications for one in answer.curve} == {1}
    assert np.isfinite(answer.curve[0].oom_rate.high)
