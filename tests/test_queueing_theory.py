"""The simulator against queueing theory: loss systems, queues, shot noise, Little's law, and the PagedAttention paper.

Formulas: Erlang B and C, Pollaczek-Khinchine (Kleinrock, Queueing Systems, vol. 1), Kaufman 1981 and Roberts 1981 for
several classes, Campbell's theorem for the demand of an infinite pool. A simulated mean is accepted within four
standard errors, which come from batch means, as successive requests are not independent.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from engine_worlds import BYTES_PER_TOKEN, FixedCost, World, replay_of, requests_of
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.allocators.base import Allocator
from simulator.allocators.contiguous import ContiguousAllocator
from simulator.config import ContiguousConfig, EngineConfig, SchedulerName
from simulator.engine import EngineRun
from simulator.serving.sequence import Outcome
from simulator.traffic.requests import Requests
from simulator.traffic.traces import TraceArrivals, load_arrivals

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
REPLAY = EngineConfig(scheduler="replay", on_oom="fail")
STEP_NS = 1000


# ---- theory


def erlang_b(servers: int, load: float) -> float:
    """Probability that all of ``servers`` are busy, nobody waits."""
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival waits in M/M/c."""
    blocked = erlang_b(servers, load)
    return blocked / (1 - load / servers * (1 - blocked))


def kaufman_roberts(pages: int, classes: list[tuple[float, int]]) -> tuple[list[float], float]:
    """Blocking of each ``(load, pages)`` class and the mean pages in use, under complete sharing."""
    q = [1.0]
    for j in range(1, pages + 1):
        q.append(sum(load * size * q[j - size] for load, size in classes if size <= j) / j)
    total = sum(q)
    blocking = [sum(q[pages - size + 1 :]) / total for _, size in classes]
    return blocking, sum(j * value for j, value in enumerate(q)) / total


def test_the_formulas_give_the_tabulated_values() -> None:
    assert [round(erlang_b(c, a), 6) for c, a in ((7, 7), (7, 5), (16, 12), (64, 60))] == [
        0.248871,
        0.120519,
        0.060413,
        0.060363,
    ]
    assert [round(erlang_c(c, a), 6) for c, a in ((7, 5), (16, 12), (64, 60))] == [0.324150, 0.204574, 0.506866]
    blocking, mean = kaufman_roberts(20, [(4, 1), (2, 4)])
    assert ([round(p, 6) for p in blocking], round(mean, 4)) == ([0.026175, 0.136886], 10.8002)
    blocking, mean = kaufman_roberts(64, [(20, 1), (5, 4), (1, 16)])
    assert ([round(p, 6) for p in blocking], round(mean, 4)) == ([0.023770, 0.099693, 0.454530], 46.2583)


# ---- tools


def poisson(rng: np.random.Generator, rate_per_s: float, count: int) -> Ints:
    return np.cumsum(rng.exponential(1e9 / rate_per_s, count)).astype(np.int64)


def columns(arrival_ns: Ints, prompt: Ints, output: Ints) -> Requests:
    return requests_of(list(zip(arrival_ns.tolist(), prompt.tolist(), output.tolist(), strict=True)))


