"""Decode steps in which sequences take their next page, a block of them at a time.

No sequence takes two pages in as many steps as a page has tokens, so for so many steps the calendar of the batch says
who takes one when. Durations, integrals and ends follow from the counts alone; the pages are then given out together,
in the order in which single steps would have taken them.

A block ends before a step that memory may not suffice for, and after one in which a row of the timeline falls, so that
the row is read off an allocator that has handed out the pages of that step.
"""

from simulator.cost import SHORT_ARRAY, StepTimes
from simulator.scheduler import Scheduler
from simulator.serving.clock import on_clock
from simulator.serving.recorder import Recorder
from simulator.serving.sequence import Sequence

Due = list[list[Sequence]]


class PageSteps:
    """Takes blocks of steps of the scheduler's batch. For schedulers that ``grows_by_page``."""

    def __init__(self, scheduler: Scheduler, recorder: Recorder) -> None:
        self._batch = scheduler.batch
        self._allocator = scheduler.allocator
        self._recorder = recorder
        # the last duration: tells about how many steps there is time for
        self._usual_ns = 1
        # what finding so many pages in one step adds to it
        self._finding_ns: dict[int, int] = {}

    def take(self, cost: StepTimes, step: int, count: int, now: int, stop_ns: int) -> tuple[int, int]:
        """Up to ``count`` steps after ``step`` that start before ``stop_ns``; how many, and when the last one ends.
        None if there are too few pages for the first."""
        batch, recorder, allocator = self._batch, self._recorder, self._allocator
        row_at = recorder.next_row_ns
        count = min(count, allocator.tile_tokens, (min(stop_ns, row_at) - now) // self._usual_ns + 2)
        due = batch.calendar.due_after(step, count)
        durations = self._durations(cost, step, due)
        size, free_rows, tokens = batch.size, allocator.free_rows(), batch.context_tokens(step)
        token_ns = rows = row_ns = taken = 0
        begin = now
        while taken < count and now < stop_ns and now <= row_at:
            rows_then = rows + len(due[taken])
            if rows_then > free_rows:
                break
            rows = rows_then
            duration = durations[taken]
            tokens += size
            token_ns += tokens * duration
            row_ns += rows * duration
            now += duration
            taken += 1
        if not taken:
            return 0, now
        span_ns = now - begin
        self._usual_ns = span_ns // taken
        on_clock(now)
        token_bytes, discount_bytes = allocator.bytes_per_token, allocator.discount_bytes
        recorder.hold_grown(
            token_ns * token_bytes - span_ns * discount_bytes,
            tokens * token_bytes - discount_bytes,
            steps=taken,
            sequences=size,
            duration_ns=span_ns,
        )
        if rows:
            del due[taken:]
            self._give_out(due, rows)
            tail_byte_ns = self._tail_byte_ns(due, durations, span_ns)
            recorder.memory_grown(now, rows=rows, row_ns=row_ns, tail_byte_ns=tail_byte_ns)
        if now > row_at:
            recorder.sample(now, tokens)
        return taken, now

    def _durations(self, cost: StepTimes, step: int, due: Due) -> list[int]:
        """Nanoseconds of the steps after ``step`` in which ``due`` take pages."""
        if cost.fixed_ns is not None:
            return [cost.fixed_ns] * len(due)
        batch, size = self._batch, self._batch.size
        if len(due) >= SHORT_ARRAY:
            sums = batch.stretch(step, len(due), [len(some) for some in due])
            durations: list[int] = cost.decode_ns_array(size, *sums).tolist()
        else:
            durations = []
            pages, tokens = batch.pages(step), batch.context_tokens(step)
            for at, some in enumerate(due, 1):
                pages += len(some)
                durations.append(cost.decode_ns(size, tokens + at * size, pages, 0, batch.lengths(step + at)))
        for at, some in enumerate(due):
            if some:
                durations[at] += self._finding(cost, len(some))
        return durations

    def _finding(self, cost: StepTimes, pages: int) -> int:
        known = self._finding_ns.get(pages)
        if known is None:
            cycles = self._allocator.cycles_per_page
            assert cycles is not None
            known = self._finding_ns[pages] = cost.memory_ns(0, 0, cycles * pages)
        return known

    def _give_out(self, due: Due, rows: int) -> None:
        sequences = [sequence for some in due for sequence in some]
        assert len(sequences) == rows
        self._allocator.grow_each([Scheduler.holding(sequence) for sequence in sequences])
        self._allocator.work.clear()  # it is in the durations
        self._batch.have_taken_pages(sequences)

    def _tail_byte_ns(self, due: Due, durations: list[int], left_ns: int) -> int:
        """What the slots of the new pages that no token will fill add up to until the end, ``left_ns`` after the start
        of the first step."""
        page_tokens, tail_token_ns = self._allocator.tile_tokens, 0
        if self._allocator.tail_bytes == self._recorder.tail.value:
            return 0
        for some, duration in zip(due, durations, strict=False):
            for sequence in some:
                holding = Scheduler.holding(sequence)
                beyond = holding.held_tokens - holding.final_tokens
                if beyond > 0:
                    tail_token_ns += min(beyond, page_tokens) * left_ns
            left_ns -= duration
        return tail_token_ns * self._allocator.bytes_per_token
