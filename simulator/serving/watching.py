"""Those who look on while a run is under way: progress, interruption, recorders. They change nothing."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from simulator.allocators.base import Allocator
from simulator.serving.ledger import Counts, Ledger
from simulator.traffic.requests import Requests

#: called with the label of what runs, how much of how much is done, and the OOM rate so far (``None``: not known)
Progress = Callable[[str, int, int, float | None], None]
#: scheduling points between two looks at progress and interruption
_WATCH_EVERY: Final = 256


class Running(Protocol):
    """A simulation under way, as the one who watches it sees it: an engine, one of a fleet, or a replay."""

    @property
    def place(self) -> int: ...

    @property
    def counts(self) -> Counts: ...

    @property
    def ledger(self) -> Ledger: ...

    @property
    def requests(self) -> Requests: ...


Watch = Callable[[Running], bool]
#: makes, for a pool and the requests it will meet, what is called with the run (of a fleet: with each instance, whose
#: ``place`` tells it from the others) at every scheduling point
Observe = Callable[[Allocator, Requests], Callable[[Running], None]]


def together(observers: Sequence[Observe]) -> Observe | None:
    """Several observers as one; ``None`` for none."""
    if len(observers) < 2:
        return observers[0] if observers else None

    def observe(allocator: Allocator, requests: Requests) -> Callable[[Running], None]:
        looks = [make(allocator, requests) for make in observers]

        def look(running: Running) -> None:
            for each in looks:
                each(running)

        return look

    return observe


def watcher(
    label: str,
    progress: Progress | None,
    interrupted: Callable[[], bool] | None,
    observer: Callable[[Running], None] | None,
) -> Watch | None:
    """What the engine calls at every scheduling point: the observer, and on every ``_WATCH_EVERY``-th the rest."""
    if progress is None and interrupted is None and observer is None:
        return None
    calls = 0

    def watch(running: Running) -> bool:
        nonlocal calls
        calls += 1
        if observer is not None:
            observer(running)
        if calls % _WATCH_EVERY:
            return True
        if progress is not None:
            counts = running.counts
            progress(label, counts.ended, len(running.requests), counts.lost / max(1, counts.arrived))
        return interrupted is None or not interrupted()

    return watch