def assert_mean(values: Floats, expected: float, *, slack: float = 0.0, batches: int = 25) -> None:
    """``values`` (in the order of time) have the mean ``expected``, within 4 standard errors and ``slack``."""
    means = values[: len(values) // batches * batches].reshape(batches, -1).mean(axis=1)
    error = means.std(ddof=1) / math.sqrt(batches)
    assert abs(values.mean() - expected) <= 4 * error + slack, (
        f"{values.mean():.5f} +- {error:.5f} is not {expected:.5f}"
    )


def lost(run: EngineRun) -> npt.NDArray[np.bool_]:
    return np.array(run.ledger.outcome) != Outcome.completed


def exponential(rng: np.random.Generator, mean: float, count: int) -> Ints:
    return np.maximum(1, np.ceil(rng.exponential(mean, count))).astype(np.int64)


def constant(rng: np.random.Generator, mean: float, count: int) -> Ints:
    return np.full(count, int(mean), np.int64)


def lognormal(rng: np.random.Generator, mean: float, count: int) -> Ints:
    """Coefficient of variation 2."""
    sigma2 = math.log(5)
    return np.maximum(1, np.rint(rng.lognormal(math.log(mean) - sigma2 / 2, math.sqrt(sigma2), count))).astype(np.int64)


# ---- loss systems


MEAN_TOKENS = 2000


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        ("paged", exponential),
        ("paged", constant),
        ("paged", lognormal),
        ("contiguous", lognormal),
        pytest.param("contiguous", exponential, marks=pytest.mark.long),
        pytest.param("contiguous", constant, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize(
    ("slots", "load", "count"),
    [(7, 5.0, 8_000), pytest.param(16, 12.0, 200_000, marks=pytest.mark.long)],
)
def test_equal_slots_without_a_queue_block_as_erlang_said_whatever_the_holding_law(
    slots: int, load: float, count: int, kind: str, law: Callable[[np.random.Generator, float, int], Ints]
) -> None:
    rng = np.random.default_rng(5)
    outputs = law(rng, MEAN_TOKENS, count)
    arrivals = poisson(rng, load / (MEAN_TOKENS * STEP_NS) * 1e9, count)
    # One page, or one range of the longest sequence, holds a request from its first token to its last.
    slot_tokens = int(outputs.max()) + 1
    world = World(
        columns(arrivals, np.ones(count, np.int64), outputs),
        REPLAY,
        kind,
        slots,
        page_tokens=slot_tokens,
        max_model_len=slot_tokens,
    )
    run, _ = replay_of(world, STEP_NS, verify=False)
    blocking = erlang_b(slots, load)
    assert_mean(lost(run).astype(float), blocking)
    mean_slots = run.recorder.allocated.total / (slot_tokens * BYTES_PER_TOKEN) / run.ended_ns
    assert mean_slots == pytest.approx(load * (1 - blocking), rel=0.03)
    assert set(np.array(run.ledger.outcome)[lost(run)]) == {Outcome.oom_admission}
    assert run.ledger.oom_events["fragmentation"] == 0


def two_sizes(rng: np.random.Generator, classes: list[tuple[float, int]], count: int) -> tuple[Requests, Ints]:
    """Requests of classes ``(load, pages)`` on pages of 1,000 tokens, with 200 output tokens on average."""
    loads = np.array([load for load, _ in classes])
    kinds = rng.choice(len(classes), count, p=loads / loads.sum())
    pages = np.array([size for _, size in classes])[kinds]
    outputs = rng.integers(100, 301, count)
    arrivals = poisson(rng, loads.sum() / (200 * STEP_NS) * 1e9, count)
    return columns(arrivals, pages * 1000 - 500, outputs), kinds


@pytest.mark.parametrize(
    ("pages", "classes", "count"),
    [
        (20, [(4, 1), (2, 4)], 10_000),
        pytest.param(64, [(20, 1), (5, 4), (1, 16)], 200_000, marks=pytest.mark.long),
    ],
)
def test_classes_of_several_sizes_share_pages_as_kaufman_and_roberts_said(
    pages: int, classes: list[tuple[float, int]], count: int
) -> None:
    requests, kinds = two_sizes(np.random.default_rng(11), classes, count)
    run, _ = replay_of(
        World(requests, REPLAY, "paged", pages, page_tokens=1000, max_model_len=20_000), STEP_NS, verify=False
    )
    blocking, mean_pages = kaufman_roberts(pages, classes)
    for index, expected in enumerate(blocking):
        assert_mean(lost(run)[kinds == index].astype(float), expected)
    assert run.recorder.allocated.total / (1000 * BYTES_PER_TOKEN) / run.ended_ns == pytest.approx(mean_pages, rel=0.03)


def test_contiguous_ranges_block_the_large_class_more_and_the_small_class_less_than_pages() -> None:
    # An independent simulation of first fit gave .0095 and .2089 where pages give .0262 and .1369.
    classes: list[tuple[float, int]] = [(4, 1), (2, 4)]
    requests, kinds = two_sizes(np.random.default_rng(12), classes, 10_000)

    class Ranges(World):
        def allocator(self) -> Allocator:
            config = ContiguousConfig(kind="contiguous", reserve="exact", page_size=1000)
            size = {"capacity_bytes": 20_000 * BYTES_PER_TOKEN, "bytes_per_token": BYTES_PER_TOKEN}
            return ContiguousAllocator(config, max_model_len=20_000, **size)

    run, _ = replay_of(Ranges(requests, REPLAY, "contiguous", 20, max_model_len=20_000), STEP_NS, verify=False)
    small, large = (lost(run)[kinds == index] for index in (0, 1))
    assert_mean(small.astype(float), 0.0095, slack=0.001)
    assert_mean(large.astype(float), 0.2089, slack=0.003)
    assert run.ledger.oom_events["fragmentation"] > 0
    blocking, _ = kaufman_roberts(20, classes)
    assert large.mean() > blocking[1] and small.mean() < blocking[0]


# ---- demand of an infinite pool


def block_sum(tokens: Ints) -> Ints:
    """Blocks of 16 for 1 token, plus those for 2 tokens, and so on up to ``tokens``."""
    full, rest = tokens // 16, tokens % 16
    return 8 * full * (full + 1) + rest * (full + 1)


def test_demand_of_real_length_pairs_has_the_mean_and_variance_of_campbells_theorem() -> None:
    rng = np.random.default_rng(3)
    rows = load_arrivals(TraceArrivals(process="trace", path="azure_conv"), seed=0)
    prompts, outputs = rows.prompt_tokens, rows.output_tokens
    step_s, rate, count = 0.03, 5.53, 8_000
    p, o = prompts.astype(float), outputs.astype(float)
    mean = rate * step_s * float(np.mean(p * o + o * (o + 1) / 2))
    variance = rate * step_s * float(np.mean(o * p * p + p * o * (o + 1) + o * (o + 1) * (2 * o + 1) / 6))
    live = rate * step_s * float(o.mean())
    assert (round(mean, 1), round(math.sqrt(variance), 1), round(live, 3)) == (42_993.4, 8_400.8, 35.026)

    picked = rng.integers(0, len(prompts), count)
    world = World(
        columns(poisson(rng, rate, count), prompts[picked], outputs[picked]),
        REPLAY,
        "paged",
        1 << 30,
        page_tokens=16,
        max_model_len=1 << 20,
    )
    run, _ = replay_of(world, round(step_s * 1e9), verify=False)
    timeline = run.recorder.timeline()
    # Fill-up (the longest request lasts 30 s) and run-out are not stationary.
    steady = (timeline["time_ns"] > 40e9) & (timeline["time_ns"] < run.ledger.arrived_ns[-1])
    tokens = timeline["used_bytes"][steady] / BYTES_PER_TOKEN
    assert_mean(tokens, mean)
    assert_mean((tokens - mean) ** 2, variance)
    assert_mean(timeline["running"][steady].astype(float), live)
    # A Poisson number of live requests: its variance is its mean.
    assert_mean((timeline["running"][steady] - live) ** 2, live)
    block_steps = float((block_sum(prompts + outputs) - block_sum(prompts)).sum())
    blocks = timeline["allocated_bytes"][steady] / (16 * BYTES_PER_TOKEN)
    assert_mean(blocks, rate * step_s * block_steps / len(prompts))


@pytest.mark.parametrize("page_tokens", [16, 128])
def test_half_a_page_less_half_a_token_is_wasted_on_average(page_tokens: int) -> None:
    # The length modulo the page is uniform: 0 .. B-1 tokens of the last page are empty, (B - 1) / 2 on average.
    rng = np.random.default_rng(7)
    count = 3000
    prompts, outputs = rng.integers(1, page_tokens * 8 + 1, count), rng.integers(1, 400, count)
    world = World(
        columns(poisson(rng, 50_000.0, count), prompts, outputs),
        REPLAY,
        "paged",
        1 << 30,
        page_tokens=page_tokens,
        max_model_len=1 << 20,
    )
    run, _ = replay_of(world, STEP_NS, verify=False)
    wasted = run.recorder.allocated.total - run.recorder.used_byte_ns
    assert wasted / BYTES_PER_TOKEN / (run.recorder.sequence_steps * STEP_NS) == pytest.approx(
        (page_tokens - 1) / 2, rel=0.02
    )


@settings(max_examples=30)
@given(lengths=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=10))
def test_a_maximal_reservation_wastes_what_is_beyond_the_end_and_reserves_what_is_still_to_come(
    lengths: list[tuple[int, int, int]],
) -> None:
    world = World(requests_of(sorted(lengths)), REPLAY, "contiguous", 1000, max_model_len=64)
    run, _ = replay_of(world, 7)
    never = sum(o * (64 - p - o) for _, p, o in lengths)
    later = sum(o * (o - 1) // 2 for _, _, o in lengths)
    recorder = run.recorder
    assert recorder.tail.total == 7 * BYTES_PER_TOKEN * never
    assert recorder.allocated.total - recorder.tail.total - recorder.used_byte_ns == 7 * BYTES_PER_TOKEN * later


# ---- queues in front of the continuous engine


def queue_waits(
    rng: np.random.Generator, *, seats: int, load: float, outputs: Ints, skip: int = 500
) -> tuple[Floats, EngineRun]:
    """Steps that each request waited, for a plain engine of ``seats`` seats; service takes one step a token."""
    count = len(outputs)
    arrivals = poisson(rng, load / (outputs.mean() * STEP_NS) * 1e9, count)
    engine = EngineConfig(max_num_seqs=seats, max_num_batched_tokens=1 << 20)
    requests = columns(arrivals, np.ones(count, np.int64), outputs)
    world = World(requests, engine, "paged", seats * 2, page_tokens=1 << 20, max_model_len=1 << 20)
    run, _ = world.run(verify=False, cost=FixedCost(STEP_NS))
    waits = np.array(run.ledger.started_ns) - np.array(run.ledger.arrived_ns)
    return waits[skip:] / STEP_NS, run


MEAN_STEPS = 400


def geometric(rng: np.random.Generator, mean: float, count: int) -> Ints:
    return rng.geometric(1 / mean, count)


@pytest.mark.parametrize(
    ("seats", "load", "count"),
    [
        (7, 5.0, 5_000),
        pytest.param(16, 12.0, 200_000, marks=pytest.mark.long),
        pytest.param(64, 60.0, 200_000, marks=pytest.mark.long),
    ],
)
def test_geometric_outputs_wait_for_a_seat_as_in_erlangs_delay_system(seats: int, load: float, count: int) -> None:
    rng = np.random.default_rng(21)
    waits, _ = queue_waits(rng, seats=seats, load=load, outputs=geometric(rng, MEAN_STEPS, count))
    probability = erlang_c(seats, load)
    # An arrival in the middle of a step is seen at its end: half a step on average, all of it below one.
    assert_mean((waits > 1).astype(float), probability, slack=0.01)
    assert_mean(waits, probability * MEAN_STEPS / (seats - load), slack=1.0)


@pytest.mark.parametrize("law", [constant, lognormal, pytest.param(exponential, marks=pytest.mark.long)])
def test_one_seat_waits_as_pollaczek_and_khinchine_said(law: Callable[[np.random.Generator, float, int], Ints]) -> None:
    rng = np.random.default_rng(8)
    outputs = law(rng, MEAN_STEPS, 4_000)
    load = 0.5
    waits, _ = queue_waits(rng, seats=1, load=load, outputs=outputs)
    second_moment = float(np.mean(outputs.astype(float) ** 2))
    expected = load / outputs.mean() * second_moment / (2 * (1 - load))
    assert_mean(waits, expected, slack=1.0)


@pytest.mark.long
def test_constant_outputs_wait_less_than_geometric_ones_by_about_half() -> None:
    rng = np.random.default_rng(9)
    waits, _ = queue_waits(rng, seats=7, load=5.0, outputs=constant(rng, MEAN_STEPS, 100_000))
    exponential_wait = erlang_c(7, 5.0) * MEAN_STEPS / 2
    assert 0.45 * exponential_wait < waits.mean() < 0.65 * exponential_wait


# ---- identities of a run


plain_rows = st.lists(
    st.tuples(st.integers(0, 90_000), st.integers(1, 30), st.integers(1, 25)), min_size=1, max_size=20
)


@settings(max_examples=60)
@given(rows=plain_rows, seats=st.integers(1, 6), step_ns=st.integers(1, 5000), leap=st.booleans())
def test_littles_law_holds_exactly(rows: list[tuple[int, int, int]], seats: int, step_ns: int, leap: bool) -> None:
    # Mean number running x time = sum of the times spent running; tokens likewise: H = lambda G.
    rows.sort()
    engine = EngineConfig(max_num_seqs=seats, max_num_batched_tokens=1 << 20)
    run, _ = World(requests_of(rows), engine, "paged", 1000).run(leap=leap, cost=FixedCost(step_ns))
    ledger, recorder = run.ledger, run.recorder
    residence = np.array(ledger.finished_ns) - np.array(ledger.started_ns)
    assert recorder.sequence_steps * step_ns == residence.sum()
    assert residence.tolist() == [output * step_ns for _, _, output in rows]
    areas = [step_ns * (o * p + o * (o - 1) // 2) for _, p, o in rows]
    assert recorder.used_byte_ns == BYTES_PER_TOKEN * sum(areas)
    assert recorder.output_tokens == sum(o for _, _, o in rows)
    assert recorder.prompt_tokens == sum(p for _, p, _ in rows)
    assert recorder.busy_ns == recorder.steps * step_ns <= run.ended_ns


def test_a_saturated_paged_pool_serves_what_the_token_time_of_a_request_allows() -> None:
    # Throughput is at most pool tokens / (step time x mean token-steps of a request), the limit of arXiv 2605.04595,
    # and a well filled pool comes near it.
    rng = np.random.default_rng(31)
    count = 3000
    prompts, outputs = rng.integers(50, 350, count), rng.integers(50, 350, count)
    area = float(np.mean(outputs * prompts + outputs * (outputs - 1) / 2))
    engine = EngineConfig(max_num_batched_tokens=1 << 20, max_num_seqs=1000)
    world = World(
        columns(np.zeros(count, np.int64), prompts, outputs),
        engine,
        "paged",
        1000,
        page_tokens=16,
        max_model_len=1024,
        horizon_ns=4000 * STEP_NS,
    )
    run, _ = world.run(verify=False, cost=FixedCost(STEP_NS))
    completed = list(run.ledger.outcome).count(Outcome.completed)
    limit = 16_000 / area * 4000
    assert 0.85 * limit < completed < 1.03 * limit


# ---- PagedAttention (SOSP'23): Orca's reservations on a buddy allocator, 15.7K slots of OPT-13B on an A100


def sharegpt_lengths(rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
    """Gamma lengths with the paper's means (161.31 in, 337.99 out), kept within 2,048 tokens in all."""
    prompts, outputs = (
        np.maximum(4, np.rint(rng.gamma(1 / cv**2, mean * cv**2, 3 * count))).astype(np.int64)
        for mean, cv in ((161.31, 1.0), (337.99, 0.875))
    )
    fits = prompts + outputs <= 2048
    return prompts[fits][:count], outputs[fits][:count]


class Orca(World):
    """15,728 slots and blocks of up to 2,048 of them."""

    def allocator(self) -> Allocator:
        config = ContiguousConfig(kind="contiguous", fit="buddy", **self.options)
        size = {"capacity_bytes": 15_728 * BYTES_PER_TOKEN, "bytes_per_token": BYTES_PER_TOKEN}
        return ContiguousAllocator(config, max_model_len=2048, **size)


@pytest.mark.parametrize(
    ("reserve", "batch", "token", "reserved", "internal", "external", "slack"),
    [
        ("max_model_len", (7.0, 7.0), 20.4, 13.3, 57.3, 8.9, 2.5),
        ("pow2", (9.3, 10.6), 26.8, 17.9, 13.6, 41.6, 7.0),
        ("exact", (12.6, 14.1), 38.2, 25.2, 0.0, 36.6, 2.5),
    ],
)
def test_saturated_orca_runs_the_batch_and_wastes_the_memory_of_figures_2_and_13(
    reserve: str,
    batch: tuple[float, float],
    token: float,
    reserved: float,
    internal: float,
    external: float,
    slack: float,
) -> None:
    steps = 40_000
    prompts, outputs = sharegpt_lengths(np.random.default_rng(1), 3000)
    engine = EngineConfig(on_oom="wait", max_num_batched_tokens=1 << 20, max_num_seqs=1000)
    world = Orca(
        columns(np.zeros(3000, np.int64), prompts, outputs),
        engine,
        "contiguous",
        1,
        max_model_len=2048,
        horizon_ns=steps * STEP_NS,
        options={"reserve": reserve},
    )
    run, _ = world.run(verify=False, cost=FixedCost(STEP_NS))
    assert run.ended_because == "horizon", "the queue ran dry"
    recorder = run.recorder
    mean_batch = recorder.sequence_steps / recorder.steps
    assert batch[0] <= mean_batch <= batch[1]
    # The paper counts what a buddy block exceeds its reservation by among "external and others".
    until = np.where(np.array(run.ledger.finished_ns) < 0, run.ended_ns, run.ledger.finished_ns)
    residence = np.where(np.array(run.ledger.started_ns) < 0, 0, until - np.array(run.ledger.started_ns))
    asked = {"max_model_len": 2048 + 0 * outputs, "pow2": prompts + powers(outputs), "exact": prompts + outputs - 1}
    asked_tokens = np.minimum(asked[reserve], 2048)
    rounded = float((residence * (powers(asked_tokens) - asked_tokens)).sum()) * BYTES_PER_TOKEN

    share = 100 / (15_728.64 * BYTES_PER_TOKEN * run.ended_ns)
    used, held = recorder.used_byte_ns * share, recorder.allocated.total * share
    beyond, rounding = recorder.tail.total * share, rounded * share
    assert used == pytest.approx(token, abs=2.5)
    assert held - used - beyond == pytest.approx(reserved, abs=2.5)
    assert beyond - rounding == pytest.approx(internal, abs=2.5)
    assert 100 - held + rounding == pytest.approx(external, abs=slack)


def powers(values: Ints) -> Ints:
    """The smallest power of two not below each value."""
    return np.array([1 << (value - 1).bit_length() for value in values.tolist()])


@pytest.mark.parametrize("scheduler", ["continuous", "prefill_first"])
def test_a_saturated_vllm_0_6_pool_is_as_full_as_in_figure_2(scheduler: SchedulerName) -> None:
    # 983 blocks of 16 and a watermark of 1 %. The paper's 30.42 requests at 2 a second are below saturation; 96.3 % of
    # its slots hold tokens. An independent simulation of the saturated pool gave 33.2 to 33.6 requests, 97.1 % and 1.1
    # to 1.2 preemptions for each that completes.
    prompts, outputs = sharegpt_lengths(np.random.default_rng(1), 4000)
    engine = EngineConfig(profile="vllm-0.6", scheduler=scheduler, max_num_batched_tokens=1 << 20, max_num_seqs=1000)
    requests = columns(np.zeros(4000, np.int64), prompts, outputs)
    horizon_ns = 20_000 * STEP_NS
    world = World(requests, engine, "paged", 983, page_tokens=16, max_model_len=2048, horizon_ns=horizon_ns)
    run, _ = world.run(verify=False, cost=FixedCost(STEP_NS))
    assert run.ended_because == "horizon"
    # Where prompts have steps of their own, those few sequences lower the mean.
    assert run.recorder.sequence_steps / run.recorder.steps == pytest.approx(33.4, abs=2.0)
    used = run.recorder.used_byte_ns / (15_728.64 * BYTES_PER_TOKEN * run.ended_ns)
    assert used == pytest.approx(0.967, abs=0.01)
    assert 0.9 < run.ledger.preemption_count / run.ledger.ended_count < 1.3
