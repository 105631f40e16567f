"""When each decoding sequence needs its allocator again.

Whoever takes memory page by page is due every ``page_tokens`` steps. So sequences sit around a *ring* of as many seats
as a page has tokens, each in the seat of the steps in which it is due, and stay there for as long as that goes on:
taking the next page changes nothing here. Who is due later than that (several pages ahead, ranges) has an entry under
that step until it comes; an entry counts only while the sequence's ``due_step`` still says so.
"""

import heapq

from simulator.serving.sequence import Sequence, admission_order


class DueCalendar:
    """``page_tokens``: tokens of a page; 0 if nobody grows page by page.

    ``due_step`` of a sequence in the ring is the first step in which it is due. Times are steps; the next one is the
    one after ``now``.
    """

    __slots__ = ("_entries", "_events", "_looked_to", "_ring", "_seated")

    def __init__(self, page_tokens: int) -> None:
        self._ring: list[list[Sequence]] = [[] for _ in range(max(page_tokens, 1))]
        self._seated = 0
        # nobody in the ring is due in a step that is still to come and not after this one
        self._looked_to = 0
        self._entries: dict[int, list[Sequence]] = {}
        # the steps of the entries, and others in which something changes
        self._events: list[int] = []

    # ---- coming and going

    def put(self, sequence: Sequence, step: int, now: int) -> None:
        """``sequence`` is next due in ``step``; never, if it has finished by then."""
        sequence.due_step = step
        if step > sequence.finish_step:
            self._leave_seat(sequence)
            return
        period = len(self._ring)
        # who has been given its page for the step after now is due a page later
        if step <= now + 1 + period:
            if sequence.ring_seat != step % period:
                self._leave_seat(sequence)
                self._take_seat(sequence)
            elif step <= self._looked_to:
                self._looked_to = step - 1
            return
        self._leave_seat(sequence)
        entries = self._entries.get(step)
        if entries is None:
            self._entries[step] = [sequence]
            self.put_event(step)
        else:
            entries.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """``sequence`` decodes no more."""
        sequence.due_step = -1
        self._leave_seat(sequence)

    def put_event(self, step: int) -> None:
        """Something else than memory changes in ``step``."""
        heapq.heappush(self._events, step)

    # ---- asking

    def at_most(self, step: int) -> int:
        """An upper bound of how many sequences are due in ``step``."""
        self._seat_entries(step)
        return len(self._ring[step % len(self._ring)])

    def due(self, step: int) -> list[Sequence]:
        """Who is due in ``step``, the next one, in the order of admission. They stay due until they are ``put``."""
        self._seat_entries(step)
        return [one for one in self._ring[step % len(self._ring)] if one.due_step <= step]

    def due_after(self, step: int, count: int) -> list[list[Sequence]]:
        """For each of the ``count`` steps after ``step``, at most as many as a page has tokens: who is due then, in the
        order of admission. They stay due. If they take one page each, they need not be ``put`` again."""
        ring, seat = self._ring, step % len(self._ring)
        due: list[list[Sequence]] = []
        for then in range(step + 1, step + 1 + count):
            if self._entries:
                self._seat_entries(then)
            seat += 1
            if seat == len(ring):
                seat = 0
            some = ring[seat]
            for sequence in some:
                if sequence.due_step > then:
                    some = [one for one in some if one.due_step <= then]
                    break
            due.append(some)
        return due

    def quiet_until(self, step: int) -> int:
        """A step, ``step`` or later, up to which nobody is due and nothing else changes."""
        events = self._events
        while events and events[0] <= step:
            heapq.heappop(events)
        until = events[0] - 1 if events else 1 << 62
        return min(until, self._nobody_until(step)) if self._seated else until

    # ---- how

    def _nobody_until(self, step: int) -> int:
        """A step up to which nobody in the ring is due. What was looked at once is not looked at again."""
        ring = self._ring
        period = len(ring)
        looked = max(self._looked_to, step)
        while looked < step + period:
            then = looked + 1
            for sequence in ring[then % period]:
                if sequence.due_step <= then:
                    self._looked_to = looked
                    return looked
            looked = then
        self._looked_to = looked
        return looked

    def _seat_entries(self, step: int) -> None:
        """The time of the entries under ``step`` has come."""
        entries = self._entries.pop(step, None)
        if entries is not None:
            for sequence in entries:
                if sequence.due_step == step and sequence.ring_seat < 0:
                    self._take_seat(sequence)

    def _take_seat(self, sequence: Sequence) -> None:
        """Into the seat of ``due_step``, by the order of admission."""
        step = sequence.due_step
        seat = sequence.ring_seat = step % len(self._ring)
        self._seated += 1
        if step <= self._looked_to:
            self._looked_to = step - 1
        some = self._ring[seat]
        at = len(some)
        while at and admission_order(sequence) < admission_order(some[at - 1]):
            at -= 1
        some.insert(at, sequence)

    def _leave_seat(self, sequence: Sequence) -> None:
        seat = sequence.ring_seat
        if seat >= 0:
            self._ring[seat].remove(sequence)
            sequence.ring_seat = -1
            self._seated -= 1
