"""Nothing is lost and nothing is made: sums of a run, and what may change without changing a result."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_worlds import FixedCost, World, replay_of, requests_of, worlds
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simulator.config import EngineConfig
from simulator.loading.catalogue import scenario_names
from simulator.scenario import Scenario, load_scenario
from simulator.serving.sequence import Outcome
from simulator.simulation import simulate
from simulator.traffic.requests import ClosedLoop

Rows = list[tuple[int, int, int]]
RELAXED = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])


# ---- shipped scenarios


def shortened(name: str, requests: int = 20) -> Scenario:
    return load_scenario(name, [f"workload.requests={requests}"])


@pytest.mark.parametrize("name", scenario_names())
def test_every_shipped_scenario_conserves_memory_and_requests(name: str) -> None:
    for run in simulate(shortened(name), verify=True).runs:
        summary = run.summary
        counts, kv = summary["requests"], summary["kv"]
        assert counts["arrived"] == sum(counts.values()) - counts["arrived"]
        assert summary["oom_rate"] * counts["arrived"] == pytest.approx(
            counts["oom_admission"] + counts["oom_decode"] + counts["too_large"]
        )
        shares = [kv["mean_utilization"], *kv["waste"].values()]
        assert all(share >= 0 for share in shares) and sum(shares) <= 1 + 1e-9
        timeline = run.timeline
        capacity = summary["kv_capacity_bytes"]
        assert np.all(timeline["used_bytes"] <= timeline["allocated_bytes"])
        assert np.all(timeline["allocated_bytes"] + timeline["cached_bytes"] <= capacity)
        assert kv["peak_used_bytes"] <= kv["peak_allocated_bytes"] <= capacity
        table = run.requests
        done = table["outcome"] == Outcome.completed.name
        assert np.all(table["generated_tokens"][done] <= table["output_tokens"][done])
        for earlier, later in (("arrival_s", "start_s"), ("start_s", "first_token_s"), ("first_token_s", "finish_s")):
            assert np.all(table[earlier][done] <= table[later][done])


def comparable(result: Any) -> list[dict[str, Any]]:
    """Summaries without what depends on the machine."""
    return [{key: value for key, value in run.summary.items() if key != "wall_s"} for run in result.runs]


@pytest.mark.parametrize("name", scenario_names())
def test_a_shipped_scenario_repeats_byte_for_byte(name: str) -> None:
    scenario = shortened(name, 12)
    first, second = simulate(scenario), simulate(scenario)
    assert comparable(first) == comparable(second)
    for one, other in zip(first.runs, second.runs, strict=True):
        for table in ("requests", "timeline", "oom_events"):
            columns, again = getattr(one, table), getattr(other, table)
            assert columns.keys() == again.keys()
            for column, values in columns.items():
                assert values.dtype == again[column].dtype
                assert values.tolist() == again[column].tolist() or np.array_equal(
                    values, again[column], equal_nan=True
                )


@pytest.mark.parametrize("name", ["chat_burst", "llama70b_128k"])
def test_leaps_change_nothing_in_a_shipped_scenario(name: str) -> None:
    scenario = shortened(name, 20)
    assert comparable(simulate(scenario, leap=True)) == comparable(simulate(scenario, leap=False))


@pytest.mark.long
@pytest.mark.parametrize("name", scenario_names())
def test_leaps_change_nothing_in_any_shipped_scenario(name: str) -> None:
    scenario = shortened(name, 400)
    assert comparable(simulate(scenario, leap=True)) == comparable(simulate(scenario, leap=False))


def test_the_result_of_an_allocator_does_not_depend_on_which_others_run() -> None:
    scenario = shortened("chat_burst", 150)
    backwards = scenario.model_copy(update={"allocators": scenario.allocators[::-1]})
    backwards._base_dir = scenario.base_dir
    whole = {run.summary["label"]: run.summary | {"wall_s": 0} for run in simulate(scenario).runs}
    turned = {run.summary["label"]: run.summary | {"wall_s": 0} for run in simulate(backwards).runs}
    assert whole == turned
    for label, summary in whole.items():
        (alone,) = simulate(scenario, allocators=(label,)).runs
        assert alone.summary | {"wall_s": 0} == summary


# ---- sums of random runs


@RELAXED
@given(world=worlds())
def test_work_adds_up_to_what_was_asked_for(world: World) -> None:
    run, _ = world.run()
    ledger, recorder, requests = run.ledger, run.recorder, world.requests
    assert sum(ledger.preemptions) == ledger.preemption_count
    assert sum(ledger.oom_events.values()) == len(ledger.events)
    assert recorder.busy_ns <= run.ended_ns
    completed = [i for i, outcome in enumerate(ledger.outcome) if outcome == Outcome.completed]
    samples = int(max(requests.samples.max(initial=1), requests.beam_width.max(initial=1)))
    assert recorder.output_tokens >= samples * sum(ledger.output_tokens[i] for i in completed)
    lost_midway = {Outcome.oom_decode, Outcome.unfinished}
    if samples > 1:
        lost_midway |= {Outcome.oom_admission}  # one sample, while others had outputs
    if samples > 1 or ledger.preemption_count:
        lost_midway |= {Outcome.timed_out}  # likewise, or after a part of the prompt was computed
    if lost_midway & set(ledger.outcome):
        return
    assert recorder.output_tokens == samples * sum(ledger.output_tokens[i] for i in completed)
    assume(
        samples == 1 and world.kind in ("paged", "contiguous", "paged_defrag") and world.engine.scheduler != "static"
    )
    prompts = sum(int(requests.prompt_tokens[i]) for i in completed)
    # A decoding victim computes its last output together with what it had lost, as one more prompt token.
    extra = recorder.prompt_tokens - prompts - ledger.recomputed_tokens
    assert 0 <= extra <= ledger.preemption_count


@RELAXED
@given(world=worlds(), factor=st.integers(2, 3))
def test_a_clock_that_runs_slower_changes_no_decision(world: World, factor: int) -> None:
    run, _ = world.run(cost=FixedCost(1000))
    slow, _ = slower(world, factor).run(cost=FixedCost(1000 * factor))
    assert slow.ended_because == run.ended_because
    assert slow.ended_ns == factor * run.ended_ns
    for fact in ("outcome", "preemptions", "hit_tokens", "output_tokens", "cause", "oom_events", "recomputed_tokens"):
        assert getattr(slow.ledger, fact) == getattr(run.ledger, fact), fact
    for time in ("arrived_ns", "started_ns", "first_token_ns", "finished_ns"):
        values = getattr(run.ledger, time)
        assert list(getattr(slow.ledger, time)) == [value if value < 0 else factor * value for value in values], time
    assert slow.recorder.used_byte_ns == factor * run.recorder.used_byte_ns
    assert slow.recorder.allocated.total == factor * run.recorder.allocated.total


def slower(world: World, factor: int) -> World:
    """``world`` with every span of time multiplied by ``factor``."""
    requests, engine, closed = world.requests, world.engine, world.requests.closed
    if closed is not None:
        closed = ClosedLoop(users=closed.users, think_ns=closed.think_ns * factor)
    if engine.queue_timeout is not None:
        engine = engine.model_copy(update={"queue_timeout": engine.queue_timeout * factor})
    horizon_ns = None if world.horizon_ns is None else world.horizon_ns * factor
    slow = replace(requests, arrival_ns=requests.arrival_ns * factor, closed=closed)
    return replace(world, requests=slow, engine=engine, horizon_ns=horizon_ns)


# ---- more pages


@settings(max_examples=100)
@given(
    rows=st.lists(st.tuples(st.integers(0, 60), st.just(1), st.integers(1, 12)), min_size=1, max_size=15),
    pages=st.integers(1, 6),
)
def test_of_equal_requests_a_larger_pool_loses_a_part_of_those_that_a_smaller_one_loses(rows: Rows, pages: int) -> None:
    rows.sort()
    lost = []
    for pool in (pages, pages + 1):
        world = World(requests_of(rows), EngineConfig(scheduler="replay", on_oom="fail"), "paged", pool, page_tokens=16)
        run, _ = replay_of(world, 3)
        lost.append({i for i, outcome in enumerate(run.ledger.outcome) if outcome != Outcome.completed})
    assert lost[1] <= lost[0]


def test_of_unequal_requests_a_larger_pool_may_lose_more() -> None:
    # 6 pages are held. Of 10 a request for 5 is refused and two for 2 are served; of 11 it is served and they are not.
    rows = [(0, 23, 1), (1, 19, 1), (2, 7, 1), (3, 7, 1)]
    lost = []
    for pool in (10, 11):
        world = World(requests_of(rows), EngineConfig(on_oom="fail"), "paged", pool)
        run, _ = replay_of(world, 1000)
        lost.append([Outcome(outcome).name for outcome in run.ledger.outcome].count("oom_admission"))
    assert lost == [1, 2]


@RELAXED
@given(world=worlds(kinds=("paged", "paged_cow", "paged_defrag")))
def test_a_pool_with_room_for_everything_at_once_loses_and_preempts_nothing(world: World) -> None:
    requests = world.requests
    tokens = int((requests.samples * (requests.prompt_tokens + requests.output_tokens + 40)).sum())
    rich = replace(world, pool_pages=2 * (tokens // world.page_tokens + 4 * len(requests) * 3) + 40)
    run, _ = rich.run()
    ledger = run.ledger
    assert not ledger.preemption_count and not ledger.stalls and not sum(ledger.oom_events.values())
    assert not set(ledger.outcome) & {Outcome.oom_admission, Outcome.oom_decode}
