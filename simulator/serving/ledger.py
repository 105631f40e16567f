"""Facts of a run, written down once: one row a request, one row an OOM event. Metrics are computed afterwards.

Columns are typed arrays, so a million requests take some 60 MB. Times are nanoseconds of the simulated clock,
-1 for "never".
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from simulator.allocators.base import Shortfall
from simulator.serving.sequence import Outcome, Sequence

During = Literal["admission", "decode"]
#: told of a failed allocation at the moment it fails: who asked, what was missing, when, at which stage
OnOom = Callable[[Sequence, Shortfall, int, During], None]
#: told what happens to the memory of a running sequence (see ``step_log.KINDS``), and whose it is
OnMove = Callable[[str, int], None]
NEVER: Final = -1
CAUSES = ("capacity", "fragmentation")
#: OOM events kept row by row; when there are more, every second row goes, and from then on every second event
MAX_EVENTS: Final = 200_000
#: when, whose, cause, whether decoding; bytes needed, free, free in one piece; events of each cause up to this one
Event = tuple[int, int, int, int, int, int, int, int, int]
#: the columns of a ledger, one row a request
COLUMNS = (
    *("outcome", "arrived_ns", "started_ns", "first_token_ns", "finished_ns"),
    *("preemptions", "hit_tokens", "output_tokens", "cause"),
)
_COUNTS = (
    *(
        "arrived",
        "ended_count",
        "lost_count",
        "preemption_count",
        "recomputed_tokens",
        "swapped_bytes",
        "swap_refusals",
    ),
    *("stalls", "padding_tokens"),
)


def _column(size: int, value: int, code: str = "q") -> "array[int]":
    return array(code, [value]) * size


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests so far: come, over, and over for want of memory."""

    arrived: int
    ended: int
    lost: int


