"""What an engine did when: steps, and sequences that lost their memory or got it back. For traces.

It looks on from the engine's ``watch`` hook, once a scheduling point, so it costs a step nothing inside a leap: the
steps of a leap are one row, which says how many they were.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.allocators.base import Allocator
from simulator.traffic.requests import Requests
from simulator.units import NS_PER_S

Columns = dict[str, npt.NDArray[Any]]

#: rows kept of each kind; a viewer gets slow beyond. Later ones are only counted
MAX_ROWS: Final = 200_000
_STEPS = ("instance", "start_ns", "end_ns", "steps", "sequence_steps", "prompt_tokens", "output_tokens")
#: what can happen to the memory of a running sequence
KINDS = ("preempted", "resumed", "swapped_out", "swapped_in", "stalled")


class StepLogs:
    """The logs of all runs of a simulation, in the order in which they begin: an ``Observe`` for ``simulate``."""

    def __init__(self) -> None:
        self.logs: list[StepLog] = []

    def __call__(self, allocator: Allocator, requests: Requests) -> Callable[[Any], None]:
        del allocator, requests
        self.logs.append(StepLog())
        return self.logs[-1].observe


@dataclass(slots=True)
class StepLog:
    """Steps and moves of one run, of a fleet those of every instance.

    ``dropped_steps`` and ``dropped_moves`` have no row.
    """

    dropped_steps: int = 0
    dropped_moves: int = 0
    _steps: list[tuple[int, ...]] = field(default_factory=list)
    _moves: list[tuple[int, int, int, int]] = field(default_factory=list)
    _engines: list[Any] = field(default_factory=list)
    _before: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def observe(self, running: Any) -> None:
        """Look at the engine ``running``. A replay has no steps of its own, and gets no log."""
        if getattr(running, "recorder", None) is None or getattr(running, "scheduler", None) is None:
            return
        if running.place not in self._before:
            self._engines.append(running)
            self._before[running.place] = (0, 0, 0, 0, 0)
            running.ledger.on_move = partial(self._moved, running)
        self._look(running)

    def _look(self, engine: Any) -> None:
        recorder, now = engine.recorder, engine.now_ns
        seen = (now, recorder.steps, recorder.sequence_steps, recorder.prompt_tokens, recorder.output_tokens)
        since, *counts = self._before[engine.place]
        made = [after - before for after, before in zip(seen[1:], counts, strict=True)]
        if made[0]:
            if len(self._steps) < MAX_ROWS:
                self._steps.append((engine.place, since, now, *made))
            else:
                self.dropped_steps += made[0]
        self._before[engine.place] = seen

    def _moved(self, engine: Any, kind: str, request_id: int) -> None:
        if len(self._moves) < MAX_ROWS:
            self._moves.append((engine.place, engine.now_ns, request_id, KINDS.index(kind)))
        else:
            self.dropped_moves += 1

    @property
    def instances(self) -> int:
        """How many engines were seen."""
        return len(self._before)

    def let_go(self) -> None:
        """Look once more at what ran, and keep nothing but the rows."""
        for engine in self._engines:
            self._look(engine)
        self._engines.clear()

    def steps(self) -> Columns:
        """A row a scheduling point that ran steps: seconds, how many, sequences in all of them, tokens."""
        self.let_go()
        rows = np.array(self._steps, np.int64).reshape(-1, len(_STEPS))
        columns: Columns = {name: rows[:, place] for place, name in enumerate(_STEPS)}
        return {"start_s": columns.pop("start_ns") / NS_PER_S, "end_s": columns.pop("end_ns") / NS_PER_S} | columns

    def moves(self) -> Columns:
        """A row each time that memory of a running sequence was taken, given back or not to be had."""
        rows = np.array(self._moves, np.int64).reshape(-1, 4)
        return {
            "instance": rows[:, 0],
            "time_s": rows[:, 1] / NS_PER_S,
            "request_id": rows[:, 2],
            "kind": np.array(KINDS, dtype=object)[rows[:, 3]],
        }
