"""What would have served a request that was refused memory: the same arrivals again, with one thing changed.

The change is another allocator of the scenario, a larger pool, or another page size in a pool of the same bytes.
A request counts as *served* when it completes without a single failed allocation of its own. Runs end as soon as
that is known. The search for a margin assumes that a larger pool does not serve worse, which queueing can
violate by a little: its answer is a pool that was tried and served, with a smaller one that was tried and did not.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from simulator.allocators.base import Allocator
from simulator.config import AllocatorConfig, ContiguousConfig
from simulator.scenario import Scenario
from simulator.serving.pool import build_allocator
from simulator.serving.pool_parts import PoolParts
from simulator.serving.sequence import Outcome
from simulator.serving.watching import Running
from simulator.simulation import run_one
from simulator.traffic.requests import Requests
from simulator.units import ceil_div

#: the margin found is at most this share of the pool above one that does not serve
_PRECISION = 256
#: pools more than so many times as large are not tried
_LARGEST_GROWTH = 16
_PAGE_FACTORS = ((1, 4), (1, 2), (2, 1), (4, 1))


@dataclass(frozen=True, slots=True)
class Trial:
    """How the request fared in one run. ``refused_s``: its first failed allocation, ``ended_s``: when it was over."""

    label: str
    served: bool
    outcome: str
    refused_s: float | None
    ended_s: float | None
    kv_capacity_bytes: int
    max_pages: int
    page_size: int | str | None


@dataclass(frozen=True, slots=True)
class Margin:
    """The smallest pool found that serves: what it has more than the pool of the run.

    ``not_enough_bytes`` is the largest pool tried that does not serve. ``safety_factor`` is what the pool stands for in
    ``max_pages = ceil(max_num_seqs * mean length * safety_factor / page_size)``. ``within_budget``: the device has it.
    """

    extra_bytes: int
    extra_pages: int
    kv_capacity_bytes: int
    max_pages: int
    safety_factor: float
    not_enough_bytes: int
    within_budget: bool


class Retry:
    """Runs one workload of ``scenario`` again and again, looking at the request ``request_id`` only."""

    def __init__(self, scenario: Scenario, requests: Requests, parts: PoolParts, request_id: int) -> None:
        self.scenario = scenario
        self.requests = requests
        self.parts = parts
        self.request_id = request_id
        self.runs = 0

    def allocators(self, but: str) -> Iterator[Trial]:
        """Every other allocator of the scenario, as it is configured there."""
        pairs = zip(self.scenario.labels, self.scenario.allocators, strict=True)
        for index, (label, config) in enumerate(pairs):
            if label != but:
                yield self._try(label, config, build_allocator(config, self.parts, key=f"allocators.{index}"))

    def page_sizes(self, label: str, config: AllocatorConfig, capacity_bytes: int) -> Iterator[Trial]:
        """Pages a quarter, half, twice, four times as large, in a pool of the same bytes."""
        if isinstance(config, ContiguousConfig):
            return
        for times, parts in _PAGE_FACTORS:
            page_size = _scaled(config.page_size, times, parts)
            if page_size is None:
                continue
            sized = config.model_copy(update={"page_size": page_size, "max_pages": 1, "safety_factor": None})
            page_bytes = build_allocator(sized, self.parts, key="").capacity_bytes
            pages = capacity_bytes // page_bytes
            if pages:
                yield self._try(label, *self._sized(sized, pages))

    def margin(self, label: str, config: AllocatorConfig, allocator: Allocator, missing_bytes: int) -> Margin | None:
        """How much larger the pool must be; ``None`` if no pool that was tried serves."""
        unit_bytes = allocator.capacity_bytes // allocator.max_pages if allocator.max_pages else 1
        units = allocator.capacity_bytes // unit_bytes
        finest = max(1, units // _PRECISION)
        failing, extra = 0, max(1, ceil_div(missing_bytes, unit_bytes))
        while not self._serves(label, config, units + extra):
            if extra > _LARGEST_GROWTH * units:
                return None
            failing, extra = extra, 2 * max(extra, finest)
        while extra - failing > finest:
            middle = (failing + extra) // 2
            if self._serves(label, config, units + middle):
                extra = middle
            else:
                failing = middle
        return self._margin(allocator, unit_bytes, units + extra, units + failing)

    # ---- how

    def _margin(self, allocator: Allocator, unit_bytes: int, units: int, failing: int) -> Margin:
        parts, capacity = self.parts, units * unit_bytes
        planned_bytes = parts.engine.max_num_seqs * parts.mean_tokens * allocator.bytes_per_token
        return Margin(
            extra_bytes=capacity - allocator.capacity_bytes,
            extra_pages=units - allocator.max_pages if allocator.max_pages else 0,
            kv_capacity_bytes=capacity,
            max_pages=units if allocator.max_pages else 0,
            safety_factor=capacity / planned_bytes,
            not_enough_bytes=failing * unit_bytes,
            within_budget=capacity <= self.scenario.budget.kv_bytes_available,
        )

    def _serves(self, label: str, config: AllocatorConfig, units: int) -> bool:
        return self._try(label, *self._sized(config, units), stop_at_refusal=True).served

    def _sized(self, config: AllocatorConfig, units: int) -> tuple[AllocatorConfig, Allocator]:
        """``config`` with a pool of ``units`` pages (bytes where there are none), however little the device has."""
        contiguous = isinstance(config, ContiguousConfig)
        size = {"kv_capacity_bytes": units, "max_pages": None} if contiguous else {"max_pages": units}
        sized = config.model_copy(update={"kv_capacity_bytes": None, "safety_factor": None, **size})
        return sized, build_allocator(sized, replace(self.parts, kv_bytes=1 << 60), key="")

    def _try(
        self, label: str, config: AllocatorConfig, allocator: Allocator, *, stop_at_refusal: bool = False
    ) -> Trial:
        request_id = self.request_id
        self.runs += 1

        def watch(running: Running) -> bool:
            ledger = running.ledger
            over = ledger.outcome[request_id] != Outcome.unfinished
            return not over and not (stop_at_refusal and ledger.cause[request_id] >= 0)

        # Planted mistakes stay planted: the only thing that changes is the memory.
        result = run_one(self.scenario, self.requests, allocator, label=label, watch=watch)
        events = result.oom_events
        refused = events["time_s"][events["request_id"] == request_id]
        table = result.requests
        rows = (table["request_id"] == request_id).nonzero()[0]
        outcome = str(table["outcome"][rows[0]]) if len(rows) else Outcome.unfinished.name
        ended_s = float(table["finish_s"][rows[0]]) if len(rows) else float("nan")
        return Trial(
            label=label,
            # Of very many refusals not each has a row.
            served=outcome == Outcome.completed.name and not str(table["oom_cause"][rows[0]]),
            outcome=outcome,
            refused_s=float(refused[0]) if len(refused) else None,
            ended_s=None if ended_s != ended_s else ended_s,
            kv_capacity_bytes=allocator.capacity_bytes,
            max_pages=allocator.max_pages,
            page_size=None if isinstance(config, ContiguousConfig) else config.page_size,
        )


def _scaled(page_size: int | str, times: int, parts: int) -> int | str | None:
    """A page size times ``times / parts``, in its own unit; ``None`` where that is no whole number."""
    size = (int(page_size[:-1]) if isinstance(page_size, str) else page_size) * times
    if size % parts or size < parts:
        return None
    return f"{size // parts}B" if isinstance(page_size, str) else size // parts


def as_dict(found: Trial | Margin) -> dict[str, Any]:
    """Plain data for JSON."""
    return asdict(found)