class Ledger:
    """Rows for ``requests`` requests; the scheduler calls one method a fact."""

    def __init__(self, requests: int) -> None:
        self.outcome = _column(requests, Outcome.unfinished, "b")
        self.arrived_ns = _column(requests, NEVER)
        self.started_ns = _column(requests, NEVER)
        self.first_token_ns = _column(requests, NEVER)
        self.finished_ns = _column(requests, NEVER)
        self.preemptions = _column(requests, 0, "i")
        self.hit_tokens = _column(requests, 0)
        self.output_tokens = _column(requests, 0)
        self.cause = _column(requests, -1, "b")
        self.arrived = 0
        self.ended_count = 0
        self.lost_count = 0
        self.oom_events = dict.fromkeys(CAUSES, 0)
        self.preemption_count = 0
        self.recomputed_tokens = 0
        self.swapped_bytes = 0
        self.swap_refusals = 0
        self.stalls = 0
        self.padding_tokens = 0
        self.idle_preemptions = 0
        self.events: list[Event] = []
        self.event_stride = 1
        self.on_end = _nothing
        self.on_oom: OnOom | None = None
        self.on_move: OnMove | None = None

    @classmethod
    def beside(cls, other: "Ledger") -> "Ledger":
        """The ledger of another instance of a fleet: own counts, the same rows (a request is on one instance)."""
        made = cls(0)
        for name in COLUMNS:
            setattr(made, name, getattr(other, name))
        return made

    # ---- what happens to a request

    def arrival(self, request_id: int, now: int) -> None:
        """``request_id`` has come."""
        self.arrived_ns[request_id] = now
        self.arrived += 1

    def started(self, sequence: Sequence, hit_tokens: int, now: int) -> None:
        """Memory was given and the first (or, after a preemption, the next) chunk runs."""
        if self.started_ns[sequence.request_id] == NEVER:
            self.started_ns[sequence.request_id] = now
            self.hit_tokens[sequence.request_id] = hit_tokens
        if sequence.lost_tokens:
            self.recomputed_tokens += max(0, sequence.lost_tokens - hit_tokens)
            sequence.lost_tokens = 0

    def first_token(self, sequence: Sequence, now: int) -> None:
        """The first output of a request exists (calls after a recompute or for other samples change nothing)."""
        self.idle_preemptions = 0
        if self.first_token_ns[sequence.request_id] == NEVER:
            self.first_token_ns[sequence.request_id] = now

    def ended(self, sequence: Sequence, outcome: Outcome, now: int) -> None:
        """The request of ``sequence`` is over, all its samples included."""
        request_id = sequence.request_id
        assert self.outcome[request_id] == Outcome.unfinished, f"request {request_id} ends twice"
        self.outcome[request_id] = outcome
        self.finished_ns[request_id] = now
        self.output_tokens[request_id] = sequence.generated_tokens
        self.ended_count += 1
        self.lost_count += Outcome.oom_admission <= outcome <= Outcome.too_large
        self.on_end(request_id, now)

    # ---- memory

    def oom(self, sequence: Sequence, shortfall: Shortfall, now: int, *, during: During) -> None:
        """An allocation failed."""
        cause = CAUSES.index(shortfall.cause)
        number = self.oom_events["capacity"] + self.oom_events["fragmentation"]
        self.oom_events[shortfall.cause] += 1
        self.cause[sequence.request_id] = cause
        if number % self.event_stride == 0:
            needed, free, largest = shortfall.needed_bytes, shortfall.free_bytes, shortfall.largest_free_bytes
            capacity, fragmentation = self.oom_events["capacity"], self.oom_events["fragmentation"]
            decoding = int(during == "decode")
            row = (now, sequence.request_id, cause, decoding, needed, free, largest, capacity, fragmentation)
            self.events.append(row)
            if len(self.events) > MAX_EVENTS:
                self.events = self.events[::2]
                self.event_stride *= 2
        if self.on_oom is not None:
            self.on_oom(sequence, shortfall, now, during)

    def preempted(self, sequence: Sequence, lost_tokens: int) -> None:
        """``sequence`` lost its memory and will compute ``lost_tokens`` again, as far as no cache helps."""
        sequence.lost_tokens = lost_tokens
        self._count_preemption(sequence)
        if self.on_move is not None:
            self.on_move("preempted", sequence.request_id)

    def resumed(self, sequence: Sequence) -> None:
        """``sequence``, preempted before, has memory again."""
        if self.on_move is not None:
            self.on_move("resumed", sequence.request_id)

    def swapped_out(self, sequence: Sequence, moved_bytes: int) -> None:
        """``sequence`` (and its siblings) went to host memory."""
        self.swapped_bytes += moved_bytes
        self._count_preemption(sequence)
        if self.on_move is not None:
            self.on_move("swapped_out", sequence.request_id)

    def swapped_in(self, sequence: Sequence, moved_bytes: int) -> None:
        """``sequence`` is back on the device."""
        self.swapped_bytes += moved_bytes
        if self.on_move is not None:
            self.on_move("swapped_in", sequence.request_id)

    def swap_refused(self, sequence: Sequence) -> None:
        """Host memory had no room: the request is lost."""
        del sequence
        self.swap_refusals += 1

    def stalled(self, sequence: Sequence) -> None:
        """``sequence`` has to wait with what it holds."""
        self.stalls += 1
        if self.on_move is not None:
            self.on_move("stalled", sequence.request_id)

    def progress(self) -> None:
        """Outputs were produced: whatever was preempted before, the run is not going in circles."""
        self.idle_preemptions = 0

    def _count_preemption(self, sequence: Sequence) -> None:
        self.preemption_count += 1
        self.idle_preemptions += 1
        self.preemptions[sequence.request_id] += 1

    # ---- reading

    @property
    def counts(self) -> Counts:
        """The requests so far."""
        return Counts(self.arrived, self.ended_count, self.lost_count)

    def unfinished(self) -> int:
        """Rows of requests that have come and have no outcome."""
        outcomes = zip(self.outcome, self.arrived_ns, strict=True)
        return sum(outcome == Outcome.unfinished and arrived != NEVER for outcome, arrived in outcomes)

    def only(self, rows: npt.NDArray[np.int64]) -> "Ledger":
        """The same counts with some of the rows: those of one instance of a fleet."""
        made = Ledger(0)
        for name in _COUNTS:
            setattr(made, name, getattr(self, name))
        made.oom_events, made.events, made.event_stride = self.oom_events, self.events, self.event_stride
        for name in COLUMNS:
            column: array[int] = getattr(self, name)
            setattr(made, name, array(column.typecode, np.frombuffer(column, column.typecode)[rows].tobytes()))
        return made

    @classmethod
    def merged(cls, ledgers: "list[Ledger]") -> "Ledger":
        """One ledger of a fleet whose instances share their rows: counts added, events in the order of time."""
        made = cls.beside(ledgers[0])
        for name in _COUNTS:
            setattr(made, name, sum(getattr(one, name) for one in ledgers))
        made.oom_events = {cause: sum(one.oom_events[cause] for one in ledgers) for cause in CAUSES}
        made.events, made.event_stride = _in_order([one.events for one in ledgers])
        return made

    def event_columns(self) -> dict[str, np.ndarray]:
        """The OOM events as columns: times in seconds, bytes, cause and phase as words."""
        rows = np.array(self.events, dtype=np.int64).reshape(-1, 9)
        return {
            "time_s": rows[:, 0] / 1e9,
            "request_id": rows[:, 1],
            "cause": np.array(CAUSES, dtype=object)[rows[:, 2]],
            "during": np.array(("admission", "decode"), dtype=object)[rows[:, 3]],
            "needed_bytes": rows[:, 4],
            "free_bytes": rows[:, 5],
            "largest_free_bytes": rows[:, 6],
            "capacity_so_far": rows[:, 7],
            "fragmentation_so_far": rows[:, 8],
        }


def _in_order(instances: list[list[Event]]) -> tuple[list[Event], int]:
    """The rows of several instances in the order of time, counted together; and one in how many was kept at last."""
    rows: list[tuple[Event, int, int]] = []
    for events in instances:
        capacity = fragmentation = 0
        for event in events:
            rows.append((event, event[7] - capacity, event[8] - fragmentation))
            capacity, fragmentation = event[7], event[8]
    rows.sort(key=_time)
    found: list[Event] = []
    capacity = fragmentation = 0
    for event, more_capacity, more_fragmentation in rows:
        capacity, fragmentation = capacity + more_capacity, fragmentation + more_fragmentation
        found.append((*event[:7], capacity, fragmentation))
    stride = 1
    while len(found) > MAX_EVENTS:
        found, stride = found[::2], 2 * stride
    return found, stride


def _time(row: tuple[Event, int, int]) -> int:
    return row[0][0]


def _nothing(request_id: int, now: int) -> None:
    """Nobody waits for the end of a request."""
    del request_id, now
