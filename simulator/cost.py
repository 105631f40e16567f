"""Seconds of one engine step: host and launch cost, linear layers, attention, KV writes, collectives, memory moves.

On a real 910B a step of a small batch is dominated by the host: an eager step launches about ten kernels a layer,
none shorter than the launch floor. So a step is a sum, ``host + launches + device work``, each with its own
parameter, and the device work is the roofline of what is moved and computed.
"""

from functools import lru_cache
from typing import Any, Final, Protocol

from simulator.config import EngineConfig
from simulator.device import Device
from simulator.kernels import roofline
from simulator.kernels.batch_attention import BatchAttention
from simulator.kernels.decode_attention import group_attention
from simulator.kernels.stages import StageCost, breakdown
from simulator.kernels.step_load import Lengths, StepLoad
from simulator.kernels.tiles import KernelOptions
from simulator.models.model_shape import Model, kv_dtype_bytes
from simulator.units import NS_PER_S

__all__ = ["StageCost", "StepCost", "StepLoad", "StepTimes"]

# Kernels of a decoder layer in eager mode: norm, QKV, rotation, cache write, attention, output projection, norm,
# gate and up, activation, down. A mixture of experts routes, sorts, multiplies twice and merges instead of the last
# three; latent attention projects twice as often. Tensor parallelism adds two collectives.
LAYER_KERNELS: Final = 10
MOE_KERNELS: Final = 4
MLA_KERNELS: Final = 5
COLLECTIVE_KERNELS: Final = 2
# Steps whose context-free part is remembered: decode batches come back again and again, prefill steps seldom.
KNOWN_BASES: Final = 4096
# Below this many steps one by one is faster than arrays, whose every operation has a fixed cost.
SHORT_ARRAY: Final = 100


class StepTimes(Protocol):
    """What the engine asks of a cost model; all answers are nanoseconds."""

    @property
    def fixed_ns(self) -> int | None:
        """How long every step takes, whatever it does, if that is given."""
        ...

    def step_ns(self, load: StepLoad) -> int:
        """How long a step with that load takes, at least 1."""
        ...

    def decode_ns(
        self, sequences: int, context_tokens: int, pages: int, windowed_tokens: int, lengths: Lengths | None
    ) -> int:
        """``step_ns`` of a step that only decodes: every sequence gains one token and is sampled."""
        ...

    def decode_ns_array(
        self, sequences: int, context_tokens: Any, pages: Any, windowed_tokens: Any, lengths: Lengths | None
    ) -> Any:
        """``decode_ns`` of many steps of as many sequences: int64 arrays of sums in, int64 out."""
        ...

    def memory_ns(self, copied_bytes: int, swapped_bytes: int, allocator_cycles: int) -> int:
        """What the allocator's own work adds to a step."""
        ...


