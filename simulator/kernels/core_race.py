"""Cores that share a bandwidth: who is done when, and how much faster the others go on.

All cores set out together. How fast one goes through its pieces of work depends on how many still stream; between two
ends that number stands still.
"""

#: cores whose ends are nearer than this part of the time before count as streaming until the same moment
TOGETHER = 0.01


class Course:
    """Pieces of work of all cores, one core's behind the other's: seconds at one number of streaming cores.

    ``ends`` counts the tasks that end on each core with a token that a further step adds to.
    """

    def __init__(self) -> None:
        self.pieces: list[float] = []
        self.behind: list[int] = []
        self.drains: list[float] = []
        self.ends: list[int] = []

    def add(self, seconds: float) -> None:
        """The next piece of the core at hand."""
        self.pieces.append(seconds)

    def close(self, drain_s: float, ends: int) -> None:
        """The core at hand has no more pieces; after the last it works on for ``drain_s`` without streaming."""
        self.behind.append(len(self.pieces))
        self.drains.append(drain_s)
        self.ends.append(ends)


class _Runner:
    """One core: the piece it is at, what part of that is left, and seconds of all that is left at both paces."""

    def __init__(self, core: int, at: int, behind: int, many: list[float], few: list[float]) -> None:
        self.core: int = core
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


def race(many: Course, few: Course, few_cores: float) -> list[float]:
    """Seconds until each core is done.

    ``many`` is how long pieces take while all cores stream, ``few`` while at most ``few_cores`` do.
    """
    runners, drains = _runners(many, few), many.drains
    all_cores = len(runners)
    done_s = [0.0] * all_cores
    now = 0.0
    while runners:
        active = len(runners)
        share = (active - few_cores) / (all_cores - few_cores) if active > few_cores else 0.0
        needs = [runner.needs_s(share) for runner in runners]
        stretch = min(needs)
        until = stretch + TOGETHER * (now + stretch)
        ahead: list[_Runner] = []
        for i, runner in enumerate(runners):
            if needs[i] <= until:
                done_s[runner.core] = now + needs[i] + drains[runner.core]
            else:
                runner.go(stretch, share, many.pieces, few.pieces)
                ahead.append(runner)
        now += stretch
        runners = ahead
    return done_s


def _runners(many: Course, few: Course) -> list[_Runner]:
    starts = [0, *many.behind[:-1]]
    return [_Runner(i, starts[i], many.behind[i], many.pieces, few.pieces) for i in range(len(starts))]


class Finish:
    """When the cores of a launch are done, and by how much each of them takes longer with every step."""

    def __init__(self, done_s: list[float], growth_s: list[float]) -> None:
        self.done_s: list[float] = done_s
        self.growth_s: list[float] = growth_s
        self.seconds: float = max(done_s)

    def steps_alike(self, slack_s: float, mean_tokens: float, most: int) -> int:
        """For how many steps, ``most`` or less, no core outgrows a launch that grows as its mean length by ``slack_s``.

        One with many short tasks may: it is last then, or lasts longer than sums of the batch tell.
        """
        mean_s, steps = self.seconds / mean_tokens, float(most)
        for i, growing_s in enumerate(self.growth_s):
            faster_s = growing_s - mean_s
            if faster_s > 0.0:
                room_s = self.seconds + slack_s - self.done_s[i]
                if room_s < faster_s * steps:
                    steps = room_s / faster_s
        return int(steps)
