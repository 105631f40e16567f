"""Real engines short of memory: the watermark sweep of vLLM's authors, who is preempted how often, and cliffs."""

from collections import Counter
from collections.abc import Iterator
from functools import cache

import numpy as np

from simulator.cost import StepCost
from simulator.engine import EngineRun
from simulator.serving.sequence import Outcome
from simulator.traffic.requests import Prefixes, Requests, offsets_of
from simulator.traffic.traces import TraceArrivals, load_arrivals
from simulator.validating.bench import (
    STEP_NS,
    Ints,
    at_once,
    draws,
    paged,
    poisson,
    requests_of,
    serve,
    shared_pages,
    step_cost,
)
from simulator.validating.check import Check, Source, non_increasing
from simulator.validating.parts import preset_device, preset_model, settings

FAMILY = "pressure"
NOTES = (
    "vLLM pull request 44594 measured five watermarks: a pool of 299,584 tokens, 450 prompts of about 1,000 "
    "tokens with about 5,000 outputs (uniform, range ratio 0.2), 128 at a time, at most 256 running. The same is "
    "simulated here on the shipped engine (profile vllm-0.33), averaged over three draws of the lengths; nothing "
    "was fitted. Step times are those of Llama-3.1-8B on a 910B3, not of the authors' GPU, so throughputs can "
    "only be compared in their order; preemptions hardly depend on them. The published counts are of one run; "
    "draws differ by up to a quarter. Missing for more: the authors' model and GPU, their seed, and whether "
    "prefix caching was on (it changes nothing here).",
    "The preemption histogram (19,801 requests) comes without its workload; Azure conversations on a pool that is "
    "tight to the same degree have its shape.",
)
#: watermark to preemptions and output tokens a second
_PUBLISHED = {0.0: (1065, 11_582), 0.02: (400, 12_134), 0.05: (187, 12_167), 0.10: (168, 11_835), 0.15: (168, 11_635)}
_POOL_TOKENS, _PROMPTS, _CLIENTS = 299_584, 450, 128


def checks() -> Iterator[Check]:
    """The sweep, the histogram, then orderings of public reports."""
    yield from _watermarks()
    yield from _histogram()
    yield from _cliff()
    yield from _sharing()
    yield from _admission()
    yield from _standstill()
    yield from _reserving()


def _watermarks() -> Iterator[Check]:
    source = Source(FAMILY, "watermark", "vllm pull request 44594")
    counts, speeds = {}, {}
    for watermark in _PUBLISHED:
        runs = [_watermark_run(draw, watermark) for draw in range(3)]
        counts[watermark] = float(np.mean([run.ledger.preemption_count for run in runs]))
        speeds[watermark] = float(np.mean([run.recorder.output_tokens / run.ended_ns * 1e9 for run in runs]))
    for watermark, (preemptions, _) in _PUBLISHED.items():
        yield source.near(
            f"{watermark:g}", f"preemptions at a watermark of {100 * watermark:g} %", expected=preemptions,
            got=counts[watermark], rel=0.30, curve="watermark: preemptions", at=100 * watermark,
        )  # fmt: skip
    seen = " ".join(f"{count:.0f}" for count in counts.values())
    falling = all(
        after <= 1.1 * before for before, after in zip(list(counts.values()), list(counts.values())[1:], strict=False)
    )
    yield source.holds("monotone", "preemptions fall with the watermark (up to a tenth of noise)", falling, seen=seen)
    knee = counts[0.0] - counts[0.05] > 5 * abs(counts[0.05] - counts[0.15])
    yield source.holds("knee", "most of the fall is before 5 %", knee, seen=seen)
    best = max(speeds, key=speeds.__getitem__)
    seen = " ".join(f"{speed:.1f}" for speed in speeds.values())
    yield source.holds("throughput", "most output tokens a second at 2 or 5 %", best in (0.02, 0.05), seen=seen)
    ends = speeds[best] > speeds[0.0] and speeds[best] > speeds[0.15]
    yield source.holds("throughput-ends", "fewer without a watermark and at 15 %", ends, seen=seen)


@cache
def _llama_cost() -> StepCost:
    return StepCost(preset_device("910B3"), preset_model("llama-3.1-8b"), settings(), page_tokens=16)


