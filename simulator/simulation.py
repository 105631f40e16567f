"""A scenario, simulated: build the parts, run the engine once an allocator, check the laws, collect the results.

Every allocator meets the same requests. The result of one allocator does not depend on which others run.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulator.allocators.base import Allocator
from simulator.allocators.paged_defrag import PagedDefragAllocator
from simulator.config import EngineConfig
from simulator.cost import StepCost
from simulator.engine import Engine, EngineRun
from simulator.errors import InputError, Problem
from simulator.metrics import RunResult, summarise
from simulator.scenario import Scenario
from simulator.serving.batch import TILE_TOKENS
from simulator.serving.observation import Observation, breakdown, findings, observe_allocator, verified
from simulator.serving.pool import build_allocator
from simulator.serving.pool_parts import PoolParts
from simulator.serving.watching import Observe, Progress, Watch, watcher
from simulator.traffic.requests import Requests
from simulator.units import format_bytes, to_ns
from simulator.version import version

if TYPE_CHECKING:
    from simulator.fleet import Fleet


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
    first_replication: int = 0,
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
    for replication in range(first_replication, first_replication + replications):
        requests = scenario.requests(seed=seed, replication=replication)
        parts = pool_parts(scenario, requests)
        for index, (label, config) in enumerate(zip(scenario.labels, scenario.allocators, strict=True)):
            if allocators is not None and label not in allocators:
                continue
            allocator = build_allocator(config, parts, key=f"allocators.{index}")
            watch = watcher(label, progress, interrupted, observe and observe(allocator, requests))
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
    """One allocator over one set of requests; a fleet has a pool just like it for each instance."""
    if scenario.loaded_device.replicas > 1:
        return _run_fleet(scenario, requests, allocator, label=label, verify=verify, leap=leap, watch=watch)
    observation = observe_allocator(allocator, scenario.faults, verify=verify)
    started = time.perf_counter()
    if scenario.engine.scheduler == "replay":
        run = _replay(scenario, requests, observation, verify=verify, watch=watch)
    else:
        run = _serve(scenario, requests, observation, leap=leap, watch=watch)
    wall_s = time.perf_counter() - started
    result = summarise(run, requests, allocator, wall_s=wall_s, **_reading(scenario, allocator, label))
    if isinstance(allocator, PagedDefragAllocator) and scenario.engine.scheduler != "replay":
        result.summary["kv"]["compaction"] = _compaction(scenario, run, allocator, result.summary)
    if observation.faulty:
        result.summary["faults"] = findings([observation], run.detail)
    if verify:
        result.summary["verified"] = verified([observation])
    return result


def _reading(scenario: Scenario, allocator: Allocator, label: str) -> dict[str, Any]:
    """How a run of ``allocator`` is to be summarised."""
    warmup = scenario.workload.warmup
    return {
        "label": label,
        "page_size": allocator.tile_tokens if allocator.max_pages else 0,
        "warmup_s": 0.0 if warmup == "auto" else warmup,
    }


def _run_fleet(
    scenario: Scenario,
    requests: Requests,
    allocator: Allocator,
    *,
    label: str,
    verify: bool,
    leap: bool,
    watch: Watch | None,
) -> RunResult:
    from simulator.fleet import Fleet
    from simulator.fleet_summary import summarise_fleet
    from simulator.serving.router import router_of

    replicas = scenario.loaded_device.replicas
    assert allocator.another is not None, "the pools of a fleet come from build_allocator"
    allocators = (allocator, *(allocator.another() for _ in range(replicas - 1)))
    observations = [observe_allocator(one, scenario.faults, verify=verify) for one in allocators]
    started = time.perf_counter()
    fleet = Fleet(
        requests,
        router_of(scenario.router_config, requests, replicas),
        lambda place, supply: _engine(
            scenario,
            requests,
            observations[place],
            leap=leap,
            watch=None if watch is None else supply.watched(watch),
            supply=supply,
            place=place,
        ),
        instances=replicas,
        timeouts=scenario.engine.queue_timeout is not None,
    )
    try:
        run = fleet.run()
        for observation, engine in zip(observations, fleet.engines, strict=True):
            observation.look_once_more(engine.scheduler.live_holdings())
    except Exception as error:
        if not any(observation.planted for observation in observations):
            raise
        run = fleet.leave("interrupted", breakdown(error))
    wall_s = time.perf_counter() - started
    result = summarise_fleet(run, requests, allocators, wall_s=wall_s, **_reading(scenario, allocator, label))
    result.summary["router"] = scenario.router_config.model_dump(mode="json")
    for part, own, pool in zip(result.summary["instances"], run.runs, allocators, strict=True):
        if isinstance(pool, PagedDefragAllocator):
            part["kv"]["compaction"] = _compaction(scenario, own, pool, part)
    if scenario.faults:
        result.summary["faults"] = findings(observations, result.detail)
    if verify:
        result.summary["verified"] = verified(observations)
    return result


def _serve(
    scenario: Scenario, requests: Requests, observation: Observation, *, leap: bool, watch: Watch | None
) -> EngineRun:
    engine = _engine(scenario, requests, observation, leap=leap, watch=watch)
    try:
        run = engine.run()
        observation.look_once_more(engine.scheduler.live_holdings())
        return run
    except Exception as error:
        if not observation.planted:
            raise
        # A planted mistake was noticed where the engine cannot go on.
        return engine.leave("interrupted", breakdown(error))


def _engine(
    scenario: Scenario,
    requests: Requests,
    observation: Observation,
    *,
    leap: bool,
    watch: Watch | None,
    supply: "Fleet | None" = None,
    place: int = 0,
) -> Engine:
    model, settings, allocator = scenario.loaded_model, scenario.engine, observation.allocator
    windows = [group.window for group in model.groups if group.window is not None]
    horizon = scenario.workload.horizon
    costs = _step_costs(scenario, _tile_tokens(settings, allocator) if allocator.max_pages else TILE_TOKENS)
    return Engine(
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
        supply=supply,
        place=place,
    )


def _compaction(
    scenario: Scenario, run: EngineRun, allocator: PagedDefragAllocator, summary: dict[str, Any]
) -> dict[str, Any]:
    from simulator.serving.compaction_worth import compaction_worth

    latency = summary["latency"]
    return compaction_worth(
        run,
        allocator,
        _step_costs(scenario, _tile_tokens(scenario.engine, allocator)),
        copy_bandwidth=scenario.loaded_device.hbm_sustained_bandwidth,
        lifetime_s=(latency["e2e_s"]["mean"] or 0.0) - (latency["queue_s"]["mean"] or 0.0),
    )


def _tile_tokens(engine: EngineConfig, allocator: Allocator) -> int:
    """Tokens of a page on one of the devices that share a context."""
    return allocator.tile_tokens // engine.decode_context_parallel_size


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
    scenario: Scenario, requests: Requests, observation: Observation, *, verify: bool, watch: Watch | None
) -> EngineRun:
    from simulator.serving.replay import Replay

    assert scenario.engine.step_time is not None, "a replay without a step time passed validation"
    horizon = scenario.workload.horizon
    return Replay(
        requests,
        step_ns=to_ns(scenario.engine.step_time),
        allocator=observation.allocator,
        max_model_len=scenario.budget.max_model_len,
        horizon_ns=None if horizon is None else to_ns(horizon),
        verify=verify,
        watch=watch,
    ).run()
