"""The question of ``simulate compare``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from simulator import planner
from simulator.planning.compare import Comparison
from simulator.planning.grid import Axis, parse_axis
from simulator.serving.watching import Progress
from simulator.showing.asking import Answered, Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareQuestion:
    """Which allocator loses fewer requests; with ``vary``, for each value of a key."""

    kind: ClassVar[str] = "compare"
    asked: Asked
    replications: int
    confidence: float
    vary: str | None = None
    allocators: tuple[str, ...] | None = None

    def check(self) -> None:
        """Raises ``InputError`` for a key that is no axis."""
        if self.vary:
            parse_axis(self.vary, "--vary")

    def answered(self, *, folder: Path | None, jobs: int, progress: Progress | None) -> Answered:
        """The comparison, on ``jobs`` processes. Raises ``InputError``."""
        del folder
        assert self.asked.scenario is not None
        axis = parse_axis(self.vary, "--vary") if self.vary else None
        scenarios = planner.varied(self.asked.scenario, self.asked.changes, axis)
        found = planner.comparisons(
            scenarios,
            replications=self.replications,
            confidence=self.confidence,
            allocators=self.allocators,
            jobs=jobs,
            progress=progress,
        )
        document = planner.comparison_document(scenarios[0], found, axis, confidence=self.confidence)
        return Answered(
            scenarios=scenarios,
            document=document,
            summary=document,
            tables=_tables(document),
            show=lambda: _show(found, axis),
            interrupted=document["interrupted"],
        )


def _show(found: Sequence[Comparison], axis: Axis | None) -> None:
    from simulator.showing import compare_table

    if axis is None:
        compare_table.print_comparison(found[0])
    else:
        compare_table.print_series(axis.key, axis.values, found)


def comparison_points(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The comparisons in a document: one, without a ``value``, or one a value of the key that was varied."""
    varied = document.get("vary")
    return [document] if varied is None else list(varied["points"])


def _tables(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    points = comparison_points(document)
    return {
        "allocators": [row for point in points for row in _allocator_rows(point)],
        "replications": [row for point in points for row in _replication_rows(point)],
        "differences": [_head(point) | _flat(one) for point in points for one in point["differences"]],
    }


def _head(point: dict[str, Any]) -> dict[str, Any]:
    return {"value": point["value"]} if "value" in point else {}


def _allocator_rows(point: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for one in point["allocators"]:
        plain = {key: value for key, value in one.items() if key not in ("oom_rates", "latency_s")}
        latency = {f"{name}_s": figures["mean"] for name, figures in one["latency_s"].items()}
        yield _head(point) | _flat(plain) | latency


def _replication_rows(point: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for one in point["allocators"]:
        for replication, rate in enumerate(one["oom_rates"]):
            yield _head(point) | {"label": one["label"], "replication": replication, "oom_rate": rate}


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its intervals as two columns."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name == "ci" or name.endswith("_ci"):
            flat[f"{name}.low"], flat[f"{name}.high"] = value or (None, None)
        else:
            flat[name] = value
    return flat
