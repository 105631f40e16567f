"""Memory and batch over time: exact integrals, peaks, and a timeline of bounded size.

Between two instants at which memory changes hands nothing but the lengths of decoding sequences moves, so every
average is an exact integer integral divided by the time. The timeline samples the state on a regular grid; when it
has more than ``MAX_ROWS`` rows the grid is made twice as coarse and every second row is dropped, keeping the
peaks of both. A grid does not care in how many leaps the time between was crossed.
"""

from dataclasses import dataclass, field
from operator import mul
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.allocators.base import Allocator, Occupancy

MAX_ROWS: Final = 2048
#: finest grid of the timeline; doubled as the run gets longer
FIRST_INTERVAL_NS: Final = 1_000_000
#: part of the time known beforehand in which a grid must have become too fine for the run to begin with the next one
_SURELY_RUN: Final = 4

COLUMNS = (
    "time_ns",
    "used_bytes",
    "allocated_bytes",
    "tail_bytes",
    "cached_bytes",
    "largest_free_bytes",
    "running",
    "requeued",
    "swapped",
    "leaked_bytes",
    "peak_allocated_bytes",
)


#: a row without its peak
_State = tuple[int, ...]


@dataclass(slots=True)
class Integral:
    """A value that changes at instants, integrated over time: exact as long as values and times are integers."""

    value: int = 0
    since_ns: int = 0
    total: int = 0
    peak: int = 0

    def set(self, value: int, now: int, area: int = 0) -> None:
        """The value is ``value`` from ``now`` on. If it went there in steps since the last change, what lay above the
        old value (below it, if negative) until ``now`` adds up to ``area``."""
        self.total += self.value * (now - self.since_ns) + area
        self.since_ns = now
        self.value = value
        if value > self.peak:
            self.peak = value


