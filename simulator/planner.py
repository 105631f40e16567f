"""The planner's questions as commands ask them: scenario in, one JSON document out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.errors import InputError, Problem
from simulator.loading.overrides import Override
from simulator.planning.compare import Comparison, compare
from simulator.planning.grid import Axis
from simulator.planning.size import SizeAnswer, size
from simulator.planning.sizing import Effort
from simulator.planning.target import Goal, Target, parse_goal
from simulator.planning.tasks import Runner, processes, watched
from simulator.scenario import Scenario, ScenarioText, load_scenario
from simulator.serving.watching import Progress
from simulator.version import version

if TYPE_CHECKING:
    from simulator.planning.frontier import Trade
    from simulator.planning.pool_interval import PoolInterval
    from simulator.planning.solve import Solved
    from simulator.sweep import Point, Swept


def with_seed(settings: Sequence[str | Override], seed: int | None) -> list[str | Override]:
    """The settings and ``--seed``, which replaces the scenario's."""
    return [*settings] if seed is None else [*settings, Override("seed", seed, f"--seed {seed}")]


def varied(name: str | ScenarioText, settings: Sequence[str | Override], axis: Axis | None) -> list[Scenario]:
    """The scenario once for each value of ``axis``. Raises ``InputError`` naming a value that cannot be."""
    if axis is None:
        return [load_scenario(name, settings)]
    return [load_scenario(name, [*settings, axis.override(value)]) for value in axis.values]


def varied_twice(
    name: str | ScenarioText, settings: Sequence[str | Override], first: Axis, second: Axis
) -> list[list[Scenario]]:
    """A row for each value of ``first``: the scenario once for each value of ``second``. Raises ``InputError``."""
    if first.key == second.key:
        raise InputError([Problem(option=second.option, message="is solved for already: give another key")])
    return [varied(name, [*settings, first.override(value)], second) for value in first.values]


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
        "interrupted": found[0].interrupted,
    }
    if axis is None:
        return document | found[0].to_dict()
    points = [{"value": value} | one.to_dict() for value, one in zip(axis.values, found, strict=True)]
    return document | {"vary": {"key": axis.key, "points": points}}


def chosen_goal(scenario: Scenario, oom: float | None, texts: Sequence[str]) -> Goal:
    """What ``--target-oom``, ``--target`` and ``--slo`` ask for, all of it together.

    Without any, what a full pool does is kept rare: an OOM rate of 0.001 where it ends requests, a share of 0.001 timed
    out where they wait no longer than ``queue_timeout``, and where nobody is lost 0.01 preemptions per request, or a
    share of 0.01 that has to wait for memory. Raises ``InputError`` for targets that are none.
    """
    spelled = [*([] if oom is None else [f"oom={oom!r}"]), *texts]
    if spelled:
        return parse_goal(spelled)
    engine = scenario.engine
    if engine.on_oom == "fail":
        return Goal((Target("oom", 0.001),))
    if engine.on_oom != "wait":
        return Goal((Target("preemption", 0.01),))
    return Goal((Target("wait", 0.01) if engine.queue_timeout is None else Target("timeout", 0.001),))


def sizable(scenario: Scenario, labels: tuple[str, ...] | None) -> int:
    """The allocator to size: the first of those asked for, else the first paged one, else the first."""
    places = range(len(scenario.labels))
    if labels is not None:
        return next(place for place in places if scenario.labels[place] in labels)
    return next((place for place in places if scenario.allocators[place].kind != "contiguous"), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked about allocator ``index`` of a scenario: whether it keeps ``goal``, and how hard to look."""

    index: int
    goal: Goal
    confidence: float
    most_replications: int
    jobs: int
    progress: Progress | None = None

    def effort(self, scenario: Scenario) -> Effort:
        """Replications of the search and its verification; one of a recorded trace."""
        if is_recorded(scenario):
            return Effort(first=1, most=1)
        return Effort(first=min(4, self.most_replications), most=self.most_replications)

    @contextmanager
    def runner(self, scenario: Scenario, label: str) -> Iterator[Runner]:
        """The processes, watched as ``label``; what they refuse is said of ``scenario``'s lines."""
        with processes(self.jobs) as runner, scenario.located():
            yield watched(runner, self.progress, label)


def sized_answer(
    scenario: Scenario, question: Question, *, interval: "PoolInterval | None" = None, with_sensitivity: bool = False
) -> SizeAnswer:
    """The smallest pool that meets the goal. Raises ``InputError``.

    ``interval`` is what is known of the pool's size; without it, what the device file says, if anything.
    ``with_sensitivity``: also which assumptions the size depends on.
    """
    from simulator.planning.pool_interval import device_interval

    with question.runner(scenario, f"size {scenario.labels[question.index]}") as runner:
        return size(
            scenario,
            question.index,
            question.goal,
            confidence=question.confidence,
            effort=question.effort(scenario),
            runner=runner,
            interval=interval or device_interval(scenario),
            with_sensitivity=with_sensitivity,
        )


def solved(scenarios: Sequence[Scenario], axis: Axis, question: Question) -> "Solved":
    """The farthest value of ``axis`` that keeps the goal with the scenario's own pool. Raises ``InputError``."""
    from simulator.planning.solve import solve

    with question.runner(scenarios[0], f"solve {axis.key}") as runner:
        return solve(
            axis.values,
            scenarios,
            question.index,
            question.goal,
            effort=question.effort(scenarios[0]),
            confidence=question.confidence,
            runner=runner,
        )


def traded(rows: Sequence[Sequence[Scenario]], axes: tuple[Axis, Axis], question: Question) -> "tuple[Trade, ...]":
    """For each value of the first axis the farthest of the second that keeps the goal. Raises ``InputError``."""
    from simulator.planning.frontier import frontier

    (first, second), scenario = axes, rows[0][0]
    with question.runner(scenario, f"solve {first.key} and {second.key}") as runner:
        return frontier(
            first.values,
            second.values,
            rows,
            question.index,
            question.goal,
            effort=question.effort(scenario),
            confidence=question.confidence,
            runner=runner,
        )


def is_recorded(scenario: Scenario) -> bool:
    """Whether every replication is the same recorded trace, so that running it twice tells nothing."""
    sampled = getattr(scenario.workload.arrivals, "sample", 1.0) < 1
    return scenario.workload.replays_lengths and not sampled


def sweep_points(
    name: str | ScenarioText,
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
