"""Seconds of a launch with more than two tile buffers, from every length: all cores' units, stretch by stretch.

With two buffers the scalar unit is at most two tiles ahead of the queue. With many it may be far ahead, so how a core
goes on depends on what lies behind it: look-ups of short tasks hold it up at first, loads of long ones later, and when
other cores have finished the queue races through tiles that were issued long ago. No sum over pieces of work tells
that. So each core's transfers are written down, repeated ones once, and its units go through them; when a core has
finished, the others go on from where they are at the pace of those that are left. Where every unit moves alike from one
repetition to the next, all further ones are a multiple.
"""

from simulator.kernels.burst_walk import BurstWalk, Row, Walk
from simulator.kernels.core_race import TOGETHER, Finish
from simulator.kernels.core_units import SAME, Clocks, Units
from simulator.kernels.dma import Dma

#: seconds of look-ups and issue, bytes, seconds of work, whether it is a tile, whether the scalar unit waits for it
Order = tuple[float, float, float, bool, bool]
#: transfers in order, and how often
Block = tuple[list[Order], int]

FOREVER = float("inf")


class DeepWalk(BurstWalk):
    """A kernel of more than two tile buffers, for pages in runs of ``run_pages`` on average."""

    def _race(self, rows: list[Row], dealt: int, used: int, tokens: int) -> Finish:
        del tokens
        walk = _Dealer(self, float(used))
        ends = walk.over(rows, dealt, used).ends
        cores = [_Core(at, walk.cores[at].blocks, self.buffers) for at in range(used)]
        return self._finish(play(cores, self.form.dma), ends)


class _Dealer(Walk):
    """Writes down what every core is dealt."""

    def __init__(self, kernel: BurstWalk, streaming: float) -> None:
        self.cores: list[_Orders] = []
        super().__init__(kernel, streaming)

    def _units(self) -> Units:
        orders = _Orders(self.kernel.buffers)
        self.cores.append(orders)
        return orders

    def _load_s(self, size_bytes: float) -> float:
        """Bytes in place of seconds: these depend on when it is loaded."""
        return size_bytes


class _Orders(Units):
    """The transfers of one core, not carried out."""

    def __init__(self, buffers: int) -> None:
        super().__init__(buffers)
        self.blocks: list[Block] = []

    def fetch(self, before_s: float, load_s: float, waits: bool) -> None:
        self.blocks.append(([(before_s, load_s, 0.0, False, waits)], 1))

    def tile(self, before_s: float, load_s: float, work_s: float) -> None:
        self.blocks.append(([(before_s, load_s, work_s, True, False)], 1))

    def clocks(self) -> Clocks:
        """How many blocks there are."""
        return float(len(self.blocks)), 0.0, 0.0, 0.0, 0.0, 0.0

    def go_on(self, before: Clocks, times: int) -> bool:
        """What came since ``before`` comes ``times`` more, unless it is the start of a launch."""
        since = self.blocks[int(before[0]) :]
        if any(waits for orders, _ in since for _, _, _, _, waits in orders):
            return False
        if all(count == 1 for _, count in since):
            del self.blocks[int(before[0]) :]
            self.blocks.append(([order for orders, _ in since for order in orders], times + 1))
        else:
            self.blocks += since * times
        return True


class Pace:
    """What transfers take while ``active`` cores stream."""

    def __init__(self, dma: Dma, active: int) -> None:
        self.dma = dma
        self.active: float = float(active)
        self.known: dict[float, float] = {}

    def seconds(self, size_bytes: float) -> float:
        found = self.known.get(size_bytes)
        if found is None:
            found = self.known[size_bytes] = self.dma.seconds(size_bytes, self.active)
        return found


