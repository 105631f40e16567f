"""``simulate explain``: one failed allocation of a run, who held the memory, and what would have served the request."""

from dataclasses import asdict, dataclass
from typing import Any

from simulator.allocators.base import Allocator
from simulator.config import AllocatorConfig
from simulator.errors import InputError, Problem
from simulator.metrics import RunResult
from simulator.planning.counterfactual import Margin, Retry, Trial, as_dict
from simulator.scenario import Scenario
from simulator.serving.oom_state import OomRecorder, OomState, Wanted
from simulator.serving.pool import build_allocator
from simulator.serving.pool_parts import PoolParts
from simulator.serving.sequence import Outcome
from simulator.simulation import pool_parts, run_one
from simulator.traffic.requests import Requests
from simulator.units import NS_PER_S

#: holders listed one by one
HOLDERS = 8
FIRST = Wanted()


@dataclass(frozen=True, slots=True)
class _Run:
    """One allocator's run, with the state at the event that was asked for, if there is one."""

    label: str
    config: AllocatorConfig
    allocator: Allocator
    recorder: OomRecorder
    result: RunResult


def explain_oom(
    scenario: Scenario, wanted: Wanted = FIRST, *, allocator: str | None = None, seed: int | None = None
) -> dict[str, Any]:
    """Explain the failed allocation that is ``wanted``, in the run of ``allocator`` (a label).

    Without one, in the run of the first allocator of the scenario that refuses anything. The document has
    ``event: None`` when nothing was refused at all. Raises ``InputError`` when there is no such event or request.
    """
    seed = scenario.seed if seed is None else seed
    requests = scenario.requests(seed=seed)
    parts = pool_parts(scenario, requests)
    if wanted.request_id is not None and wanted.request_id >= len(requests):
        message = f"there is no such request: the workload has {len(requests):,}, numbered from 0"
        raise InputError([Problem(option=f"--request {wanted.request_id}", message=message)])
    run = _first_refusal(scenario, requests, parts, allocator, wanted)
    document = _heading(scenario, run, seed)
    state = run.recorder.state
    if state is None:
        if run.recorder.count or wanted != FIRST:
            raise InputError([_missing(run, wanted)])
        return {**document, "event": None}
    retry = Retry(scenario, requests, parts, state.request_id)
    return {**document, **_event(run, state), "counterfactual": _counterfactual(run, state, retry)}


def _first_refusal(
    scenario: Scenario, requests: Requests, parts: PoolParts, wanted_label: str | None, wanted: Wanted
) -> _Run:
    """The run to explain: of the allocator that was named, or the first in which an allocation fails."""
    run = None
    for index, (label, config) in enumerate(zip(scenario.labels, scenario.allocators, strict=True)):
        if wanted_label not in (None, label):
            continue
        allocator = build_allocator(config, parts, key=f"allocators.{index}")
        recorder = OomRecorder(wanted)
        result = run_one(scenario, requests, allocator, label=label, watch=recorder.watch)
        if run is None or recorder.count:
            run = _Run(label, config, allocator, recorder, result)
        if recorder.state is not None:
            break
    assert run is not None, "the scenario has no such allocator"
    return run


def _missing(run: _Run, wanted: Wanted) -> Problem:
    """What to say of an event that does not exist."""
    events = run.result.summary["oom_events"]
    count = f"under {run.label} {run.recorder.count:,} allocations fail"
    count += f" ({events['capacity']:,} by capacity, {events['fragmentation']:,} by fragmentation)"
    if wanted.request_id is None:
        option = f"--event {wanted.event}" if wanted.cause is None else f"--event {wanted.event} --cause {wanted.cause}"
        return Problem(option=option, message=f"there is no such event: {count}, numbered from 1")
    table = run.result.requests
    outcomes = table["outcome"][table["request_id"] == wanted.request_id]
    fate = str(outcomes[0]) if len(outcomes) else "it never arrives"
    if fate == Outcome.too_large.name:
        fate = "too_large: an empty pool could not hold it"
    return Problem(
        option=f"--request {wanted.request_id}", message=f"none of its allocations fails ({fate}); {count} in all"
    )


def _heading(scenario: Scenario, run: _Run, seed: int) -> dict[str, Any]:
    summary = run.result.summary
    return {
        "schema_version": 1,
        "scenario": scenario.name,
        "seed": seed,
        "allocator": run.label,
        "kind": run.allocator.kind,
        "events": run.recorder.count,
        "requests": summary["requests"],
        "oom_rate": summary["oom_rate"],
    }


def _event(run: _Run, state: OomState) -> dict[str, Any]:
    shortfall, allocator = state.shortfall, run.allocator
    missing = max(0, shortfall.needed_bytes - shortfall.free_bytes)
    held = sum(holder.held_bytes for holder in state.holders[HOLDERS:])
    return {
        "event": {
            "number": run.recorder.number,
            **({"instance": run.recorder.place} if "instances" in run.result.summary else {}),
            "time_s": state.time_ns / NS_PER_S,
            "request_id": state.request_id,
            "sample": state.sample,
            "during": state.during,
            **asdict(shortfall),
            "missing_bytes": missing,
        },
        "request": _request(run, state.request_id),
        "pool": {
            "kv_capacity_bytes": allocator.capacity_bytes,
            "max_pages": allocator.max_pages,
            "page_bytes": allocator.capacity_bytes // allocator.max_pages if allocator.max_pages else 0,
            "allocated_bytes": state.waste.allocated_bytes,
            "cached_bytes": state.cached_bytes,
            "waste": asdict(state.waste),
            "free": state.free,
        },
        "holders": [asdict(holder) for holder in state.holders[:HOLDERS]],
        "other_holders": {"sequences": len(state.holders[HOLDERS:]), "held_bytes": held},
    }


def _request(run: _Run, request_id: int) -> dict[str, Any]:
    """What is known of the request, and how it ended in this run."""
    table = run.result.requests
    row = int((table["request_id"] == request_id).nonzero()[0][0])
    return {
        "class": str(table["class"][row]),
        "arrival_s": float(table["arrival_s"][row]),
        "prompt_tokens": int(table["prompt_tokens"][row]),
        "output_tokens": int(table["output_tokens"][row]),
        "outcome": str(table["outcome"][row]),
        "preemptions": int(table["preemptions"][row]),
    }


def _counterfactual(run: _Run, state: OomState, retry: Retry) -> dict[str, Any]:
    shortfall, allocator = state.shortfall, run.allocator
    missing = max(0, shortfall.needed_bytes - shortfall.free_bytes)
    others: list[Trial] = list(retry.allocators(but=run.label))
    sizes: list[Trial] = list(retry.page_sizes(run.label, run.config, allocator.capacity_bytes))
    margin: Margin | None = retry.margin(run.label, run.config, allocator, missing)
    return {
        "allocators": [as_dict(trial) for trial in others],
        "page_sizes": [as_dict(trial) for trial in sizes],
        "margin": None if margin is None else as_dict(margin),
        "runs": retry.runs,
    }
