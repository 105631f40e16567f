"""Queues and identities: Erlang C, Pollaczek and Khinchine, Little, H = lambda G, the stability limit, demand."""

from collections.abc import Iterator

import numpy as np

from simulator.loading.catalogue import scenario_names
from simulator.metrics import RunResult
from simulator.scenario import load_scenario
from simulator.serving.sequence import Outcome
from simulator.simulation import simulate
from simulator.traffic.traces import TraceArrivals, load_arrivals
from simulator.validating.bench import (
    NO_LIMIT,
    STEP_NS,
    TOKEN_BYTES,
    Floats,
    Ints,
    at_once,
    draws,
    lognormal_lengths,
    paged,
    poisson,
    replay,
    requests_of,
    serve,
)
from simulator.validating.check import Check, Source
from simulator.validating.parts import settings
from simulator.validating.queues import erlang_c, waits_of

FAMILY = "theory"
_MEAN_STEPS = 400


def checks() -> Iterator[Check]:
    """Waiting, then identities on shipped scenarios, then golden demand."""
    yield from _erlang_c(7, 5.0, 6000)
    yield from _one_seat()
    yield from _stability()
    for name in scenario_names():
        yield from _little(name)
    yield from _golden_demand()


def long_checks() -> Iterator[Check]:
    """Larger systems."""
    yield from _erlang_c(16, 12.0, 100_000)
    yield from _erlang_c(64, 60.0, 200_000)


def _waits(
    rng: np.random.Generator, *, seats: int, load: float, outputs: Ints, skip: int = 500
) -> tuple[Floats, float]:
    """Steps that each request waited for one of ``seats`` seats; service takes one step a token.

    Also the largest difference of a wait from that of an ideal queue with the same draws, in steps.
    """
    count = len(outputs)
    arrivals = poisson(rng, load / (outputs.mean() * STEP_NS) * 1e9, count)
    engine = settings(max_num_seqs=seats, max_num_batched_tokens=NO_LIMIT)
    run = serve(requests_of(arrivals, np.ones(count, np.int64), outputs), paged(seats * 2, NO_LIMIT), engine)
    waits = np.array(run.ledger.started_ns) - np.array(run.ledger.arrived_ns)
    apart = np.abs(waits - waits_of(arrivals, outputs * STEP_NS, seats)).max() / STEP_NS
    return np.asarray(waits[skip:] / STEP_NS, np.float64), float(apart)


def _erlang_c(seats: int, load: float, count: int) -> Iterator[Check]:
    source = Source(FAMILY, f"erlang-c-{seats}", f"Erlang C({seats}, {load:g}): geometric outputs, seats of the engine")
    rng = draws(60)
    waits, apart = _waits(rng, seats=seats, load=load, outputs=rng.geometric(1 / _MEAN_STEPS, count))
    probability = erlang_c(seats, load)
    # An arrival in the middle of a step is seen at its end: half a step on average, all of it below one.
    yield source.mean(
        "waits", "share of requests that wait", expected=probability, samples=(waits > 1) * 1.0, slack=0.01
    )
    yield source.mean(
        "steps", "mean steps waited", expected=probability * _MEAN_STEPS / (seats - load), samples=waits, slack=1.0
    )
    what = "steps by which any wait differs from Kiefer and Wolfowitz's recursion over the same draws"
    yield source.near("path", what, expected=0.0, got=apart, within=1.0, grade="exact")


def _one_seat() -> Iterator[Check]:
    source = Source(FAMILY, "pollaczek", "Pollaczek-Khinchine: W = lambda E[S^2] / (2 (1 - rho)), one seat, rho = 0.5")
    count = 6000
    for index, name in enumerate(("constant", "lognormal")):
        rng = draws(61 + index)
        constant = np.full(count, _MEAN_STEPS, np.int64)
        outputs = constant if name == "constant" else lognormal_lengths(rng, _MEAN_STEPS, 2.0, count)
        waits, apart = _waits(rng, seats=1, load=0.5, outputs=outputs)
        expected = 0.5 / outputs.mean() * float(np.mean(outputs.astype(float) ** 2)) / (2 * 0.5)
        yield source.mean(name, f"mean steps waited, {name} outputs", expected=expected, samples=waits, slack=1.0)
        what = f"steps by which any wait differs from Lindley's recursion over the same draws, {name} outputs"
        yield source.near(f"{name}-path", what, expected=0.0, got=apart, within=1.0, grade="exact")


