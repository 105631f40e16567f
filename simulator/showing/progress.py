"""Progress on stderr: a bar with rate and remaining time on a terminal, nothing when piped."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Called as ``progress(label, requests_done, requests_total)``, as often as the caller likes."""


@contextmanager
def reporting(*, enabled: bool) -> Iterator[Progress | None]:
    """A ``Progress`` that draws one bar a label, or ``None`` when nobody would see it."""
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
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as display:
        tasks: dict[str, bars.TaskID] = {}

        def show(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = display.add_task(label, total=total, rate="")
            speed = display.tasks[tasks[label]].speed
            display.update(tasks[label], completed=done, rate=f"{speed:,.0f}/s" if speed else "")

        yield show
