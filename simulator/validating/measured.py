"""Occupancy of real engines over time: eight logged vLLM runs, and a published sweep of clients."""

from collections.abc import Iterator

import numpy as np

from simulator.cost import StepCost
from simulator.engine import EngineRun
from simulator.metrics import timeline_table
from simulator.validating.bench import (
    TOKEN_BYTES,
    at_once,
    draws,
    gamma_lengths,
    paged,
    requests_of,
    serve,
)
from simulator.validating.check import Check, Source, non_increasing
from simulator.validating.measured_engine import (
    BLOCK_TOKENS,
    BLOCKS,
    CALIBRATION,
    SCALES,
    SEATS,
    Log,
    MeasuredCost,
    lengths,
    load_logs,
    load_sent,
    requests_at,
    steps_between,
)
from simulator.validating.parts import preset_device, preset_model, settings

FAMILY = "measured"
NOTES = (
    "Eight runs of a real vLLM (500 requests of BurstGPT arrivals, Llama-3.2-1B, 36,282 blocks of 16, at most 256 "
    "running; logs of liao4s/BurstGPT_test, MIT), each with arrivals faster than the last. The requests are those "
    "that the client's log of the run at scale 100 has, step times were fitted to the engine's logs of the runs at "
    "100 and 600 (see `validating/measured_engine.py`). Nothing that these checks compare was fitted: at 100 and 600 "
    "they show that the engine's rules turn those requests and times into its memory, at the other six scales they "
    "are predictions. Prompts are computed in chunks of 512 tokens a step, this engine's default for models of 128K.",
    "What is left: the same prompts had 702 to 729 outputs on average in the eight runs, here 706 in all; steps with "
    "250 running took 98 ms in the run at 1,000, 89 to 93 in the others.",
)


def checks() -> Iterator[Check]:
    """The logs, then the sweep."""
    yield from _requests()
    for scale in SCALES:
        yield from _logged(scale)
    yield from _orders()
    yield from _client_sweep()


def _requests() -> Iterator[Check]:
    """The client's and the engine's log of one run tell of the same requests."""
    source = Source(FAMILY, "vllm-requests", "detail_log_scale100 and vllm_log_scale100 (liao4s/BurstGPT_test)")
    log, sent, (prompts, outputs) = load_logs()[100], load_sent(), lengths()
    alive = np.searchsorted(sent.sent_s, log.time_s, "right") - np.searchsorted(
        np.sort(sent.ended_s), log.time_s, "right"
    )
    apart = float(np.abs(alive - log.running - log.pending).mean())
    what = "mean difference of requests alive by the client's clock and by the engine's"
    yield source.near("alive", what, expected=0.0, got=apart, within=0.2)
    generated = float((log.output_tokens_per_s[1:] * np.diff(log.time_s)).sum())
    what = "outputs of all requests, counted in steps, against the engine's throughput"
    yield source.near("outputs", what, expected=generated, got=float(outputs.sum()), rel=0.005)
    late = np.searchsorted(log.time_s, sent.sent_s.max(), "right")
    live = sent.ended_s > log.time_s[late]
    done = steps_between(sent, log, until_s=float(log.time_s[late]))[live]
    blocks = int(np.ceil((prompts[live] + np.minimum(done, outputs[live])) / BLOCK_TOKENS).sum())
    what = "blocks that those alive after the last arrival fill, by these lengths"
    yield source.near("blocks", what, expected=float(log.blocks[late]), got=blocks, rel=0.02)


def _run(scale: int) -> EngineRun:
    engine = settings(profile="vllm-0.6", max_num_seqs=SEATS, max_num_batched_tokens=512)
    return serve(requests_at(scale), paged(BLOCKS, BLOCK_TOKENS, engine), engine, cost=MeasuredCost())


