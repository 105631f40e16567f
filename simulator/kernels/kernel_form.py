"""Stage times of one core in a paged-attention launch, from its share: the arithmetic of the closed form."""

from dataclasses import dataclass

from simulator.kernels.compute import FRACTAL, TileCompute
from simulator.kernels.dma import Dma
from simulator.kernels.kernel_share import Maximum, Number, Share
from simulator.kernels.tiles import TABLE_ENTRY_BYTES, TableMode, TilePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of the three stages on a core, from its start to its end, and what its transfers look like.

    ``lookup_s`` is the part of them that the page table takes: reading ids, and copying rows in ``l1`` mode.
    """

    lookup_s: Number
    scalar_s: Number
    dma_s: Number
    compute_s: Number
    total_s: Number
    part_bytes: Number
    active_cores: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelForm:
    """The constants of one kernel on one device."""

    plan: TilePlan
    dma: Dma
    compute: TileCompute
    table: TableMode
    line_entries: int
    hit_s: float
    miss_s: float
    step_token_bytes: float
    query_bytes: int

    @property
    def lookup_s(self) -> float:
        """Seconds to read one page id that is as near as the table mode keeps it."""
        return self.miss_s if self.table == "hbm" else self.hit_s

    def timing(self, share: Share, maximum: Maximum = max) -> Timing:
        """Stage times of a core with ``share`` (or of many cores, with arrays in it and numpy's ``maximum``)."""
        plan, dma = self.plan, self.dma
        copies, row, lines = self._table(share, maximum)
        looks = share.pages * plan.transfers * self.lookup_s + lines * (self.miss_s - self.hit_s)
        scalar = looks + (share.bursts * plan.parts + share.tasks + copies) * dma.issue_s
        part_bytes = self.step_token_bytes * plan.reload / plan.parts
        size, tail_size = share.full_tokens * part_bytes, share.tail_tokens * part_bytes
        full, tail = self._transfer(size, share.active, maximum), self._transfer(tail_size, share.active, maximum)
        last_size = share.last_tokens * part_bytes
        last = self._transfer(last_size, share.last_active, maximum)
        last_gain = last - self._transfer(last_size, share.active, maximum)
        query = self._transfer(self.query_bytes, share.active, maximum)
        last_query = self._transfer(self.query_bytes, share.last_active, maximum)
        queries = share.tasks * query + (last_query - query) / share.task_pages
        bursts = share.bursts - share.tails
        streamed = (bursts * full + share.tails * tail + last_gain) * plan.parts + queries + copies * row
        work, tail_work = self._work(share.full_tokens), self._work(share.tail_tokens)
        compute = bursts * work + share.tails * tail_work
        streamed = streamed + self._buffer_waits(share, tail, maximum)
        if plan.buffers == 1:
            total = scalar + streamed + compute
        else:
            first = (share.pages / share.bursts - 1) * self.lookup_s + self.first_lookup_s + dma.issue_s
            opening = self.opening(query, row, first, maximum)
            drain = work / plan.parts
            reads = scalar + (query + row if self.table == "l1" else 0.0) + last + drain
            total = maximum(maximum(reads, opening + streamed - query - row + drain), opening + full + compute)
        return Timing(
            lookup_s=looks + copies * row,
            scalar_s=scalar,
            dma_s=streamed,
            compute_s=compute,
            total_s=total,
            part_bytes=size,
            active_cores=share.active,
        )

    def _buffer_waits(self, share: Share, tail: Number, maximum: Maximum) -> Number:
        """With two buffers, V of a short last page waits until V of the page before is worked on and leaves its own."""
        if self.plan.buffers != 2 or self.plan.group_pages > 1:
            return 0.0
        preceded = (share.task_pages > 1) * (share.tails < share.pages)
        return preceded * (share.tails * maximum(0.0, self.page_work_s / self.plan.parts - tail))

    @property
    def page_work_s(self) -> float:
        """Seconds on chip for a whole page."""
        return float(self._work(self.plan.page_tokens))

    def _table(self, share: Share, maximum: Maximum) -> tuple[Number, Number, Number]:
        """Row copies, DMA seconds of one, and cold cache lines of the busiest core."""
        if self.table == "l1":
            row = self._transfer(share.pages / share.tasks * TABLE_ENTRY_BYTES, share.active, maximum)
            return share.tasks, row, 0.0
        return 0.0, 0.0, 0.0 if self.table == "hbm" else self.lines(share.tasks, share.pages, maximum)

    def lines(self, tasks: Number, pages: Number, maximum: Maximum = max) -> Number:
        """Table lines read: rows start on a line, so one of p pages spans p/16 + 15/32 on average, at least 1."""
        partial = (self.line_entries - 1) / (2 * self.line_entries)
        return maximum(tasks, pages / self.line_entries + tasks * partial)

    @property
    def first_lookup_s(self) -> float:
        """Seconds until the first page id is read."""
        return self.hit_s if self.table == "l1" else self.miss_s

    def opening(self, query: Number, row: Number, first: Number, maximum: Maximum) -> Number:
        """From the start until the first tile can stream: query rows in, first page id read."""
        if self.table == "l1":
            return self.dma.issue_s + query + row + first
        return self.dma.issue_s + maximum(query, first)

    def _work(self, tokens: Number) -> Number:
        """Seconds on chip for a burst, in whole slices of 16 tokens."""
        return -(-tokens // FRACTAL) * self.compute.slice_s

    def _transfer(self, size: Number, active: Number, maximum: Maximum) -> Number:
        """``Dma.seconds`` for scalars or arrays."""
        dma = self.dma
        lone = dma.latency_s / dma.depth + size / dma.port_bandwidth
        shared = dma.startup_s / dma.depth + size * active / dma.shared_bandwidth
        return maximum(dma.issue_s, maximum(lone, shared))
