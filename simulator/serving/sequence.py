"""One live sequence: what it asked for, how far it has got, what it holds.

A request with ``n`` samples becomes ``n`` sequences of one ``Group``. While a sequence decodes, its length is not
stored: it is ``offset`` plus the number of decode steps that the engine has taken, so a step costs nothing
per sequence (see ``batch``).
"""

from enum import IntEnum
from typing import Final

import numpy as np

from simulator.allocators.base import Holding

Prefix = tuple[list[int], list[int]]


class State(IntEnum):
    """Where a sequence is in its life."""

    WAITING = 0
    PREFILL = 1
    DECODE = 2
    STALLED = 3
    SWAPPED = 4
    PAUSED = 5
    LINGERING = 6
    DONE = 7


# Compiled code reads a constant faster than a member of an enumeration.
WAITING: Final = State.WAITING
PREFILL: Final = State.PREFILL
DECODE: Final = State.DECODE
STALLED: Final = State.STALLED
SWAPPED: Final = State.SWAPPED
PAUSED: Final = State.PAUSED
LINGERING: Final = State.LINGERING
DONE: Final = State.DONE


class Outcome(IntEnum):
    """How a request ended; the names are those of the report."""

    unfinished = 0
    completed = 1
    oom_admission = 2
    oom_decode = 3
    too_large = 4
    timed_out = 5


class Group:
    """The samples of one request: it is complete when ``open_sequences`` reaches zero.

    ``parents`` is what a beam search draws from (see ``beams``), ``None`` for parallel samples.
    """

    __slots__ = ("_samples", "members", "open_sequences", "parents")

    def __init__(self, samples: int) -> None:
        self.open_sequences = samples
        self.members: list[Sequence] = []
        self.parents: np.random.Generator | None = None
        self._samples = samples

    def next_sample(self) -> int:
        """A number that no sequence of the request has had."""
        self._samples += 1
        return self._samples - 1


class Sequence:
    """A ``Demand`` (see ``allocators.base``) on its way through the engine.

    ``computed_tokens``: tokens whose KV is present (not kept up while decoding). ``target_tokens``: tokens to compute
    before the next output can be sampled: the prompt, plus earlier outputs after a recompute.
    ``generated_tokens``: outputs so far, as of joining the decode batch at ``join_step``. ``seat`` is its place among
    the samples of its request; ``sample`` names what it generates: a beam that goes on from another gets a new one.
    Of two sequences the one with the smaller ``priority`` is more urgent (vLLM's convention).
    """

    __slots__ = (
        "arrival_ns",
        "blocked",
        "computed_tokens",
        "due_step",
        "final_tokens",
        "finish_step",
        "forks",
        "generated_tokens",
        "group",
        "holding",
        "join_step",
        "lost_tokens",
        "offset",
        "output_tokens",
        "pages",
        "prefix",
        "priority",
        "prompt_tokens",
        "request_id",
        "requeued",
        "ring_seat",
        "sample",
        "seat",
        "serial",
        "state",
        "target_tokens",
    )

    def __init__(
        self,
        request_id: int,
        *,
        prompt_tokens: int,
        output_tokens: int,
        arrival_ns: int,
        sample: int = 0,
        prefix: Prefix | None = None,
        group: Group | None = None,
        priority: int = 0,
    ) -> None:
        self.request_id = request_id
        self.priority = priority
        self.sample = sample
        self.seat = sample
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.final_tokens = prompt_tokens + output_tokens - 1
        self.arrival_ns = arrival_ns
        self.prefix = prefix
        self.group = group
        self.forks = 0
        self.state = WAITING
        self.holding: Holding | None = None
        self.serial = 0
        self.computed_tokens = 0
        self.target_tokens = prompt_tokens
        self.generated_tokens = 0
        self.lost_tokens = 0
        self.join_step = 0
        self.offset = 0
        self.due_step = -1
        self.ring_seat = -1
        self.finish_step = 0
        self.pages = 0
        self.blocked = False
        self.requeued = False

    def __repr__(self) -> str:
        return f"<request {self.request_id}.{self.sample} {self.state.name.lower()}>"


def admission_order(sequence: Sequence) -> tuple[int, int]:
    """Sorts sequences by admission, the samples of a request by their seats."""
    return sequence.serial, sequence.seat
