"""Two keys solved for together, as a JSON document and in words."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simulator.planning.frontier import Trade
from simulator.planning.grid import Axis
from simulator.planning.target import Goal
from simulator.showing.size_document import spelled
from simulator.showing.size_words import goal_words
from simulator.showing.solve_document import solve_document, solve_rows
from simulator.showing.terminal import print_rows

Translate = Callable[[str], str]


def trade_document(
    trades: Sequence[Trade], axes: tuple[Axis, Axis], goal: Goal, *, label: str, confidence: float
) -> dict[str, Any]:
    """The document of ``simulate size --solve --solve --format json``."""
    first, second = axes
    document = {
        "keys": [first.key, second.key],
        "feasible": any(one.solved.best is not None for one in trades),
        "allocator": label,
        "targets": [{"name": target.name, "limit": target.limit} for target in goal.targets],
        "confidence": confidence,
        "frontier": [
            {
                first.key: one.value,
                second.key: one.solved.best.value if one.solved.best else None,
                "solve": solve_document(one.solved, second, goal, label=label, confidence=confidence),
            }
            for one in trades
        ],
        "interrupted": any(one.solved.interrupted for one in trades),
    }
    return document | {"verdict": trade_verdict(document)}


def trade_tables(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The Parquet tables of a trade: the frontier, and everything tried for each value of the first key."""
    first, second = document["keys"]
    frontier = document["frontier"]
    return {
        "frontier": [{first: one[first], second: one[second]} for one in frontier],
        "curve": [{first: one[first]} | row for one in frontier for row in solve_rows(one["solve"])],
    }


def trade_verdict(document: Mapping[str, Any], words: Translate = str) -> str:
    """The answer in a sentence, from the document."""
    first, second = document["keys"]
    frontier, goal = document["frontier"], goal_words(document["targets"], words)
    held = sum(one["solve"]["feasible"] for one in frontier)
    if document["interrupted"]:
        text = "Interrupted at {first} {value}: it is not known yet how far {second} may go from there on for {goal}."
        return words(text).format(first=first, value=frontier[-1][first], second=second, goal=goal)
    if not held:
        text = "No pair of {first} and {second} in these ranges is shown to keep the {goal}."
        return words(text).format(first=first, second=second, goal=goal)
    text = (
        "{ends}: the farthest that keep the {goal}, each row with {confidence} confidence ({missing} of {rows} rows "
        "without an answer)."
    )
    shown = {"goal": goal, "confidence": f"{document['confidence']:.4g}"}
    held_ends = [one for one in (frontier[0], frontier[-1]) if one["solve"]["feasible"]]
    ends = [
        words("{second} {there} at {first} {here}").format(
            first=first, second=second, here=one[first], there=one[second]
        )
        for one in held_ends or [next(one for one in frontier if one["solve"]["feasible"])]
    ]
    return words(text).format(**shown, missing=len(frontier) - held, rows=len(frontier), ends=words(", ").join(ends))


def extent(solved: Mapping[str, Any]) -> str:
    """What the answer for one value of the first key is."""
    if not solved["feasible"]:
        return ""
    if solved["whole_range"]:
        return "the whole range holds"
    return "largest that holds" if solved["largest"] else "smallest that holds"


def print_trades(trades: Sequence[Trade], axes: tuple[Axis, Axis], goal: Goal, *, said: str) -> None:
    """The verdict, and a row for each value of the first key."""
    rows = [_row(one, axes, goal) for one in trades]
    print_rows(said, rows)


def _row(trade: Trade, axes: tuple[Axis, Axis], goal: Goal) -> dict[str, str]:
    first, second = axes
    best = trade.solved.best
    figures = ["-"] * len(goal.targets)
    if best is not None:
        figures = [spelled(one, target) for target, one in zip(goal.targets, best.estimates, strict=True)]
    return {
        first.key: str(trade.value),
        second.key: str(best.value)
        if best is not None
        else "interrupted"
        if trade.solved.interrupted
        else "none holds",
        **{target.name: figure for target, figure in zip(goal.targets, figures, strict=True)},
        "runs": "" if best is None else str(best.replications),
        "": _remark(trade),
    }


def _remark(trade: Trade) -> str:
    found = trade.solved
    return extent({"feasible": found.best is not None, "whole_range": found.whole_range, "largest": found.largest})
