"""The planner's questions as commands ask them: scenario in, one JSON document out."""

from collections.abc import Callable, Sequence
from typing import Any

from simulator.compare import Comparison, compare
from simulator.grid import Axis
from simulator.overrides import Override
from simulator.scenario import Scenario, load_scenario
from simulator.tasks import processes, watched
from simulator.version import version

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
    """A comparison for each scenario, on ``jobs`` processes. Raises ``InputError``."""
    with processes(jobs) as runner, scenarios[0].located():
        return compare(
            scenarios,
            replications=replications,
            confidence=confidence,
            allocators=allocators,
            runner=watched(runner, progress, "compare"),
        )


def comparison_document(
    scenario: Scenario, found: Sequence[Comparison], axis: Axis | None, *, replications: int, confidence: float
) -> dict[str, Any]:
    """The document of ``simulate compare``: one comparison, or with ``axis`` one a value."""
    document: dict[str, Any] = {
        "schema_version": 1,
        "version": version(),
        "scenario": scenario.resolved(),
        "seed": scenario.seed,
        "replications": replications,
        "confidence": confidence,
    }
    if axis is None:
        return document | found[0].to_dict()
    points = [{"value": value} | one.to_dict() for value, one in zip(axis.values, found, strict=True)]
    return document | {"vary": {"key": axis.key, "points": points}}
