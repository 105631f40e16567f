"""Seconds of one paged-attention launch in decode, from what it moves: the closed form.

Every core runs a three-stage pipeline: the scalar unit looks page ids up and issues transfers, the DMA queue
brings tiles in, cube and vector cores work on them. The steps of all sequences and heads are dealt to the
cores in equal contiguous shares (split-KV, as FlashDecoding does), so the launch lasts as long as the core
with the most steps: the longest of the three stages plus the time to fill and drain the other two, or their
sum when the tile buffer holds one tile. ``kernel_cycles`` plays the same launch event by event.

Only sums over the batch enter (sequences, tokens, pages), so the cost of a step is O(1) in the batch size.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulator.compute import FRACTAL, TileCompute, tile_compute
from simulator.device import Device
from simulator.dma import Dma, make_dma
from simulator.tiles import TABLE_ENTRY_BYTES, AttentionShape, KernelOptions, TilePlan, plan_tiles

QUERY_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What one launch moves. Bytes are of all cores; ``kv_bytes`` includes tiles read again."""

    kv_bytes: int
    table_bytes: int
    query_bytes: int
    output_bytes: int
    exchange_bytes: int
    lookups: int
    dma_transfers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Seconds of each stage on the busiest core, and which part of it decides."""

    scalar_s: float
    dma_s: float
    compute_s: float
    total_s: float
    bound: str


class PagedKernel:
    """The launch of one layer's decode attention: its tile plan, its stage times, its cost."""

    def __init__(
        self, device: Device, shape: AttentionShape, *, page_tokens: int, options: KernelOptions | None = None
    ) -> None:
        self.device, self.shape = device, shape
        self.options = options or KernelOptions()
        self.plan: TilePlan = plan_tiles(device, shape, self.options, page_tokens)
        plan = self.plan
        self.dma: Dma = make_dma(
            device,
            depth=plan.buffers,
            l2_hit_ratio=self.options.l2_hit_ratio,
            touches=plan.touches,
            aligned=plan.aligned,
        )
        self.compute: TileCompute = tile_compute(device, shape, self.options.tile)
        self.line_entries = max(1, device.table_line_bytes // TABLE_ENTRY_BYTES)
        self.hit_s = device.l1_latency_cycles / device.clock_hz
        self.miss_s = device.hbm_latency_cycles / device.clock_hz
        self.lookup_s = self.miss_s if self.options.table == "hbm" else self.hit_s
        self.step_token_bytes = shape.token_bytes / plan.steps_per_group
        heads = shape.group_heads if plan.steps_per_group > 1 or shape.kv_heads == 1 else shape.query_heads
        self.query_bytes = heads * shape.head_dim * QUERY_BYTES
        self.output_bytes = heads * shape.v_head_dim * QUERY_BYTES

    def seconds(self, sequences: int, tokens: int, pages: int) -> float:
        """Seconds of one launch, without its launch cost; 0 for no sequence.

        ``tokens`` and ``pages`` are sums over the sequences: what each reads, its new token included.
        """
        if sequences == 0:
            return 0.0
        return float(self._total(sequences, tokens, pages, max, math.ceil))

    def seconds_array(self, sequences: int, tokens: Any, pages: Any) -> Any:
        """``seconds`` for arrays of tokens and pages, bit for bit the same."""
        import numpy as np

        if sequences == 0:
            return np.zeros(np.shape(tokens))
        return self._total(sequences, tokens, pages, np.maximum, np.ceil)

    def stages(self, sequences: int, tokens: int, pages: int) -> Stages:
        """The three stages on the busiest core and what bounds the launch."""
        if sequences == 0:
            return Stages(scalar_s=0.0, dma_s=0.0, compute_s=0.0, total_s=0.0, bound="none")
        scalar, dma, compute, total, size, active = self._parts(sequences, tokens, pages, max, math.ceil)
        return Stages(
            scalar_s=scalar,
            dma_s=dma,
            compute_s=compute,
            total_s=total,
            bound=self._bound(scalar, dma, compute, size, active),
        )

    def traffic(self, sequences: int, tokens: int, pages: int) -> Traffic:
        """Bytes by kind, look-ups and transfers of one launch."""
        plan = self.plan
        tasks = sequences * plan.steps_per_group
        steps = max(float(sequences), pages / plan.group_pages) * plan.steps_per_group
        lookups = pages * plan.steps_per_group * plan.transfers
        segments = self._segments_all(tasks, steps)
        copies = segments if self.options.table == "l1" else 0
        return Traffic(
            kv_bytes=round(tokens * self.shape.token_bytes) * plan.reload,
            table_bytes=round(self._table_bytes(segments, pages * plan.steps_per_group, lookups)),
            query_bytes=round(segments * self.query_bytes),
            output_bytes=tasks * self.output_bytes,
            exchange_bytes=round(tokens * plan.steps_per_group * self.compute.exchange_bytes_per_token),
            lookups=lookups,
            dma_transfers=round(steps * plan.parts + segments + copies),
        )

    def _segments_all(self, tasks: int, steps: float) -> float:
        """Pieces the tasks fall into when dealt to the cores: one more for each cut inside a task."""
        cores = min(self.device.cores, steps)
        return tasks if tasks % self.device.cores == 0 else min(steps, tasks + (cores - 1) * (1 - tasks / steps))

    def _table_bytes(self, segments: float, pages: float, lookups: int) -> float:
        line = self.line_entries * TABLE_ENTRY_BYTES
        if self.options.table == "l1":
            return pages * TABLE_ENTRY_BYTES
        return float(lookups if self.options.table == "hbm" else self._lines(segments, pages, max)) * line

    def _lines(self, segments: Any, pages: Any, maximum: Callable[..., Any]) -> Any:
        """Table lines read: rows start on a line, so a row of p pages needs p/16 + 15/32 on average, at least 1."""
        partial = (self.line_entries - 1) / (2 * self.line_entries)
        return maximum(segments, pages / self.line_entries + segments * partial)

    def _total(
        self, sequences: int, tokens: Any, pages: Any, maximum: Callable[..., Any], ceil: Callable[..., Any]
    ) -> Any:
        return self._parts(sequences, tokens, pages, maximum, ceil)[3]

    def _parts(
        self, sequences: int, tokens: Any, pages: Any, maximum: Callable[..., Any], ceil: Callable[..., Any]
    ) -> tuple[Any, Any, Any, Any, Any, Any]:
        """Scalar, DMA, compute and total seconds of the busiest core, mean transfer size, active cores.

        One body for scalars and arrays: ``maximum`` and ``ceil`` are the builtins or numpy's.
        """
        plan, dma, cores = self.plan, self.dma, self.device.cores
        groups = maximum(float(sequences), pages / plan.group_pages)
        steps = groups * plan.steps_per_group
        rounds = ceil(steps / cores)
        last_active = steps - (rounds - 1) * cores
        active = maximum(last_active, (rounds > 1) * float(cores))
        step_tokens = tokens / groups
        size = step_tokens * self.step_token_bytes * plan.reload / plan.parts
        part, last_part = _part(dma, size, active, maximum), _part(dma, size, last_active, maximum)
        segments = self._segments(sequences * plan.steps_per_group, groups / sequences, rounds, maximum, ceil)
        query = _part(dma, self.query_bytes, active, maximum)
        work = (step_tokens + self._padding(step_tokens, maximum)) / FRACTAL * self.compute.slice_s
        copies, table_s, lines = self._table(segments, rounds * plan.group_pages, active, maximum)
        looks = rounds * (plan.group_pages * plan.transfers) * self.lookup_s + lines * (self.miss_s - self.hit_s)
        scalar = looks + (rounds * plan.parts + segments + copies) * dma.issue_s
        streamed = ((rounds - 1) * part + last_part) * plan.parts + segments * query + table_s
        compute = rounds * work
        total = self._join(scalar, streamed, compute, last_part, query, work / plan.parts, maximum)
        return scalar, streamed, compute, total, size, active

    def _padding(self, step_tokens: Any, maximum: Callable[..., Any]) -> Any:
        """Mean tokens that whole 16-token slices add to a step."""
        return maximum(0.0, (FRACTAL - step_tokens % FRACTAL) % FRACTAL)

    def _segments(
        self, tasks: int, task_steps: Any, rounds: Any, maximum: Callable[..., Any], ceil: Callable[..., Any]
    ) -> Any:
        """Tasks (a sequence's head) that the busiest core touches; each loads its query rows once."""
        if tasks % self.device.cores == 0:
            return rounds / task_steps
        return -maximum(-rounds, -(ceil((rounds - 1) / task_steps) + 1))

    def _table(self, segments: Any, pages: Any, active: Any, maximum: Callable[..., Any]) -> tuple[Any, Any, Any]:
        """Row copies, their DMA seconds and the cold cache lines of the busiest core."""
        if self.options.table == "l1":
            row = _part(self.dma, pages / segments * TABLE_ENTRY_BYTES, active, maximum)
            return segments, segments * row, 0.0
        if self.options.table == "hbm":
            return 0.0, 0.0, 0.0
        return 0.0, 0.0, self._lines(segments, pages, maximum)

    def _join(
        self, scalar: Any, dma: Any, compute: Any, part: Any, query: Any, work: Any, maximum: Callable[..., Any]
    ) -> Any:
        """Stages in sequence with one buffer; else the longest stage, after the others fill and drain."""
        if self.plan.buffers == 1:
            return scalar + dma + compute
        first = self._first_issue_s()
        return maximum(maximum(scalar + part + work, first + dma + work), first + query + part + compute)

    def _first_issue_s(self) -> float:
        """From the start to the first transfer: its query's issue (and the table row's)."""
        return self.dma.issue_s

    def _bound(self, scalar: float, dma: float, compute: float, size: float, active: float) -> str:
        if self.plan.passes > 1:
            return "tile overflow"
        longest = max(scalar, dma, compute)
        if longest == compute:
            return "compute"
        if longest == scalar:
            return "table" if self.lookup_s * self.plan.group_pages > self.dma.issue_s else "issue"
        return self.dma.bound(size, active)


def _part(dma: Dma, size: Any, active: Any, maximum: Callable[..., Any]) -> Any:
    """``Dma.seconds`` for scalars or arrays."""
    lone = dma.latency_s / dma.depth + size / dma.port_bandwidth
    shared = dma.startup_s / dma.depth + size * active / dma.shared_bandwidth
    return maximum(dma.issue_s, maximum(lone, shared))
