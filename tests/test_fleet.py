"""Several instances behind a router: leaps stay exact, turns split a run into independent ones, known queues come out.

Formulas: GI/M/c/c loss (Takacs 1962: 1/B is the sum of C(c, k) times the product of (1 - phi(i mu)) / phi(i mu)),
E_N/M/1 delay (Kleinrock, Queueing Systems, vol. 1), Erlang B, and for the shortest of two queues the balance
equations of the pair of queue lengths, solved numerically.
"""

import math
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from engine_worlds import FixedCost, PlainCost, World, requests_of, worlds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_leaps import _FACTS, _MEMORY
from test_queueing_theory import assert_mean, columns, erlang_b, exponential, geometric, poisson

from simulator.config import EngineConfig, LeastLoadedConfig, PrefixAffinityConfig, RoundRobinConfig, RouterConfig
from simulator.engine import Engine, EngineRun
from simulator.fleet import Fleet, FleetRun
from simulator.fleet_summary import merged_run, own_run
from simulator.serving.sequence import Outcome
from simulator.traffic.requests import ClosedLoop

TURNS = RoundRobinConfig(policy="round_robin")
SHORTEST = LeastLoadedConfig(policy="least_loaded")
EMPTIEST = LeastLoadedConfig(policy="least_loaded", load="kv")
AFFINE = PrefixAffinityConfig(
    policy="prefix_affinity", cache_threshold=0.2, balance_abs_threshold=1, balance_rel_threshold=1.2
)
ROUTERS = st.sampled_from([TURNS, SHORTEST, EMPTIEST, AFFINE])
STEP_NS = 1000


def instance_facts(run: EngineRun, engine: Engine) -> dict[str, Any]:
    """Everything that one instance leaves behind."""
    ledger, recorder = run.ledger, run.recorder
    return {
        **{name: getattr(ledger, name) for name in _FACTS},
        **{name: getattr(recorder, name) for name in _MEMORY},
        **{
            name: (value.total, value.peak)
            for name in ("allocated", "tail", "unavailable", "dead", "entries", "free", "scattered")
            for value in [getattr(recorder, name)]
        },
        "ended": (run.ended_because, run.ended_ns, run.detail),
        "totals": engine.allocator.totals,
    }


def facts(run: FleetRun, fleet: Fleet) -> dict[str, Any]:
    """Everything that a fleet leaves behind."""
    pairs = zip(run.runs, fleet.engines, strict=True)
    found = {f"{name} of {i}": value for i, pair in enumerate(pairs) for name, value in instance_facts(*pair).items()}
    return {"instance": run.instance.tolist(), **found}


# ---- leaps


@st.composite
def busy(draw: st.DrawFn) -> World:
    """A world with enough to do for several instances, that share it unequally."""
    world = draw(worlds())
    closed, now, rows = draw(st.booleans()), 0, []
    gaps = draw(st.sampled_from([st.integers(0, 6_000), st.integers(0, 8).map(lambda steps: 500 * steps)]))
    for _ in range(draw(st.integers(8, 30))):
        now += draw(gaps)
        rows.append((now, draw(st.integers(1, 30)), draw(st.integers(1, 24))))
    think_ns = np.array([draw(st.sampled_from([0, 0, 1, 2_500, 20_000])) for _ in rows], np.int64)
    users = ClosedLoop(users=draw(st.integers(2, 8)), think_ns=think_ns) if closed else None
    prefixes = [(draw(st.integers(-1, 3)), 12) for _ in rows] if draw(st.booleans()) else None
    samples = int(world.requests.samples[0]) if not world.requests.beam_width.any() else 1
    changes = {
        "scheduler": draw(st.sampled_from(["continuous", "prefill_first"])),
        "queue_timeout": draw(st.sampled_from([None, 2e-6, 1e-5, 3e-5])),
        "max_num_seqs": max(samples, draw(st.integers(1, 3))),
    }
    engine = world.engine.model_copy(update=changes)
    requests = requests_of(rows, samples=samples, prefixes=prefixes, closed=users)
    return replace(world, requests=requests, engine=engine, pool_pages=2 * world.pool_pages, horizon_ns=None)


def assert_same(world: World, router: RouterConfig, instances: int) -> None:
    """Under step times that hardly ever agree, and under equal ones, where instances act at the same instants."""
    for cost in (PlainCost(), FixedCost(STEP_NS)):
        assert_same_costs(world, router, instances, cost)


