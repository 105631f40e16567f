"""Sizes against Erlang's loss formula, and what the answer says of limits, cliffs and ways out."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
from simulator import planner
from simulator.errors import InputError
from simulator.planning.demand import demand
from simulator.planning.limits import hbm_limit_pages
from simulator.planning.pool_interval import PoolInterval, device_interval
from simulator.planning.rare_targets import countable_rates, is_rare
from simulator.planning.size import SizeAnswer, size
from simulator.planning.sizing import UNSEEN, Effort, Sampler, smallest
from simulator.planning.statistics import share
from simulator.planning.target import Goal, Target, parse_goal, parse_target
from simulator.planning.tasks import Found, Task, one_by_one
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
    return size(scenario, 0, Goal((Target(name, limit),)), confidence=0.95, effort=effort, runner=one_by_one)


def asked(scenario: Scenario, index: int, limit: float, *, most: int = 4, jobs: int = 1) -> SizeAnswer:
    """The answer as the command gets it."""
    goal = Goal((Target("oom", limit),))
    question = planner.Question(index=index, goal=goal, confidence=0.95, most_replications=most, jobs=jobs)
    return planner.sized_answer(scenario, question)


@pytest.fixture(scope="module")
def small() -> SizeAnswer:
    return sized(loss_system(5, requests=1000), 0.027)


def test_the_size_is_the_erlang_b_answer(small: SizeAnswer) -> None:
    """The limit lies between B(5, 9) = .0375 and B(5, 10) = .0184, so 10 slots are the answer."""
    assert erlang_b(5, 10) < 0.027 < erlang_b(5, 9)
    assert small.recommended is not None
    assert small.recommended.max_pages == 10 * PAGES


def test_the_bound_and_not_the_estimate_is_below_the_limit(small: SizeAnswer) -> None:
    assert small.recommended is not None
    assert small.recommended.targets[0].value < small.recommended.targets[0].high < 0.027


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
    assert answer.recommended is not None and answer.bounds[0] is not None
    assert answer.bounds[0].high <= 1.001e-5
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


def test_every_one_of_several_targets_has_to_hold() -> None:
    """Erlang's losses ask for 10 slots at 0.027 and for 8 at 0.09 (B(5, 7) = .121, B(5, 8) = .070)."""
    scenario = loss_system(5, requests=600)
    effort = Effort(first=4, most=4)
    loose = Target("preemption", 0.5)  # nobody preempts here: always holds
    goal = Goal((Target("oom", 0.09), loose))
    answer = size(scenario, 0, goal, confidence=0.95, effort=effort, runner=one_by_one)
    assert answer.recommended is not None and answer.recommended.max_pages == 8 * PAGES
    document = size_document(answer)
    assert [one["name"] for one in document["targets"]] == ["oom", "preemption"]
    assert "and" in document["verdict"]


def test_losses_beside_a_kept_time_are_said() -> None:
    """Nobody queues in a loss system, so those who are served are served at once even where most are turned away."""
    goal = Goal((Target("ttft_p95", 1e6),))
    answer = size(
        loss_system(5, requests=200), 0, goal, confidence=0.95, effort=Effort(first=4, most=4), runner=one_by_one
    )
    assert answer.recommended is not None and answer.recommended.oom_rate.value > 0.5
    assert any("run out of memory in the recommended size" in note for note in size_document(answer)["notes"])


