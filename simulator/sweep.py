"""``simulate sweep``: a scenario for every combination of some keys' values, one row of metrics each.

A point is one combination in one replication; it gives a row for each allocator. Points run anywhere, in any order;
each is journalled when it is done, and the table is made from the journal at the end, in the order of the grid.
So a sweep that was killed goes on where it was, and all ways of running it give the same bytes.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.loading.overrides import Override
from simulator.planning.grid import Axis, points
from simulator.planning.sweep_journal import Journal
from simulator.planning.tasks import Runner
from simulator.planning.trial import Trial, run_trial
from simulator.scenario import Scenario, ScenarioText, load_scenario
from simulator.traffic.requests import Requests
from simulator.version import version

TABLE = "sweep"
JOURNAL = "journal.jsonl"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Point:
    """One combination of values in one replication. ``key`` names it across runs of the program."""

    scenario: Scenario
    values: Mapping[str, Any]
    replication: int
    allocators: tuple[str, ...] | None
    scenario_hash: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """A finished sweep: how many points it has, how many of them an earlier run had done, and the rows in order."""

    points: int
    resumed: int
    rows: list[Row]


def grid_points(
    name: str | ScenarioText,
    settings: Sequence[str | Override],
    axes: Sequence[Axis],
    *,
    replications: int = 1,
    allocators: tuple[str, ...] | None = None,
) -> list[Point]:
    """Every point of the grid, the last axis fastest. Raises ``InputError`` for a value that a key cannot take."""
    made = []
    for combination in points(axes):
        pairs = list(zip(axes, combination, strict=True))
        scenario = load_scenario(name, [*settings, *(axis.override(value) for axis, value in pairs)])
        hashed = scenario_hash(scenario)
        for replication in range(replications):
            made.append(
                Point(
                    scenario=scenario,
                    values={axis.key: value for axis, value in pairs},
                    replication=replication,
                    allocators=allocators,
                    scenario_hash=hashed,
                    key=_digest([hashed, replication, allocators]),
                )
            )
    return made


def scenario_hash(scenario: Scenario) -> str:
    """SHA-256 of everything the results depend on: resolved scenario, the files it names, the program's version."""
    from simulator.showing.manifest import input_files

    resolved = scenario.resolved()
    files = [(one.name, one.sha256) for one in input_files(resolved, scenario.base_dir)]
    return _digest([resolved, files, version()])


def sweep(made: Sequence[Point], folder: Path, runner: Runner) -> Swept:
    """Run the points that ``folder``'s journal does not have. The journal is all that is written.

    Raises ``InputError`` when the folder cannot be written or another sweep is at work in it.
    """
    with Journal(folder / JOURNAL) as journal:
        missing = [point for point in made if point.key not in journal.rows]
        for index, rows in runner(point_rows, missing):
            journal.add(missing[index].key, rows)
        rows = [row for point in made for row in journal.rows[point.key]]
    return Swept(points=len(made), resumed=len(made) - len(missing), rows=rows)


def columns_of_numbers(point: Point) -> list[str]:
    """Columns that the rows of ``point`` will have and that hold numbers, from a run of its first request alone."""
    drawn = point.scenario.requests(replication=point.replication)
    rows = point_rows(point, requests=drawn.keep(np.arange(len(drawn)) < 1))
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if any(_may_be_a_number(row.get(name, "")) for row in rows)]


def _may_be_a_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def point_rows(point: Point, *, requests: Requests | None = None) -> list[Row]:
    """Run one point: a row an allocator, metrics flattened with dots. ``requests`` stand in for the scenario's."""
    runs = [
        run_trial(Trial(point.scenario, index, point.replication, requests=requests))
        for index, label in enumerate(point.scenario.labels)
        if point.allocators is None or label in point.allocators
    ]
    head = {"scenario_hash": point.scenario_hash, "seed": point.scenario.seed, "replication": point.replication}
    parameters = {f"parameter.{key}": value for key, value in point.values.items()}
    return [{**head, **parameters, **dict(_flat(run.summary))} for run in runs]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name in ("wall_s", "instances"):
            continue  # the only figure that two equal runs do not share; a row is of the whole fleet
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list) and name.endswith("_ci"):
            yield f"{prefix}{name}.low", value[0]
            yield f"{prefix}{name}.high", value[1]
        elif isinstance(value, list):
            yield f"{prefix}{name}", json.dumps(value)
        else:
            yield f"{prefix}{name}", value


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