def _watermark_run(draw: int, watermark: float) -> EngineRun:
    rng = draws(90 + draw)
    prompts, outputs = rng.integers(800, 1201, _PROMPTS), rng.integers(4000, 6001, _PROMPTS)
    engine = settings(profile="vllm-0.33", max_num_seqs=256, max_num_batched_tokens=8192, watermark=watermark)
    requests = requests_of(np.zeros(_PROMPTS, np.int64), prompts, outputs, users=_CLIENTS)
    pool = paged(_POOL_TOKENS // 16, 16, engine)
    return serve(requests, pool, engine, max_model_len=8192, cost=_llama_cost())


def _histogram() -> Iterator[Check]:
    text = "histogram of a vLLM deployment: 19,801 requests, 7.4 % preempted, 95.3 % of them once, at most 4 times"
    source = Source(FAMILY, "histogram", text)
    rows = load_arrivals(TraceArrivals(process="trace", path="azure_conv", limit=4000), seed=0)
    assert rows.time_ns is not None
    engine = settings(profile="vllm-0.11", max_num_seqs=256, max_num_batched_tokens=8192)
    cost = StepCost(preset_device("910B3"), preset_model("qwen2.5-7b"), engine, page_tokens=16)
    requests = requests_of(rows.time_ns, rows.prompt_tokens, rows.output_tokens)
    run = serve(requests, paged(_TIGHT_BLOCKS, 16, engine), engine, max_model_len=16_384, cost=cost)
    times = np.array(run.ledger.preemptions)
    share = float((times > 0).mean())
    yield source.near(
        "share", "share of requests preempted (the pool was chosen for it)", expected=0.074, got=share, rel=0.25
    )
    once = float((times == 1).sum() / (times > 0).sum())
    yield source.near("once", "of those, share preempted once", expected=0.953, got=once, rel=0.05)
    yield source.between("most", "most preemptions of one request", low=2, high=5, got=int(times.max()))
    instants = Counter(event[0] for event in run.ledger.events if event[3])
    alone = sum(count == 1 for count in instants.values()) / len(instants)
    yield source.near("steps", "share of preempting steps that preempt one", expected=0.985, got=alone, within=0.015)


#: blocks of 16 with which about 8 % of the first 4,000 Azure conversations are preempted
_TIGHT_BLOCKS = 10_500


def _burst(blocks: int, seed: int) -> EngineRun:
    """50 requests, one instance's share of 200 at 2,000 a second, about 512 in and 256 out (a tenth of spread)."""
    rng, count = draws(95 + seed), 50
    prompts, outputs = (np.rint(rng.normal(mean, mean / 10, count)).astype(np.int64) for mean in (512, 256))
    engine = settings(profile="vllm-0.11", max_num_seqs=256, max_num_batched_tokens=2048)
    requests = requests_of(poisson(rng, 500.0, count), prompts, outputs)
    return serve(requests, paged(blocks, 16, engine), engine, cost=_llama_cost())


def _cliff() -> Iterator[Check]:
    source = Source(
        FAMILY, "cliff", "inference-sim issue 298: no preemptions with 5,000 to 2,200 blocks, many with 2,000"
    )
    rates = []
    for blocks in (5000, 3000, 2200, 2100, 2000):
        runs = [_burst(blocks, seed) for seed in range(4)]
        rates.append(sum(run.ledger.preemption_count for run in runs) / sum(run.ledger.arrived for run in runs))
    seen = " ".join(f"{rate:.2f}" for rate in rates)
    yield source.holds("none", "no preemptions with 5,000 and 3,000 blocks", rates[0] == rates[1] == 0, seen=seen)
    yield source.holds("some", "preemptions with 2,000 blocks", rates[-1] > 0, seen=seen)
    yield source.holds("monotone", "fewer blocks, more preemptions", non_increasing(rates[::-1]), seen=seen)


def _shared(prompts: Ints, outputs: Ints, shared: int, arrivals: Ints) -> Requests:
    count = len(prompts)
    prefix = Prefixes(
        offsets=offsets_of(np.ones(count, np.int64)),
        ids=np.zeros(count, np.int64),
        ends=np.full(count, shared, np.int64),
    )
    return requests_of(arrivals, prompts, outputs, prefix=prefix)


def _probes() -> Iterator[Check]:
    """The thread's two probes: prompts that begin with 512 shared tokens, and prompts without those; 20 seconds each.

    Its generator's usual lengths are normal, 512 +- 256 for prompts and outputs.
    """
    source = Source(FAMILY, "sharing", "inference-sim issue 1167: 258 preemptions with prefix_tokens 512, 437 with 0")
    counts = [0, 0]
    for draw in range(4):
        rng, count = draws(130 + draw), 600
        prompts, outputs = (np.maximum(2, np.rint(rng.normal(512, 256, count))).astype(np.int64) for _ in range(2))
        arrivals = poisson(rng, 30.0, count)
        engine = settings(profile="vllm-0.33", max_num_seqs=256, max_num_batched_tokens=2048)
        probes = (_shared(prompts + 512, outputs, 512, arrivals), requests_of(arrivals, prompts, outputs))
        for place, requests in enumerate(probes):
            pool = shared_pages(200, 16, engine)
            run = serve(requests, pool, engine, cost=step_cost(_PROBE_STEP_NS), horizon_steps=20 * 10**9 // STEP_NS)
            counts[place] += run.ledger.preemption_count
    yield source.holds(
        "probes", "fewer preemptions with the shared prefix than without it, four draws of 20 s", counts[0] < counts[1],
        seen=f"{counts[0]} against {counts[1]}",
    )  # fmt: skip


#: a step of the probes' engine, whose model and card the thread does not name
_PROBE_STEP_NS = 10_000_000


def _sharing() -> Iterator[Check]:
    yield from _probes()
    text = "inference-sim issue 1167: a shared prefix of 512 tokens, 200 blocks, 30 requests a second"
    source, count = Source(FAMILY, "sharing", text), 60
    requests = _shared(np.full(count, 768), np.full(count, 256), 512, poisson(draws(96), 30.0, count))
    for name, seats, what, note in (
        ("same-batch", 5, "fewer preemptions with prefix caching, five at a time", ""),
        ("open-batch", 64, "fewer preemptions with prefix caching, as many at a time as fit", _MORE_AT_ONCE),
    ):
        engine = settings(profile="vllm-0.33", max_num_seqs=seats, max_num_batched_tokens=2048)
        on, off = (
            serve(requests, shared_pages(200, 16, engine, caching=caching), engine, cost=_llama_cost())
            for caching in (True, False)
        )
        counts = on.ledger.preemption_count, off.ledger.preemption_count
        yield source.holds(name, what, counts[0] < counts[1], seen=f"{counts[0]} against {counts[1]}", note=note)
        times = f"{on.ended_ns / 1e9:.0f} against {off.ended_ns / 1e9:.0f} s"
        yield source.holds(f"{name}-time", "and the run is over earlier", on.ended_ns < off.ended_ns, seen=times)


_MORE_AT_ONCE = (
    "the title says so, its probes do not test it: they drop the prefix from the prompts (see `probes`, which holds). "
    "With the same prompts, more requests run at once when they share, so more of them grow into a full pool; the run "
    "takes half the time"
)


def _admission() -> Iterator[Check]:
    source = Source(
        FAMILY, "admission", "vllm pull request 37307: a fifth prompt of 100k in a pool that four of them fill"
    )
    runs = {}
    for name, whole in (("first chunk", False), ("whole prompt", True)):
        engine = settings(
            profile="vllm-0.11", max_num_seqs=16, max_num_batched_tokens=8192, whole_prompt_admission=whole
        )
        requests = at_once(np.full(6, 100_000), np.full(6, 2000))
        runs[name] = serve(
            requests, paged(444_444 // 16, 16, engine), engine, max_model_len=131_072, cost=_llama_cost()
        )
    chunk, whole_run = runs["first chunk"].ledger, runs["whole prompt"].ledger
    yield source.exact(
        "whole",
        "preemptions when the whole prompt must fit",
        expected=0,
        got=whole_run.preemption_count,
        grade="ordering",
    )
    what = "the first chunk alone lets it in, to be preempted again and again"
    yield source.holds("chunk", what, chunk.preemption_count > 2, seen=f"{chunk.preemption_count} preemptions")
    wasted = chunk.recomputed_tokens
    yield source.holds("waste", "tokens computed again", wasted > 50_000, seen=wasted)


def _standstill() -> Iterator[Check]:
    source = Source(FAMILY, "standstill", "inference-sim issue 297: simulations with too few blocks never ended")
    engine = settings(profile="vllm-0.33", max_num_batched_tokens=2048)
    run = serve(at_once(np.full(20, 512), np.full(20, 64)), paged(30, 16, engine), engine)
    refused = list(run.ledger.outcome).count(Outcome.too_large)
    yield source.exact(
        "refused", "requests of 512 tokens refused by 30 blocks", expected=20, got=refused, grade="ordering"
    )
    run = serve(at_once(np.full(20, 512), np.full(20, 64)), paged(40, 16, engine), engine)
    done = list(run.ledger.outcome).count(Outcome.completed)
    yield source.exact("one-by-one", "completed with 40 blocks, one at a time", expected=20, got=done, grade="ordering")


def _reserving() -> Iterator[Check]:
    text = "TensorRT-LLM issue 16827: GUARANTEED_NO_EVICT beats MAX_UTILIZATION when oversubscribed"
    source = Source(FAMILY, "reserving", text)
    speeds = {}
    for name, watermark in (("reserving", 0.15), ("greedy", 0.0)):
        run = _watermark_run(0, watermark)
        times = np.array(run.ledger.finished_ns) - np.array(run.ledger.first_token_ns)
        speeds[name] = float(np.percentile(times / np.array(run.ledger.output_tokens), 99)) / 1e6
    seen = f"{speeds['reserving']:.0f} < {speeds['greedy']:.0f} ms"
    yield source.holds(
        "tpot", "p99 time for each output: a reserve against none", speeds["reserving"] < speeds["greedy"], seen=seen
    )
