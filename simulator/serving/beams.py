"""Beam search, as far as memory can tell: which beam goes on from which.

After every decode step the ``k`` best of all continuations are kept, so a beam may have several heirs or none. Which
ones are best depends on the model; here each new beam draws its parent uniformly and independently among the ``k``
(the neutral Wright-Fisher model of genetics), so the beams of a request have one common ancestor about ``2 (k - 1)``
steps ago and share all pages before it. One heir goes on in its parent's place; every further one takes the place of a
beam without heirs, whose memory is given back, as a fork of its parent. What both write afterwards goes to pages of
their own: copy-on-write at the divergence.

The beams of a request advance together or not at all, and decisions are due after every step, so nothing leaps while
a beam search runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.serving.sequence import DECODE, Group, Sequence

if TYPE_CHECKING:
    from simulator.scheduler import Scheduler


class Beams:
    """The beam searches of a scheduler that are under way."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._groups: list[Group] = []

    def __bool__(self) -> bool:
        return bool(self._groups)

    def begin(self, group: Group) -> None:
        """The prompt of ``group`` is computed and its beams decode from now on."""
        if group.parents is not None and group not in self._groups:
            self._groups.append(group)

    def choose(self) -> None:
        """A decode step is over: every beam of each search finds its parent."""
        if self._groups:
            self._groups = [group for group in self._groups if group.open_sequences]
            for group in self._groups:
                if all(member.state is DECODE for member in group.members):
                    self._choose(group)

    def _choose(self, group: Group) -> None:
        assert group.parents is not None
        width = len(group.members)
        parents = group.parents.integers(width, size=width).tolist()
        heirs = [parents.count(index) for index in range(width)]
        childless = [member for member, count in zip(group.members, heirs, strict=True) if not count]
        for member in childless:
            self._give_up(member)
        places = iter(childless)
        for parent, count in zip(group.members, heirs, strict=True):
            for _ in range(count - 1):
                self._fork(parent, next(places), group)

    def _give_up(self, member: Sequence) -> None:
        scheduler = self._scheduler
        scheduler.batch.leave(member)
        scheduler.allocator.release(scheduler.holding(member))

    def _fork(self, parent: Sequence, child: Sequence, group: Group) -> None:
        """``child`` goes on from the tokens of ``parent``, under a name of its own for what it writes."""
        scheduler = self._scheduler
        length = scheduler.batch.length(parent)
        child.sample = group.next_sample()
        child.holding = scheduler.allocator.fork(scheduler.holding(parent), child, length)
        scheduler.batch.join(child, length)
        scheduler.batch.refresh((parent,))