def assert_same_costs(world: World, router: RouterConfig, instances: int, cost: PlainCost) -> None:
    with mock.patch("simulator.serving.leap.SHORTEST_STRETCH", 2):
        leaping = facts(*world.fleet(router, instances, cost=cost))
    stepping = facts(*world.fleet(router, instances, leap=False, cost=cost))
    for name, value in stepping.items():
        assert leaping[name] == value, name


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world=st.one_of(busy(), worlds()), router=ROUTERS, instances=st.integers(2, 4))
def test_a_leaping_fleet_equals_a_stepping_fleet_byte_for_byte(
    world: World, router: RouterConfig, instances: int
) -> None:
    assert_same(world, router, instances)


@pytest.mark.long
@settings(max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world=st.one_of(busy(), worlds()), router=ROUTERS, instances=st.integers(2, 4))
def test_a_leaping_fleet_equals_a_stepping_fleet_over_many_worlds(
    world: World, router: RouterConfig, instances: int
) -> None:
    assert_same(world, router, instances)


def test_a_router_sees_time_outs_when_they_happen_and_not_when_a_leap_ends() -> None:
    rng = np.random.default_rng(1)
    for _ in range(40):
        times = np.cumsum(500 * rng.integers(0, 9, 25))
        rows = [(int(time), 1, int(rng.integers(1, 25))) for time in times]
        timeout_s = float(rng.choice([2e-6, 5e-6, 1e-5]))
        engine = EngineConfig(max_num_seqs=1, max_num_batched_tokens=64, queue_timeout=timeout_s)
        assert_same_costs(World(requests_of(rows), engine, "paged", 40), SHORTEST, 2, FixedCost(STEP_NS))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds(), router=ROUTERS)
def test_a_fleet_of_one_equals_an_engine_alone(world: World, router: RouterConfig) -> None:
    run, fleet = world.fleet(router, 1)
    alone = instance_facts(*world.run())
    for name, value in instance_facts(run.runs[0], fleet.engines[0]).items():
        # The timeline of an instance goes on to the end of the fleet, which for one is its own.
        assert value[: len(alone[name])] == alone[name] if name == "rows" else value == alone[name], name


# ---- turns


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds(), instances=st.integers(2, 4))
def test_instances_that_take_turns_equal_separate_runs_of_their_shares(world: World, instances: int) -> None:
    world.requests = replace(world.requests, closed=None, beam_width=0 * world.requests.beam_width)
    run, fleet = world.fleet(TURNS, instances)
    for place in range(instances):
        share = np.arange(len(world.requests)) % instances == place
        alone = instance_facts(*replace(world, requests=world.requests.keep(share)).run())
        served = run.instance[share] == place
        mine = instance_facts(own_run(run, place), fleet.engines[place])
        for name, value in alone.items():
            if name == "rows":
                assert mine[name][: len(value)] == value, name
            elif name == "events":  # they name the requests of the whole workload
                assert [event[0] for event in mine[name]] == [event[0] for event in value]
            elif isinstance(value, type(run.runs[0].ledger.outcome)):
                assert list(mine[name]) == list(np.array(value)[served]), name
                # What a stopped instance was not given has no facts in the run alone, either.
                assert run.runs[place].ended_because != "completed" or served.all()
            elif name == "ended":
                assert mine[name][:2] == value[:2]
            else:
                assert mine[name] == value, name


def loss_of_turns(instances: int, slots: int, load: float) -> float:
    """Loss of GI/M/c/c with Erlang-``instances`` gaps; ``load`` is offered to each instance."""

    def odds(i: int) -> float:
        # phi(i mu) of a sum of N exponentials of rate N load, in units of mu
        phi = (instances * load / (instances * load + i)) ** instances
        return (1 - phi) / phi

    return 1 / sum(math.comb(slots, k) * math.prod(odds(i) for i in range(1, k + 1)) for k in range(slots + 1))


def test_turns_of_one_instance_lose_what_erlang_said() -> None:
    assert loss_of_turns(1, 7, 5.0) == pytest.approx(erlang_b(7, 5.0))


def lossy_fleet(router: RouterConfig, *, instances: int, slots: int, load: float, count: int, seed: int) -> FleetRun:
    """Requests that hold one slot of an instance for 400 steps on average and are lost if none is free there."""
    rng = np.random.default_rng(seed)
    mean = 400
    outputs = exponential(rng, mean, count)
    arrivals = poisson(rng, instances * load / (mean * STEP_NS) * 1e9, count)
    engine = EngineConfig(max_num_seqs=4 * slots, max_num_batched_tokens=1 << 20, on_oom="fail")
    requests = columns(arrivals, np.ones(count, np.int64), outputs)
    world = World(requests, engine, "paged", slots, page_tokens=1 << 20, max_model_len=1 << 20)
    return world.fleet(router, instances, verify=False, cost=FixedCost(STEP_NS))[0]


