"""The decoding sequences, advanced all together in O(1).

Every decoding sequence gains one token a step, so its length is ``offset + step`` where ``step`` counts the decode
steps of the whole run. What can happen to a sequence while it decodes is known when it joins: the step at
which it outgrows what it holds (see ``due_calendar``), and the step after which it has its last output (``finish``).
Nothing touches a sequence in between. Leaving is lazy where a calendar is keyed by step: an entry counts only while the
sequence's own ``finish_step`` still says so.
"""

import heapq
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.kernels.batch_lengths import Skews, StepLengths
from simulator.kernels.step_load import Lengths
from simulator.serving.due_calendar import DueCalendar
from simulator.serving.sequence import DECODE, PAUSED, Sequence, admission_order
from simulator.serving.windows import Windows

#: tokens per tile when a kernel walks a contiguous range (what ATB and vllm-ascend use for a page)
TILE_TOKENS: Final = 128


class Stretch(NamedTuple):
    """What the batch reads in each of many steps, a column a sum (see ``DecodeBatch.stretch``)."""

    context_tokens: npt.NDArray[np.int64]
    pages: npt.NDArray[np.int64]
    windowed_tokens: npt.NDArray[np.int64]
    lengths: Lengths


class DecodeBatch:
    """Sequences in state ``DECODE``.

    ``page_tokens``: tokens a page-table entry covers; 0 for contiguous memory, whose tiles of ``TILE_TOKENS`` follow
    from the lengths. ``window_tokens``: the sliding window of the model's window layers, or ``None``.
    """

    __slots__ = (
        "_finish",
        "_finish_heap",
        "_members",
        "_offset_row",
        "_offset_sum",
        "_page_tokens",
        "_pages",
        "_skews",
        "_windows",
        "calendar",
        "changes",
        "size",
        "step",
    )

    def __init__(self, page_tokens: int, window_tokens: int | None = None) -> None:
        self.step = 0
        self.size = 0
        #: how many sequences have come or gone
        self.changes = 0
        self._skews = Skews()
        self._page_tokens = page_tokens
        self._pages = 0
        self._offset_sum = 0
        self._members: dict[Sequence, None] = {}
        self._offset_row: npt.NDArray[np.int64] | None = None
        #: when who needs the allocator
        self.calendar = DueCalendar(page_tokens)
        self._finish: dict[int, list[Sequence]] = {}
        self._finish_heap: list[int] = []
        self._windows = None if window_tokens is None else Windows(window_tokens)

    # ---- coming and going

    def join(self, sequence: Sequence, length: int) -> None:
        """``sequence`` has ``length`` tokens of KV and starts to decode with the next step."""
        step = self.step
        sequence.state = DECODE
        sequence.join_step = step
        sequence.offset = length - step
        self.size += 1
        sequence.pages = 0
        self._offset_sum += sequence.offset
        self._members[sequence] = None
        self._offset_row = None
        self.changes += 1
        windows = self._windows
        if windows is not None and length < windows.tokens:
            self.calendar.put_event(windows.enter(sequence))
        sequence.finish_step = step + sequence.output_tokens - sequence.generated_tokens
        bucket = self._finish.get(sequence.finish_step)
        if bucket is None:
            self._finish[sequence.finish_step] = [sequence]
            heapq.heappush(self._finish_heap, sequence.finish_step)
        else:
            bucket.append(sequence)
        self.refresh((sequence,))

    def leave(self, sequence: Sequence) -> int:
        """Take ``sequence`` out; returns its length and brings its counters up to date."""
        assert sequence.state is DECODE, f"{sequence} is not decoding"
        length = sequence.offset + self.step
        self.size -= 1
        self._pages -= sequence.pages
        self._offset_sum -= sequence.offset
        del self._members[sequence]
        self._offset_row = None
        self.changes += 1
        if self._windows is not None:
            self._windows.leave(sequence)
        sequence.generated_tokens += self.step - sequence.join_step
        sequence.computed_tokens = length
        self.calendar.remove(sequence)
        sequence.finish_step = -1
        sequence.state = PAUSED
        return length

    def refresh(self, sequences: Iterable[Sequence]) -> None:
        """What ``sequences`` hold has changed: update their page counts, and note when each is due again."""
        page_tokens, calendar, now = self._page_tokens, self.calendar, self.step
        for sequence in sequences:
            holding = sequence.holding
            assert holding is not None
            if page_tokens:
                entries = holding.held_tokens // page_tokens
                self._pages += entries - sequence.pages
                sequence.pages = entries
            # A prompt may already be longer than what a window layer needs no call for: then the next step is due.
            calendar.put(sequence, max(holding.capacity_tokens + 1 - sequence.offset, now + 1), now)

    def have_taken_pages(self, sequences: list[Sequence]) -> None:
        """``sequences`` were due and have each taken one page."""
        for sequence in sequences:
            sequence.pages += 1
        self._pages += len(sequences)

    # ---- asking

    @property
    def windowed(self) -> bool:
        """Whether the model has window layers."""
        return self._windows is not None

    def length(self, sequence: Sequence) -> int:
        """Tokens of KV that ``sequence`` has now."""
        return sequence.offset + self.step

    def context_tokens(self, step: int) -> int:
        """Sum of the lengths in ``step`` (the new token of each included)."""
        return self._offset_sum + self.size * step

    def windowed_tokens(self, step: int) -> int:
        """Sum of ``min(length, window)`` in ``step``; 0 for a model without window layers."""
        return 0 if self._windows is None else self._windows.tokens_read(step, self.size)

    def offsets(self) -> npt.NDArray[np.int64]:
        """The offsets of all sequences, in the order of joining."""
        if self._offset_row is None:
            self._offset_row = np.fromiter((sequence.offset for sequence in self._members), np.int64, self.size)
        return self._offset_row

    def lengths(self, steps: Any) -> Lengths:
        """The length of every sequence in ``steps`` (a number or an array), in the order of joining."""
        return StepLengths(self, self._skews, steps)

    def pages(self, step: int) -> int:
        """Tiles that the attention kernel reads in ``step``: page-table entries, or pieces of contiguous ranges."""
        return self._pages if self._page_tokens else self._tiles(self.context_tokens(step))

    def stretch(self, step: int, count: int, taken: list[int] | None = None) -> Stretch:
        """The sums of the ``count`` steps that follow ``step``. In each as many pages are taken as ``taken`` says;
        without it none is, and none of the steps is beyond the calendar's ``quiet_until``."""
        later = np.arange(count, dtype=np.int64)
        contexts = self.context_tokens(step + 1) + self.size * later
        inside = 0 if self._windows is None else self._windows.inside
        pages = np.full(count, self._pages, np.int64) if self._page_tokens else self._tiles(contexts)
        return Stretch(
            contexts,
            pages if taken is None else pages + np.cumsum(taken),
            self.windowed_tokens(step + 1) + inside * later,
            self.lengths(step + 1 + later),
        )

    def _tiles(self, context_tokens: Any) -> Any:
        """Pieces of ``TILE_TOKENS`` in contiguous ranges: at most so many, as sums do not say where each range ends."""
        return (context_tokens + self.size * (TILE_TOKENS - 1)) // TILE_TOKENS

    def outputs(self, sequence: Sequence) -> int:
        """Output tokens that ``sequence`` has produced so far."""
        done = self.step - sequence.join_step if sequence.state is DECODE else 0
        return sequence.generated_tokens + done

    def next_finish(self) -> int:
        """The first step after which a sequence is complete (the batch must not be empty)."""
        heap = self._finish_heap
        while True:
            step = heap[0]
            bucket = self._finish[step]
            if any(sequence.finish_step == step for sequence in bucket):
                return step
            del self._finish[step]
            heapq.heappop(heap)

    # ---- time

    def advance(self, step: int) -> list[Sequence]:
        """``step`` has been taken; returns the sequences it completed, in the order of admission."""
        self.step = step
        if self._windows is not None:
            self._windows.cross(step)
        bucket = self._finish.pop(step, None)
        if bucket is None:
            return []
        heap = self._finish_heap
        while heap and heap[0] <= step:
            heapq.heappop(heap)
        done = []
        for sequence in bucket:
            if sequence.finish_step == step and sequence.state is DECODE:
                sequence.finish_step = -1
                done.append(sequence)
        _sort_by_admission(done)
        return done


def _sort_by_admission(sequences: list[Sequence]) -> None:
    """Put ``sequences`` in the order of admission, in which they mostly are."""
    last = -1
    for sequence in sequences:
        if sequence.serial <= last:
            sequences.sort(key=admission_order)
            return
        last = sequence.serial