def test_a_pool_that_is_not_known_has_the_expected_loss_of_the_interval() -> None:
    """Six to ten slots, all alike likely: the trapezoidal rule over Erlang's losses."""
    slot = PAGES * 16 * 131_072
    interval = PoolInterval(6 * slot, 10 * slot)
    effort = Effort(first=4, most=8)
    scenario, goal = loss_system(5, requests=500), Goal((Target("oom", 0.09),))
    answer = size(scenario, 0, goal, confidence=0.95, effort=effort, runner=one_by_one, interval=interval)
    losses = [erlang_b(5, slots) for slots in range(6, 11)]
    found = answer.uncertain
    assert found is not None
    assert [one.max_pages for one in found.points] == [PAGES * slots for slots in range(6, 11)]
    expected = (sum(losses) - (losses[0] + losses[-1]) / 2) / 4
    assert found.expected_oom_rate.value == pytest.approx(expected, rel=0.15)
    assert not found.expected_oom_rate.excludes(expected)
    assert found.low.oom_rate.value > found.middle.oom_rate.value > found.high.oom_rate.value
    # Eight slots are needed; six are there for sure; half of the interval has eight or more.
    assert answer.recommended is not None and answer.recommended.max_pages == 8 * PAGES
    assert found.enough == pytest.approx(0.5)
    assert not answer.feasible
    document = size_document(answer)["pool_interval"]
    assert document["probability_enough"] == pytest.approx(0.5)
    assert document["expected"]["oom_rate"] == found.expected_oom_rate.value


def test_an_interval_without_a_page_is_refused_before_anything_is_searched() -> None:
    done = []

    def counting(function: Callable[[Task], Found], tasks: Sequence[Task]) -> Iterator[tuple[int, Found]]:
        for index, found in one_by_one(function, tasks):
            done.append(index)
            yield index, found

    goal, effort = Goal((Target("oom", 0.09),)), Effort(first=2, most=4)
    with pytest.raises(InputError, match="--pool-interval: the low end holds not even one page"):
        size(
            loss_system(5, requests=50),
            0,
            goal,
            confidence=0.95,
            effort=effort,
            runner=counting,
            interval=PoolInterval(16 * 131_071, 2**30),
        )
    assert len(done) == effort.first, "the demand tells how large a page is"


def test_a_device_says_how_far_its_pool_may_be_off(roomy: Scenario) -> None:
    left = roomy.budget.kv_bytes_available
    assert device_interval(roomy) is None
    text = (TIGHT % "1GiB").replace("count: 2", "count: 2, pool_uncertainty_bytes: 1GiB")
    unsure = parse_scenario(text, Path())
    assert device_interval(unsure) == PoolInterval(left - 2**30, left + 2**30)
    answer = asked(unsure, 1, 0.05)
    assert answer.uncertain is not None
    assert answer.limit_pages == (left - 2**30) // answer.page_bytes < answer.hbm_limit_max_pages
    assert answer.feasible
    assert "at the low end of the pool" in size_document(answer)["verdict"]


def test_a_pool_in_which_everybody_waits_for_everybody_is_not_recommended() -> None:
    """Four sequences grow into a pool of 24 pages, then none can go on: no request is lost, yet nothing is served."""
    text = """
device: {preset: 910B3}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: poisson, rate: 5}
  prompt_tokens: {dist: fixed, value: 16}
  output_tokens: {dist: fixed, value: 112}
  requests: 200
engine: {on_oom: wait, max_num_seqs: 4, max_model_len: 4096, step_time: 20ms}
allocators: [{kind: paged, page_size: 16}]
"""
    scenario = parse_scenario(text, Path())
    stuck = observe(Trial(scenario, 0, 0, 24))
    assert stuck.thrashing and stuck.lost == 0
    answer = sized(scenario, 0.1, most=4)
    # A sequence fills 8 pages (its last token is never stored); four of them can never be short of 32.
    assert answer.recommended is not None
    assert 24 < answer.recommended.max_pages <= 32
    assert not answer.recommended.thrash


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
    counts = {"arrived": 100, "lost": 0, "timed_out": 0, "waited": 0, "preemptions": 0, "peak_pages": 1}
    values = counts | {name: int(value) for name, value in changes.items()}
    return Observation(**values, latency=latency, thrashing=False)


