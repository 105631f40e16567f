"""Who is next among those that wait: in the order of arrival, or the most urgent first.

Under ``engine.scheduling_policy: priority`` (vLLM's name) the smallest ``priority`` goes first, then who came first.
Preempted sequences wait in the same order; without priorities they go to the front of the queue.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from simulator.config import SchedulingPolicy
from simulator.serving.sequence import Sequence


class Waiting(Protocol):
    """The part of a deque that the scheduler uses."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]: ...

    def __contains__(self, sequence: object, /) -> bool: ...

    def __getitem__(self, index: int, /) -> Sequence: ...

    def append(self, sequence: Sequence, /) -> None: ...

    def appendleft(self, sequence: Sequence, /) -> None: ...

    def popleft(self) -> Sequence: ...

    def remove(self, sequence: Sequence, /) -> None: ...


def urgency(sequence: Sequence) -> tuple[int, int, int, int]:
    """Smaller is more urgent (vLLM v1: priority, then arrival)."""
    return sequence.priority, sequence.arrival_ns, sequence.request_id, sequence.seat


class ByUrgency:
    """A queue that is always in the order of ``urgency``, whichever end somebody is added to."""

    def __init__(self) -> None:
        # the most urgent last, so that taking it moves nobody
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return reversed(self._sequences)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._sequences

    def __getitem__(self, index: int) -> Sequence:
        return self._sequences[-1 - index]

    def append(self, sequence: Sequence) -> None:
        """``sequence`` waits from now on."""
        insort(self._sequences, sequence, key=_reversed_urgency)

    def appendleft(self, sequence: Sequence) -> None:
        """As ``append``: urgency decides, not who came back from where."""
        self.append(sequence)

    def popleft(self) -> Sequence:
        """The most urgent one stops waiting."""
        return self._sequences.pop()

    def remove(self, sequence: Sequence) -> None:
        """``sequence`` stops waiting."""
        self._sequences.remove(sequence)


def _reversed_urgency(sequence: Sequence) -> tuple[int, ...]:
    return tuple(-value for value in urgency(sequence))


def waiting_queue(policy: SchedulingPolicy) -> Waiting:
    """An empty queue."""
    return ByUrgency() if policy == "priority" else deque()
