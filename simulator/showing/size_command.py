"""The three questions of ``simulate size``, each answered as a document, as text and as a picture."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator import planner
from simulator.errors import InputError, Problem
from simulator.loading.overrides import Override
from simulator.planning.grid import parse_axis
from simulator.planning.pool_interval import PoolInterval
from simulator.planning.target import Goal
from simulator.scenario import Scenario

if TYPE_CHECKING:
    from simulator.showing.plots.style import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked about one allocator of a scenario; ``name`` and ``settings`` are how it was loaded."""

    name: str
    settings: Sequence[str | Override]
    scenario: Scenario
    index: int
    goal: Goal
    confidence: float
    most_replications: int
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An answer; ``holds`` is whether it is a yes."""

    holds: bool
    document: Mapping[str, Any]
    show: Callable[[], None]
    draw: Callable[[], "Figure"]

    def write(self, folder: Path) -> None:
        """``size.json``, ``size.svg`` and ``size.png`` into ``folder``. Raises ``InputError``."""
        import json

        from simulator.files import staged, write_text, write_with
        from simulator.showing.plots.style import png_bytes, styled, svg_bytes

        with styled():
            drawn = self.draw()
            svg, png = svg_bytes(drawn), png_bytes(drawn)
        text = json.dumps(self.document, indent=2, ensure_ascii=False, allow_nan=False)
        with staged(folder, last="size.json") as stage:
            write_with(stage / "size.svg", lambda stream: stream.write(svg))
            write_with(stage / "size.png", lambda stream: stream.write(png))
            write_text(stage / "size.json", text + "\n")


def answered(
    question: Question, solve: Sequence[str], interval: PoolInterval | None, progress: planner.Progress | None
) -> Answered:
    """The smallest pool; with one or two of ``solve`` how far these keys may go instead. Raises ``InputError``."""
    if not solve:
        return _sized(question, interval, progress)
    if interval is not None:
        message = "is for sizing; --solve takes the pool there is: set device.kv_capacity_bytes to an end of it"
        raise InputError([Problem(option="--pool-interval", message=message)])
    if len(solve) > 2:
        raise InputError([Problem(option="--solve", message="at most two keys can be solved for together")])
    return _solved(question, solve[0], progress) if len(solve) == 1 else _traded(question, solve, progress)


def _sized(question: Question, interval: PoolInterval | None, progress: planner.Progress | None) -> Answered:
    from simulator.showing.size_document import print_size, size_document

    answer = planner.sized_answer(
        question.scenario,
        question.index,
        question.goal,
        confidence=question.confidence,
        most_replications=question.most_replications,
        jobs=question.jobs,
        interval=interval,
        progress=progress,
    )

    def draw() -> "Figure":
        from simulator.showing.plots.planner import size_curve

        return size_curve(answer)

    return Answered(holds=answer.feasible, document=size_document(answer), show=lambda: print_size(answer), draw=draw)


def _solved(question: Question, text: str, progress: planner.Progress | None) -> Answered:
    from simulator.showing.solve_document import print_solved, solve_document

    axis, goal, confidence = parse_axis(text, "--solve"), question.goal, question.confidence
    found = planner.solved(
        planner.varied(question.name, question.settings, axis),
        axis,
        question.index,
        goal,
        confidence=confidence,
        most_replications=question.most_replications,
        jobs=question.jobs,
        progress=progress,
    )
    label = question.scenario.labels[question.index]

    def draw() -> "Figure":
        from simulator.showing.plots.planner import solve_curve

        return solve_curve(found, axis, goal, name=question.scenario.name)

    return Answered(
        holds=found.best is not None,
        document=solve_document(found, axis, goal, label=label, confidence=confidence),
        show=lambda: print_solved(found, axis, goal, confidence=confidence),
        draw=draw,
    )


def _traded(question: Question, texts: Sequence[str], progress: planner.Progress | None) -> Answered:
    from simulator.showing.trade_document import print_trades, trade_document

    axes = (parse_axis(texts[0], "--solve"), parse_axis(texts[1], "--solve"))
    goal, confidence = question.goal, question.confidence
    trades = planner.traded(
        planner.varied_twice(question.name, question.settings, *axes),
        axes,
        question.index,
        goal,
        confidence=confidence,
        most_replications=question.most_replications,
        jobs=question.jobs,
        progress=progress,
    )
    label = question.scenario.labels[question.index]

    def draw() -> "Figure":
        from simulator.showing.plots.planner import trade_curve

        return trade_curve(trades, axes, goal, name=question.scenario.name)

    return Answered(
        holds=any(one.solved.best is not None for one in trades),
        document=trade_document(trades, axes, goal, label=label, confidence=confidence),
        show=lambda: print_trades(trades, axes, goal, confidence=confidence),
        draw=draw,
    )
