"""The three questions of ``simulate size``, each answered as a document and as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from simulator import planner
from simulator.errors import InputError, Problem
from simulator.planning.grid import parse_axis
from simulator.planning.pool_interval import parse_interval
from simulator.planning.target import parse_goal
from simulator.scenario import Scenario, load_scenario
from simulator.serving.watching import Progress
from simulator.showing.asking import Answered, Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeQuestion:
    """The smallest pool that keeps targets; with one or two of ``solve`` how far these keys may go instead."""

    kind: ClassVar[str] = "size"
    asked: Asked
    target_oom: float | None
    targets: tuple[str, ...]
    confidence: float
    allocator: str | None
    pool_interval: str | None
    solve: tuple[str, ...]
    max_replications: int

    def check(self) -> None:
        """Raises ``InputError`` for targets, keys and an interval that are none or contradict each other."""
        if self.targets:
            parse_goal(self.targets)
        else:
            assert self.asked.scenario is not None
            scenario = load_scenario(self.asked.scenario, self.asked.changes)
            with scenario.located():
                planner.chosen_goal(scenario, self.target_oom, ())
        axes = [parse_axis(one, "--solve") for one in self.solve]
        if self.solve and self.pool_interval is not None:
            message = "is for sizing; --solve takes the pool there is: set device.kv_capacity_bytes to an end of it"
            raise InputError([Problem(option="--pool-interval", message=message)])
        if len(axes) > 2:
            raise InputError([Problem(option="--solve", message="at most two keys can be solved for together")])
        if len({axis.key for axis in axes}) < len(axes):
            raise InputError([Problem(option=axes[1].option, message="is solved for already: give another key")])
        if self.pool_interval is not None:
            parse_interval(self.pool_interval)

    def answered(self, *, folder: Path | None, jobs: int, progress: Progress | None) -> Answered:
        """The answer, from simulations on ``jobs`` processes. Raises ``InputError``."""
        del folder
        assert self.asked.scenario is not None
        scenario = load_scenario(self.asked.scenario, self.asked.changes)
        question = planner.Question(
            index=planner.sizable(scenario, None if self.allocator is None else (self.allocator,)),
            goal=planner.chosen_goal(scenario, self.target_oom, self.targets),
            confidence=self.confidence,
            most_replications=self.max_replications,
            jobs=jobs,
            progress=progress,
        )
        if not self.solve:
            return _sized(scenario, question, self.pool_interval)
        return (_solved if len(self.solve) == 1 else _traded)(scenario, question, self.asked, self.solve)


def _sized(scenario: Scenario, question: planner.Question, interval: str | None) -> Answered:
    from simulator.showing.size_document import print_size, size_document, size_tables

    given = None if interval is None else parse_interval(interval)
    answer = planner.sized_answer(scenario, question, interval=given, with_sensitivity=True)
    document = size_document(answer)
    return Answered(
        scenarios=[scenario],
        holds=answer.feasible,
        document=document,
        summary=document,
        tables=size_tables(document),
        interrupted=answer.interrupted,
        show=lambda: print_size(answer),
    )


def _solved(scenario: Scenario, question: planner.Question, asked: Asked, texts: Sequence[str]) -> Answered:
    from simulator.showing.solve_document import print_solved, solve_document, solve_tables

    assert asked.scenario is not None
    axis, goal = parse_axis(texts[0], "--solve"), question.goal
    scenarios = planner.varied(asked.scenario, asked.changes, axis)
    found = planner.solved(scenarios, axis, question)
    label = scenario.labels[question.index]
    document = solve_document(found, axis, goal, label=label, confidence=question.confidence)
    return Answered(
        scenarios=[scenario, *scenarios],
        holds=found.best is not None,
        document=document,
        summary=document,
        tables=solve_tables(document),
        interrupted=found.interrupted,
        show=lambda: print_solved(found, axis, goal, said=document["verdict"]),
    )


def _traded(scenario: Scenario, question: planner.Question, asked: Asked, texts: Sequence[str]) -> Answered:
    from simulator.showing.trade_document import print_trades, trade_document, trade_tables

    assert asked.scenario is not None
    axes, goal = (parse_axis(texts[0], "--solve"), parse_axis(texts[1], "--solve")), question.goal
    rows = planner.varied_twice(asked.scenario, asked.changes, *axes)
    trades = planner.traded(rows, axes, question)
    label = scenario.labels[question.index]
    document = trade_document(trades, axes, goal, label=label, confidence=question.confidence)
    return Answered(
        scenarios=[scenario, *(one for row in rows for one in row)],
        holds=any(one.solved.best is not None for one in trades),
        document=document,
        summary=document,
        tables=trade_tables(document),
        interrupted=document["interrupted"],
        show=lambda: print_trades(trades, axes, goal, said=document["verdict"]),
    )