def test_a_size_without_losses_is_judged_by_how_losses_come_together_in_smaller_ones(roomy: Scenario) -> None:
    """Pools of 100 pages lose nobody, of 78 nine requests in every fourth run, smaller ones 300 at once."""

    def runner(function: Callable[[Task], Found], tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
        del function
        for index, trial in enumerate(tasks):
            assert isinstance(trial, Trial) and trial.max_pages is not None
            lost = 0 if trial.max_pages >= 100 else 9 if trial.max_pages >= 78 else 300
            yield index, observation(arrived=1000, lost=0 if trial.replication % 4 else lost)

    def found(ratio: float, most: int) -> int | None:
        search, unseen = Sampler(roomy, 0, runner, 0.0), Sampler(roomy, 0, runner, 0.0, UNSEEN)
        goal, effort = Goal((Target("oom", ratio),)), Effort(first=4, most=most)
        answer = smallest(search, unseen, goal, guess=99, limit_pages=200, effort=effort, confidence=0.95)
        if answer is None:
            return None
        shown = 1 - 0.05 / effort.looks
        observed = unseen.made[answer.judgement.pages]
        assert goal.holds(observed, shown, search.clumps(goal, answer.judgement.pages)), (
            "by all that is known at the end"
        )
        return answer.judgement.pages

    # 300 lost together count as one: none in 16,000 requests is none in 53 such accidents.
    assert found(0.002, 16) is None
    assert found(0.002, 4096) == 100


def test_a_goal_holds_when_all_of_it_does_and_no_run_thrashes() -> None:
    row = [observation(preemptions=1, ttft_p95=1.0)] * 4
    assert parse_goal(["preemption=0.1", "ttft_p95=2s"]).holds(row, 0.95)
    assert not parse_goal(["preemption=0.1", "ttft_p95=1s"]).holds(row, 0.95)
    assert not parse_goal(["preemption=0.01", "ttft_p95=2s"]).holds(row, 0.95)
    thrashing = replace(row[0], thrashing=True)
    assert not parse_goal(["preemption=0.1", "ttft_p95=2s"]).holds([*row, thrashing], 0.95)


def test_targets_read_the_figure_they_name() -> None:
    row = [observation(lost=2, preemptions=150, timed_out=5, waited=7, ttft_p95=3.0)] * 4
    assert parse_target("oom=0.1").estimate(row, 0.95).value == pytest.approx(0.02)
    assert parse_target("preemption=0.1").estimate(row, 0.95).value == pytest.approx(1.5)
    assert parse_target("timeout=0.1").estimate(row, 0.95).value == pytest.approx(0.05)
    assert parse_target("wait=0.1").estimate(row, 0.95).value == pytest.approx(0.07)
    assert parse_target("ttft_p95=2s").estimate(row, 0.95).value == pytest.approx(3.0)
    assert str(parse_target("ttft-p95=2s")) == "ttft_p95 below 2 s"


@pytest.mark.parametrize("text", ["ttft=2s", "oom", "oom=2", "oom=-1", "oom=x", "ttft_p95=2parsec"])
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--target"):
        parse_target(text)


def test_the_default_target_is_one_that_the_engine_can_miss() -> None:
    fails = loss_system(5, requests=10)
    preempts = fails.model_copy(update={"engine": fails.engine.model_copy(update={"on_oom": "preempt_recompute"})})
    assert planner.chosen_goal(fails, None, ()) == Goal((Target("oom", 0.001),))
    assert planner.chosen_goal(preempts, None, ()) == Goal((Target("preemption", 0.01),))
    assert planner.chosen_goal(preempts, 0.01, ()) == Goal((Target("oom", 0.01),))
    with pytest.raises(InputError):
        planner.chosen_goal(fails, 0.01, ["oom=0.1"])


def test_where_requests_wait_the_default_is_that_few_have_to() -> None:
    fails = loss_system(5, requests=10)
    waits = fails.model_copy(update={"engine": fails.engine.model_copy(update={"on_oom": "wait"})})
    assert planner.chosen_goal(waits, None, ()) == Goal((Target("wait", 0.01),))
    assert planner.chosen_goal(waits, 0.01, ()) == Goal((Target("oom", 0.01),))
    gives_up = waits.model_copy(update={"engine": waits.engine.model_copy(update={"queue_timeout": 3.0})})
    assert planner.chosen_goal(gives_up, None, ()) == Goal((Target("timeout", 0.001),))


def test_who_waits_for_memory_is_erlangs_second_formula(tmp_path: Path) -> None:
    """M/M/6 at a load of 3: a page a request for a second on average, so C(6, 3) = .099 find no page and wait."""
    rng, count, slots, load = np.random.default_rng(5), 12_000, 6, 3.0
    arrivals = np.cumsum(rng.exponential(1 / load, count))
    outputs = rng.geometric(1 / 100, count)
    rows = [f"{time:.6f},1,{output}" for time, output in zip(arrivals, outputs, strict=True)]
    (tmp_path / "exponential.csv").write_text("arrived_at,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    text = f"""
device: {{preset: 910B3}}
model: {{preset: llama-3.1-8b}}
workload: {{arrivals: {{process: trace, path: exponential.csv}}}}
engine: {{on_oom: wait, step_time: 10ms, max_num_seqs: 256, max_model_len: 4096}}
allocators: [{{kind: paged, page_size: 4096, max_pages: {slots}}}]
"""
    found = observe(Trial(parse_scenario(text, tmp_path), 0, 0))
    loss = erlang_b(load, slots)
    expected = loss / (1 - load / slots * (1 - loss))
    assert expected == pytest.approx(0.0991, abs=1e-4)
    assert found.lost == found.preemptions == 0
    assert found.waited / found.arrived == pytest.approx(expected, abs=0.012)


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
            [
                *("size", str(path), "--target-oom", "0.05", "--format", "json", "--max-replications", "8"),
                *("--jobs", "1", "--no-report"),
            ]
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
    words = ["size", str(path), "--target-oom", "0.05", "--max-replications", "8", "--jobs", "1", "--no-report"]
    with pytest.raises(SystemExit) as left:
        cli.main([*words, "--set", "engine.on_oom=wait"])
    assert not left.value.code
    out = capsys.readouterr().out
    assert "safety factor" in out
    assert "--target wait=0.01" in out  # waiting hides the lack of memory from the OOM rate


def test_two_processes_find_the_same_size(roomy: Scenario) -> None:
    documents = [size_document(asked(roomy, 1, 0.05, jobs=jobs)) for jobs in (1, 2)]
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
    answer = asked(scenario, 0, 0.2, most=16)
    assert {one.replications for one in answer.curve} == {1}
    assert np.isfinite(answer.curve[0].oom_rate.high)


def test_more_pages_can_lose_more_requests(tmp_path: Path) -> None:
    """Why brackets are verified: a page more lets the large request in, and ten small ones find the pool full.

    Requests of 1, 10 and ten times 1 page, all held at once: 10 pages lose the large one and the last, 11 pages take
    the large one and lose the ten that follow.
    """
    pages = [1, 10, *[1] * 10]
    rows = [f"{0.05 * place:.2f},{16 * need - 15},15" for place, need in enumerate(pages)]
    (tmp_path / "mixed.csv").write_text("arrived_at,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    text = """
device: {preset: 910B3}
model: {preset: llama-3.1-8b}
workload: {arrivals: {process: trace, path: mixed.csv}}
engine: {scheduler: replay, on_oom: fail, step_time: 100ms, max_num_seqs: 64, max_model_len: 4096}
allocators: [{kind: paged, page_size: 16}]
"""
    scenario = parse_scenario(text, tmp_path)
    lost = {size: observe(Trial(scenario, 0, 0, size)).lost for size in (10, 11, 21)}
    assert lost == {10: 2, 11: 10, 21: 0}
