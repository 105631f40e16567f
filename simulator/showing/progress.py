"""Progress on stderr: a bar with remaining time and the OOM rate so far on a terminal, nothing when piped."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from simulator.units import format_percent

if TYPE_CHECKING:
    from simulator.serving.watching import Progress

#: what is over sooner needs no bar
_PATIENCE_S = 1.0


@contextmanager
def reporting(*, enabled: bool) -> "Iterator[Progress | None]":
    """A ``Progress`` that draws one bar a label once a second has passed, or ``None`` when nobody would see it."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn("{task.fields[rate]}"),
        bars.TextColumn("{task.fields[oom]}"),
        bars.TextColumn("ETA"),
        bars.TimeRemainingColumn(),
    )
    display = bars.Progress(*columns, console=Console(stderr=True), transient=True)
    tasks: dict[str, bars.TaskID] = {}
    began, started = time.monotonic(), False

    def show(label: str, done: int, total: int, oom_rate: float | None) -> None:
        nonlocal started
        if label not in tasks:
            tasks[label] = display.add_task(label, total=total, rate="", oom="")
        speed = display.tasks[tasks[label]].speed
        display.update(
            tasks[label],
            completed=done,
            total=total,
            rate=f"{speed:,.0f}/s" if speed and speed >= 10 else f"{speed:.2g}/s" if speed else "",
            oom="" if oom_rate is None else f"OOM {format_percent(oom_rate)}",
        )
        if not started and time.monotonic() - began > _PATIENCE_S:
            started = True
            display.start()

    try:
        yield show
    finally:
        if started:
            display.stop()
