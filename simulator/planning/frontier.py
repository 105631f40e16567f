"""Two margins traded against each other: for each value of one key, how far the other may go.

Each row of the frontier is a ``solve`` of its own, on the same replications as all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulator.planning.sizing import Effort
from simulator.planning.solve import Solved, solve
from simulator.planning.target import Goal
from simulator.planning.tasks import Runner
from simulator.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Trade:
    """One value of the first key, and what was found along the second."""

    value: Any
    solved: Solved


def frontier(
    first: Sequence[Any],
    second: Sequence[Any],
    scenarios: Sequence[Sequence[Scenario]],
    index: int,
    goal: Goal,
    *,
    effort: Effort,
    confidence: float,
    runner: Runner,
) -> tuple[Trade, ...]:
    """The farthest of ``second`` for each of ``first``; ``scenarios`` has a row for each of ``first``.

    Raises ``InputError`` when a scenario cannot run. After Ctrl-C there are rows up to the one that was under way.
    """
    trades = []
    for value, row in zip(first, scenarios, strict=True):
        solved = solve(second, row, index, goal, effort=effort, confidence=confidence, runner=runner)
        trades.append(Trade(value=value, solved=solved))
        if solved.interrupted:
            break
    return tuple(trades)
