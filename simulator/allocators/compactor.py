"""When to make runs whole again, how many, and which pages to move.

The cheapest broken runs, those with the fewest used pages, are emptied into the holes of the fullest. A run can be
gained for every ``run_length`` free pages outside whole runs, so whether compaction can help is known beforehand.
"""

from collections.abc import Callable

from simulator.allocators.run_pool import RunPool
from simulator.config import DefragTrigger
from simulator.units import to_ns


class Compactor:
    """Decides and drives; ``move(page, run)`` moves one page out of ``run`` into a hole elsewhere.

    Between two calls of ``maintain`` at most ``max_moves_per_step`` pages move; what is left over is taken up then.
    """

    def __init__(
        self,
        runs: RunPool,
        trigger: DefragTrigger,
        *,
        max_moves_per_step: int,
        move: Callable[[int, int], None],
    ) -> None:
        self.trigger = trigger
        #: runs made whole so far
        self.runs_gained = 0
        self._runs = runs
        self._move = move
        self._max_moves_per_step = max_moves_per_step
        self._moves_left = max_moves_per_step
        self._period_ns = to_ns(trigger.period) if trigger.period is not None else 0
        self._next_period_ns = self._period_ns or None
        self._sweeping = False
        self._wanted_runs = 0

    def provide(self, runs: int) -> None:
        """So many whole runs are asked for and are not there: compact if the trigger says so and it can help."""
        if self.trigger.on_failure and runs <= self._reachable_runs():
            self._wanted_runs = max(self._wanted_runs, runs)
            self._compact(runs)

    def maintain(self, now_ns: int) -> bool:
        """Start a new step: moves are allowed again, and those that are due are made. Whether any page moved."""
        self._moves_left = self._max_moves_per_step
        if self._next_period_ns is not None and now_ns >= self._next_period_ns:
            self._sweeping = True
            self._next_period_ns = (now_ns // self._period_ns + 1) * self._period_ns
        moved = self._compact(self._target_runs())
        self._sweeping = self._sweeping and self._reachable_runs() > self._runs.whole_runs
        return moved > 0

    def due_ns(self, now_ns: int) -> int | None:
        """``now_ns`` while work is left over, else the start of the next period, if there is one."""
        behind = min(self._target_runs(), self._reachable_runs()) > self._runs.whole_runs
        return now_ns if behind else self._next_period_ns

    def _target_runs(self) -> int:
        """Whole runs there should be now."""
        if self._sweeping:
            return self._reachable_runs()
        threshold, free_pages = self.trigger.fragmentation, len(self._runs)
        if threshold is None or self._runs.fragmentation_ratio < threshold:
            return self._wanted_runs
        below_threshold = int(free_pages * (1.0 - threshold)) // self._runs.run_length + 1
        return max(self._wanted_runs, below_threshold)

    def _reachable_runs(self) -> int:
        """Whole runs there would be after moving without limit."""
        runs = self._runs
        if runs.cheapest_broken() is None:
            return runs.whole_runs
        return min(runs.total_runs, runs.whole_runs + runs.broken_free_pages // runs.run_length)

    def _compact(self, target_runs: int) -> int:
        """Move pages until ``target_runs`` are whole, nothing more can be gained, or the step's moves are used up."""
        runs, moved = self._runs, 0
        while runs.whole_runs < target_runs and self._moves_left > moved and runs.broken_free_pages >= runs.run_length:
            victim = runs.cheapest_broken()
            if victim is None:
                break
            pages = runs.used_pages(victim, self._moves_left - moved)
            assert pages, f"run {victim} is called broken, but none of its pages is in use"
            for page in pages:
                self._move(page, victim)
                moved += 1
            self.runs_gained += runs.free_in_run(victim) == runs.run_length
        self._moves_left -= moved
        if self._wanted_runs <= runs.whole_runs or self._reachable_runs() < self._wanted_runs:
            self._wanted_runs = 0
        return moved
