"""SGLang's admission budget: how much of what running requests may still generate is kept free for them.

``managers/schedule_policy.py`` and ``schedule_batch.py`` of SGLang 0.5.10: a request is admitted while

    free + evictable  >  sum over running of min(max_new - generated, 4096) * ratio
                         + its own prompt, rounded up to pages, + min(max_new, 4096) + one page

where requests admitted in the same step count in full. ``ratio`` starts at 0.7, falls in a straight line to 0.14 of
that within 600 decode steps, starts again when nobody runs, and is estimated anew when a running request is
retracted: ``(generated + 20 n) / (max_new + 1)`` over the ``n`` that stay. ``max_new`` is known to SGLang as the
client's limit; here it is the number of outputs that the request will have.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from simulator.serving.sequence import DECODE, Sequence

if TYPE_CHECKING:
    from simulator.scheduler import Scheduler

INITIAL_RATIO: Final = 0.7
LEAST_RATIO: Final = 0.14 * INITIAL_RATIO
DECAY_STEPS: Final = 600
CLIPPED_TOKENS: Final = 4096
RETRACT_STEPS: Final = 20


class TokenBudget:
    """The budget of one scheduler. ``ratio`` follows from the decode steps since it was set last."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._start_ratio = INITIAL_RATIO
        self._start_step = 0

    @property
    def ratio(self) -> float:
        """Share of the tokens still to come that room is kept for."""
        decay = (INITIAL_RATIO - LEAST_RATIO) / DECAY_STEPS
        steps = self._scheduler.batch.step - self._start_step
        return max(self._start_ratio - decay * steps, LEAST_RATIO)

    def reset(self) -> None:
        """Nobody runs."""
        self._start(INITIAL_RATIO)

    def retracted(self) -> None:
        """A running request has given everything back; those that stay say how far they have come."""
        staying = [sequence for sequence in self._scheduler.running if sequence.state is DECODE]
        generated = sum(self._scheduler.batch.outputs(sequence) for sequence in staying)
        wanted = sum(sequence.output_tokens for sequence in staying)
        self._start(min(1.0, (generated + RETRACT_STEPS * len(staying)) / (wanted + 1)))

    def tokens_kept(self, candidate: Sequence) -> int:
        """Tokens to be left free beside the prompt of ``candidate``."""
        batch, kept = self._scheduler.batch, 0.0
        for sequence in self._scheduler.running:
            to_come = min(sequence.output_tokens - batch.outputs(sequence), CLIPPED_TOKENS)
            kept += to_come * self.ratio if sequence.state is DECODE else to_come
        own = min(candidate.output_tokens - candidate.generated_tokens, CLIPPED_TOKENS)
        return math.floor(kept) + own + self._scheduler.allocator.tile_tokens + 1

    def _start(self, ratio: float) -> None:
        self._start_ratio, self._start_step = ratio, self._scheduler.batch.step
