"""A launch whose cores have one tile buffer, from sums over the batch.

With one buffer nothing overlaps: a core looks up, issues, loads and computes tile by tile, so its time is a sum, and
the launch lasts as long as its slowest core. Sums alone do not tell which core that is; the longest context does: its
pages lie together in the deal, so some core has no ends of shorter sequences in its share. ``fullest`` describes that
core, or one within the other sequences when that takes longer.

While it works, others finish and leave it their bandwidth. All cores go through their shares at the pace that the
number of streaming cores sets, so what counts is the part of the fullest core's share that is done when another core
finishes. The mean of that part follows from the sums; the others are taken to finish evenly around this mean.
"""

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise

from simulator.kernels.compute import FRACTAL
from simulator.kernels.kernel_form import KernelForm, Timing
from simulator.kernels.kernel_share import Number
from simulator.kernels.numbers import anywhere, ceiling, each, floor_of, larger, pick, smaller, steady
from simulator.kernels.tiles import TABLE_ENTRY_BYTES

# (sequences, tokens, pages, tokens of the longest sequence)
Batch = tuple[int, Number, Number, Number]
# Keeps a quotient of two zeros finite where what it stands for has no weight.
TINY = 1e-9


@dataclass(frozen=True, slots=True)
class SerialCore:
    """What one core does: pages (``tails`` of them the partly filled ends of tasks), tasks, tokens in a tail.

    ``alike`` cores have as much to do.
    """

    pages: Number
    tails: Number
    tasks: Number
    tail_tokens: Number
    alike: Number


def is_serial(form: KernelForm) -> bool:
    """Whether the forms of this module hold: one tile buffer, pages read one by one."""
    return form.plan.buffers == 1 and form.plan.group_pages == 1


def serial_timing(form: KernelForm, cores: int, batch: Batch) -> Timing:
    """Stage times of the fullest core, for numbers or for arrays of tokens, pages and longest context."""
    launch = _Launch(form, cores, batch)
    core, whole_s = launch.fullest()
    part = launch.others_s(core, whole_s) / whole_s
    early, late = larger(0.0, 2.0 * part - 1.0), smaller(1.0, 2.0 * part)

    def transfer(size: Number) -> Number:
        """Mean seconds of a transfer: among all cores, then ever fewer, then among those as full as this one."""
        busy, quiet = launch.transfer(size, launch.used), launch.transfer(size, core.alike)
        return early * busy + (late - early) * launch.mean_transfer(size, core.alike) + (1.0 - late) * quiet

    looks, scalar, compute = launch.fixed_s(core)
    copies = core.tasks * transfer(core.pages / core.tasks * TABLE_ENTRY_BYTES) if form.table == "l1" else 0.0
    full_bytes, tail_bytes = launch.part_bytes(form.plan.page_tokens), launch.part_bytes(core.tail_tokens)
    tiles = (core.pages - core.tails) * transfer(full_bytes) + core.tails * transfer(tail_bytes)
    streamed = tiles * form.plan.parts + core.tasks * transfer(form.query_bytes) + copies
    return Timing(
        lookup_s=looks + copies,
        scalar_s=scalar,
        dma_s=streamed,
        compute_s=compute,
        total_s=scalar + streamed + compute,
        part_bytes=pick(core.tails == core.pages, tail_bytes, full_bytes),
        active_cores=core.alike + (launch.used - core.alike) * part,
    )