def _stability() -> Iterator[Check]:
    source = Source(FAMILY, "stability", "arXiv 2605.04595: throughput at most pool tokens / (step time x token-steps)")
    count, steps = 3000, 4000
    rng = draws(63)
    uniform = rng.integers(50, 350, count), rng.integers(50, 350, count)
    spread = lognormal_lengths(rng, 200, 1.0, count), np.minimum(rng.geometric(1 / 200, count), 1000)
    for name, size, (prompts, outputs) in (
        ("saturated", 16, uniform), ("saturated-64", 64, uniform), ("saturated-spread", 16, spread),
    ):  # fmt: skip
        # A block that is not full is half empty on average: tokens that the pool cannot hold.
        area = float(np.mean(outputs * prompts + outputs * (outputs - 1) / 2 + outputs * (size - 1) / 2))
        limit = 16_000 / area * steps
        engine = settings(max_num_batched_tokens=NO_LIMIT, max_num_seqs=1000)
        pool = paged(16_000 // size, size)
        run = serve(at_once(prompts, outputs), pool, engine, max_model_len=8192, horizon_steps=steps)
        done = list(run.ledger.outcome).count(Outcome.completed)
        yield source.between(
            name, f"completed requests of a saturated pool against the limit {limit:.0f}, blocks of {size}",
            low=0.93 * limit, high=1.03 * limit, got=done, grade="approximate",
        )  # fmt: skip


#: a shipped scenario whose requests wait rather than fail, in steps that no prompt outgrows
_PATIENT = (
    "engine.on_oom=wait",
    "engine.scheduler=continuous",
    "engine.max_num_batched_tokens=4194304",
    "engine.activation_bytes=1GiB",
)
_STEP_S = 0.03


def _little(name: str) -> Iterator[Check]:
    """Time integrals of a run against sums over its requests, which are recorded elsewhere."""
    text = f"Little's law, and H = lambda G (Heyman and Stidham 1980), on the first requests of {name}"
    source = Source(FAMILY, f"little-{name.replace('_', '-')}", text)
    run = _first_requests(name, *_PATIENT, f"engine.step_time={_STEP_S}")
    table, summary = run.requests, run.summary
    in_service = float((table["finish_s"] - table["start_s"]).sum())
    got = summary["batch"]["mean"] * summary["steps"] * _STEP_S
    yield source.near(
        "running", "request-seconds in service", expected=in_service, got=got, rel=1e-9, grade="exact", note=_THEN
    )
    tokens, outputs = table["prompt_tokens"], table["generated_tokens"]
    areas = float((outputs * tokens + outputs * (outputs - 1) // 2).sum()) * _STEP_S
    pools_bytes = summary["kv_capacity_bytes"] * summary.get("replicas", 1)
    held = summary["kv"]["mean_utilization"] * pools_bytes * summary["simulated_s"]
    scenario = load_scenario(name)
    got = held / scenario.loaded_model.kv_bytes_per_token(
        scenario.engine.tensor_parallel_size, dtype=scenario.engine.kv_cache_dtype
    )
    yield source.near("tokens", "token-seconds of KV", expected=areas, got=got, rel=1e-9, grade="exact")
    run = _first_requests(name, *_PATIENT)
    grid, table = run.timeline, run.requests
    span = run.summary["simulated_s"]
    for column, begin, end in (("running", "start_s", "finish_s"), ("waiting", "arrival_s", "start_s")):
        # In a run that stands still at last, requests are left that run or wait until its end.
        since, until = (np.nan_to_num(table[name], nan=span) for name in (begin, end))
        expected = float((until - since).sum()) / span
        got = float(grid[column].mean())
        yield source.near(
            f"{column}-grid", f"mean {column} on the timeline's grid, real step costs", expected=expected, got=got,
            within=max(0.03 * expected, 0.05), grade="statistical",
        )  # fmt: skip


_THEN = "steps of 30 ms, memory waited for"


def _first_requests(name: str, *overrides: str) -> RunResult:
    """The first requests of a shipped scenario under pages without sharing."""
    trace = load_scenario(name).workload.arrivals.process == "trace"
    few = f"workload.arrivals.limit={_FEW}" if trace else f"workload.requests={_FEW}"
    # One sample a request: the tables that are summed over have a row a request, the batch counts sequences.
    scenario = load_scenario(name, [few, "workload.samples=1", *overrides])
    kinds = [one.kind for one in scenario.allocators]
    label = scenario.labels[kinds.index("paged") if "paged" in kinds else 0]
    return simulate(scenario, allocators=(label,)).runs[0]


_FEW = 250
#: trace to token-ticks and block-ticks of 100 ns (where known), mean tokens, blocks and live requests, and their peaks
_DEMAND = {
    "azure_code": ((262_054_586_500_000, 16_436_070_000_000), (7553.567, 473.7599, 3.54390), (164_777, 10_333, 80)),
    "mooncake_conversation": (None, (756_591.531, 47_313.9913, 57.63893), (1_336_305, 83_554, 101)),
}


def _golden_demand() -> Iterator[Check]:
    """A token each 50 ms from the arrival on, pages of 16, no limit."""
    for trace, (ticks, means, peaks) in _DEMAND.items():
        source = Source(FAMILY, f"demand-{trace.replace('_', '-')}", f"{trace}, integers of an independent program")
        rows = load_arrivals(TraceArrivals(process="trace", path=trace), seed=0)
        assert rows.time_ns is not None
        requests = requests_of(rows.time_ns, rows.prompt_tokens, rows.output_tokens)
        run = replay(requests, paged(1 << 40, 16), step_ns=50_000_000)
        recorder, first_ns = run.recorder, int(rows.time_ns[0])
        page = 16 * TOKEN_BYTES
        if ticks is not None:
            got = recorder.used_byte_ns // (100 * TOKEN_BYTES), recorder.allocated.total // (100 * page)
            for name, count, ticked in zip(("token-ticks", "block-ticks"), ticks, got, strict=True):
                yield source.exact(name, f"{name} of 100 ns", expected=count, got=ticked)
        span = run.ended_ns - first_ns
        averages: tuple[float, ...] = (
            recorder.used_byte_ns / TOKEN_BYTES / span,
            recorder.allocated.total / page / span,
            recorder.sequence_steps * 50_000_000 / span,
        )
        digits = (6e-4, 6e-5, 6e-6)
        for what, expected, value, within in zip(("tokens", "blocks", "live"), means, averages, digits, strict=True):
            yield source.near(
                f"mean-{what}", f"mean {what}", expected=expected, got=value, within=within, grade="exact"
            )
        found = recorder.peak_used_bytes // TOKEN_BYTES, recorder.allocated.peak // page, recorder.peak_sequences
        for what, count, peak in zip(("tokens", "blocks", "live"), peaks, found, strict=True):
            yield source.exact(f"peak-{what}", f"peak {what}", expected=count, got=peak)
