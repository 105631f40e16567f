"""vLLM 0.6 lets a sequence decode only if every page it touches could be a new one.

``can_append_slots`` (``core/block_manager.py``, 0.6.3) counts the blocks that the next tokens of a group touch, each of
them as if it had to be allocated or copied, and preempts unless so many are free. So a sequence whose last page has
room is preempted all the same when nothing is free. One that needs the whole pool gets on all the same: what is
computed again ends with a new output, one a recompute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.allocators.base import Shortfall
from simulator.profiles import PROFILES
from simulator.serving.sequence import DECODE, Sequence
from simulator.units import ceil_div

if TYPE_CHECKING:
    from simulator.scheduler import Scheduler


class AppendReserve:
    """The rule for one scheduler.

    It is ``in_force`` for paged pools under a preempting ``on_oom`` only, as vLLM 0.6 has neither of the others.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        engine, allocator = scheduler.engine, scheduler.allocator
        preempts = engine.on_oom in ("preempt_recompute", "preempt_swap")
        self.in_force = PROFILES[engine.profile].append_reserve and preempts and allocator.max_pages > 0
        self._page_tokens = allocator.tile_tokens
        #: rows that one append touches at most, and sequences of the widest request so far
        self._most_rows = 1 + ceil_div(engine.num_lookahead_tokens, self._page_tokens)
        self._widest = 1

    def seen(self, sequence: Sequence) -> None:
        """``sequence`` has arrived."""
        self._widest = max(self._widest, len(sequence.group.members) if sequence.group else 1)

    def near(self, due: int) -> bool:
        """Whether somebody may be refused in a step in which ``due`` sequences take a page."""
        return self.in_force and self._scheduler.allocator.free_rows() < (due + self._widest) * self._most_rows

    def allows(self, sequence: Sequence, now: int) -> bool:
        """Whether ``sequence`` may decode now, preempting others if that helps; ``False`` when it does not run."""
        scheduler = self._scheduler
        if not self.in_force or self._fits(sequence):
            return True
        scheduler.ledger.oom(sequence, self._shortfall(sequence), now, during="decode")
        while scheduler.pressure.relieve(sequence, now):
            if self._fits(sequence):
                return True
        return False

    def _fits(self, sequence: Sequence) -> bool:
        return self._rows(sequence) <= self._scheduler.allocator.free_rows()

    def _rows(self, sequence: Sequence) -> int:
        """Rows that ``sequence`` touches, and those of its request that come after it in this step."""
        members = sequence.group.members if sequence.group is not None else (sequence,)
        length = self._scheduler.batch.length
        behind = (one for one in members if one.state is DECODE and one.seat >= sequence.seat)
        return sum(self._touched(length(one)) for one in behind)

    def _touched(self, length: int) -> int:
        slots = 1 + self._scheduler.engine.num_lookahead_tokens
        return ceil_div(length % self._page_tokens + slots, self._page_tokens)

    def _shortfall(self, sequence: Sequence) -> Shortfall:
        allocator = self._scheduler.allocator
        row_bytes = allocator.tile_tokens * allocator.bytes_per_token
        free = allocator.free_rows() * row_bytes
        return Shortfall("capacity", self._rows(sequence) * row_bytes, free, free)
