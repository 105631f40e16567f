"""Public reports about running engines: swap that overflows, policies that evict or do not, seats that preempt."""

from collections.abc import Iterator

import numpy as np

from simulator.allocators.host_pool import HostPool
from simulator.allocators.paged import plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.sharing import RULES
from simulator.config import EngineConfig
from simulator.cost import StepCost
from simulator.engine import Engine, EngineRun
from simulator.serving.sequence import Outcome
from simulator.traffic.requests import Requests
from simulator.validating.bench import (
    NO_LIMIT,
    STEP_NS,
    TOKEN_BYTES,
    at_once,
    draws,
    gamma_lengths,
    paged,
    requests_of,
    serve,
    step_cost,
)
from simulator.validating.check import Check, Source
from simulator.validating.parts import preset_device, preset_model, settings

FAMILY = "pressure"


def checks() -> Iterator[Check]:
    """One report after the other."""
    yield from _too_long()
    yield from _swap_order()
    yield from _swap_space()
    yield from _guaranteed()
    yield from _seats()
    yield from _crowded()


def _too_long() -> Iterator[Check]:
    source = Source(FAMILY, "too-long", "FreeToken thread 111: 8,209 slots, prompts of 7,100 pass, longer ones hang")
    engine = settings(profile="generic", max_num_batched_tokens=20_000)
    run = serve(at_once(np.array([7100, 9000, 7100]), np.full(3, 50)), paged(8209, 1, engine), engine)
    got = " ".join(Outcome(outcome).name for outcome in run.ledger.outcome)
    what = "outcomes of prompts of 7,100, 9,000 and 7,100 tokens"
    yield source.exact("slots", what, expected="completed too_large completed", got=got, grade="ordering")
    source = Source(FAMILY, "too-long", "vllm issues 546 and 1607: usage reaches 100 % and the server stops")
    run = serve(at_once(np.array([3000, 100]), np.array([64, 64])), paged(128, 16, engine), engine)
    got = " ".join(Outcome(outcome).name for outcome in run.ledger.outcome)
    what = "a prompt above the pool is refused, the next one is served"
    yield source.exact("served", what, expected="too_large completed", got=got, grade="ordering")


def _swapping(
    requests: Requests, engine: EngineConfig, *, blocks: int, host_blocks: int, listen: "_SwapOrder | None" = None
) -> EngineRun:
    """A run of blocks of 16 with reference counts, no prefix cache, and host memory to swap to."""
    pool = PagedCowAllocator(
        plain_layout(page_tokens=16, bytes_per_token=TOKEN_BYTES),
        max_pages=blocks,
        rules=RULES[engine.profile],
        enable_prefix_caching=False,
        host=HostPool(host_blocks),
    )
    made = Engine(requests, engine=engine, allocator=pool, cost=step_cost(STEP_NS), max_model_len=NO_LIMIT)
    if listen is not None:
        listen.attach(made)
    return made.run()


class _SwapOrder:
    """Counts requests that were admitted while others were swapped out."""

    def __init__(self) -> None:
        self.swapped: set[int] = set()
        self.overtaken = self.swaps = 0

    def attach(self, engine: Engine) -> None:
        self._ledger, self._started = engine.ledger, 0
        engine.ledger.on_move = self._moved

    def _moved(self, kind: str, request: int) -> None:
        started = sum(begun >= 0 for begun in self._ledger.started_ns)
        if self.swapped:
            self.overtaken += started - self._started
        self._started = started
        if kind == "swapped_out":
            self.swapped.add(request)
            self.swaps += 1
        elif kind == "swapped_in":
            self.swapped.discard(request)


def _swap_order() -> Iterator[Check]:
    text = "vllm issue 5578: chunked prefill admitted prompts while groups of 8 samples were swapped out"
    source = Source(FAMILY, "swap-order", text)
    rng, count = draws(120), 200
    requests = at_once(rng.integers(20, 200, count), rng.integers(50, 300, count), samples=8)
    for scheduler in ("prefill_first", "continuous"):
        keys = {"profile": "vllm-0.6", "on_oom": "preempt_swap", "max_num_seqs": 256, "max_num_batched_tokens": 2048}
        order = _SwapOrder()
        engine = settings(scheduler=scheduler, **keys)
        _swapping(requests, engine, blocks=1500, host_blocks=20_000, listen=order)
        yield source.holds(f"{scheduler}-swaps", f"groups are swapped out ({scheduler})", order.swaps > 0,
                           seen=order.swaps)  # fmt: skip
        what = f"requests admitted while a group was swapped out ({scheduler})"
        yield source.exact(scheduler, what, expected=0, got=order.overtaken, grade="ordering")


