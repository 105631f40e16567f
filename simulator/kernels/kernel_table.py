"""The kernel's cost by page size, and the page size that serves a workload best."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.config import EngineConfig
from simulator.cost import StepCost, StepLoad
from simulator.device import Device
from simulator.kernel import PagedKernel
from simulator.kernels.decode_attention import attention_shape
from simulator.kernels.step_load import known_lengths
from simulator.kernels.tiles import AttentionShape, KernelOptions, TableMode
from simulator.models.model_shape import AttentionGroup, Model, kv_dtype_bytes
from simulator.units import ceil_div

#: batches whose step times are averaged to weigh a page size
MOST_BATCHES = 48
TABLE_MODES: tuple[TableMode, ...] = ("hbm", "dcache", "l1")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """One launch (one layer, ``batch`` sequences of ``context`` tokens) with pages of ``page_size`` tokens.

    ``seconds`` and ``cycles`` include the launch floor, ``kernel_seconds`` and the utilisation (of peak HBM
    bandwidth, KV bytes only) do not. ``lookup_seconds`` is the busiest core's time for the page table by table mode,
    ``seconds_by_table`` the whole launch in that mode. ``engines`` names kernels that accept the page size;
    ``aligned`` is false when page bytes are not a multiple of 128. Scattered and sequential tables take the same
    transfers here; no public measurement on this hardware tells them apart.
    """

    page_size: int
    tile: str
    page_bytes: int
    tile_bytes: int
    tiles_fit: int
    buffers: int
    passes: int
    kv_bytes: int
    table_bytes: int
    lookups: int
    dma_transfers: int
    cycles: int
    seconds: float
    kernel_seconds: float
    bandwidth_utilization: float
    bound: str
    lookup_seconds: dict[str, float]
    seconds_by_table: dict[str, float]
    engines: tuple[str, ...]
    aligned: bool


def kernel_table(
    device: Device,
    model: Model,
    engine: EngineConfig,
    page_sizes: Sequence[int],
    *,
    context: int,
    batch: int,
    options: KernelOptions | None = None,
) -> list[KernelRow]:
    """A row for each page size, for the group of layers that holds most of the KV cache."""
    shape = largest_shape(model, engine)
    chosen = options or KernelOptions()
    return [
        _row(PagedKernel(device, shape, page_tokens=size, options=chosen), context=context, batch=batch)
        for size in page_sizes
    ]


def largest_shape(model: Model, engine: EngineConfig) -> AttentionShape:
    """The layer shape of the group with the most KV bytes in a long context, on one device."""
    tp, width = engine.tensor_parallel_size, kv_dtype_bytes(model, engine.kv_cache_dtype)

    def weight(group: AttentionGroup) -> int:
        return group.bytes_per_token(tp, width) * group.held_tokens(model.max_position_embeddings)

    return attention_shape(model, max(model.groups, key=weight), tp=tp, kv_bytes=width)


def _row(kernel: PagedKernel, *, context: int, batch: int) -> KernelRow:
    plan, device = kernel.plan, kernel.device
    tokens, pages = batch * context, batch * ceil_div(context, plan.page_tokens)
    traffic, stages = kernel.traffic(batch, tokens, pages), kernel.stages(batch, tokens, pages)
    seconds = device.launch_s + stages.total_s
    by_table = {mode: _with_table(kernel, mode).stages(batch, tokens, pages) for mode in TABLE_MODES}
    return KernelRow(
        page_size=plan.page_tokens,
        tile=kernel.options.tile,
        page_bytes=plan.page_bytes,
        tile_bytes=plan.tile_bytes,
        tiles_fit=plan.tiles_fit,
        buffers=plan.buffers,
        passes=plan.passes,
        kv_bytes=traffic.kv_bytes,
        table_bytes=traffic.table_bytes,
        lookups=traffic.lookups,
        dma_transfers=traffic.dma_transfers,
        cycles=round(seconds * device.clock_hz),
        seconds=seconds,
        kernel_seconds=stages.total_s,
        bandwidth_utilization=tokens * kernel.shape.token_bytes / stages.total_s / device.hbm_bandwidth,
        bound="host" if device.launch_s > stages.total_s else stages.bound,
        lookup_seconds={mode: found.lookup_s for mode, found in by_table.items()},
        seconds_by_table={mode: device.launch_s + found.total_s for mode, found in by_table.items()},
        engines=accepting_engines(kernel.shape, plan.page_tokens),
        aligned=plan.aligned,
    )


def _with_table(kernel: PagedKernel, mode: TableMode) -> PagedKernel:
    options = replace(kernel.options, table=mode)
    return PagedKernel(kernel.device, kernel.shape, page_tokens=kernel.plan.page_tokens, options=options)


def accepting_engines(shape: AttentionShape, page_tokens: int) -> tuple[str, ...]:
    """Kernels whose documented rules allow the page size.

    vllm-ascend supports 128 (attention_v1.py); FusedInferAttentionScore at most 512 in multiples of 16, latent
    attention 16 or 128 (aclnn documentation); ATB multiples of 16 with head_dim * page <= 128 * 128.
    """
    if shape.latent:
        fused, atb = page_tokens in (16, 128), page_tokens == 128
    else:
        fused = page_tokens % 16 == 0 and page_tokens <= 512
        atb = page_tokens % 16 == 0 and shape.head_dim * page_tokens <= 128 * 128
    accepts = {"vllm-ascend": page_tokens == 128, "FusedInferAttentionScore": fused, "ATB": atb}
    return tuple(name for name, allowed in accepts.items() if allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageChoice:
    """What a page size means for a workload: sequences the pool holds, internal waste, step time, tokens a second."""

    page_size: int
    sequences: int
    internal_waste: float
    step_seconds: float
    tokens_per_s: float


def recommend_page_size(
    device: Device,
    model: Model,
    engine: EngineConfig,
    page_sizes: Sequence[int],
    *,
    lengths: Sequence[int],
    pool_tokens: int,
    options: KernelOptions | None = None,
) -> tuple[PageChoice, tuple[PageChoice, ...]]:
    """The page size with the most output tokens a second, and all candidates.

    Small pages cost look-ups and transfers, large ones leave room unused in the last page of each of the
    ``lengths`` (tokens of typical sequences), so fewer fit into ``pool_tokens``. Of sizes within 1 % of the best the
    smallest is chosen. Raises ``ValueError`` without lengths or page sizes.
    """
    if not lengths or not page_sizes:
        raise ValueError("recommend_page_size needs at least one length and one page size")
    choices = tuple(
        _choice(StepCost(device, model, engine, page_tokens=size, options=options), size, lengths, pool_tokens)
        for size in sorted(page_sizes)
    )
    best = max(choice.tokens_per_s for choice in choices)
    return next(choice for choice in choices if choice.tokens_per_s >= 0.99 * best), choices


def _choice(cost: StepCost, size: int, lengths: Sequence[int], pool_tokens: int) -> PageChoice:
    pages = sum(ceil_div(length, size) for length in lengths)
    fitting = int(pool_tokens // size * len(lengths) // pages)
    count = max(1, min(fitting, cost.engine.max_num_seqs))
    batches = max(1, min(MOST_BATCHES, len(lengths) // count))
    # A long sequence keeps one core busy, so whole batches are costed and no average one: of one sequence more or
    # less, a single batch could lose its longest.
    steps_s = [cost.seconds(_load(cost.model, size, _batch(lengths, at * count, count))) for at in range(batches)]
    seconds = sum(steps_s) / batches
    return PageChoice(
        page_size=size,
        sequences=count,
        internal_waste=1.0 - sum(lengths) / (pages * size),
        step_seconds=seconds,
        tokens_per_s=count / seconds,
    )


def _batch(lengths: Sequence[int], start: int, count: int) -> list[int]:
    """``count`` of the ``lengths`` from ``start`` on, from the beginning again after the last."""
    return [lengths[at % len(lengths)] for at in range(start, start + count)]


def _load(model: Model, size: int, lengths: Sequence[int]) -> StepLoad:
    return StepLoad(
        decode_sequences=len(lengths),
        decode_context_tokens=sum(lengths),
        decode_pages=sum(ceil_div(length, size) for length in lengths),
        decode_windowed_tokens=_windowed(model, lengths),
        decode_lengths=known_lengths(lengths),
        sampled_sequences=len(lengths),
    )


def _windowed(model: Model, lengths: Sequence[int]) -> int:
    window = next((group.window for group in model.groups if group.window is not None), None)
    return 0 if window is None else sum(min(length, window) for length in lengths)
