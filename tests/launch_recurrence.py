"""A launch once more, as recurrences in place of events: a second way to the seconds of ``kernel_cycles``.

A transfer starts when it is issued, the one before it is in, and a buffer is free; its pace follows from the number of
cores that have transfers left. So the only event is the end of a core's last transfer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.kernel import PagedKernel


class Transfer(NamedTuple):
    """Seconds of look-ups and issue before it, its bytes, the work on it, and whether the scalar unit waits for it."""

    before_s: float
    size: float
    work_s: float = 0.0
    is_tile: bool = False
    is_waited_for: bool = False


@dataclass
class Core:
    transfers: list[Transfer]
    issued: float = 0.0
    taken: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    worked: list[float] = field(default_factory=list)
    start: float = 0.0
    end: float = 0.0

    def next(self, kernel: PagedKernel, active: int) -> None:
        buffers, place = kernel.plan.buffers, len(self.ends)
        transfer = self.transfers[place]
        room = max(2, buffers)
        self.issued += transfer.before_s
        if place >= room:
            self.issued = max(self.issued, self.taken[place - room])
        self.taken.append(max([self.issued, *self.ends[-1:]]))
        self.start = self.taken[-1]
        if transfer.is_tile and len(self.worked) >= buffers:
            self.start = max(self.start, self.worked[-buffers])
        self.end = self.start + kernel.dma.seconds(transfer.size, active)

    def finish(self) -> None:
        transfer = self.transfers[len(self.ends)]
        self.ends.append(self.end)
        if transfer.is_tile:
            self.worked.append(max([self.end, *self.worked[-1:]]) + transfer.work_s)
        if transfer.is_waited_for:
            self.issued = self.worked[-1] if transfer.is_tile else self.end

    def change_pace(self, kernel: PagedKernel, now: float, before: int, active: int) -> None:
        size = self.transfers[len(self.ends)].size
        left = 1.0 if self.start >= now else (self.end - now) / kernel.dma.seconds(size, before)
        self.end = max(now, self.start) + left * kernel.dma.seconds(size, active)


def seconds(kernel: PagedKernel, contexts: Sequence[int], run: int = 1) -> float:
    """Seconds of a launch over tables of runs of ``run`` adjacent pages."""
    cores = [Core(list(transfers)) for transfers in dealt(kernel, contexts, run)]
    running, last = list(cores), 0.0
    for core in running:
        core.next(kernel, len(running))
    while running:
        core = min(running, key=lambda one: one.end)
        core.finish()
        if len(core.ends) < len(core.transfers):
            core.next(kernel, len(running))
            continue
        last = max(last, core.end, *core.worked[-1:])
        running.remove(core)
        for other in running:
            other.change_pace(kernel, core.end, len(running) + 1, len(running))
    return last


def dealt(kernel: PagedKernel, contexts: Sequence[int], run: int) -> Iterator[Iterator[Transfer]]:
    """The transfers of every core."""
    page = kernel.plan.page_tokens
    pages = [
        ((sequence, head), column, min(page, context - column * page))
        for sequence, context in enumerate(contexts)
        for head in range(kernel.plan.steps_per_group)
        for column in range(-(-context // page))
    ]
    cores = min(kernel.device.cores, len(pages))
    for core in range(cores):
        yield transfers_of(kernel, pages[core * len(pages) // cores : (core + 1) * len(pages) // cores], run)


def transfers_of(kernel: PagedKernel, pages: list[tuple[tuple[int, int], int, int]], run: int) -> Iterator[Transfer]:
    plan, form, issue = kernel.plan, kernel.form, kernel.dma.issue_s
    task, line, place, serial = None, None, 0, plan.buffers == 1
    while place < len(pages):
        this, column, _ = pages[place]
        if this != task:
            first, task = task is None, this
            yield Transfer(issue, form.query_bytes, is_waited_for=serial)
            if form.table == "l1":
                row = 4 * sum(other == this for other, _, _ in pages)
                yield Transfer(issue, row, is_waited_for=serial or first)
        count = 1
        while count < plan.max_group_pages and place + count < len(pages):
            other, next_column, _ = pages[place + count]
            if other != this or next_column % run == 0:
                break
            count += 1
        tokens = sum(more for _, _, more in pages[place : place + count])
        size = tokens * form.step_token_bytes * plan.reload / plan.parts
        for part in range(plan.parts):
            before = issue
            for entry in range(column, column + count) if part % plan.passes == 0 else ():
                here = (this, entry // form.line_entries)
                cached = form.table == "l1" or (form.table == "dcache" and here == line)
                before += form.hit_s if cached else form.miss_s
                line = here
            yield Transfer(before, size, kernel.compute.seconds(tokens) / plan.parts, True, serial)
        place += count