@pytest.mark.parametrize(("instances", "slots", "load"), [(2, 1, 0.8), (4, 1, 1.0), (4, 7, 5.0)])
def test_turns_thin_poisson_arrivals_to_erlang_gaps(instances: int, slots: int, load: float) -> None:
    run = lossy_fleet(TURNS, instances=instances, slots=slots, load=load, count=8_000, seed=3)
    lost = np.array(run.runs[0].ledger.outcome) != Outcome.completed
    expected = loss_of_turns(instances, slots, load)
    assert expected < 0.95 * erlang_b(slots, load), "gaps more regular than Poisson's lose less"
    assert_mean(lost.astype(float), expected, slack=0.01)


# ---- the shortest queue


@pytest.mark.parametrize(("instances", "load"), [(3, 0.7), (8, 0.8)])
def test_the_least_loaded_of_single_slots_is_any_free_one_so_erlang_b_holds(instances: int, load: float) -> None:
    run = lossy_fleet(SHORTEST, instances=instances, slots=1, load=load, count=8_000, seed=4)
    lost = np.array(run.runs[0].ledger.outcome) != Outcome.completed
    assert_mean(lost.astype(float), erlang_b(instances, instances * load), slack=0.01)


def shortest_of_two_wait(load: float, longest: int = 26) -> float:
    """Mean wait, in service times, of Poisson arrivals of rate ``load`` at the shorter of two M/M/1 queues."""
    size = longest + 1
    rates = np.zeros((size * size, size * size))
    for i in range(size):
        for j in range(size):
            here = i * size + j
            for i2, j2, rate in (
                (i + 1, j, load if i < j else load / 2 if i == j else 0.0),
                (i, j + 1, load if j < i else load / 2 if i == j else 0.0),
                (i - 1, j, 1.0),
                (i, j - 1, 1.0),
            ):
                if 0 <= i2 < size and 0 <= j2 < size and rate:
                    rates[here, i2 * size + j2] += rate
                    rates[here, here] -= rate
    system = np.vstack([rates.T[:-1], np.ones(size * size)])
    share = np.linalg.solve(system, np.eye(size * size)[-1])
    lengths = np.add.outer(np.arange(size), np.arange(size)).ravel()
    return float(share @ lengths) / load - 1.0


def test_queue_lengths_without_a_choice_give_the_wait_of_one_queue() -> None:
    """At little load the second queue catches all who would wait: far less than rho / (1 - rho) of M/M/1."""
    assert shortest_of_two_wait(0.2) < 0.02
    assert 0.4 < shortest_of_two_wait(1.2) < 0.6 / (1 - 0.6)


def delayed(router: RouterConfig, *, instances: int, load: float, count: int, seed: int) -> np.ndarray:
    """Waits in service times, at instances that serve one request at a time, each with the given load."""
    rng = np.random.default_rng(seed)
    mean = 400
    outputs = geometric(rng, mean, count)
    arrivals = poisson(rng, instances * load / (mean * STEP_NS) * 1e9, count)
    engine = EngineConfig(max_num_seqs=1, max_num_batched_tokens=1 << 20)
    requests = columns(arrivals, np.ones(count, np.int64), outputs)
    world = World(requests, engine, "paged", 2, page_tokens=1 << 20, max_model_len=1 << 20)
    run, _ = world.fleet(router, instances, verify=False, cost=FixedCost(STEP_NS))
    ledger = run.runs[0].ledger
    waits = np.array(ledger.started_ns) - np.array(ledger.arrived_ns)
    return waits[500:] / (mean * STEP_NS)


def test_the_shorter_of_two_queues_waits_as_the_balance_equations_say() -> None:
    waits = delayed(SHORTEST, instances=2, load=0.6, count=12_000, seed=6)
    assert_mean(waits, shortest_of_two_wait(1.2), slack=0.005)


def test_turns_wait_as_with_erlang_gaps() -> None:
    instances, load = 3, 0.7
    sigma = 0.5
    for _ in range(200):
        sigma = (instances * load / (instances * load + 1 - sigma)) ** instances
    waits = delayed(TURNS, instances=instances, load=load, count=12_000, seed=7)
    assert_mean(waits, sigma / (1 - sigma), slack=0.005)


