"""A solved key as a JSON document and in words."""

from typing import Any

from simulator.planning.grid import Axis
from simulator.planning.solve import Solved
from simulator.planning.statistics import Estimate
from simulator.planning.target import Target
from simulator.showing.terminal import print_rows
from simulator.units import format_percent as percent
from simulator.units import format_seconds


def solve_document(found: Solved, axis: Axis, target: Target, *, label: str, confidence: float) -> dict[str, Any]:
    """The document of ``simulate size --solve --format json``."""
    return {
        "key": axis.key,
        "value": found.best.value if found.best else None,
        "feasible": found.best is not None,
        "largest": found.largest,
        "whole_range": found.whole_range,
        "allocator": label,
        "target": {"name": target.name, "limit": target.limit},
        "confidence": confidence,
        "figure": found.best.estimate.value if found.best else None,
        "ci": found.best.estimate.interval if found.best else None,
        "replications": found.best.replications if found.best else None,
        "curve": [
            {"value": one.value, "figure": one.estimate.value, "replications": one.replications} for one in found.tried
        ],
        "verdict": solve_verdict(found, axis, target, confidence=confidence),
    }


def solve_verdict(found: Solved, axis: Axis, target: Target, *, confidence: float) -> str:
    """The answer in a sentence."""
    if found.best is None:
        return f"No value of {axis.key} from {axis.values[0]} to {axis.values[-1]} is shown to keep the {target}."
    if found.whole_range:
        return f"All values of {axis.key} up to {found.best.value} keep the {target} with {confidence:.4g} confidence."
    kind = "largest" if found.largest else "smallest"
    return f"{axis.key} {found.best.value} is the {kind} that keeps the {target} with {confidence:.4g} confidence."


def print_solved(found: Solved, axis: Axis, target: Target, *, confidence: float) -> None:
    """The verdict, and the figure at every value tried."""
    rows = [
        {axis.key: str(one.value), target.name: _figure(one.estimate, target), "runs": str(one.replications)}
        for one in found.tried
    ]
    print_rows(solve_verdict(found, axis, target, confidence=confidence), rows)


def _figure(estimate: Estimate, target: Target) -> str:
    if target.name in ("oom", "timeout"):
        return f"{percent(estimate.value)} [{percent(estimate.low)}, {percent(estimate.high)}]"
    if target.is_share:
        return f"{estimate.value:.3g} [{estimate.low:.3g}, {estimate.high:.3g}]"
    return format_seconds(estimate.value)
