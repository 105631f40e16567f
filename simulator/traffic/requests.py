"""Requests as columns: what the workload hands to the engine.

One array a property, one element a request, in order of arrival: a million requests take about 30 MB, and the
engine, the allocators and the metrics read the same arrays.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
SmallArray = npt.NDArray[np.int16]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

MAX_TOKENS = 100_000_000
MAX_REQUESTS = 50_000_000
MAX_SEGMENTS = 200_000_000
MAX_TIME_S = 3e9


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Prefixes:
    """Which parts of the prompts are shared, in compressed rows.

    Request ``i`` owns the segments ``offsets[i]:offsets[i + 1]``. Segment ``s`` holds the prompt's tokens from the
    previous segment's end (or 0) up to position ``ends[s]``, exclusive. Ids are prefix-chained: equal ids mean equal
    tokens from position 0 to the smaller of the two ends. Tokens past a request's last end are its own.
    """

    offsets: IntArray
    ids: IntArray
    ends: IntArray

    def __post_init__(self) -> None:
        assert len(self.ids) == len(self.ends) == self.offsets[-1]
        _freeze(self.offsets, self.ids, self.ends)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def keep(self, mask: BoolArray) -> "Prefixes":
        """The segments of the requests where ``mask`` (one flag a request) is true."""
        counts = np.diff(self.offsets)
        segments = np.repeat(mask, counts)
        return Prefixes(offsets=offsets_of(counts[mask]), ids=self.ids[segments], ends=self.ends[segments])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ClosedLoop:
    """Arrivals that follow completions: ``users`` take turns through the requests in order.

    A user free at time t (0 at the start) sends the next request ``i`` at ``t + think_ns[i]``.
    """

    users: int
    think_ns: IntArray

    def __post_init__(self) -> None:
        _freeze(self.think_ns)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Requests:
    """All requests of one replication, in order of arrival; every column has one element a request.

    ``arrival_ns`` is non-decreasing and starts near 0 (all 0 in a ``closed`` loop, where the engine releases them).
    ``prompt_tokens`` and ``output_tokens`` are at least 1. ``class_id`` indexes ``class_names``. ``samples`` is the
    number of parallel outputs; ``beam_width`` is 0 unless beam search is asked for. ``class_priority`` has one
    priority a class, the smaller the more urgent; empty, all have 0. ``drawn_by`` is the seed and
    replication that all was drawn from, for what can only be drawn on the way (parents of beams). ``notes`` says in
    words what was left out on the way (failed rows of a trace), for the report.
    """

    arrival_ns: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    class_id: SmallArray
    class_names: tuple[str, ...]
    samples: SmallArray
    beam_width: SmallArray
    prefix: Prefixes | None = None
    closed: ClosedLoop | None = None
    drawn_by: tuple[int, int] = (0, 0)
    notes: tuple[str, ...] = ()
    class_priority: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        columns = (self.prompt_tokens, self.output_tokens, self.class_id, self.samples, self.beam_width)
        assert all(len(column) == len(self) for column in columns)
        assert self.prefix is None or len(self.prefix) == len(self)
        assert bool(np.all(self.arrival_ns[1:] >= self.arrival_ns[:-1]))
        assert bool(np.all(self.prompt_tokens >= 1)) and bool(np.all(self.output_tokens >= 1))
        _freeze(self.arrival_ns, *columns)

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def last_arrival_ns(self) -> int:
        """When the last request comes; 0 where that is not known beforehand, and where there is none."""
        return int(self.arrival_ns[-1]) if len(self) else 0

    def keep(self, mask: BoolArray) -> "Requests":
        """The requests where ``mask`` (one flag a request) is true, with the times they have here and no users."""
        return replace(
            self,
            closed=None,
            arrival_ns=self.arrival_ns[mask],
            prompt_tokens=self.prompt_tokens[mask],
            output_tokens=self.output_tokens[mask],
            class_id=self.class_id[mask],
            samples=self.samples[mask],
            beam_width=self.beam_width[mask],
            prefix=None if self.prefix is None else self.prefix.keep(mask),
        )


def offsets_of(counts: npt.NDArray[Any]) -> IntArray:
    """Row offsets (one more than there are rows) of rows that hold ``counts`` elements."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _freeze(*arrays: npt.NDArray[Any]) -> None:
    for array in arrays:
        array.setflags(write=False)
