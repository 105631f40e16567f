"""The planner's questions as commands ask them: scenario in, one JSON document out."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.errors import InputError, Problem
from simulator.loading.overrides import Override
from simulator.planning.compare import Comparison, compare
from simulator.planning.grid import Axis
from simulator.planning.size import SizeAnswer, size
from simulator.planning.sizing import Effort
from simulator.planning.target import Target, parse_target
from simulator.planning.tasks import processes, watched
from simulator.scenario import Scenario, load_scenario
from simulator.version import version

if TYPE_CHECKING:
    from simulator.planning.solve import Solved
    from simulator.sweep import Point, Swept

Progress = Callable[[str, int, int], None]


def with_seed(settings: Sequence[str | Override], seed: int | None) -> list[str | Override]:
    """The settings and ``--seed``, which replaces the scenario's."""
    return [*settings] if seed is None else [*settings, Override("seed", seed, f"--seed {seed}")]


def varied(name: str, settings: Sequence[str | Override], axis: Axis | None) -> list[Scenario]:
    """The scenario once for each value of ``axis``. Raises ``InputError`` naming a value that cannot be."""
    if axis is None:
        return [load_scenario(name, settings)]
    return [load_scenario(name, [*settings, axis.override(value)]) for value in axis.values]


def comparisons(
    scenarios: Sequence[Scenario],
    *,
    replications: int,
    confidence: float,
    allocators: tuple[str, ...] | None,
    jobs: int,
    progress: Progress | None = None,
) -> list[Comparison]:
    """A comparison for each scenario, on ``jobs`` processes; a recorded trace is run once. Raises ``InputError``."""
    if any(is_recorded(scenario) for scenario in scenarios):
        replications = 1
    with processes(jobs) as runner, scenarios[0].located():
        return compare(
            scenarios,
            replications=replications,
            confidence=confidence,
            allocators=allocators,
            runner=watched(runner, progress, "compare"),
        )


def comparison_document(
    scenario: Scenario, found: Sequence[Comparison], axis: Axis | None, *, confidence: float
) -> dict[str, Any]:
    """The document of ``simulate compare``: one comparison, or with ``axis`` one a value."""
    document: dict[str, Any] = {
        "schema_version": 1,
        "version": version(),
        "scenario": scenario.resolved(),
        "seed": scenario.seed,
        "replications": len(found[0].standings[0].oom_rates),
        "confidence": confidence,
    }
    if axis is None:
        return document | found[0].to_dict()
    points = [{"value": value} | one.to_dict() for value, one in zip(axis.values, found, strict=True)]
    return document | {"vary": {"key": axis.key, "points": points}}


def chosen_target(scenario: Scenario, oom: float | None, text: str | None) -> Target:
    """What ``--target-oom`` or ``--target`` ask for.

    Without either: an OOM rate of 0.001 where a full pool ends requests or makes them wait, 0.01 preemptions per
    request where it preempts, because there the OOM rate is hardly ever above 0. Raises ``InputError``.
    """
    if oom is not None and text is not None:
        raise InputError([Problem(option="--target", message="give --target-oom or --target, not both")])
    if text is not None:
        return parse_target(text)
    if oom is not None:
        return parse_target(f"oom={oom!r}")
    preempts = scenario.engine.on_oom.startswith("preempt")
    return Target("preemption", 0.01) if preempts else Target("oom", 0.001)


def sizable(scenario: Scenario, labels: tuple[str, ...] | None) -> int:
    """The allocator to size: the first of those asked for, else the first paged one, else the first."""
    places = range(len(scenario.labels))
    if labels is not None:
        return next(place for place in places if scenario.labels[place] in labels)
    return next((place for place in places if scenario.allocators[place].kind != "contiguous"), 0)


def sized_answer(
    scenario: Scenario,
    index: int,
    target: Target,
    *,
    confidence: float,
    most_replications: int,
    jobs: int,
    progress: Progress | None = None,
) -> SizeAnswer:
    """The smallest pool that meets ``target``, on ``jobs`` processes. Raises ``InputError``."""
    effort = Effort(first=min(4, most_replications), most=most_replications)
    effort = _recorded(scenario, effort)
    with processes(jobs) as runner, scenario.located():
        return size(
            scenario,
            index,
            target,
            confidence=confidence,
            effort=effort,
            runner=watched(runner, progress, f"size {scenario.labels[index]}"),
        )


def solved(
    scenarios: Sequence[Scenario],
    axis: Axis,
    index: int,
    target: Target,
    *,
    confidence: float,
    most_replications: int,
    jobs: int,
    progress: Progress | None = None,
) -> "Solved":
    """The farthest value of ``axis`` that keeps ``target`` with the scenario's own pool. Raises ``InputError``."""
    from simulator.planning.solve import solve

    effort = _recorded(scenarios[0], Effort(first=min(4, most_replications), most=most_replications))
    with processes(jobs) as runner, scenarios[0].located():
        return solve(
            axis.values,
            scenarios,
            index,
            target,
            effort=effort,
            confidence=confidence,
            runner=watched(runner, progress, f"solve {axis.key}"),
        )


def is_recorded(scenario: Scenario) -> bool:
    """Whether every replication is the same recorded trace, so that running it twice tells nothing."""
    sampled = getattr(scenario.workload.arrivals, "sample", 1.0) < 1
    return scenario.workload.replays_lengths and not sampled


def _recorded(scenario: Scenario, effort: Effort) -> Effort:
    return Effort(first=1, most=1, step_ratio=effort.step_ratio) if is_recorded(scenario) else effort


def sweep_points(
    name: str,
    settings: Sequence[str | Override],
    axes: Sequence[Axis],
    *,
    replications: int,
    allocators: tuple[str, ...] | None,
) -> "list[Point]":
    """The points of a sweep; see ``sweep.grid_points``."""
    from simulator.sweep import grid_points

    return grid_points(name, settings, axes, replications=replications, allocators=allocators)


def swept(
    points: "Sequence[Point]", folder: Path, *, jobs: int, dask: str | None = None, progress: Progress | None = None
) -> "Swept":
    """Run a sweep on ``jobs`` processes here, or on the Dask cluster at ``dask``. Raises ``InputError``."""
    from simulator.sweep import sweep

    if dask is None:
        cluster = processes(jobs)
    else:
        from simulator.planning.dask_runner import dask_cluster

        cluster = dask_cluster(dask, jobs)
    with cluster as runner:
        return sweep(points, folder, watched(runner, progress, "sweep"))