@lru_cache(maxsize=4096)
def equal_share(cores: int, tasks: int, pages: float) -> tuple[float, float, float]:
    """(tails, tasks, cores alike) of the fullest core when ``pages`` pages of ``tasks`` equal tasks are dealt.

    Exact: among the cores with the most pages, those with the fewest tails, and among them the most tasks.
    """
    used, task_pages = math.ceil(min(cores, pages)), pages / tasks
    edges = [math.floor(index * pages / used) for index in range(used + 1)]
    shares = [
        (start - end, end // task_pages - start // task_pages, start // task_pages - (end - 1) // task_pages - 1)
        for start, end in pairwise(edges)
    ]
    most, tails, touched = min(shares)
    return tails, -touched, float(sum(share[:2] == (most, tails) for share in shares))


class _Launch:
    """The launch seen by one of its cores; one object a call, so that its parts can be written one by one."""

    __slots__ = ("cores", "dealt", "form", "heads", "longest", "most", "page", "pages", "sequences", "tokens", "used")

    def __init__(self, form: KernelForm, cores: int, batch: Batch) -> None:
        self.form, self.cores = form, cores
        self.sequences, self.tokens, pages, longest = batch
        self.pages = steady(pages)
        self.longest = larger(longest, self.tokens / self.sequences)
        self.heads, self.page = form.plan.steps_per_group, form.plan.page_tokens
        self.dealt = self.pages * self.heads
        self.most = ceiling(self.dealt / cores)
        self.used = smaller(cores, self.dealt)

    def _tail(self, unfilled: Number) -> Number:
        """Tokens of a last page that lacks ``unfilled``, at least one."""
        return self.page - smaller(self.page - 1, larger(0.0, unfilled))

    # ---- the fullest core

    def fullest(self) -> tuple[SerialCore, Number]:
        """The core that takes longest, and its seconds if all cores streamed to its end."""
        equal = steady(self.sequences * self.longest < self.tokens + 0.5)
        most_pages = smaller(ceiling(self.longest / self.page), self.pages - self.sequences + 1)
        task_pages = steady(pick(equal, self.pages / self.sequences, most_pages))
        core = self._within(task_pages, self._tail(task_pages * self.page - self.longest), equal)
        seconds = self.seconds(core)
        if self.sequences == 1:
            return core, seconds
        other = self._among_others(task_pages)
        other_s = self.seconds(other)
        longer = steady((other_s > seconds) & (equal ^ True))
        fields = (pick(longer, getattr(other, name), getattr(core, name)) for name in SerialCore.__slots__)
        return SerialCore(*fields), pick(longer, other_s, seconds)

    def _within(self, task_pages: Number, tail: Number, equal: Number) -> SerialCore:
        """A core whose share lies in tasks of the longest context with as few of their ends as possible.

        Of the shares that lie there, the part that ``most / task_pages`` has after the point holds one end more.
        """
        most, full_cores = self.most, self.dealt - (self.most - 1) * self.cores
        tails = floor_of(most / task_pages)
        tasks = smaller(most, tails + 1.0)
        alike = full_cores * (1.0 - (most / task_pages - tails)) * (task_pages * self.heads / self.dealt)
        if anywhere(equal):
            shares = each(partial(equal_share, self.cores, self.sequences * self.heads), self.dealt)
            tails, tasks, alike = (pick(equal, *two) for two in zip(shares, (tails, tasks, alike), strict=True))
        inside = full_cores * (1.0 - most * self.sequences / self.pages)
        alike = smaller(self.used, larger(1.0, larger(alike, inside)))
        tokens = most * self.page - tails * (self.page - tail)
        return SerialCore(most, tails, tasks, tail, smaller(alike, larger(1.0, self.tokens * self.heads / tokens)))

    def _among_others(self, longest_pages: Number) -> SerialCore:
        """A core with as many ends of the other sequences as fit in a share: short tasks cost more than their bytes."""
        others = self.sequences - 1
        pages, tokens = self.pages - longest_pages, self.tokens - self.longest
        tails = smaller(floor_of(self.most / (pages / others)), others * self.heads)
        tail = self._tail((pages * self.page - tokens) / others)
        return SerialCore(self.most, smaller(self.most, tails), smaller(self.most, tails + 1.0), tail, 1.0)

    def others_s(self, core: SerialCore, whole_s: Number) -> Number:
        """Seconds of a mean core among those with less to do, if all cores streamed to its end."""
        count = larger(1.0, self.used - core.alike)
        pages = larger(0.0, (self.dealt - core.alike * core.pages) / count)
        tails = smaller(pages, larger(0.0, (self.sequences * self.heads - core.alike * core.tails) / count))
        own = core.pages * self.page - core.tails * (self.page - core.tail_tokens)
        tokens = larger(0.0, (self.tokens * self.heads - core.alike * own) / count)
        tail = self._tail((pages * self.page - tokens) / larger(TINY, tails))
        tasks = larger(TINY, smaller(pages, larger(1.0, tails)))
        return smaller(whole_s, self.seconds(SerialCore(pages, tails, tasks, tail, 1.0)))

    # ---- what takes how long

    def part_bytes(self, tokens: Number) -> Number:
        """Bytes of one transfer of a step over ``tokens`` tokens."""
        plan = self.form.plan
        return tokens * (self.form.step_token_bytes * plan.reload / plan.parts)

    def _alone(self, size: Number) -> Number:
        dma = self.form.dma
        return larger(dma.issue_s, dma.latency_s / dma.depth + size / dma.port_bandwidth)

    def transfer(self, size: Number, active: Number) -> Number:
        """Seconds of one transfer while ``active`` cores stream."""
        dma = self.form.dma
        return larger(self._alone(size), dma.startup_s / dma.depth + size * active / dma.shared_bandwidth)

    def mean_transfer(self, size: Number, fewest: Number) -> Number:
        """Mean of ``transfer`` while the streaming cores fall evenly from all to ``fewest``.

        Below ``turn`` cores a transfer takes what it takes alone, above it grows with each.
        """
        dma, used, alone = self.form.dma, self.used, self._alone(size)
        start, slope = dma.startup_s / dma.depth, size / dma.shared_bandwidth
        turn = smaller(used, larger(fewest, (alone - start) / slope))
        above = (used - turn) * (start + slope * (used + turn) / 2.0)
        return (alone * (turn - fewest) + above) / larger(TINY, used - fewest)

    def fixed_s(self, core: SerialCore) -> tuple[Number, Number, Number]:
        """Seconds that no other core changes: of look-ups, of look-ups and issues, of compute."""
        form, plan = self.form, self.form.plan
        copies = core.tasks if form.table == "l1" else 0.0
        looks = core.pages * plan.transfers * form.lookup_s
        if form.table == "dcache":
            looks = looks + form.lines(core.tasks, core.pages, larger) * (form.miss_s - form.hit_s)
        scalar = looks + (core.pages * plan.parts + core.tasks + copies) * form.dma.issue_s
        slices = (core.pages - core.tails) * -(-self.page // FRACTAL) + core.tails * -(-core.tail_tokens // FRACTAL)
        return looks, scalar, slices * form.compute.slice_s

    def seconds(self, core: SerialCore) -> Number:
        """Seconds of a core if all cores streamed to its end."""
        form, used = self.form, self.used
        _, scalar, compute = self.fixed_s(core)
        full = self.transfer(self.part_bytes(self.page), used)
        tail = self.transfer(self.part_bytes(core.tail_tokens), used)
        tiles = ((core.pages - core.tails) * full + core.tails * tail) * form.plan.parts
        queries = core.tasks * self.transfer(form.query_bytes, used)
        row = self.transfer(core.pages / core.tasks * TABLE_ENTRY_BYTES, used) if form.table == "l1" else 0.0
        return scalar + compute + tiles + queries + core.tasks * row
