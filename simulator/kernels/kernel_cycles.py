"""One paged-attention launch, played event by event: the reference that the closed form of ``kernel`` is held to.

Each core is three processes. The *scalar* unit walks the core's share of the page tables, reads page ids
(from HBM, through the data cache, or from a row copied on chip) and issues transfers. The *DMA queue* takes them
in order; a transfer waits for a free tile buffer, then streams at the core's share of the bandwidth, which
grows when other cores have finished. The *compute* process works on each tile and frees its buffer. Physically
adjacent pages merge into one burst. Times are seconds; nothing is random.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import simpy

from simulator.kernel import PagedKernel, Traffic
from simulator.kernels.tiles import TABLE_ENTRY_BYTES
from simulator.units import ceil_div

Process = Generator[simpy.Event, Any, None]
Issue = Generator[simpy.Event, Any, simpy.Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Work on adjacent pages for one head: ``tokens`` in ``pages`` pages from ``page_id``, table column ``column``."""

    task: int
    tokens: int
    pages: int
    column: int
    page_id: int


@dataclass(slots=True, kw_only=True)
class Stalls:
    """Core-seconds a stage waited, by cause."""

    lookup_s: float = 0.0
    buffer_s: float = 0.0
    tile_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What one launch did: its traffic, its duration, and the core-seconds lost by cause."""

    traffic: Traffic
    seconds: float
    cycles: int
    active_cores: int
    mean_run_pages: float
    stalls: Stalls


def simulate_launch(kernel: PagedKernel, contexts: Sequence[int], tables: Sequence[Sequence[int]]) -> Launch:
    """Play one launch over sequences of ``contexts`` tokens whose pages are ``tables`` (physical ids, in order).

    Raises ``ValueError`` when a table has fewer pages than its context needs.
    """
    pages = list(_pages(kernel, contexts, tables))
    cores = min(kernel.device.cores, len(pages))
    env = simpy.Environment()
    launch = _Launch(env=env, kernel=kernel, active=cores)
    bursts, stages = 0, []
    for index in range(cores):
        share = pages[index * len(pages) // cores : (index + 1) * len(pages) // cores]
        core = _Core(launch, _merged(share, kernel.plan.max_group_pages))
        launch.cores.append(core)
        bursts += len(core.steps)
        stages += core.start()
    env.run(until=env.all_of(stages))  # not until the calendar is empty: alarms that were set anew still stand in it
    return Launch(
        traffic=launch.traffic(contexts),
        seconds=float(env.now),
        cycles=round(env.now * kernel.device.clock_hz),
        active_cores=cores,
        mean_run_pages=len(pages) / bursts if bursts else 1.0,
        stalls=launch.stalls,
    )


def _pages(kernel: PagedKernel, contexts: Sequence[int], tables: Sequence[Sequence[int]]) -> Iterator[Step]:
    """Every page of work in the order it is dealt out: sequence, head, table column."""
    size = kernel.plan.page_tokens
    task = 0
    for context, table in zip(contexts, tables, strict=True):
        count = ceil_div(context, size)
        if len(table) < count:
            raise ValueError(f"{context} tokens need {count} pages of {size}, the table has {len(table)}")
        for _ in range(kernel.plan.steps_per_group):
            for column in range(count):
                tokens = min(size, context - column * size)
                yield Step(task=task, tokens=tokens, pages=1, column=column, page_id=table[column])
            task += 1


def _merged(pages: list[Step], most: int) -> list[Step]:
    """Bursts: runs of physically adjacent pages of one task, at most ``most`` long."""
    steps: list[Step] = []
    for page in pages:
        last = steps[-1] if steps else None
        if last and last.task == page.task and last.page_id + last.pages == page.page_id and last.pages < most:
            steps[-1] = replace(last, tokens=last.tokens + page.tokens, pages=last.pages + 1)
        else:
            steps.append(page)
    return steps


@dataclass(slots=True, kw_only=True)
class _Launch:
    """What the cores share: the clock, how many still stream, and the counters."""

    env: simpy.Environment
    kernel: PagedKernel
    active: int
    cores: list["_Core"] = field(default_factory=list)
    stalls: Stalls = field(default_factory=Stalls)
    kv_bytes: float = 0.0
    table_bytes: float = 0.0
    query_bytes: int = 0
    lookups: int = 0
    transfers: int = 0
    tasks: set[int] = field(default_factory=set)

    def finished(self, core: "_Core") -> None:
        """``core`` streams no more: the others share what it leaves."""
        self.active -= 1
        self.cores.remove(core)
        for other in self.cores:
            other.share_grew()

    def traffic(self, contexts: Sequence[int]) -> Traffic:
        kernel = self.kernel
        scores = sum(contexts) * kernel.plan.steps_per_group
        return Traffic(
            kv_bytes=round(self.kv_bytes),
            table_bytes=round(self.table_bytes),
            query_bytes=self.query_bytes,
            output_bytes=len(self.tasks) * kernel.output_bytes,
            exchange_bytes=round(scores * kernel.compute.exchange_bytes_per_token),
            lookups=self.lookups,
            dma_transfers=self.transfers,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transfer:
    """One entry of the DMA queue; a tile takes a buffer and is computed on, a query or a table row does not.

    ``done`` fires when nothing of it is left to do: with one buffer the scalar unit waits for that.
    """

    size_bytes: float
    work_s: float = 0.0
    is_tile: bool = False
    done: simpy.Event


class _Core:
    """One AI core with its share of the steps."""

    def __init__(self, launch: _Launch, steps: list[Step]) -> None:
        self.launch, self.kernel, self.env, self.steps = launch, launch.kernel, launch.env, steps
        plan = self.kernel.plan
        self.serial = plan.buffers == 1
        self.queue = simpy.Store(self.env, capacity=max(2, plan.buffers))
        self.filled = simpy.Store(self.env)
        self.buffers = simpy.Container(self.env, capacity=plan.buffers, init=plan.buffers)
        tasks = len({step.task for step in steps})
        self.tiles = len(steps) * plan.parts
        self.transfers = self.tiles + tasks * (2 if self.kernel.options.table == "l1" else 1)
        self.line: tuple[int, int] | None = None
        self.streamed = self.env.event()
        self.alarm, self.left, self.began, self.whole_s, self.size_bytes = 0, 0.0, 0.0, 0.0, 0.0

    def start(self) -> list[simpy.Process]:
        """Set the three stages going; returns what ends when they have."""
        return [self.env.process(stage) for stage in (self._scalar(), self._dma(), self._compute())]

    def _scalar(self) -> Process:
        task = -1
        for step in self.steps:
            if step.task != task:
                task = step.task
                yield from self._open(step)
            yield from self._load(step)

    def _open(self, step: Step) -> Process:
        """A new task: its query rows, and its table row in ``l1`` mode."""
        launch, kernel = self.launch, self.kernel
        launch.tasks.add(step.task)
        launch.query_bytes += kernel.query_bytes
        yield from self._issue(kernel.query_bytes)
        if kernel.options.table == "l1":
            pages = sum(other.pages for other in self.steps if other.task == step.task)
            launch.table_bytes += pages * TABLE_ENTRY_BYTES
            copied = yield from self._issue(pages * TABLE_ENTRY_BYTES)
            if step is self.steps[0]:  # later rows are fetched while the task before is worked on
                yield copied

    def _load(self, step: Step) -> Process:
        """Look the pages up and issue the step's transfers."""
        kernel, plan = self.kernel, self.kernel.plan
        size = step.tokens * kernel.form.step_token_bytes * plan.reload / plan.parts
        work = kernel.compute.seconds(step.tokens) / plan.parts
        for part in range(plan.parts):
            if part % plan.passes == 0:
                yield from self._look_up(step)
            self.launch.kv_bytes += size
            yield from self._issue(size, work_s=work, is_tile=True)

    def _look_up(self, step: Step) -> Process:
        wait = 0.0
        for column in range(step.column, step.column + step.pages):
            wait += self._entry_s(step.task, column)
        self.launch.lookups += step.pages
        self.launch.stalls.lookup_s += wait
        yield self.env.timeout(wait)

    def _entry_s(self, task: int, column: int) -> float:
        """Seconds to read one page id."""
        kernel, line_bytes = self.kernel, self.kernel.form.line_entries * TABLE_ENTRY_BYTES
        if kernel.options.table == "l1":
            return kernel.form.hit_s
        line = (task, column // kernel.form.line_entries)
        if kernel.options.table == "dcache" and line == self.line:
            return kernel.form.hit_s
        self.line = line
        self.launch.table_bytes += line_bytes
        return kernel.form.miss_s

    def _issue(self, size_bytes: float, *, work_s: float = 0.0, is_tile: bool = False) -> Issue:
        transfer = _Transfer(size_bytes=size_bytes, work_s=work_s, is_tile=is_tile, done=self.env.event())
        self.launch.transfers += 1
        yield self.env.timeout(self.kernel.dma.issue_s)
        yield self.queue.put(transfer)
        if self.serial:
            yield transfer.done
        return transfer.done

    def _dma(self) -> Process:
        env, launch = self.env, self.launch
        left = self.transfers
        while left:
            transfer = yield self.queue.get()
            if transfer.is_tile:
                before = env.now
                yield self.buffers.get(1)
                launch.stalls.buffer_s += env.now - before
            yield from self._stream(transfer.size_bytes)
            left -= 1
            if not left:
                launch.finished(self)
            if transfer.is_tile:
                yield self.filled.put(transfer)
            else:
                transfer.done.succeed()

    def _stream(self, size_bytes: float) -> Process:
        """One transfer, at the share of the bandwidth of the moment."""
        self.left, self.size_bytes = 1.0, size_bytes
        self.streamed = self.env.event()
        self._arm()
        yield self.streamed

    def _arm(self) -> None:
        """Set the alarm for the end of the transfer; only the latest alarm counts."""
        self.alarm += 1
        alarm = self.alarm
        self.began = self.env.now
        self.whole_s = self.kernel.dma.seconds(self.size_bytes, self.launch.active)
        timeout = self.env.timeout(self.left * self.whole_s)
        timeout.callbacks.append(lambda _: self._ring(alarm))

    def _ring(self, alarm: int) -> None:
        if alarm == self.alarm:
            self.left = 0.0
            self.streamed.succeed()

    def share_grew(self) -> None:
        """Another core has finished: what is left of the transfer goes on faster."""
        if self.left > 0.0:
            self.left = max(0.0, self.left - (self.env.now - self.began) / self.whole_s)
            self._arm()

    def _compute(self) -> Process:
        env, launch = self.env, self.launch
        for _ in range(self.tiles):
            before = env.now
            transfer = yield self.filled.get()
            launch.stalls.tile_s += env.now - before
            yield env.timeout(transfer.work_s)
            yield self.buffers.put(1)
            transfer.done.succeed()
