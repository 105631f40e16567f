"""The three questions of ``simulate size``, each answered as a document and as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from simulator import planner
from simulator.errors import InputError, Problem
from simulator.loading.overrides import Override
from simulator.planning.grid import parse_axis
from simulator.planning.pool_interval import PoolInterval, parse_interval
from simulator.planning.target import Goal, parse_goal
from simulator.scenario import Scenario, ScenarioText, load_scenario
from simulator.serving.watching import Progress
from simulator.showing.asking import Answered, Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked about one allocator of a scenario; ``name`` and ``settings`` are how it was loaded."""

    name: str | ScenarioText
    settings: Sequence[str | Override]
    scenario: Scenario
    index: int
    goal: Goal
    confidence: float
    most_replications: int
    jobs: int


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
        question = Question(
            name=self.asked.scenario,
            settings=self.asked.changes,
            scenario=scenario,
            index=planner.sizable(scenario, None if self.allocator is None else (self.allocator,)),
            goal=planner.chosen_goal(scenario, self.target_oom, self.targets),
            confidence=self.confidence,
            most_replications=self.max_replications,
            jobs=jobs,
        )
        interval = None if self.pool_interval is None else parse_interval(self.pool_interval)
        return _answered(question, self.solve, interval, progress)


def _answered(
    question: Question, solve: Sequence[str], interval: PoolInterval | None, progress: Progress | None
) -> Answered:
    if not solve:
        return _sized(question, interval, progress)
    return _solved(question, solve[0], progress) if len(solve) == 1 else _traded(question, solve, progress)


def _sized(question: Question, interval: PoolInterval | None, progress: Progress | None) -> Answered:
    from simulator.showing.size_document import print_size, size_document, size_tables

    answer = planner.sized_answer(
        question.scenario,
        question.index,
        question.goal,
        confidence=question.confidence,
        most_replications=question.most_replications,
        jobs=question.jobs,
        interval=interval,
        with_sensitivity=True,
        progress=progress,
    )

    document = size_document(answer)
    return Answered(
        scenarios=[question.scenario],
        holds=answer.feasible,
        document=document,
        summary=document,
        tables=size_tables(document),
        interrupted=answer.interrupted,
        show=lambda: print_size(answer),
    )


def _solved(question: Question, text: str, progress: Progress | None) -> Answered:
    from simulator.showing.solve_document import print_solved, solve_document, solve_tables

    axis, goal, confidence = parse_axis(text, "--solve"), question.goal, question.confidence
    scenarios = planner.varied(question.name, question.settings, axis)
    found = planner.solved(
        scenarios,
        axis,
        question.index,
        goal,
        confidence=confidence,
        most_replications=question.most_replications,
        jobs=question.jobs,
        progress=progress,
    )
    label = question.scenario.labels[question.index]
    document = solve_document(found, axis, goal, label=label, confidence=confidence)
    return Answered(
        scenarios=[question.scenario, *scenarios],
        holds=found.best is not None,
        document=document,
        summary=document,
        tables=solve_tables(document),
        show=lambda: print_solved(found, axis, goal, said=document["verdict"]),
    )


def _traded(question: Question, texts: Sequence[str], progress: Progress | None) -> Answered:
    from simulator.showing.trade_document import print_trades, trade_document, trade_tables

    axes = (parse_axis(texts[0], "--solve"), parse_axis(texts[1], "--solve"))
    goal, confidence = question.goal, question.confidence
    rows = planner.varied_twice(question.name, question.settings, *axes)
    trades = planner.traded(
        rows,
        axes,
        question.index,
        goal,
        confidence=confidence,
        most_replications=question.most_replications,
        jobs=question.jobs,
        progress=progress,
    )
    label = question.scenario.labels[question.index]
    document = trade_document(trades, axes, goal, label=label, confidence=confidence)
    return Answered(
        scenarios=[question.scenario, *(scenario for row in rows for scenario in row)],
        holds=any(one.solved.best is not None for one in trades),
        document=document,
        summary=document,
        tables=trade_tables(document),
        show=lambda: print_trades(trades, axes, goal, said=document["verdict"]),
    )