def _logged(scale: int) -> Iterator[Check]:
    log, run = load_logs()[scale], _run(scale)
    kind = "calibrated on" if scale in CALIBRATION else "predicted"
    source = Source(FAMILY, f"vllm-{scale}", f"vllm_log_scale{scale}_prompt500.csv (liao4s/BurstGPT_test), {kind}")
    page = BLOCK_TOKENS * TOKEN_BYTES
    mean = run.recorder.allocated.total / page / run.ended_ns
    for name, what, expected, got in (
        ("mean", "mean blocks in use", log.mean_blocks, mean),
        ("peak", "peak blocks in use", int(log.blocks.max()), run.recorder.allocated.peak // page),
        ("running", "most running", int(log.running.max()), run.recorder.peak_sequences),
        ("pending", "most waiting", int(log.pending.max()), _most_waiting(run)),
        ("duration", "seconds", log.duration_s, run.ended_ns / 1e9),
    ):
        yield source.near(
            name, what, expected=expected, got=got, rel=0.10,
            curve=f"vllm-{name}: blocks in use" if name in ("mean", "peak") else "", at=scale,
        )  # fmt: skip
    what = "distance of blocks in use from the log's, averaged over time, as a share of the log's peak"
    yield source.near("path", what, expected=0.0, got=_distance(log, run), within=0.10)
    yield source.exact(
        "preempted", "preemptions (never swapped in the log)", expected=0, got=run.ledger.preemption_count
    )


def _distance(log: Log, run: EngineRun) -> float:
    """Mean absolute difference of blocks in use at the log's samples, each weighed with the time to the next."""
    table = timeline_table(run)
    blocks = np.interp(log.time_s, table["time_s"], table["allocated_bytes"] / (BLOCK_TOKENS * TOKEN_BYTES))
    seconds = np.diff(log.time_s)
    return float(np.abs(blocks - log.blocks)[:-1] @ seconds / seconds.sum() / log.blocks.max())


def _most_waiting(run: EngineRun) -> int:
    """The longest queue at any instant: nobody of these runs is preempted, so each request waits once."""
    arrived, started = np.sort(run.ledger.arrived_ns), np.sort(run.ledger.started_ns)
    # Whoever starts as he arrives does not wait.
    return int((np.arange(1, len(arrived) + 1) - np.searchsorted(started, arrived, side="right")).max())


def _orders() -> Iterator[Check]:
    source = Source(FAMILY, "vllm-bounds", "the same logs: never more than 256 running")
    engine = settings(profile="vllm-0.6", max_num_seqs=SEATS, max_num_batched_tokens=512)
    run = serve(at_once(*lengths()), paged(BLOCKS, BLOCK_TOKENS, engine), engine, cost=MeasuredCost())
    yield source.exact("cap", "most running when all 500 come at once", expected=SEATS, got=run.recorder.peak_sequences)


#: clients, mean use in percent, most running, preempted requests (of 4 for each client) as published
_CLIENTS = (
    (1, 0.6, 1, 0),
    (8, 4, 8, 0),
    (32, 16, 32, 0),
    (64, 32, 64, 0),
    (128, 66, 128, 0),
    (256, 91, 167, 40),
    (512, 95, 167, 66),
)


def _client_sweep() -> Iterator[Check]:
    """Closed loop of C clients; lengths are not published: gamma with the mean live tokens that the sweep implies."""
    text = "public load test of Apertus 1.5 8B on one GH200 (2026-09-29), vLLM, pool 466,144 tokens, blocks of 16"
    source = Source(FAMILY, "clients", text)
    found = {clients: _closed(clients, 466_144) for clients, *_ in _CLIENTS}
    for clients, _, running, preempted in _CLIENTS:
        run = found[clients]
        got = run.recorder.peak_sequences
        if clients <= 128:
            yield source.exact(f"running-{clients}", f"most running, {clients} clients", expected=running, got=got)
            what = f"preemptions while the peak fits, {clients} clients"
            yield source.exact(f"preempted-{clients}", what, expected=preempted, got=run.ledger.preemption_count)
        else:
            yield source.near(
                f"running-{clients}", f"most running, {clients} clients", expected=running, got=got, rel=0.10,
                note="lengths were chosen for the pool to hold this many at their mean",
            )  # fmt: skip
            what = f"preemptions once the pool is full, {clients} clients (published: {preempted} requests)"
            yield source.holds(
                f"preempted-{clients}", what, run.ledger.preemption_count > 0, seen=run.ledger.preemption_count
            )
    used = [_use(found[clients]) for clients, *_ in _CLIENTS]
    what = "mean use of the pool rises with clients"
    yield source.holds("use", what, used == sorted(used), seen=" ".join(f"{100 * share:.0f} %" for share in used))
    counts = [found[clients].ledger.preemption_count for clients in (512, 256, 128)]
    yield source.holds("preemptions", "preemptions rise with clients", non_increasing(counts), seen=str(counts[::-1]))
    small, large = _closed(512, 342_655), _closed(512, 469_792)
    ratio = small.recorder.peak_sequences / large.recorder.peak_sequences
    what = "most running of a pool of 342,655 over one of 469,792 (published 129 / 171; pools 0.729)"
    yield source.near("pools", what, expected=0.754, got=ratio, rel=0.10)
    yield source.holds(
        "smaller-pool", "at 128 clients the smaller pool preempts, the larger does not (published 10 and 0)",
        _closed(128, 342_655).ledger.preemption_count > 0 and found[128].ledger.preemption_count == 0,
    )  # fmt: skip


def _closed(clients: int, pool_tokens: int) -> EngineRun:
    rng, count = draws(81), 4 * clients
    # 2,791 live tokens on average at 167 running: prompts, and half of 200 outputs.
    prompts = gamma_lengths(rng, 2691, 0.3, count)
    outputs = np.full(count, 200)
    engine = settings(profile="vllm-0.11", max_num_seqs=1024, max_num_batched_tokens=8192)
    cost = StepCost(preset_device("910B3"), preset_model("llama-3.1-8b"), engine, page_tokens=16)
    requests = requests_of(np.zeros(count, np.int64), prompts, outputs, users=clients)
    return serve(requests, paged(pool_tokens // 16, 16, engine), engine, cost=cost)


def _use(run: EngineRun) -> float:
    return run.recorder.allocated.total / run.recorder.allocator.capacity_bytes / run.ended_ns
