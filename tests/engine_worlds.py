"""Small worlds for engine tests: requests by hand or by hypothesis, plain step costs, every allocator."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from simulator.allocators.base import Allocator
from simulator.allocators.contiguous import ContiguousAllocator
from simulator.allocators.host_pool import HostPool
from simulator.allocators.paged import PagedAllocator, PageGroup, PageLayout, plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.paged_defrag import PagedDefragAllocator
from simulator.allocators.sharing import RULES
from simulator.config import ContiguousConfig, DefragTrigger, EngineConfig, RouterConfig
from simulator.cost import StepTimes
from simulator.engine import Engine, EngineRun
from simulator.fleet import Fleet, FleetRun
from simulator.kernels.step_load import Lengths, StepLoad
from simulator.serving.replay import Replay
from simulator.serving.router import router_of
from simulator.traffic.requests import ClosedLoop, Prefixes, Requests

BYTES_PER_TOKEN = 16


def told(lengths: Lengths | None) -> Any:
    """A number that depends on every sequence and on their order, an entry a step."""
    if lengths is None:
        return np.zeros(1, np.int64)
    rows = lengths()
    return rows @ np.arange(1, rows.shape[1] + 1)


class PlainCost:
    """Step times that depend on everything a real cost model looks at, in integers a reader can check."""

    fixed_ns: int | None = None

    def step_ns(self, load: StepLoad) -> int:
        return (
            1000
            + 10 * load.decode_sequences
            + load.decode_context_tokens
            + 3 * load.decode_pages
            + load.decode_windowed_tokens
            + int(told(load.decode_lengths)[0])
            + 20 * load.prefill_tokens
            + load.prefill_pairs
            + self.memory_ns(load.copied_bytes, load.swapped_bytes, load.allocator_cycles)
        )

    def decode_ns(
        self, sequences: int, context_tokens: int, pages: int, windowed_tokens: int = 0, lengths: Lengths | None = None
    ) -> int:
        plain = 1000 + 10 * sequences + context_tokens + 3 * pages + windowed_tokens
        return plain + int(told(lengths)[0])

    def decode_ns_array(
        self, sequences: int, context_tokens: Any, pages: Any, windowed_tokens: Any, lengths: Lengths | None
    ) -> Any:
        return 1000 + 10 * sequences + context_tokens + 3 * pages + windowed_tokens + told(lengths)

    def memory_ns(self, copied_bytes: int, swapped_bytes: int, allocator_cycles: int) -> int:
        return copied_bytes // 7 + swapped_bytes // 3 + allocator_cycles


class FixedCost(PlainCost):
    """Every step takes ``step`` nanoseconds."""

    def __init__(self, step: int) -> None:
        self.step = self.fixed_ns = step

    def step_ns(self, load: StepLoad) -> int:
        return self.step

    def decode_ns(
        self, sequences: int, context_tokens: int, pages: int, windowed_tokens: int = 0, lengths: Lengths | None = None
    ) -> int:
        return self.step

    def decode_ns_array(
        self, sequences: int, context_tokens: Any, pages: Any, windowed_tokens: Any, lengths: Lengths | None
    ) -> Any:
        return np.full(len(context_tokens), self.step)

    def memory_ns(self, copied_bytes: int, swapped_bytes: int, allocator_cycles: int) -> int:
        return 0


def requests_of(
    rows: list[tuple[int, int, int]],
    *,
    samples: int = 1,
    beams: int = 0,
    prefixes: list[tuple[int, int]] | None = None,
    closed: ClosedLoop | None = None,
    priorities: list[int] | None = None,
) -> Requests:
    """Requests from ``(arrival_ns, prompt, output)`` rows; ``prefixes``: each an ``(id, tokens)`` or ``(-1, 0)``;
    ``priorities``: one each."""
    arrival, prompt, output = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    count = len(rows)
    prefix = None
    if prefixes is not None:
        shared = np.array([group >= 0 for group, _ in prefixes])
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(shared, out=offsets[1:])
        ids = np.array([group for group, _ in prefixes if group >= 0], np.int64)
        ends = np.array([min(t, int(p)) for (g, t), p in zip(prefixes, prompt, strict=True) if g >= 0], np.int64)
        prefix = Prefixes(offsets=offsets, ids=ids, ends=ends)
    return Requests(
        arrival_ns=arrival if closed is None else np.zeros(count, np.int64),
        prompt_tokens=prompt,
        output_tokens=output,
        class_id=np.zeros(count, np.int16) if priorities is None else np.arange(count, dtype=np.int16),
        class_names=("default",) if priorities is None else tuple(f"class {i}" for i in range(count)),
        class_priority=tuple(priorities or ()),
        samples=np.full(count, samples, np.int16),
        beam_width=np.full(count, beams, np.int16),
        prefix=prefix,
        closed=closed,
    )


@dataclass
class World:
    """Everything that decides a run."""

    requests: Requests
    engine: EngineConfig
    kind: str
    pool_pages: int
    page_tokens: int = 4
    max_model_len: int = 64
    horizon_ns: int | None = None
    window_tokens: int | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def allocator(self) -> Allocator:
        layout = plain_layout(page_tokens=self.page_tokens, bytes_per_token=BYTES_PER_TOKEN)
        if self.window_tokens is not None:
            half = BYTES_PER_TOKEN // 2
            groups = (PageGroup(half), PageGroup(half, window_tokens=self.window_tokens))
            layout = PageLayout(self.page_tokens, self.page_tokens * half, groups)
        if self.kind == "contiguous":
            return ContiguousAllocator(
                ContiguousConfig(kind="contiguous", **self.options),
                capacity_bytes=self.pool_pages * self.page_tokens * BYTES_PER_TOKEN,
                bytes_per_token=BYTES_PER_TOKEN,
                max_model_len=self.max_model_len,
            )
        chunk = 0 if self.engine.scheduler == "static" else self.engine.max_num_batched_tokens
        if self.kind == "paged":
            return PagedAllocator(layout, max_pages=self.pool_pages, chunk_tokens=chunk, **self.options)
        if self.kind == "paged_cow":
            return PagedCowAllocator(
                layout,
                max_pages=self.pool_pages,
                rules=RULES[self.engine.profile],
                chunk_tokens=chunk,
                host=HostPool(self.pool_pages // 2),
                **self.options,
            )
        return PagedDefragAllocator(
            layout,
            max_pages=self.pool_pages,
            run_length=2,
            trigger=DefragTrigger(on_failure=True),
            chunk_tokens=chunk,
            **self.options,
        )

    def run(
        self,
        *,
        leap: bool = True,
        verify: bool = True,
        cost: StepTimes | None = None,
        watch: Callable[[Engine], bool] | None = None,
    ) -> tuple[EngineRun, Engine]:
        engine = Engine(
            self.requests,
            engine=self.engine,
            allocator=self.allocator(),
            cost=cost or PlainCost(),
            max_model_len=self.max_model_len,
            window_tokens=self.window_tokens,
            horizon_ns=self.horizon_ns,
            leap=leap,
            verify=verify,
            watch=watch,
        )
        return engine.run(), engine

    def fleet(
        self,
        router: RouterConfig,
        instances: int,
        *,
        leap: bool = True,
        verify: bool = True,
        cost: StepTimes | None = None,
    ) -> tuple[FleetRun, Fleet]:
        """The same world served by several instances, each with a pool of its own."""

        def make(place: int, supply: Fleet) -> Engine:
            return Engine(
                self.requests,
                engine=self.engine,
                allocator=self.allocator(),
                cost=cost or PlainCost(),
                max_model_len=self.max_model_len,
                window_tokens=self.window_tokens,
                horizon_ns=self.horizon_ns,
                leap=leap,
                verify=verify,
                supply=supply,
                place=place,
            )

        fleet = Fleet(
            self.requests,
            router_of(router, self.requests, instances),
            make,
            instances=instances,
            timeouts=self.engine.queue_timeout is not None,
        )
        return fleet.run(), fleet


def replay_of(world: World, step_ns: int, *, verify: bool = True) -> tuple[EngineRun, Replay]:
    """The demand process of ``world``'s requests on its allocator, a token each ``step_ns``."""
    replay = Replay(
        world.requests,
        step_ns=step_ns,
        allocator=world.allocator(),
        max_model_len=world.max_model_len,
        horizon_ns=world.horizon_ns,
        verify=verify,
    )
    return replay.run(), replay


