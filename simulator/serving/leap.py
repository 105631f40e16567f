"""Many decode steps in one go, exactly.

After a scheduled step in which nothing was left to decide, the batch simply decodes on. A leap takes those steps
without going back to the scheduler and ends where anything could be decided: a sequence completes, memory may not
suffice, what a blocked request is offered has changed, an arrival could be admitted, a queue time-out or maintenance is
due, the horizon is reached. Inside a leap every step still has its own page allocations and its own duration.

Stretches in which no sequence needs its allocator are one array each: lengths grow by one a step, so contexts,
durations and end times are vectors. Where sequences take nothing but their next page, many steps are one block (see
``page_steps``). All of it is integer arithmetic on the same numbers as one step at a time.
"""

from typing import Final

import numpy as np

from simulator.cost import StepTimes
from simulator.scheduler import Scheduler
from simulator.serving.clock import LAST_NS, on_clock
from simulator.serving.page_steps import PageSteps
from simulator.serving.recorder import Recorder

#: steps below which a loop is faster than arrays (about 10 us against 1.5 us a step)
SHORTEST_STRETCH: Final = 10
#: the same where the loop is that of ``page_steps`` (0.1 us a step)
SHORTEST_BESIDE_BLOCKS: Final = 100
#: longest array taken at once; bounds what is worked out for steps that are not taken
LONGEST_STRETCH: Final = 512


class Leap:
    """Takes decode steps of the scheduler's batch."""

    def __init__(self, scheduler: Scheduler, cost: StepTimes, recorder: Recorder) -> None:
        self._scheduler = scheduler
        self.cost = cost
        self._recorder = recorder
        self._batch = scheduler.batch
        self._allocator = scheduler.allocator
        self._page_steps = PageSteps(scheduler, recorder)

    def run(self, now: int, stop_ns: int) -> int:
        """Decode on from the end of the scheduled step at ``now``; returns when the leap ends.

        No step starts at or after ``stop_ns``. On return the batch stands before the last step taken, which the
        scheduler's ``finish_step`` completes.
        """
        scheduler, batch = self._scheduler, self._batch
        last_step = batch.next_finish()
        somebody_waits = bool(scheduler.waiting or scheduler.swapped)
        self._recorder.queues = (len(scheduler.running), scheduler.requeued, len(scheduler.swapped))
        # giving up cached pages may change what those who wait would hit
        by_page = scheduler.grows_by_page() and not (somebody_waits and self._allocator.caches_prefixes)
        shortest = SHORTEST_BESIDE_BLOCKS if by_page else SHORTEST_STRETCH
        first = step = batch.step + 1
        while step < last_step:
            stop_ns = self._not_past_maintenance(now, stop_ns)
            if now >= stop_ns:
                break
            batch.advance(step)
            quiet = min(batch.calendar.quiet_until(step), last_step) - step
            if quiet >= shortest:
                count, now = self._take_stretch(step, min(quiet, LONGEST_STRETCH), now, stop_ns)
                step += count
                continue
            if by_page:
                count, now = self._page_steps.take(self.cost, step, last_step - step, now, stop_ns)
                if not count:
                    break
                step += count
                continue
            before = scheduler.chances()
            served = scheduler.grow_due_in_leap(step + 1)
            ask_again = bool(served) and somebody_waits and scheduler.better(before)
            if served is None or (ask_again and scheduler.grows_before_admission):
                break
            if served:
                self._recorder.memory(now)
            step += 1
            now = self._take_step(step, now)
            if ask_again:
                break
        batch.step = step - 1
        if scheduler.refused is not None:
            self._allocator.refused_again(scheduler.refused, step - first)
        return now

    def _take_step(self, step: int, now: int) -> int:
        batch, recorder, work, size = self._batch, self._recorder, self._allocator.work, self._batch.size
        tokens = batch.context_tokens(step)
        pages, windowed = batch.pages(step), batch.windowed_tokens(step)
        duration = self.cost.decode_ns(size, tokens, pages, windowed, batch.lengths(step))
        if work.any():
            duration += self.cost.memory_ns(work.copied_bytes, 0, work.search_cycles)
            work.clear()
        recorder.hold(duration, tokens)
        recorder.count_step(sequences=size, outputs=size, prompt_tokens=0, duration_ns=duration)
        now = on_clock(now + duration)
        if now > recorder.next_row_ns:
            recorder.sample(now, tokens)
        return now

    def _take_stretch(self, step: int, count: int, now: int, stop_ns: int) -> tuple[int, int]:
        """Up to ``count`` steps after ``step`` that start before ``stop_ns``; how many, and when the last one ends."""
        batch, size = self._batch, self._batch.size
        sums = batch.stretch(step, count)
        tokens = sums.context_tokens
        durations = self.cost.decode_ns_array(size, *sums)
        on_clock(now + int(durations[0]))
        count = max(1, min(count, (LAST_NS - now) // int(durations.max())))
        tokens, durations = tokens[:count], durations[:count]
        ends = now + np.cumsum(durations)
        taken = int(np.searchsorted(ends[:-1], stop_ns, side="left")) + 1
        if taken < count:
            tokens, durations, ends = tokens[:taken], durations[:taken], ends[:taken]
        self._recorder.hold_steps(durations, tokens, size)
        self._recorder.sample_steps(ends, tokens)
        return taken, int(ends[-1])

    def _not_past_maintenance(self, now: int, stop_ns: int) -> int:
        due = self._allocator.maintenance_due_ns(now)
        return stop_ns if due is None else min(stop_ns, due)