@dataclass(slots=True)
class Recorder:
    """Everything about a run that is not about one request. ``hold`` after each step, ``memory`` after each change.

    While ``blocked`` somebody waits for memory, and what is free is of no use to them (the `external` waste).
    """

    allocator: Allocator
    allocated: Integral = field(default_factory=Integral)
    tail: Integral = field(default_factory=Integral)
    unavailable: Integral = field(default_factory=Integral)
    dead: Integral = field(default_factory=Integral)
    entries: Integral = field(default_factory=Integral)
    #: free bytes, and those of them outside the largest piece; kept only where free memory can be in pieces
    free: Integral = field(default_factory=Integral)
    scattered: Integral = field(default_factory=Integral)
    #: what mistakes have lost, and what of the counts above belongs to it
    leaked: Integral = field(default_factory=Integral)
    leaked_discount: Integral = field(default_factory=Integral)
    leaked_tail: Integral = field(default_factory=Integral)
    blocked: bool = False
    #: running sequences, preempted ones among the waiting, swapped ones. Who waits for the first time follows from the
    #: ledger's times, also for instants inside a leap
    queues: tuple[int, int, int] = (0, 0, 0)
    used_byte_ns: int = 0
    peak_used_bytes: int = 0
    steps: int = 0
    sequence_steps: int = 0
    peak_sequences: int = 0
    busy_ns: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    interval_ns: int = FIRST_INTERVAL_NS
    next_row_ns: int = 0
    _states: list[_State] = field(default_factory=list)
    _peaks: list[int] = field(default_factory=list)
    _peak_since_row: int = 0

    def memory(self, now: int, *, byte_ns: int = 0, row_ns: int = 0, tail_byte_ns: int = 0) -> None:
        """The allocator's state has changed at ``now``, or step by step until then (see ``memory_grown``)."""
        allocator = self.allocator
        self.allocated.set(allocator.allocated_bytes, now, byte_ns)
        if allocator.tail_bytes != self.tail.value:
            self.tail.set(allocator.tail_bytes, now, tail_byte_ns)
        if self.blocked or self.unavailable.value:
            free_bytes = allocator.capacity_bytes - allocator.allocated_bytes
            self.unavailable.set(free_bytes if self.blocked else 0, now, -byte_ns)
        if allocator.can_fork:
            self.entries.set(allocator.table_entries, now, row_ns)
        if allocator.fragments:
            free_bytes, largest_bytes = allocator.free_and_largest_bytes()
            self.free.set(free_bytes, now)
            self.scattered.set(free_bytes - largest_bytes, now)
        if allocator.leaks:
            leak = allocator.leak()
            self.leaked.set(leak.allocated_bytes, now)
            self.leaked_discount.set(leak.discount_bytes, now)
            self.leaked_tail.set(leak.tail_bytes, now)
        if allocator.allocated_bytes > self._peak_since_row:
            self._peak_since_row = allocator.allocated_bytes

    def memory_grown(self, now: int, *, rows: int, row_ns: int, tail_byte_ns: int) -> None:
        """Sequences have taken ``rows`` pages one after another; up to ``now`` these were held for ``row_ns`` in all,
        and what no token will fill of them for ``tail_byte_ns``. Stands for a call of ``memory`` at each taking."""
        grown_bytes = self.allocator.allocated_bytes - self.allocated.value
        self.memory(now, byte_ns=grown_bytes // rows * row_ns, row_ns=row_ns, tail_byte_ns=tail_byte_ns)

    def close(self, now: int) -> None:
        """The run is over: bring every integral up to ``now``."""
        self.memory(now)
        for integral in (self.tail, self.unavailable, self.dead, self.entries, self.free, self.scattered):
            integral.set(integral.value, now)

    def hold(self, duration_ns: int, tokens: int) -> None:
        """For ``duration_ns`` the live sequences had ``tokens`` tokens of KV in all."""
        used_bytes = tokens * self.allocator.bytes_per_token - self.allocator.discount_bytes
        self.used_byte_ns += duration_ns * used_bytes
        if used_bytes > self.peak_used_bytes:
            self.peak_used_bytes = used_bytes

    def hold_steps(self, durations_ns: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64], sequences: int) -> None:
        """``hold`` and ``count_step`` for decode steps in which nothing but the lengths of ``sequences`` changed."""
        allocator, span_ns = self.allocator, int(durations_ns.sum())
        token_ns = _exact_dot(durations_ns, tokens)
        self.hold_grown(
            token_ns * allocator.bytes_per_token - span_ns * allocator.discount_bytes,
            int(tokens[-1]) * allocator.bytes_per_token - allocator.discount_bytes,
            steps=len(durations_ns),
            sequences=sequences,
            duration_ns=span_ns,
        )

    def hold_grown(
        self, used_byte_ns: int, peak_used_bytes: int, *, steps: int, sequences: int, duration_ns: int
    ) -> None:
        """``hold`` and ``count_step`` for ``steps`` decode steps of ``sequences``, whose use adds up to
        ``used_byte_ns``."""
        self.used_byte_ns += used_byte_ns
        if peak_used_bytes > self.peak_used_bytes:
            self.peak_used_bytes = peak_used_bytes
        self.steps += steps
        self.sequence_steps += sequences * steps
        self.output_tokens += sequences * steps
        self.busy_ns += duration_ns

    def count_step(self, *, sequences: int, outputs: int, prompt_tokens: int, duration_ns: int) -> None:
        """One engine step ran."""
        self.steps += 1
        self.sequence_steps += sequences
        self.output_tokens += outputs
        self.prompt_tokens += prompt_tokens
        self.busy_ns += duration_ns
        if sequences > self.peak_sequences:
            self.peak_sequences = sequences

    # ---- timeline

    def sample(self, until_ns: int, tokens: int) -> None:
        """Write the rows of the grid that lie before ``until_ns``; the state has not changed since the last call."""
        if until_ns <= self.next_row_ns:
            return
        occupancy = self.allocator.occupancy()
        while self.next_row_ns < until_ns:
            self._add_row(self._state(tokens, occupancy))

    def sample_steps(self, ends_ns: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> None:
        """As ``sample`` for steps in which nothing but lengths changed: step ``i`` ends at ``ends_ns[i]``."""
        until_ns = int(ends_ns[-1])
        if until_ns <= self.next_row_ns:
            return
        occupancy = self.allocator.occupancy()
        while self.next_row_ns < until_ns:
            step = int(np.searchsorted(ends_ns, self.next_row_ns, side="right"))
            self._add_row(self._state(int(tokens[step]), occupancy))

    def _state(self, tokens: int, occupancy: Occupancy) -> _State:
        """The next row, but for its peak."""
        allocator, queues = self.allocator, self.queues
        leak = allocator.leak()
        return (
            self.next_row_ns,
            tokens * allocator.bytes_per_token - allocator.discount_bytes + leak.discount_bytes,
            occupancy.allocated_bytes,
            allocator.tail_bytes - leak.tail_bytes,
            occupancy.cached_bytes,
            occupancy.largest_free_bytes,
            queues[0],
            queues[1],
            queues[2],
            leak.allocated_bytes,
        )

    def _add_row(self, state: _State) -> None:
        self._states.append(state)
        self._peaks.append(self._peak_since_row)
        self._peak_since_row = state[2]
        self.next_row_ns += self.interval_ns
        if len(self._states) > MAX_ROWS:
            self._coarsen()

    def _coarsen(self) -> None:
        peaks = [*self._peaks, 0]
        self._states = self._states[::2]
        self._peaks = [max(peaks[at], peaks[at + 1]) for at in range(0, len(peaks) - 1, 2)]
        self.interval_ns *= 2
        self.next_row_ns = self._states[-1][0] + self.interval_ns

    @property
    def rows(self) -> list[tuple[int, ...]]:
        """The rows of the timeline, each as ``COLUMNS``."""
        return [(*state, peak) for state, peak in zip(self._states, self._peaks, strict=True)]

    @rows.setter
    def rows(self, rows: list[tuple[int, ...]]) -> None:
        self._states = [row[:-1] for row in rows]
        self._peaks = [row[-1] for row in rows]

    def timeline(self) -> dict[str, np.ndarray]:
        """The grid rows as columns."""
        table = np.array(self.rows, dtype=np.int64).reshape(-1, len(COLUMNS))
        return {name: table[:, index] for index, name in enumerate(COLUMNS)}


def first_interval_ns(known_ns: int) -> int:
    """The grid to begin with if the run is to last ``known_ns`` at least: coarser than ``FIRST_INTERVAL_NS`` if the
    doublings up to it would all come within a small part of that time. The rows in the end are the same; rows that are
    dropped on the way, and the pauses in leaps for them, are not made. A run that stops before has fewer rows."""
    interval_ns = FIRST_INTERVAL_NS
    while 2 * interval_ns * MAX_ROWS <= known_ns // _SURELY_RUN:
        interval_ns *= 2
    return interval_ns


def _exact_dot(durations_ns: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> int:
    """The sum of products, which 64 bits hold for all but very slow or very many steps."""
    if len(tokens) * int(durations_ns.max()) * int(tokens.max()) < 2**63:
        return int(np.dot(durations_ns, tokens))
    return sum(map(mul, durations_ns.tolist(), tokens.tolist()))
