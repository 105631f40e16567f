"""A solved key as a JSON document and in words."""

from typing import Any

from simulator.planning.grid import Axis
from simulator.planning.solve import Solved
from simulator.planning.target import Goal
from simulator.showing.size_document import ends, number, spelled
from simulator.showing.terminal import print_rows


def solve_document(found: Solved, axis: Axis, goal: Goal, *, label: str, confidence: float) -> dict[str, Any]:
    """The document of ``simulate size --solve --format json``."""
    return {
        "key": axis.key,
        "value": found.best.value if found.best else None,
        "feasible": found.best is not None,
        "largest": found.largest,
        "whole_range": found.whole_range,
        "allocator": label,
        "target": {"name": goal.targets[0].name, "limit": goal.targets[0].limit},
        "targets": [{"name": target.name, "limit": target.limit} for target in goal.targets],
        "confidence": confidence,
        "figure": number(found.best.estimates[0].value) if found.best else None,
        "ci": ends(found.best.estimates[0]) if found.best else None,
        "figures": [number(one.value) for one in found.best.estimates] if found.best else None,
        "replications": found.best.replications if found.best else None,
        "curve": [
            {
                "value": one.value,
                "figure": number(one.estimates[0].value),
                "figures": [number(estimate.value) for estimate in one.estimates],
                "replications": one.replications,
            }
            for one in found.tried
        ],
        "verdict": solve_verdict(found, axis, goal, confidence=confidence),
    }


def solve_verdict(found: Solved, axis: Axis, goal: Goal, *, confidence: float) -> str:
    """The answer in a sentence."""
    if found.best is None:
        return f"No value of {axis.key} from {axis.values[0]} to {axis.values[-1]} is shown to keep the {goal}."
    if found.whole_range:
        return f"All values of {axis.key} up to {found.best.value} keep the {goal} with {confidence:.4g} confidence."
    kind = "largest" if found.largest else "smallest"
    return f"{axis.key} {found.best.value} is the {kind} that keeps the {goal} with {confidence:.4g} confidence."


def print_solved(found: Solved, axis: Axis, goal: Goal, *, confidence: float) -> None:
    """The verdict, and the figures at every value tried."""
    rows = [
        {axis.key: str(tried.value)}
        | {target.name: spelled(one, target) for target, one in zip(goal.targets, tried.estimates, strict=True)}
        | {"runs": str(tried.replications)}
        for tried in found.tried
    ]
    print_rows(solve_verdict(found, axis, goal, confidence=confidence), rows)