def _swap_space() -> Iterator[Check]:
    text = "vllm issues 787 and 588, rllm 62: 7B, n = 50, 600 outputs, aborted for lack of swap space (4 GiB)"
    source = Source(FAMILY, "swap-space", text)
    engine = settings(profile="vllm-0.6", scheduler="prefill_first", on_oom="preempt_swap")
    group = at_once(np.array([100]), np.array([600]), samples=50)
    alone = _swapping(group, engine, blocks=4000, host_blocks=512)
    blocks = alone.recorder.allocated.peak // (16 * TOKEN_BYTES)
    # 50 x 600 / 16 = 1,875; each sample has a block that is not full, and the prompt is held once
    yield source.between("group", "blocks of one group of 50", low=1875, high=1875 + 7 + 50, got=blocks, grade="exact")
    pair = at_once(np.full(2, 100), np.full(2, 600), samples=50)
    for host, name, expected in ((512, "4 GiB", 1), (7168, "56 GiB", 2)):
        run = _swapping(pair, engine, blocks=2400, host_blocks=host)
        done = list(run.ledger.outcome).count(Outcome.completed)
        what = f"of two such groups in 2,400 blocks, completed with {name} of swap space"
        yield source.exact(f"{host}", what, expected=expected, got=done, grade="ordering")
        refused = run.ledger.swap_refusals
        yield source.exact(f"{host}-refused", f"swaps refused with {name}", expected=2 - expected, got=refused,
                           grade="ordering")  # fmt: skip


def _guaranteed() -> Iterator[Check]:
    text = (
        "TensorRT-LLM issue 16827 (Llama-3.3-70B, 128 requests of 16,384 + 512, 32 at a time): MAX_UTILIZATION loses "
        "40.6 % of the output, p99 TPOT is 9.1 times that of GUARANTEED_NO_EVICT"
    )
    source = Source(FAMILY, "no-evict", text)
    found = {}
    for name, reserved in (("no-evict", 512), ("greedy", 0)):
        engine = settings(
            profile="vllm-0.11", tensor_parallel_size=4, max_num_seqs=64, max_num_batched_tokens=8192,
            reserved_tokens_per_request=reserved,
        )  # fmt: skip
        cost = StepCost(preset_device("910B3"), preset_model("llama-3.1-70b"), engine, page_tokens=64)
        requests = requests_of(np.zeros(128, np.int64), np.full(128, 16_384), np.full(128, 512), users=32)
        run = serve(requests, paged(20 * 264 + 60, 64, engine), engine, max_model_len=32_768, cost=cost)
        times = np.array(run.ledger.finished_ns) - np.array(run.ledger.first_token_ns)
        speed = run.recorder.output_tokens / run.ended_ns * 1e9
        found[name] = (run.ledger.preemption_count, speed, float(np.percentile(times, 99)) / 511e6)
    kept, greedy = found["no-evict"], found["greedy"]
    yield source.exact("evicted", "preemptions with outputs reserved", expected=0, got=kept[0], grade="ordering")
    yield source.holds("speed", "more output tokens a second with outputs reserved", kept[1] > greedy[1],
                       seen=f"{kept[1]:.1f} > {greedy[1]:.1f}")  # fmt: skip
    yield source.holds("tpot", "and a lower p99 time for each output", kept[2] < greedy[2],
                       seen=f"{kept[2]:.0f} < {greedy[2]:.0f} ms")  # fmt: skip


def _seats() -> Iterator[Check]:
    text = "GLM-5.3-Flash-EXL3 thread 122: 356,667 tokens, 90,000 a request: 165 preemptions with 4 seats, 59 with 3"
    source = Source(FAMILY, "seats", text)
    counts = []
    for seats in (4, 3):
        rng, count = draws(121), 40
        requests = at_once(rng.integers(80_000, 90_000, count), rng.integers(2000, 12_000, count))
        engine = settings(profile="vllm-0.11", max_num_seqs=seats, max_num_batched_tokens=8192)
        run = serve(requests, paged(356_667 // 64, 64, engine), engine)
        counts.append(run.ledger.preemption_count)
    yield source.holds("fewer", "fewer preemptions with 3 seats than with 4", counts[1] < counts[0],
                       seen=f"{counts[1]} against {counts[0]}")  # fmt: skip


def _crowded() -> Iterator[Check]:
    text = "Tandemn-Labs/tandemn-system thread 11 (Qwen2.5-7B, A10G, 77,088 tokens: 72 run, 184 wait, preemptions)"
    source = Source(FAMILY, "crowded", text)
    rng, count, outputs = draws(122), 1000, 240
    # 1,070 live tokens on average at 72 running: prompts, and half of the outputs
    prompts = gamma_lengths(rng, 1070 - outputs / 2, 0.5, count)
    engine = settings(profile="vllm-0.11", max_num_seqs=256, max_num_batched_tokens=8192)
    cost = StepCost(preset_device("910B3"), preset_model("qwen2.5-7b"), engine, page_tokens=16)
    requests = requests_of(np.zeros(count, np.int64), prompts, np.full(count, outputs), users=256)
    run = serve(requests, paged(4818, 16, engine), engine, cost=cost)
    mean = run.recorder.sequence_steps / run.recorder.steps
    yield source.near("running", "mean running of 256 (lengths were chosen for it)", expected=72, got=mean, rel=0.15)
    yield source.holds("preempted", "and requests are preempted", run.ledger.preemption_count > 0,
                       seen=run.ledger.preemption_count)  # fmt: skip