# ---- prefixes


def prefixed(groups: list[int], gap_ns: int, *, output: int = 4) -> World:
    """Requests of 8 prompt tokens, 6 of them the prefix of their group, ``gap_ns`` apart."""
    rows = [(i * gap_ns, 8, output) for i in range(len(groups))]
    requests = requests_of(rows, prefixes=[(group, 6) for group in groups])
    return World(requests, EngineConfig(max_num_seqs=8, max_num_batched_tokens=64), "paged_cow", 60, page_tokens=2)


def test_a_prefix_goes_where_it_was_sent_before() -> None:
    groups = [0, 1, 2, 0, 1, 2, 2, 1, 0, 0]
    run, fleet = prefixed(groups, 10_000_000).fleet(AFFINE, 3)
    assert run.instance.tolist() == groups
    hits = sum(engine.allocator.totals.prefix_hit_tokens for engine in fleet.engines)
    assert hits == 7 * 6
    _, fleet = prefixed(groups, 10_000_000).fleet(TURNS, 3)
    assert sum(engine.allocator.totals.prefix_hit_tokens for engine in fleet.engines) < hits


def test_affinity_gives_way_when_one_instance_has_far_more_to_do() -> None:
    crowd = [0] * 12
    run, _ = prefixed(crowd, 1, output=12).fleet(AFFINE, 2)
    counts = np.bincount(run.instance)
    # The difference may reach balance_abs_threshold + 1 before load decides, and never more.
    assert abs(int(counts[0]) - int(counts[1])) <= 2
    patient = AFFINE.model_copy(update={"balance_abs_threshold": 64})
    run, _ = prefixed(crowd, 1, output=12).fleet(patient, 2)
    assert set(run.instance.tolist()) == {0}


def test_a_short_match_does_not_bind() -> None:
    picky = AFFINE.model_copy(update={"cache_threshold": 0.75})  # 6 of 8 tokens are no more than that
    run, _ = prefixed([0, 0, 0, 0], 10_000_000).fleet(picky, 2)
    assert run.instance.tolist() == [0, 1, 0, 1]


# ---- closed loops, stops, sums


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds(), router=ROUTERS, instances=st.integers(1, 4))
def test_a_fleet_adds_up(world: World, router: RouterConfig, instances: int) -> None:
    run, fleet = world.fleet(router, instances)
    whole = merged_run(run)
    assert whole.ledger.arrived == sum(one.ledger.arrived for one in run.runs) == np.count_nonzero(run.instance >= 0)
    assert whole.recorder.steps == sum(one.recorder.steps for one in run.runs)
    assert whole.recorder.allocated.total == sum(one.recorder.allocated.total for one in run.runs)
    assert whole.ended_ns == max(one.ended_ns for one in run.runs)
    if all(one.ended_because == "completed" for one in run.runs):
        assert whole.ledger.arrived == len(world.requests)
        assert not any(engine.allocator.allocated_bytes for engine in fleet.engines)


def test_users_of_a_closed_loop_share_the_instances() -> None:
    closed = ClosedLoop(users=6, think_ns=np.full(60, 5_000, np.int64))
    requests = requests_of([(0, 4, 8)] * 60, closed=closed)
    world = World(requests, EngineConfig(max_num_seqs=2, max_num_batched_tokens=64), "paged", 40)
    run, _ = world.fleet(SHORTEST, 3)
    assert np.bincount(run.instance).tolist() == [20, 20, 20]
    ledger = run.runs[0].ledger
    finished, arrived = np.array(ledger.finished_ns), np.array(ledger.arrived_ns)
    # At any arrival at most five others are under way.
    assert all(np.count_nonzero((arrived <= t) & (finished > t)) <= 6 for t in arrived.tolist())


def test_an_instance_that_stands_still_gets_no_more_while_others_serve() -> None:
    """Two long sequences grow into a pool that holds neither: with `wait` that instance stands still."""
    rows = [(0, 4, 24), (0, 4, 1), (10, 4, 24), (1_000_000, 4, 1), (2_000_000, 4, 1)]
    world = World(
        requests_of(rows), EngineConfig(max_num_seqs=4, max_num_batched_tokens=64, on_oom="wait"), "paged", 10
    )
    run, _ = world.fleet(SHORTEST, 2)
    assert [one.ended_because for one in run.runs] == ["livelock", "completed"]
    assert run.instance.tolist() == [0, 1, 0, 1, 1]
    assert merged_run(run).ended_because == "livelock"
