"""A scenario, simulated: build the parts, run the engine once an allocator, check the laws, collect the results.

Every allocator meets the same requests. The result of one allocator does not depend on which others run.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from simulator.allocators.base import Allocator
from simulator.allocators.paged_defrag import PagedDefragAllocator
from simulator.cost import StepCost
from simulator.engine import Engine, EngineRun
from simulator.errors import InputError, Problem
from simulator.metrics import RunResult, summarise
from simulator.scenario import Scenario
from simulator.serving.batch import TILE_TOKENS
from simulator.serving.compaction_worth import compaction_worth
from simulator.serving.ledger import Ledger
from simulator.serving.observation import Observation, observe_allocator
from simulator.serving.pool import UNLIMITED_PAGES, PoolParts, build_allocator
from simulator.serving.replay import Replay
from simulator.traffic.requests import Requests
from simulator.units import format_bytes, to_ns
from simulator.version import version

#: called with the label of what runs, how much of how much is done, and the OOM rate so far (``None``: not known)
Progress = Callable[[str, int, int, float | None], None]
#: scheduling points between two looks at progress and interruption
_WATCH_EVERY = 256


class Running(Protocol):
    """A simulation under way, as the one who watches it sees it."""

    @property
    def ledger(self) -> Ledger: ...

    @property
    def requests(self) -> Requests: ...


Watch = Callable[[Running], bool]
#: makes, for a pool and the requests it will meet, what is called with the run at every scheduling point
Observe = Callable[[Allocator, Requests], Callable[[Running], None]]


def together(observers: Sequence[Observe]) -> Observe | None:
    """Several observers as one; ``None`` for none."""
    if len(observers) < 2:
        return observers[0] if observers else None

    def observe(allocator: Allocator, requests: Requests) -> Callable[[Running], None]:
        looks = [make(allocator, requests) for make in observers]

        def look(running: Running) -> None:
            for each in looks:
                each(running)

        return look

    return observe


@dataclass(frozen=True, slots=True)
class Result:
    """Everything a ``run`` has found; ``runs`` has one entry an allocator (and replication)."""

    scenario: Scenario
    seed: int
    runs: tuple[RunResult, ...]

    def to_json(self) -> dict[str, Any]:
        """The document of ``simulate run --format json``."""
        return {
            "schema_version": 1,
            "scenario": self.scenario.resolved(),
            "seed": self.seed,
            "version": version(),
            "runs": [run.summary for run in self.runs],
        }


def simulate(
    scenario: Scenario,
    *,
    seed: int | None = None,
    allocators: tuple[str, ...] | None = None,
    replications: int = 1,
    verify: bool = False,
    leap: bool = True,
    progress: Progress | None = None,
    interrupted: Callable[[], bool] | None = None,
    observe: Observe | None = None,
) -> Result:
    """Run ``scenario`` under each of its allocators (or those labelled in ``allocators``).

    ``interrupted`` is asked now and then; once it says yes the run ends at a scheduling point, and what was found so
    far is returned. ``observe`` lets a recorder look on; it changes nothing.

    Raises ``InputError`` when the workload or a pool cannot be had.
    """
    seed = scenario.seed if seed is None else seed
    runs: list[RunResult] = []
    for replication in range(replications):
        requests = scenario.requests(seed=seed, replication=replication)
        parts = pool_parts(scenario, requests)
        for index, (label, config) in enumerate(zip(scenario.labels, scenario.allocators, strict=True)):
            if allocators is not None and label not in allocators:
                continue
            allocator = build_allocator(config, parts, key=f"allocators.{index}")
            watch = _watcher(label, progress, interrupted, observe and observe(allocator, requests))
            result = run_one(scenario, requests, allocator, label=label, verify=verify, leap=leap, watch=watch)
            if replications > 1:
                result.summary["replication"] = replication
            runs.append(result)
            if result.summary["ended_because"] == "interrupted":
                return Result(scenario, seed, tuple(runs))
    return Result(scenario, seed, tuple(runs))


def pool_parts(scenario: Scenario, requests: Requests) -> PoolParts:
    """What the pools of ``scenario`` are built from. Raises ``InputError`` when nothing is left for KV."""
    budget = scenario.budget
    if budget.kv_capacity_bytes <= 0:
        missing = format_bytes(budget.overdraft_bytes or budget.kv_bytes_per_token_per_device)
        raise InputError(
            [Problem(key="model", message=f"no memory is left for the KV pool: {missing} short on a device")]
        )
    mean_tokens = float((requests.prompt_tokens + requests.output_tokens).mean()) if len(requests) else 0.0
    return PoolParts(scenario.loaded_model, scenario.engine, budget.kv_capacity_bytes, mean_tokens)


def run_one(
    scenario: Scenario,
    requests: Requests,
    allocator: Allocator,
    *,
    label: str,
    verify: bool = False,
    leap: bool = True,
    watch: Watch | None = None,
) -> RunResult:
    """One allocator over one set of requests."""
    observation = observe_allocator(allocator, scenario.faults, verify=verify)
    started = time.perf_counter()
    if scenario.engine.scheduler == "replay":
        run = _replay(scenario, requests, allocator, verify=verify, watch=watch)
    else:
        run = _serve(scenario, requests, observation, leap=leap, watch=watch)
    wall_s = time.perf_counter() - started
    warmup = scenario.workload.warmup
    result = summarise(
        run,
        requests,
        allocator,
        label=label,
        page_size=allocator.tile_tokens if allocator.max_pages else 0,
        warmup_s=0.0 if warmup == "auto" else warmup,
        wall_s=wall_s,
    )
    if isinstance(allocator, PagedDefragAllocator) and scenario.engine.scheduler != "replay":
        result.summary["kv"]["compaction"] = _compaction(scenario, run, allocator, result)
    if observation.faulty:
        result.summary["faults"] = observation.findings(run.detail)
    return result


def _serve(
    scenario: Scenario, requests: Requests, observation: Observation, *, leap: bool, watch: Watch | None
) -> EngineRun:
    model, settings, allocator = scenario.loaded_model, scenario.engine, observation.allocator
    windows = [group.window for group in model.groups if group.window is not None]
    horizon = scenario.workload.horizon
    costs = _step_costs(scenario, allocator.tile_tokens if allocator.max_pages else TILE_TOKENS)
    engine = Engine(
        requests,
        engine=settings,
        allocator=allocator,
        cost=costs(1.0),
        cost_for_runs=None if allocator.mean_run_pages is None else costs,
        max_model_len=scenario.budget.max_model_len,
        window_tokens=max(windows) if windows else None,
        horizon_ns=None if horizon is None else to_ns(horizon),
        leap=leap,
        leaky=observation.faulty,
        watch=watch,
    )
    try:
        run = engine.run()
        observation.look_once_more(engine.scheduler.live_holdings())
        return run
    except AssertionError as error:
        if not observation.faulty:
            raise
        # A planted mistake was noticed where the engine cannot go on.
        return engine.leave("interrupted", str(error))


def _compaction(
    scenario: Scenario, run: EngineRun, allocator: PagedDefragAllocator, result: RunResult
) -> dict[str, Any]:
    latency = result.summary["latency"]
    return compaction_worth(
        run,
        allocator,
        _step_costs(scenario, allocator.tile_tokens),
        copy_bandwidth=scenario.loaded_device.hbm_sustained_bandwidth,
        lifetime_s=(latency["e2e_s"]["mean"] or 0.0) - (latency["queue_s"]["mean"] or 0.0),
    )


def _step_costs(scenario: Scenario, page_tokens: int) -> Callable[[float], StepCost]:
    """Step costs by the mean number of adjacent pages that one transfer reads, in quarters of a page."""
    known: dict[int, StepCost] = {}

    def costs(run_pages: float) -> StepCost:
        quarters = max(4, round(4 * run_pages))
        if quarters not in known:
            known[quarters] = StepCost(
                scenario.loaded_device,
                scenario.loaded_model,
                scenario.engine,
                page_tokens=page_tokens,
                run_pages=quarters / 4,
            )
        return known[quarters]

    return costs


def _replay(
    scenario: Scenario, requests: Requests, allocator: Allocator, *, verify: bool, watch: Watch | None
) -> EngineRun:
    assert scenario.engine.step_time is not None, "a replay without a step time passed validation"
    if verify and allocator.max_pages >= UNLIMITED_PAGES:
        message = "every page of a pool is looked at to verify it: give a number in place of 'unlimited'"
        raise InputError([Problem(key="allocators", message=message)])
    horizon = scenario.workload.horizon
    return Replay(
        requests,
        step_ns=to_ns(scenario.engine.step_time),
        allocator=allocator,
        max_model_len=scenario.budget.max_model_len,
        horizon_ns=None if horizon is None else to_ns(horizon),
        verify=verify,
        watch=watch,
    ).run()


def _watcher(
    label: str,
    progress: Progress | None,
    interrupted: Callable[[], bool] | None,
    observer: Callable[[Running], None] | None,
) -> Watch | None:
    """What the engine calls at every scheduling point: the observer, and on every ``_WATCH_EVERY``-th the rest."""
    if progress is None and interrupted is None and observer is None:
        return None
    calls = 0

    def watch(running: Running) -> bool:
        nonlocal calls
        calls += 1
        if observer is not None:
            observer(running)
        if calls % _WATCH_EVERY:
            return True
        if progress is not None:
            ledger = running.ledger
            progress(label, ledger.ended_count, len(running.requests), ledger.lost_count / max(1, ledger.arrived))
        return interrupted is None or not interrupted()

    return watch