@st.composite
def worlds(draw: st.DrawFn, kinds: tuple[str, ...] = ("contiguous", "paged", "paged_cow", "paged_defrag")) -> World:
    """Random small worlds, memory tight enough that things go wrong in most of them."""
    kind = draw(st.sampled_from(kinds))
    page_tokens = draw(st.sampled_from([1, 2, 4, 8]))
    max_model_len = draw(st.sampled_from([24, 64]))
    count = draw(st.integers(1, 14))
    gaps = st.integers(0, 60_000)
    now, rows, prefixes = 0, [], []
    for _ in range(count):
        now += draw(gaps)
        rows.append((now, draw(st.integers(1, 40)), draw(st.integers(1, 24))))
        prefixes.append((draw(st.integers(-1, 2)), draw(st.integers(1, 20))))
    on_oom = draw(st.sampled_from(["fail", "wait", "preempt_recompute", "preempt_swap"]))
    if on_oom == "preempt_swap" and kind != "paged_cow":
        on_oom = "preempt_recompute"
    closed = None
    if draw(st.integers(0, 3)) == 0:
        think = np.array([draw(st.integers(0, 30_000)) for _ in rows], np.int64)
        closed = ClosedLoop(users=draw(st.integers(1, 4)), think_ns=think)
    engine = EngineConfig(
        profile=draw(st.sampled_from(["generic", "vllm-0.33", "vllm-0.11", "vllm-0.6", "sglang", "cann-recipes"])),
        scheduler=draw(st.sampled_from(["continuous", "continuous", "prefill_first", "static"])),
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.integers(6, 80)),
        enable_chunked_prefill=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 5])),
        adaptive_long_prefill_threshold=draw(st.booleans()),
        scheduling_policy=draw(st.sampled_from(["fcfs", "fcfs", "priority"])),
        on_oom=on_oom,
        queue_timeout=draw(st.sampled_from([None, None, 5e-5, 2e-4])),
        num_lookahead_tokens=draw(st.sampled_from([0, 0, 2])),
        watermark=draw(st.sampled_from([None, 0.1])),
    )
    options: dict[str, Any] = {}
    if kind == "contiguous":
        options["reserve"] = draw(st.sampled_from(["max_model_len", "pow2", "exact", "grow"]))
        options["fit"] = draw(st.sampled_from(["first", "best", "next", "worst", "buddy"]))
        if options["fit"] == "buddy" and options["reserve"] == "grow":
            options["fit"] = "first"
        options["grow_tokens"] = draw(st.sampled_from([1, 4, 16]))
    elif kind == "paged":
        options["free_order"] = draw(st.sampled_from(["lifo", "fifo", "address_ordered", "first_fit_scan"]))
        options["null_page"] = draw(st.booleans())
        options["reverse_release"] = draw(st.booleans())
    elif kind == "paged_cow" and RULES[engine.profile].free_order != "fifo":
        options["eviction_policy"] = draw(st.sampled_from(["lru", "lru", "lfu", "fifo", "mru", "filo", "priority"]))
    window = draw(st.sampled_from([None, 5, 12])) if kind in ("paged", "paged_cow") else None
    samples = draw(st.sampled_from([1, 1, 1, 3])) if window is None else 1
    beams = 0
    if kind == "paged_cow" and on_oom in ("fail", "preempt_swap") and engine.scheduler != "static":
        beams = draw(st.sampled_from([0, 0, 2, 4]))
    if window is not None or samples > 1:
        beams = 0
    prefixes = prefixes if draw(st.booleans()) else None
    priorities = draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count)) if draw(st.booleans()) else None
    return World(
        requests=requests_of(
            rows, samples=samples, beams=beams, prefixes=prefixes, closed=closed, priorities=priorities
        ),
        engine=engine,
        kind=kind,
        pool_pages=max(2, draw(st.integers(10, 120)) // page_tokens),
        page_tokens=page_tokens,
        max_model_len=max_model_len,
        horizon_ns=draw(st.sampled_from([None, None, 150_000])),
        window_tokens=window,
        options=options,
    )
