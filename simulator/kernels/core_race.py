"""Cores that share a bandwidth: who is done when, and how much faster the others go on.

All cores set out together. How fast one goes through its pieces of work depends on how many still stream; between two
ends that number stands still.
"""

#: cores whose ends are nearer than this part of the time before count as streaming until the same moment
TOGETHER = 0.01


class Course:
    """Pieces of work of all cores, one core's behind the other's: seconds at one number of streaming cores."""

    def __init__(self) -> None:
        self.pieces: list[float] = []
        self.behind: list[int] = []
        self.drains: list[float] = []

    def add(self, seconds: float) -> None:
        """The next piece of the core at hand."""
        self.pieces.append(seconds)

    def close(self, drain_s: float) -> None:
        """The core at hand has no more pieces; after the last it works on for ``drain_s`` without streaming."""
        self.behind.append(len(self.pieces))
        self.drains.append(drain_s)


class _Runner:
    """One core: the piece it is at, what part of that is left, and seconds of all that is left at both paces."""

    def __init__(self, at: int, behind: int, many: list[float], few: list[float]) -> None:
        self.at: int = at
        self.part: float = 1.0
        self.many_s: float = 0.0
        self.few_s: float = 0.0
        for piece in range(at, behind):
            self.many_s += many[piece]
            self.few_s += few[piece]

    def needs_s(self, share: float) -> float:
        """Seconds to the end, ``share`` of the way from the pace of few cores to that of many."""
        return self.few_s + share * (self.many_s - self.few_s)

    def go(self, seconds: float, share: float, many: list[float], few: list[float]) -> None:
        """Go on for ``seconds``, which do not reach the end."""
        at, part, left = self.at, self.part, seconds
        while True:
            slow, fast = many[at], few[at]
            whole = fast + share * (slow - fast)
            done = part if part * whole <= left else left / whole
            self.many_s -= done * slow
            self.few_s -= done * fast
            if done < part:
                self.at, self.part = at, part - done
                return
            left -= part * whole
            part = 1.0
            at += 1


def race(many: Course, few: Course, few_cores: float) -> float:
    """Seconds until the last core is done.

    ``many`` is how long pieces take while all cores stream, ``few`` while at most ``few_cores`` do.
    """
    runners, drains = _runners(many, few), many.drains[:]
    all_cores = len(runners)
    now = last = 0.0
    while runners:
        active = len(runners)
        share = (active - few_cores) / (all_cores - few_cores) if active > few_cores else 0.0
        stretch = min([runner.needs_s(share) for runner in runners])
        until = stretch + TOGETHER * (now + stretch)
        ahead: list[_Runner] = []
        later: list[float] = []
        for i, runner in enumerate(runners):
            needs = runner.needs_s(share)
            if needs <= until:
                last = max(last, now + needs + drains[i])
            else:
                runner.go(stretch, share, many.pieces, few.pieces)
                ahead.append(runner)
                later.append(drains[i])
        now += stretch
        runners, drains = ahead, later
    return last


def _runners(many: Course, few: Course) -> list[_Runner]:
    starts = [0, *many.behind[:-1]]
    return [_Runner(starts[i], many.behind[i], many.pieces, few.pieces) for i in range(len(starts))]
