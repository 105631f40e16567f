"""Seconds of one paged-attention launch in decode, from what it moves: the closed form.

Every core runs a three-stage pipeline: the scalar unit looks page ids up and issues transfers, the DMA queue
brings tiles in, cube and vector cores work on them. The steps of all sequences and heads are dealt to the
cores in equal contiguous shares (split-KV, as FlashDecoding does), so the launch lasts as long as the core
with the most steps: the longest of the three stages plus the time to fill and drain the other two, or their
sum when the tile buffer holds one tile. ``kernel_cycles`` plays the same launch event by event.

Sums over the batch (sequences, tokens, pages) give its time in O(1), whatever the batch size (``mean_share``). They
leave open which sequences a core has; with every context known each core's share is, in O(batch): in one walk for the
usual kernel (``kernel_walk``) and where pages merge (``burst_walk``), as arrays over cores for any (``kernel_known``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simulator.device import Device
from simulator.kernels.burst_walk import BurstWalk
from simulator.kernels.compute import TileCompute, tile_compute
from simulator.kernels.deep_walk import DeepWalk
from simulator.kernels.dma import Dma, make_dma
from simulator.kernels.kernel_fast import fast_array
from simulator.kernels.kernel_form import KernelForm, Timing
from simulator.kernels.kernel_share import mean_share
from simulator.kernels.kernel_sums import KernelSums, is_usual
from simulator.kernels.kernel_walk import CoreWalk
from simulator.kernels.step_load import Lengths
from simulator.kernels.tiles import QUERY_BYTES, TABLE_ENTRY_BYTES, AttentionShape, KernelOptions, TilePlan, plan_tiles

# (sequences, tokens, pages) -> seconds
Seconds = Callable[[int, float, float], float]


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
    """Seconds of each stage on the busiest core, what part of them the page table takes, and what decides."""

    lookup_s: float
    scalar_s: float
    dma_s: float
    compute_s: float
    total_s: float
    bound: str


class PagedKernel:
    """The launch of one layer's decode attention: its tile plan, its stage times, its cost.

    A sequence is read from its last ``window`` tokens on, from its first one when that is 0.
    """

    def __init__(
        self,
        device: Device,
        shape: AttentionShape,
        *,
        page_tokens: int,
        options: KernelOptions | None = None,
        window: int = 0,
    ) -> None:
        self.device, self.shape, self.window = device, shape, window
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
        heads = shape.group_heads if plan.steps_per_group > 1 or shape.kv_heads == 1 else shape.query_heads
        self.query_bytes = heads * shape.head_dim * QUERY_BYTES
        self.output_bytes = heads * shape.v_head_dim * QUERY_BYTES
        self.form = KernelForm(
            plan=plan,
            dma=self.dma,
            compute=self.compute,
            table=self.options.table,
            line_entries=max(1, device.table_line_bytes // TABLE_ENTRY_BYTES),
            hit_s=device.l1_latency_cycles / device.clock_hz,
            miss_s=device.hbm_latency_cycles / device.clock_hz,
            step_token_bytes=shape.token_bytes / plan.steps_per_group,
            query_bytes=self.query_bytes,
        )
        #: ``seconds`` of at least one sequence by sums, for inner loops
        self.sums: KernelSums | None = KernelSums(self.form, device.cores) if is_usual(self.form) else None
        self.sums_seconds: Seconds = self._form_seconds if self.sums is None else self.sums.seconds
        #: whether sums mislead, even about equal sequences: with one tile buffer, or with many
        self.needs_lengths = plan.buffers != 2
        #: the walk over every length: for merged pages, and for two tile buffers with ids through the cache
        self.walk: CoreWalk | BurstWalk | None = None
        if plan.buffers > 2:
            self.walk = DeepWalk(self.form, device.cores, self.options.run_pages, window)
        elif plan.group_pages > 1:
            self.walk = BurstWalk(self.form, device.cores, self.options.run_pages, window)
        elif plan.buffers == 2 and plan.group_pages == 1 and self.options.table == "dcache":
            self.walk = CoreWalk(self.form, device.cores, window)

    def seconds(self, sequences: int, tokens: float, pages: float, lengths: Lengths | None = None) -> float:
        """Seconds of one launch, without its launch cost; 0 for no sequence.

        ``tokens`` and ``pages`` are sums over the sequences: what each reads, its new token included. ``lengths`` tells
        the sequences apart; without it the batch is judged by the sums (where these mislead, as equal sequences).
        """
        if not sequences:
            return 0.0
        if lengths is None and not self.needs_lengths:
            return self.sums_seconds(sequences, tokens, pages)
        contexts = self._equal(sequences, tokens) if lengths is None else lengths()
        return float(self.seconds_of(contexts)[0])

    def _form_seconds(self, sequences: int, tokens: float, pages: float) -> float:
        return float(self.timing(sequences, tokens, pages).total_s)

    def timing(self, sequences: int, tokens: float, pages: float) -> Timing:
        """Stage times of the busiest core by sums of at least one sequence."""
        return self.form.timing(mean_share(self.plan, self.device.cores, (sequences, tokens, pages)))

    def seconds_array(self, sequences: int, tokens: Any, pages: Any, lengths: Lengths | None = None) -> Any:
        """``seconds`` for arrays of tokens and pages, bit for bit the same."""
        import numpy as np

        if sequences == 0:
            return np.zeros(np.shape(tokens))
        if lengths is None and not self.needs_lengths:
            return self._sums_array(sequences, tokens, pages)
        return self.seconds_of(self._equal(sequences, tokens) if lengths is None else lengths())

    def _sums_array(self, sequences: int, tokens: Any, pages: Any) -> Any:
        import numpy as np

        if self.sums is not None and np.ndim(pages) == 1 and len(pages) and (pages == pages[0]).all():
            return self._fast_array(sequences, tokens.astype(float), pages[0].item())
        sums = (sequences, tokens, pages)
        share = mean_share(self.plan, self.device.cores, sums, maximum=np.maximum, ceil=np.ceil)
        return self.form.timing(share, np.maximum).total_s

    @cached_property
    def _fast_array(self) -> Callable[[int, Any, float], Any]:
        return fast_array(self.form, self.device.cores)

    def _equal(self, sequences: int, tokens: Any) -> Any:
        """Contexts of sequences as equal as ``tokens`` of all can be shared out, a row an entry."""
        import numpy as np

        whole, over = np.divmod(np.rint(np.reshape(tokens, (-1, 1))).astype(np.int64), sequences)
        return np.maximum(whole + (np.arange(sequences) < over), 1)

    def seconds_of(self, contexts: Any) -> Any:
        """Seconds of a launch over the sequences of each row of ``contexts``: one entry a row."""
        import numpy as np

        from simulator.kernels.kernel_known import known_seconds

        if self.walk is not None:
            return np.array([self.walk.seconds(row) for row in contexts.tolist()])
        return known_seconds(self.form, self.device.cores, contexts, self.window)

    def known_seconds(self, row: list[int]) -> float:
        """``seconds_of`` for one row."""
        import numpy as np

        return self.walk.seconds(row) if self.walk is not None else float(self.seconds_of(np.array([row]))[0])

    def known(self, row: list[int], slack_s: float, most_steps: int) -> tuple[float, int]:
        """``known_seconds``, and for how many steps, ``most_steps`` at most, no core outgrows the launch.

        By less than ``slack_s`` it may. Where cores are not told apart it is ``most_steps``.
        """
        if self.walk is None:
            return self.known_seconds(row), most_steps
        finish = self.walk.finish(row)
        return finish.seconds, finish.steps_alike(slack_s, sum(row) / len(row), most_steps)

    def stages(self, sequences: int, tokens: float, pages: float, lengths: Lengths | None = None) -> Stages:
        """The three stages on the busiest core and what bounds the launch."""
        if sequences == 0:
            return Stages(lookup_s=0.0, scalar_s=0.0, dma_s=0.0, compute_s=0.0, total_s=0.0, bound="none")
        timing = self.timing(sequences, tokens, pages)
        return Stages(
            lookup_s=timing.lookup_s,
            scalar_s=timing.scalar_s,
            dma_s=timing.dma_s,
            compute_s=timing.compute_s,
            total_s=self.seconds(sequences, tokens, pages, lengths),
            bound=self._bound(timing),
        )

    def traffic(self, sequences: int, tokens: float, pages: float) -> Traffic:
        """Bytes by kind, look-ups and transfers of one launch."""
        plan = self.plan
        tasks = sequences * plan.steps_per_group
        steps = max(float(sequences), pages / plan.group_pages) * plan.steps_per_group
        lookups = round(pages * plan.steps_per_group * plan.transfers)
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
        line = self.form.line_entries * TABLE_ENTRY_BYTES
        if self.options.table == "l1":
            return pages * TABLE_ENTRY_BYTES
        return float(lookups if self.options.table == "hbm" else self.form.lines(segments, pages)) * line

    def _bound(self, timing: Timing) -> str:
        if self.plan.passes > 1:
            return "tile overflow"
        longest = max(timing.scalar_s, timing.dma_s, timing.compute_s)
        if longest == timing.compute_s:
            return "compute"
        if longest == timing.scalar_s:
            return "table" if self.form.lookup_s * self.plan.group_pages > self.dma.issue_s else "issue"
        return self.dma.bound(timing.part_bytes, timing.active_cores)
