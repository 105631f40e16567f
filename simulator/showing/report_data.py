"""What a report shows: the runs of one or several result folders, read back from their files.

A report is always made from a folder, never from a simulation in memory, so that ``simulate report`` gives the
same bytes later.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from simulator.errors import InputError, Problem
from simulator.showing.manifest import checked_manifest, read_json
from simulator.showing.output import run_name
from simulator.showing.pooled import pooled_entry
from simulator.showing.tables import TABLES
from simulator.showing.thinning import Thinning, thinning

#: what a report is made from
DATA_FILES = ("summary.json", "basis.json", *(f"{table}.parquet" for table in TABLES))
Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class RunData:
    """One run: ``name`` tells it from the others of the report; the tables are those of ``metrics.RunResult``.

    ``pool_map`` has the columns of ``pool_map.parquet`` (empty when nothing was recorded).
    """

    name: str
    summary: Mapping[str, Any]
    requests: Columns
    timeline: Columns
    oom_events: Columns
    pool_map: Columns

    @property
    def group(self) -> str:
        """The name without the replication: equal for all repetitions under one allocator."""
        replication = self.summary.get("replication")
        return self.name if replication is None else self.name.removesuffix(f"-{replication}")

    @property
    def replication(self) -> int:
        """Which repetition it is, from 0."""
        return int(self.summary.get("replication") or 0)


@dataclass(frozen=True, slots=True)
class Basis:
    """What the runs of one folder stand on.

    ``memory`` is the budget of one device, ``device`` its figures with sources, ``command`` what the user typed.
    """

    folder: str
    scenario: Mapping[str, Any]
    seed: int
    version: str
    memory: Mapping[str, Any]
    device: Mapping[str, Any]
    model: Mapping[str, Any]
    command: str


@dataclass(frozen=True, slots=True)
class ReportData:
    """One page. Several bases when folders are compared."""

    title: str
    description: str
    bases: tuple[Basis, ...]
    runs: tuple[RunData, ...]

    @property
    def shown(self) -> tuple[RunData, ...]:
        """The runs that pictures over time show: of several replications the first."""
        first: list[RunData] = [run for run in self.runs if run.replication == 0]
        return tuple(first or self.runs)

    @property
    def pooled(self) -> dict[str, Mapping[str, Any]]:
        """A summary for each allocator of each folder, by name: all its replications together."""
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for run in self.runs:
            groups.setdefault(run.group, []).append(run.summary)
        return {name: one[0] if len(one) == 1 else pooled_entry(one) for name, one in groups.items()}

    @property
    def thinnings(self) -> list[Thinning]:
        """What the timelines of the shown runs leave out."""
        told = [run for run in self.shown if len(run.timeline.get("time_s", ()))]
        return [thinning(run.name, run.summary, run.timeline) for run in told]

    @property
    def shares_time(self) -> bool:
        """Whether the runs met the same requests, so that their panels can stand on one time axis."""
        return len(self.bases) == 1

    def axis_end_s(self, run: RunData) -> float:
        """Where the time axis of a panel of ``run`` ends."""
        return self.end_s if self.shares_time else float(run.summary["simulated_s"])

    @property
    def end_s(self) -> float:
        """When the longest of the shown runs ended."""
        return max((float(run.summary["simulated_s"]) for run in self.shown), default=0.0)


def read_folder(folder: Path, name: str | None = None, *, command: str | None = None) -> ReportData:
    """The results in ``folder``; ``name`` is put before the names of its runs.

    ``command`` stands in for the manifest's while there is none yet. Raises ``InputError``.
    """
    from simulator.showing.tables import read_tables

    if command is None:
        command = str(checked_manifest(folder, DATA_FILES)["command"])
    document, basis = (read_json(folder / f"{part}.json") for part in ("summary", "basis"))

    tables = read_tables(folder)
    runs = []
    for position, summary in enumerate(document["runs"]):
        label = run_name(summary)
        of_run = tables[position]
        runs.append(RunData(f"{name}: {label}" if name else label, summary, **of_run))
    scenario = document["scenario"]
    same = {key: document[key] for key in ("scenario", "seed", "version")}
    shown = basis_of({**same, **basis}, name or folder.name, command)
    return ReportData(scenario["name"], scenario["description"], (shown,), tuple(runs))


def basis_of(plain: Mapping[str, Any], folder: str, command: str) -> Basis:
    """The basis of the results in ``folder``."""
    return Basis(folder=folder, command=command, **plain)


def read_folders(folders: tuple[Path, ...]) -> ReportData:
    """Several folders on one page; runs are named after the shortest distinct end of their folder's path."""
    names = distinct_names(folders)
    parts = [read_folder(folder, name) for folder, name in zip(folders, names, strict=True)]
    bases = tuple(basis for part in parts for basis in part.bases)
    return replace(
        parts[0],
        title=" | ".join(names),
        description="",
        bases=bases,
        runs=tuple(run for part in parts for run in part.runs),
    )


def distinct_names(folders: tuple[Path, ...]) -> list[str]:
    """The shortest ends of the folders' paths that tell them apart. Raises ``InputError``."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise InputError([Problem(message="the same folder is given twice")])
