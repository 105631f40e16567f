"""Two keys solved for together, as a JSON document and in words."""

from collections.abc import Sequence
from typing import Any

from simulator.planning.frontier import Trade
from simulator.planning.grid import Axis
from simulator.planning.target import Goal
from simulator.showing.size_document import spelled
from simulator.showing.solve_document import solve_document
from simulator.showing.terminal import print_rows


def trade_document(
    trades: Sequence[Trade], axes: tuple[Axis, Axis], goal: Goal, *, label: str, confidence: float
) -> dict[str, Any]:
    """The document of ``simulate size --solve --solve --format json``."""
    first, second = axes
    return {
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
        "verdict": trade_verdict(trades, axes, goal, confidence=confidence),
    }


def trade_verdict(trades: Sequence[Trade], axes: tuple[Axis, Axis], goal: Goal, *, confidence: float) -> str:
    """The answer in a sentence."""
    first, second = axes
    held = [one for one in trades if one.solved.best is not None]
    if not held:
        return f"No pair of {first.key} and {second.key} in these ranges is shown to keep the {goal}."
    return (
        f"How far {second.key} may go for each {first.key} and keep the {goal}, each row with {confidence:.4g} "
        f"confidence ({len(trades) - len(held)} of {len(trades)} rows without an answer):"
    )


def print_trades(trades: Sequence[Trade], axes: tuple[Axis, Axis], goal: Goal, *, confidence: float) -> None:
    """The verdict, and a row for each value of the first key."""
    rows = [_row(one, axes, goal) for one in trades]
    print_rows(trade_verdict(trades, axes, goal, confidence=confidence), rows)


def _row(trade: Trade, axes: tuple[Axis, Axis], goal: Goal) -> dict[str, str]:
    first, second = axes
    best = trade.solved.best
    figures = ["-"] * len(goal.targets)
    if best is not None:
        figures = [spelled(one, target) for target, one in zip(goal.targets, best.estimates, strict=True)]
    return {
        first.key: str(trade.value),
        second.key: "none holds" if best is None else str(best.value),
        **{target.name: figure for target, figure in zip(goal.targets, figures, strict=True)},
        "runs": "" if best is None else str(best.replications),
        "": _remark(trade),
    }


def _remark(trade: Trade) -> str:
    if trade.solved.best is None:
        return ""
    if trade.solved.whole_range:
        return "the whole range holds"
    return "largest that holds" if trade.solved.largest else "smallest that holds"
