"""The question of ``simulate sweep``."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from simulator import planner
from simulator.errors import InputError, Problem, nearest_name, printable
from simulator.planning.grid import Axis, parse_axis
from simulator.serving.watching import Progress
from simulator.showing.asking import HOW, Answered, Asked
from simulator.sweep import JOURNAL, TABLE, Point

#: columns that get a picture unless told otherwise
PLOTTED = ("oom_rate", "preemptions", "kv.mean_utilization", "latency.ttft_s.p95")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepQuestion:
    """One row of metrics for every combination of some keys' values; ``plots`` are columns to draw."""

    kind: ClassVar[str] = "sweep"
    asked: Asked
    grid: tuple[str, ...]
    replications: int
    allocators: tuple[str, ...] | None = None
    plots: tuple[str, ...] = PLOTTED
    dask: str | None = field(default=None, metadata=HOW)

    def check(self) -> None:
        """Raises ``InputError`` for a key that is no axis."""
        self.axes()

    def answered(self, *, folder: Path | None, jobs: int, progress: Progress | None) -> Answered:
        """The rows, in ``folder``; goes on where an earlier sweep there stopped. Raises ``InputError``."""
        assert folder is not None, "a sweep is kept in its folder"
        axes, points = self.axes(), self.points()
        self._check_plots(points[0])
        done = planner.swept(points, folder, jobs=jobs, dask=self.dask, progress=progress)
        # What an earlier run had done, and where the file is, differ between two sweeps that find the same.
        summary = {
            "points": done.points,
            "rows": len(done.rows),
            "axes": [{"key": axis.key, "values": list(axis.values)} for axis in axes],
            "replications": self.replications,
            "plots": list(self.plots),
        }
        document = {
            "points": done.points,
            "resumed": done.resumed,
            "rows": len(done.rows),
            "parquet": str(folder / f"{TABLE}.parquet"),
        }
        return Answered(
            scenarios=[point.scenario for point in points],
            document=document,
            summary=summary,
            tables={TABLE: done.rows},
            show=lambda: _show(document),
            not_hashed=(JOURNAL,),
        )

    def axes(self) -> list[Axis]:
        """The keys and their values. Raises ``InputError``."""
        return [parse_axis(one, "--grid") for one in self.grid]

    def points(self) -> list[Point]:
        """What is to be run. Raises ``InputError`` for a value that a key cannot take."""
        assert self.asked.scenario is not None
        return planner.sweep_points(
            self.asked.scenario,
            self.asked.changes,
            self.axes(),
            replications=self.replications,
            allocators=self.allocators,
        )

    def _check_plots(self, point: Point) -> None:
        """Raises ``InputError`` for columns to draw that the rows will not have, before any time is spent."""
        if self.plots == PLOTTED:
            return
        from simulator.sweep import columns_of_numbers

        with point.scenario.located():
            known = columns_of_numbers(point)
        problems = [_no_column(name, known) for name in self.plots if name not in known]
        if problems:
            raise InputError(problems)


def _no_column(name: str, known: Sequence[str]) -> Problem:
    return Problem(
        option=f"--plot {printable(name)}",
        message="the rows have no such column of numbers",
        nearest=nearest_name(name, known),
        allowed=tuple(known),
    )


def _show(document: dict[str, Any]) -> None:
    resumed = document["resumed"]
    earlier = f", {resumed:,} of them from an earlier run" if resumed else ""
    print(f"{document['points']:,} points{earlier}, {document['rows']:,} rows: {document['parquet']}")
