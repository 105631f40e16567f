"""When the units of one core are done with the transfers that it is given: scalar unit, queue of transfers, and work.

The scalar unit looks ids up and issues; the queue takes transfers in order and loads, a tile when a buffer is free; the
work on a tile frees its buffer. Each time follows from those of the transfers before, as recurrences.
"""

from typing import Final

#: seconds at which the units of a core are
Clocks = tuple[float, float, float, float, float, float]

#: moves that differ by less than this part of the time before are alike
SAME: Final = 1e-12


class Units:
    """One or two tile buffers; the queue has room for two transfers."""

    def __init__(self, buffers: int) -> None:
        self.serial: bool = buffers == 1
        self.issued_s: float = 0.0
        self.taken_s: float = 0.0
        self.taken_before_s: float = 0.0
        self.end_s: float = 0.0
        self.worked_s: float = 0.0
        self.worked_before_s: float = 0.0

    def _take(self, before_s: float) -> float:
        """Issue one transfer, which the queue has room for when it has taken the one before the last."""
        issued_s, room_s = self.issued_s + before_s, self.taken_before_s
        if issued_s < room_s:
            issued_s = room_s
        self.issued_s, self.taken_before_s = issued_s, self.taken_s
        end_s = self.end_s
        taken_s = issued_s if issued_s > end_s else end_s
        self.taken_s = taken_s
        return taken_s

    @property
    def progress_s(self) -> float:
        """How far the core is: with two buffers the scalar unit leads, and the others follow at most two tiles behind.

        When look-ups hold it up, more bandwidth makes no difference until the last tile.
        """
        return self.end_s if self.serial else self.issued_s

    def fetch(self, before_s: float, load_s: float, waits: bool) -> None:
        """Query rows or a table row: they need no buffer, and no work."""
        self.end_s = self._take(before_s) + load_s
        if waits or self.serial:
            self.issued_s = self.end_s

    def tile(self, before_s: float, load_s: float, work_s: float) -> None:
        """One tile: look-ups and issue, its load, for which it needs a buffer, and the work on it."""
        worked_s = self.worked_s
        free_s = worked_s if self.serial else self.worked_before_s
        taken_s = self._take(before_s)
        end_s = (taken_s if taken_s > free_s else free_s) + load_s
        self.end_s, self.worked_before_s = end_s, worked_s
        worked_s = (end_s if end_s > worked_s else worked_s) + work_s
        self.worked_s = worked_s
        if self.serial:
            self.issued_s = worked_s

    def clocks(self) -> Clocks:
        """Where all of them stand, the queue's end first."""
        return self.end_s, self.issued_s, self.taken_s, self.taken_before_s, self.worked_s, self.worked_before_s

    def go_on(self, before: Clocks, times: int) -> bool:
        """Whether all units have moved alike since ``before``; then they do it ``times`` more."""
        move_s, slack_s = self.end_s - before[0], SAME * self.end_s
        if (
            abs(self.issued_s - before[1] - move_s) > slack_s
            or abs(self.taken_s - before[2] - move_s) > slack_s
            or abs(self.taken_before_s - before[3] - move_s) > slack_s
            or abs(self.worked_s - before[4] - move_s) > slack_s
            or abs(self.worked_before_s - before[5] - move_s) > slack_s
        ):
            return False
        more_s = times * move_s
        self.issued_s += more_s
        self.taken_s += more_s
        self.taken_before_s += more_s
        self.end_s += more_s
        self.worked_s += more_s
        self.worked_before_s += more_s
        return True
