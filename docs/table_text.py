"""What computed tables are made of: runs of shipped scenarios, and Markdown."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from simulator.scenario import load_scenario
from simulator.simulation import simulate

Summary = dict[str, Any]
Words = tuple[str, str]
"""The same in English and in Chinese."""


@cache
def runs(name: str, *settings: str) -> tuple[Summary, ...]:
    """Summaries of a shipped scenario with ``settings``, one an allocator."""
    return tuple(run.summary for run in simulate(load_scenario(name, settings)).runs)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """A Markdown table; all but the first ``left`` columns stand to the right."""
    rule = ["---"] * left + ["---:"] * (len(heads) - left)
    return "".join(f"| {' | '.join(cells)} |\n".replace("|  |", "| |", 1) for cells in (heads, rule, *rows))