class _Core:
    """One core in the midst of its transfers: ``buffers`` tiles, and as many transfers, are in flight at most."""

    def __init__(self, number: int, blocks: list[Block], buffers: int) -> None:
        self.number: int = number
        self.blocks = blocks
        self.room: int = buffers
        self.block: int = 0
        self.round: int = 0
        self.place: int = 0
        self.issued_s: float = 0.0
        self.start_s: float = 0.0
        self.end_s: float = 0.0
        self.worked_s: float = 0.0
        # Where scalar unit and queue stood after the round before.
        self.round_issued_s: float = 0.0
        self.round_end_s: float = 0.0
        # When each transfer was taken and each tile worked on, behind as many that never held anything up.
        self.taken: list[float] = [0.0] * buffers
        self.worked: list[float] = [0.0] * buffers

    def copy(self) -> "_Core":
        other = _Core(self.number, self.blocks, self.room)
        other.block, other.round, other.place = self.block, self.round, self.place
        other.issued_s, other.start_s, other.end_s = self.issued_s, self.start_s, self.end_s
        other.worked_s = self.worked_s
        other.round_issued_s, other.round_end_s = self.round_issued_s, self.round_end_s
        other.taken, other.worked = self.taken[-self.room :], self.worked[-self.room :]
        return other

    def start(self, pace: Pace) -> None:
        """The transfer at hand is issued, taken and loaded."""
        before_s, size, _, is_tile, _ = self.blocks[self.block][0][self.place]
        self.issued_s = max(self.issued_s + before_s, self.taken[-self.room])
        taken_s = max(self.issued_s, self.end_s)
        self.taken.append(taken_s)
        self.start_s = max(taken_s, self.worked[-self.room]) if is_tile else taken_s
        self.end_s = self.start_s + pace.seconds(size)

    def change_pace(self, now: float, before: Pace, pace: Pace) -> None:
        """What is left of the transfer at hand goes on at another pace."""
        size = self.blocks[self.block][0][self.place][1]
        left = 1.0 if self.start_s >= now else (self.end_s - now) / before.seconds(size)
        self.end_s = max(now, self.start_s) + left * pace.seconds(size)

    def run(self, pace: Pace, until: float) -> bool:
        """Go on for as long as transfers end before ``until``; whether that was the last one."""
        while self.end_s < until:
            orders, times = self.blocks[self.block]
            _, _, work_s, is_tile, is_waited_for = orders[self.place]
            if is_tile:
                self.worked_s = max(self.end_s, self.worked_s) + work_s
                self.worked.append(self.worked_s)
            elif is_waited_for:
                self.issued_s = self.end_s
            self.place += 1
            if self.place == len(orders):
                self.place = 0
                self.round += 1
                if self.round < times:
                    self._skip(orders, times - self.round, until)
                if self.round == times:
                    self.round = 0
                    self.block += 1
                    if self.block == len(self.blocks):
                        return True
            self.start(pace)
        return False

    def _skip(self, orders: list[Order], times: int, until: float) -> None:
        """Where a round of ``orders`` has moved all units alike, all or some of the next ``times`` do the same."""
        move_s, issued_s = self.end_s - self.round_end_s, self.issued_s - self.round_issued_s
        self.round_end_s, self.round_issued_s = self.end_s, self.issued_s
        slack_s = SAME * self.end_s
        if self.round == 1 or abs(issued_s - move_s) > slack_s:
            return
        tiles = sum([is_tile for _, _, _, is_tile, _ in orders])
        if not self._moved(self.taken, len(orders), move_s, slack_s):
            return
        if not self._moved(self.worked, tiles, move_s, slack_s):
            return
        if until < FOREVER:
            times = min(times, int((until - self.end_s) / move_s))
        more_s = times * move_s
        self.round += times
        self.issued_s += more_s
        self.end_s += more_s
        self.worked_s += more_s
        self.round_end_s, self.round_issued_s = self.end_s, self.issued_s
        self.taken = [taken_s + more_s for taken_s in self.taken[-self.room - len(orders) :]]
        self.worked = [worked_s + more_s for worked_s in self.worked[-self.room - tiles :]]

    def _moved(self, times: list[float], shift: int, move_s: float, slack_s: float) -> bool:
        """Whether the last of ``times`` are ``move_s`` later than those ``shift`` before them."""
        if len(times) < self.room + shift:
            return False
        for at in range(len(times) - self.room, len(times)):
            if abs(times[at] - times[at - shift] - move_s) > slack_s:
                return False
        return True


def play(cores: list[_Core], dma: Dma) -> list[float]:
    """Seconds until each core has finished."""
    done_s = [0.0] * len(cores)
    now, pace = 0.0, Pace(dma, len(cores))
    for core in cores:
        core.start(pace)
    while cores:
        before, pace = pace, Pace(dma, len(cores))
        for core in cores:
            core.change_pace(now, before, pace)
        finished = [core.copy() for core in cores]
        for core in finished:
            core.run(pace, FOREVER)
        now = min([core.end_s for core in finished])
        ahead: list[_Core] = []
        for at, core in enumerate(cores):
            end_s = finished[at].end_s
            if end_s <= now * (1.0 + TOGETHER):
                done_s[core.number] = max(end_s, finished[at].worked_s)
            else:
                core.run(pace, now)
                ahead.append(core)
        cores = ahead
    return done_s
