"""A solved key as a JSON document and in words."""

from collections.abc import Callable, Mapping
from typing import Any

from simulator.planning.grid import Axis
from simulator.planning.solve import Solved
from simulator.planning.target import Goal
from simulator.showing.size_document import ends, number, spelled
from simulator.showing.size_words import goal_words
from simulator.showing.terminal import print_rows

Translate = Callable[[str], str]


def solve_document(found: Solved, axis: Axis, goal: Goal, *, label: str, confidence: float) -> dict[str, Any]:
    """The document of ``simulate size --solve --format json``."""
    document = {
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
                "cis": [ends(estimate) for estimate in one.estimates],
                "replications": one.replications,
            }
            for one in found.tried
        ],
        "range": [axis.values[0], axis.values[-1]],
        "interrupted": found.interrupted,
    }
    return document | {"verdict": solve_verdict(document)}


def solve_tables(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The Parquet table of a solved key: every value tried."""
    return {"curve": solve_rows(document)}


def solve_rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each value tried, with the figure of every target and its interval."""
    names = [target["name"] for target in document["targets"]]
    rows = []
    for one in document["curve"]:
        row = {document["key"]: one["value"], "replications": one["replications"]}
        for name, figure, ci in zip(names, one["figures"], one["cis"], strict=True):
            row |= {name: figure, f"{name}.low": ci[0], f"{name}.high": ci[1]}
        rows.append(row)
    return rows


def solve_verdict(document: Mapping[str, Any], words: Translate = str) -> str:
    """The answer in a sentence, from the document."""
    shown = {
        "key": document["key"],
        "value": document["value"],
        "goal": goal_words(document["targets"], words),
        "confidence": f"{document['confidence']:.4g}",
    }
    if document["interrupted"]:
        text = "Interrupted: {count} values of {key} were tried, and it is not known yet how far it may go for {goal}."
        return words(text).format(**shown, count=len(document["curve"]))
    if not document["feasible"]:
        first, last = document["range"]
        text = "No value of {key} from {first} to {last} is shown to keep the {goal}."
        return words(text).format(**shown, first=first, last=last)
    if document["whole_range"]:
        return words("All values of {key} up to {value} keep the {goal} with {confidence} confidence.").format(**shown)
    largest = "{key} {value} is the largest that keeps the {goal} with {confidence} confidence."
    smallest = "{key} {value} is the smallest that keeps the {goal} with {confidence} confidence."
    return words(largest if document["largest"] else smallest).format(**shown)


def print_solved(found: Solved, axis: Axis, goal: Goal, *, said: str) -> None:
    """The verdict, and the figures at every value tried."""
    rows = [
        {axis.key: str(tried.value)}
        | {target.name: spelled(one, target) for target, one in zip(goal.targets, tried.estimates, strict=True)}
        | {"runs": str(tried.replications)}
        for tried in found.tried
    ]
    print_rows(said, rows)