class StepCost:
    """The step times of one model on ``tensor_parallel_size`` * ``pipeline_parallel_size`` devices.

    ``page_tokens`` is the page size of the attention kernel, tokens on one device; ``run_pages`` the mean number of
    physically adjacent pages (they merge into one burst); ``options`` how the kernel is written.
    """

    def __init__(
        self,
        device: Device,
        model: Model,
        engine: EngineConfig,
        *,
        page_tokens: int,
        run_pages: float = 1.0,
        options: KernelOptions | None = None,
    ) -> None:
        self.device, self.model, self.engine = device, model, engine
        self.tp, self.pp = engine.tensor_parallel_size, engine.pipeline_parallel_size
        self.kv_bytes = kv_dtype_bytes(model, engine.kv_cache_dtype)
        chosen, dcp = options or KernelOptions(run_pages=run_pages), engine.decode_context_parallel_size
        self.groups = group_attention(
            device,
            model,
            tp=self.tp,
            kv_bytes=self.kv_bytes,
            page_tokens=page_tokens,
            options=chosen,
            dcp=dcp,
            run=engine.cp_kv_cache_interleave_size,
        )
        self.prefill = tuple(
            roofline.prefill_attention(device, model, group, tp=self.tp, kv_bytes=self.kv_bytes, dcp=dcp)
            for group in model.groups
        )
        self.token_bytes = sum(group.bytes_per_token(self.tp, self.kv_bytes, dcp) for group in model.groups)
        self.linear = roofline.linear(device, model, tp=self.tp)
        self.all_reduce = roofline.all_reduce(device, model, tp=self.tp)
        self.stage_transfers = roofline.stage_transfers(device, model, pp=self.pp)
        self.head = roofline.output_head(device, model, tp=self.tp)
        self.kv_write = roofline.kv_write(device, token_bytes=self.token_bytes)
        self.launches_s = launches(model, self.tp, dcp) * device.launch_s
        self.attention = BatchAttention(self.groups, device.launch_s)
        self._base = lru_cache(maxsize=KNOWN_BASES)(self._base_s)
        self.fixed_ns = None if engine.step_time is None else max(1, round(engine.step_time * NS_PER_S))

    def step_ns(self, load: StepLoad) -> int:
        """Nanoseconds of a step, at least 1."""
        if self.fixed_ns is not None:
            return self.fixed_ns
        memory_ns = self.memory_ns(load.copied_bytes, load.swapped_bytes, load.allocator_cycles)
        return max(1, round(self._compute_s(load) * NS_PER_S)) + memory_ns

    def memory_ns(self, copied_bytes: int, swapped_bytes: int, allocator_cycles: int) -> int:
        """Nanoseconds that the allocator's own work adds to a step; 0 when ``engine.step_time`` is set."""
        if self.fixed_ns is not None or not (copied_bytes or swapped_bytes or allocator_cycles):
            return 0
        return round(self._memory_s(copied_bytes, swapped_bytes, allocator_cycles) * NS_PER_S)

    def seconds(self, load: StepLoad) -> float:
        """Seconds of a step by the cost model, whatever ``engine.step_time`` says."""
        memory_s = self._memory_s(load.copied_bytes, load.swapped_bytes, load.allocator_cycles)
        return self._compute_s(load) + memory_s

    def _compute_s(self, load: StepLoad) -> float:
        sequences, prefill_tokens = load.decode_sequences, load.prefill_tokens
        base = self._base(sequences + prefill_tokens, load.sampled_sequences, sequences + load.prefill_sequences)
        attention = self.attention.seconds(
            sequences,
            load.decode_context_tokens,
            load.decode_pages,
            load.decode_windowed_tokens,
            load.decode_lengths,
        )
        if prefill_tokens == 0:
            return base + attention
        prefill = 0.0
        for group in self.prefill:
            prefill += group.seconds(
                prefill_tokens, load.prefill_pairs, load.prefill_context_tokens, load.prefill_sequences
            )
        return base + attention + prefill

    def decode_ns(
        self,
        sequences: int,
        context_tokens: int,
        pages: int,
        windowed_tokens: int = 0,
        lengths: Lengths | None = None,
    ) -> int:
        """``step_ns`` of a step that only decodes: every sequence gains one token and is sampled."""
        if self.fixed_ns is not None:
            return self.fixed_ns
        base = self._base(sequences, sequences, sequences)
        attention = self.attention.seconds(sequences, context_tokens, pages, windowed_tokens, lengths)
        nanoseconds = round((base + attention) * NS_PER_S)
        return nanoseconds if nanoseconds > 1 else 1

    def decode_ns_array(
        self, sequences: int, context_tokens: Any, pages: Any, windowed_tokens: Any, lengths: Lengths | None
    ) -> Any:
        """``decode_ns`` of many steps of as many sequences: int64 arrays of sums in, int64 nanoseconds out."""
        import numpy as np

        if self.fixed_ns is not None:
            return np.full(np.shape(context_tokens), self.fixed_ns, np.int64)
        columns: tuple[Any, Any, Any] = (context_tokens, pages, windowed_tokens)
        if len(context_tokens) < SHORT_ARRAY and not self.attention.needs_lengths:
            by_sums, steps = self.attention.by_sums, zip(*(column.tolist() for column in columns), strict=True)
            attention = np.array([by_sums(sequences, tokens, read, windowed, None) for tokens, read, windowed in steps])
        else:
            attention = self.attention.seconds_array(sequences, *columns, lengths)
        skews = self.attention.skews(sequences, columns, lengths)
        if skews is not None:
            attention = attention * np.array(skews)
        seconds = self._base(sequences, sequences, sequences) + attention
        return np.maximum(1, np.rint(seconds * NS_PER_S).astype(np.int64))

    def skew(self, load: StepLoad) -> float:
        """How much longer the decodes' attention takes than sums over them tell."""
        sums = load.decode_sequences, load.decode_context_tokens, load.decode_pages, load.decode_windowed_tokens
        return self.attention.skew(sums, load.decode_lengths)

    def breakdown(self, load: StepLoad) -> tuple[StageCost, ...]:
        """The step as seven stages, whatever ``engine.step_time`` says."""
        return breakdown(self, load)

    def _base_s(self, tokens: int, rows: int, sequences: int) -> float:
        """All that does not depend on contexts: host, launches, weights, collectives, head, KV write."""
        host = self.device.host_step_s + sequences * self.device.host_sequence_s + self.launches_s
        layers = self.linear.seconds(tokens) + self.all_reduce.seconds(tokens) + self.stage_transfers.seconds(tokens)
        return host + (layers + self.head.seconds(rows) + self.kv_write.seconds(tokens))

    def token_work(self, tokens: int) -> tuple[roofline.Work, ...]:
        """What ``tokens`` new tokens do in the layers besides attention: products, sums over ``tp``, hand-overs."""
        return self.linear.work(tokens), self.all_reduce.work(tokens), self.stage_transfers.work(tokens)

    def prefill_work(self, load: StepLoad) -> list[roofline.Work]:
        """Attention of the prompt chunks, one entry for each group of layers."""
        return [
            group.work(load.prefill_tokens, load.prefill_pairs, load.prefill_context_tokens, load.prefill_sequences)
            for group in self.prefill
        ]

    def _memory_s(self, copied_bytes: int, swapped_bytes: int, allocator_cycles: int) -> float:
        device = self.device
        copied = copied_bytes / device.hbm_sustained_bandwidth
        return copied + swapped_bytes / device.host_bandwidth + allocator_cycles / device.clock_hz


def launches(model: Model, tp: int, dcp: int = 1) -> int:
    """Kernels one step launches in all layers."""
    collectives = (COLLECTIVE_KERNELS if tp > 1 else 0) + (roofline.EXCHANGES if dcp > 1 else 0)
    kernels = model.num_layers * (LAYER_KERNELS + collectives)
    latent = sum(group.layers for group in model.groups if group.kind == "mla")
    return kernels + model.moe_layers * MOE_KERNELS + latent * MLA_KERNELS
