"""``--watch``: the pool live on a terminal, a cell for each address looked at, with the figures of the run so far.

It looks on a few times a second of wall time, from the engine's ``watch`` hook, and changes nothing. What is shown
goes to stderr and is gone when the run is over; without a terminal there is nothing.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simulator.allocators.base import Allocator
from simulator.serving.pool_map import CACHED, FREE, SHARED, owners, pool_units
from simulator.traffic.requests import Requests
from simulator.units import NS_PER_S, format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

FRAMES_PER_S = 8
_COLUMNS, _ROWS = 64, 8
#: the colours of the page-pool map
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#e3d026", "#8c510a", "#5ab4ac")
_FREE, _CACHED, _SHARED, _HELD = "·", "░", "▒", "█"
_UNLIMITED_BYTES = 1 << 45


@dataclass(slots=True)
class PoolWatch:
    """An ``Observe`` for ``simulate``: shows each run of ``labels`` in turn by ``show``."""

    labels: Sequence[str]
    show: "Callable[[RenderableType], None]"
    clock: Callable[[], float] = time.monotonic
    _next: int = 0
    _due_s: float = field(default=0.0)

    def __call__(self, allocator: Allocator, requests: Requests) -> Callable[[Any], None]:
        label = self.labels[self._next % len(self.labels)]
        self._next += 1
        addresses, total, began_s = _addresses(allocator), len(requests), self.clock()

        def look(running: Any) -> None:
            now = self.clock()
            if running.place or now < self._due_s:
                return  # of a fleet, the first instance is shown
            self._due_s = now + 1 / FRAMES_PER_S
            done = running.counts.ended
            left_s = (now - began_s) * (total - done) / done if done else None
            self.show(frame(label, allocator, running, addresses, total=total, left_s=left_s))

        return look


def _addresses(allocator: Allocator) -> npt.NDArray[np.int64]:
    """As many addresses as there are cells, evenly spaced; none of a pool that is called unlimited."""
    units = 0 if allocator.capacity_bytes >= _UNLIMITED_BYTES else pool_units(allocator)
    count = min(units, _COLUMNS * _ROWS)
    return np.asarray((np.arange(count) * units + units // 2) // max(count, 1), np.int64)


def frame(
    label: str,
    allocator: Allocator,
    running: Any,
    addresses: npt.NDArray[np.int64],
    *,
    total: int,
    left_s: float | None = None,
) -> "RenderableType":
    """What there is to see at this instant; the run takes ``left_s`` more seconds if it goes on as it did."""
    from rich.console import Group
    from rich.panel import Panel

    scheduler = getattr(running, "scheduler", None)
    lines = [_progress(running, total, left_s), _memory(allocator)]
    if scheduler is not None:
        waiting, swapped = len(scheduler.waiting), len(scheduler.swapped)
        swaps = f", {swapped:,} swapped out" if swapped else ""
        lines.append(
            f"{len(scheduler.running):,} running, {waiting:,} waiting{swaps}; "
            f"{running.ledger.preemption_count:,} preemptions"
        )
    parts: list[Any] = ["\n".join(lines)]
    if scheduler is not None and len(addresses):
        parts.append(cells(owners(allocator, scheduler.live_holdings(), addresses)))
        parts.append(f"{_HELD} held, a colour a request  {_SHARED} shared  {_CACHED} cached  {_FREE} free")
    return Panel(Group(*parts), title=label, title_align="left", width=_COLUMNS + 4)


def cells(held: npt.NDArray[np.int64]) -> "Text":
    """A character an address, in rows."""
    from rich.text import Text

    text = Text()
    for place, owner in enumerate(held.tolist()):
        if place and place % _COLUMNS == 0:
            text.append("\n")
        text.append(*_cell(owner))
    return text


def _cell(owner: int) -> tuple[str, str]:
    if owner == FREE:
        return _FREE, "dim"
    if owner == CACHED:
        return _CACHED, "dim"
    return (_SHARED, "#7a3ff2") if owner == SHARED else (_HELD, _COLOURS[owner % len(_COLOURS)])


def _progress(running: Any, total: int, left_s: float | None) -> str:
    counts = running.counts
    rate = counts.lost / max(1, counts.arrived)
    at = format_seconds(running.now_ns / NS_PER_S)
    left = "" if left_s is None else f", ETA {format_seconds(left_s)}"
    return f"t = {at}: {counts.ended:,} of {total:,} requests, OOM {format_percent(rate)}{left}"


def _memory(allocator: Allocator) -> str:
    held = allocator.allocated_bytes
    share = held / allocator.capacity_bytes
    free, largest = allocator.free_and_largest_bytes()
    pieces = 1.0 - largest / free if free and allocator.fragments else 0.0
    return (
        f"{format_bytes(held)} of {format_bytes(allocator.capacity_bytes)} held ({format_percent(share)}); "
        f"free: {format_percent(pieces)} in pieces"
    )


@contextmanager
def live_view(
    labels: Sequence[str], *, wanted: bool, quiet: bool = False, console: "Console | None" = None
) -> Iterator[PoolWatch | None]:
    """A ``PoolWatch`` on the terminal that stderr is; ``None`` when it is none (which is said) or not ``wanted``."""
    if wanted and console is None and not sys.stderr.isatty() and not quiet:
        print("note: --watch needs a terminal on stderr; the run goes on without it", file=sys.stderr)
    if not wanted or (console is None and not sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.live import Live

    shown = console or Console(stderr=True)
    with Live(console=shown, transient=True, auto_refresh=False) as live:
        yield PoolWatch(labels, lambda view: live.update(view, refresh=True))
