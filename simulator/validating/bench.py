"""Small worlds for checks: requests from arrays, pools in tokens, steps of a fixed time, lengths of given moments."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from simulator.allocators.base import Allocator
from simulator.allocators.contiguous import ContiguousAllocator
from simulator.allocators.paged import PagedAllocator, plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.sharing import RULES
from simulator.config import ContiguousConfig, EngineConfig
from simulator.cost import StepCost, StepTimes
from simulator.engine import Engine, EngineRun
from simulator.profiles import PROFILES
from simulator.rng import stream
from simulator.serving.replay import Replay
from simulator.traffic.requests import ClosedLoop, Prefixes, Requests
from simulator.units import NS_PER_S
from simulator.validating.parts import preset_device, preset_model, settings

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: bytes of a token in pools whose bytes do not matter
TOKEN_BYTES = 16
#: nanoseconds of a step whose time does not matter
STEP_NS = 1000
#: a token budget that never binds
NO_LIMIT = 1 << 20


def requests_of(
    arrival_ns: Ints,
    prompt_tokens: Ints,
    output_tokens: Ints,
    *,
    samples: int = 1,
    prefix: Prefixes | None = None,
    users: int = 0,
) -> Requests:
    """Requests from columns; ``users`` of a closed loop without thinking release them one by one."""
    count = len(prompt_tokens)
    closed = ClosedLoop(users=users, think_ns=np.zeros(count, np.int64)) if users else None
    return Requests(
        arrival_ns=arrival_ns.astype(np.int64),
        prompt_tokens=prompt_tokens.astype(np.int64),
        output_tokens=output_tokens.astype(np.int64),
        class_id=np.zeros(count, np.int16),
        class_names=("default",),
        samples=np.full(count, samples, np.int16),
        beam_width=np.zeros(count, np.int16),
        prefix=prefix,
        closed=closed,
    )


def at_once(prompt_tokens: Ints, output_tokens: Ints, *, samples: int = 1) -> Requests:
    """Requests that all come at time 0."""
    return requests_of(np.zeros(len(prompt_tokens), np.int64), prompt_tokens, output_tokens, samples=samples)


def poisson(rng: np.random.Generator, rate_per_s: float, count: int) -> Ints:
    """Arrival times in nanoseconds."""
    return np.cumsum(rng.exponential(NS_PER_S / rate_per_s, count)).astype(np.int64)


def draws(index: int, purpose: str = "output_tokens") -> np.random.Generator:
    """The generator of one check; each has an ``index`` of its own."""
    return stream(0, purpose, index=index)


@cache
def step_cost(step_ns: int) -> StepCost:
    """Every step takes this long."""
    engine = settings(step_time=step_ns / NS_PER_S)
    return StepCost(preset_device(), preset_model("llama-3.2-1b"), engine, page_tokens=128)


def paged(pages: int, page_tokens: int, engine: EngineConfig | None = None) -> PagedAllocator:
    """Pages without sharing, in the order of the engine's profile."""
    profile = PROFILES["generic" if engine is None else engine.profile]
    return PagedAllocator(
        plain_layout(page_tokens=page_tokens, bytes_per_token=TOKEN_BYTES),
        max_pages=pages,
        free_order=profile.free_order,
        null_page=profile.null_page,
        reverse_release=profile.reverse_release,
    )


def shared_pages(
    pages: int, page_tokens: int, engine: EngineConfig, *, caching: bool = True, hit_rate_window: int = 1000
) -> PagedCowAllocator:
    """Pages with reference counts, by the rules of the engine's profile."""
    return PagedCowAllocator(
        plain_layout(page_tokens=page_tokens, bytes_per_token=TOKEN_BYTES),
        max_pages=pages,
        rules=RULES[engine.profile],
        enable_prefix_caching=caching,
        hit_rate_window=hit_rate_window,
    )


def contiguous(tokens: int, max_model_len: int, **options: object) -> ContiguousAllocator:
    """Ranges in a pool of ``tokens``; ``options`` are those of a scenario's allocator."""
    return ContiguousAllocator(
        ContiguousConfig.model_validate({"kind": "contiguous", **options}),
        capacity_bytes=tokens * TOKEN_BYTES,
        bytes_per_token=TOKEN_BYTES,
        max_model_len=max_model_len,
    )


def serve(
    requests: Requests,
    allocator: Allocator,
    engine: EngineConfig,
    *,
    max_model_len: int = NO_LIMIT,
    horizon_steps: int | None = None,
    cost: StepTimes | None = None,
) -> EngineRun:
    """An engine's run in steps of ``STEP_NS``, or of ``cost``."""
    return Engine(
        requests,
        engine=engine,
        allocator=allocator,
        cost=cost or step_cost(STEP_NS),
        max_model_len=max_model_len,
        horizon_ns=None if horizon_steps is None else horizon_steps * STEP_NS,
    ).run()


def replay(
    requests: Requests, allocator: Allocator, *, step_ns: int = STEP_NS, max_model_len: int = NO_LIMIT
) -> EngineRun:
    """The demand of ``requests`` on ``allocator``: no queue, no batch limit, a token each ``step_ns``."""
    return Replay(requests, step_ns=step_ns, allocator=allocator, max_model_len=max_model_len).run()


def gamma_lengths(rng: np.random.Generator, mean: float, cv: float, count: int) -> Ints:
    """Whole lengths of at least one token with a gamma law of this mean and coefficient of variation."""
    return np.maximum(1, np.rint(rng.gamma(1 / cv**2, mean * cv**2, count))).astype(np.int64)


def lognormal_lengths(rng: np.random.Generator, mean: float, cv: float, count: int) -> Ints:
    """Whole lengths of at least one token with a lognormal law of this mean and coefficient of variation."""
    variance = math.log(1 + cv * cv)
    drawn = rng.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), count)
    return np.maximum(1, np.rint(drawn)).astype(np.int64)


def powers_of_two(values: Ints) -> Ints:
    """The smallest power of two not below each value."""
    return np.array([1 << (value - 1).bit_length() for value in values.tolist()], np.int64)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums of a run from ``from_ns`` to ``to_ns``: sequences times steps, steps, and byte-nanoseconds of memory."""

    from_ns: int
    to_ns: int
    sequence_steps: int
    steps: int
    used: int
    held: int
    tail: int

    @property
    def batch(self) -> float:
        """Mean sequences in a step."""
        return self.sequence_steps / self.steps

    def residence_ns(self, run: EngineRun) -> Ints:
        """Time that each request of ``run`` was running within these bounds."""
        started, finished = np.array(run.ledger.started_ns), np.array(run.ledger.finished_ns)
        begin = np.clip(np.where(started < 0, self.to_ns, started), self.from_ns, self.to_ns)
        end = np.clip(np.where(finished < 0, self.to_ns, finished), self.from_ns, self.to_ns)
        return np.asarray(end - begin, np.int64)


def after_warmup(run_until: Callable[[int], EngineRun], warm_steps: int, steps: int) -> tuple[EngineRun, Totals]:
    """A run of ``steps`` and its sums without the first ``warm_steps``: runs are repeatable, so sums subtract."""
    early, run = run_until(warm_steps), run_until(steps)
    first, last = early.recorder, run.recorder
    return run, Totals(
        from_ns=early.ended_ns,
        to_ns=run.ended_ns,
        sequence_steps=last.sequence_steps - first.sequence_steps,
        steps=last.steps - first.steps,
        used=last.used_byte_ns - first.used_byte_ns,
        held=last.allocated.total - first.allocated.total,
        tail=last.tail.total - first.tail.total,
    )
