"""What each mechanism of paged serving is worth in one decode step: every choice with its bytes and its seconds."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.config import EngineConfig
from simulator.device import Device
from simulator.kernels.decode_attention import group_attention
from simulator.kernels.mechanisms import (
    HostCopy,
    cu_seqlens_copy,
    extend_while_read,
    free_list,
    packing,
    qkv_read,
    table_row,
)
from simulator.kernels.tiles import KernelOptions, Layout, Prefetch, TableMode
from simulator.model import Model
from simulator.models.model_shape import kv_dtype_bytes
from simulator.units import ceil_div

TABLES: tuple[TableMode, ...] = ("hbm", "dcache", "l1")
PREFETCHES: tuple[Prefetch, ...] = ("none", "next", "all")
LAYOUTS: tuple[Layout, ...] = ("token_major", "head_major")
COPIES: tuple[HostCopy, ...] = ("pageable", "pinned", "prebuilt")
ALIGNMENTS = (4, 64, 128)
# Prompts of unlike length that a padded batch is judged by.
PROMPTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismCost:
    """One choice of one mechanism in a step: bytes it moves, seconds it takes, and what they are of."""

    mechanism: str
    choice: str
    moved_bytes: int
    seconds: float
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """A decode step of ``batch`` sequences of ``context`` tokens in pages of ``page_tokens``."""

    device: Device
    model: Model
    engine: EngineConfig
    page_tokens: int
    context: int
    batch: int

    @property
    def tp(self) -> int:
        """Devices that share the heads."""
        return self.engine.tensor_parallel_size

    @property
    def kv_bytes(self) -> float:
        """Bytes of one cached element."""
        return kv_dtype_bytes(self.model, self.engine.kv_cache_dtype)


def mechanism_table(step: DecodeStep, step_s: float) -> tuple[MechanismCost, ...]:
    """Every mechanism and choice; ``step_s`` is what the whole step takes."""
    return (*_kernel(step), *_table(step), *_prompts(step), *_offsets(step), *_queries(step), *_pages(step, step_s))


def _attention(step: DecodeStep, options: KernelOptions, device: Device | None = None) -> tuple[float, int, int]:
    """Seconds of the attention of all layers, its KV bytes and its page-table bytes."""
    groups = group_attention(
        device or step.device,
        step.model,
        tp=step.tp,
        kv_bytes=step.kv_bytes,
        page_tokens=step.page_tokens,
        options=options,
    )
    seconds, moved, table = 0.0, 0, 0
    for group, shape in zip(groups, step.model.groups, strict=True):
        tokens = step.batch * shape.held_tokens(step.context)
        pages = step.batch * ceil_div(shape.held_tokens(step.context), step.page_tokens)
        traffic = group.kernel.traffic(step.batch, tokens, pages)
        seconds += group.layers * group.kernel.seconds(step.batch, tokens, pages)
        moved += group.layers * traffic.kv_bytes
        table += group.layers * traffic.table_bytes
    return seconds, moved, table


def _kernel(step: DecodeStep) -> Iterator[MechanismCost]:
    def row(mechanism: str, choice: str, seconds: float, moved: int, note: str) -> MechanismCost:
        return MechanismCost(mechanism=mechanism, choice=choice, moved_bytes=moved, seconds=seconds, note=note)

    for mode in TABLES:
        seconds, _, table = _attention(step, KernelOptions(table=mode))
        yield row("page ids", mode, seconds, table, "attention of all layers; bytes of the page table")
    for how in PREFETCHES:
        seconds, moved, _ = _attention(step, KernelOptions(prefetch=how))
        yield row("tile prefetch", how, seconds, moved, "attention of all layers")
    for layout in LAYOUTS:
        seconds, moved, _ = _attention(step, KernelOptions(layout=layout))
        yield row("page layout", layout, seconds, moved, "attention of all layers")
    ratio, card = step.device.unaligned_ratio, step.device
    slower = replace(
        card,
        hbm_sustained_bandwidth=card.hbm_sustained_bandwidth * ratio,
        l2_bandwidth=card.l2_bandwidth * ratio,
    )
    for choice, device in (("multiple of 128", card), ("not aligned", slower)):
        seconds, moved, _ = _attention(step, KernelOptions(), device)
        yield row("page bytes", choice, seconds, moved, "attention of all layers")


def _table(step: DecodeStep) -> Iterator[MechanismCost]:
    for align in ALIGNMENTS:
        row = table_row(step.device, max_model_len=step.context, page_tokens=step.page_tokens, align_bytes=align)
        moved = step.batch * row.row_bytes
        yield MechanismCost(
            mechanism="page-table rows",
            choice=f"stride of {align} bytes",
            moved_bytes=moved,
            seconds=moved / step.device.host_bandwidth,
            note="copy to the device; " + ("rows share cache lines" if row.shares_line else "no shared cache lines"),
        )


def _prompts(step: DecodeStep) -> Iterator[MechanismCost]:
    lengths = [ceil_div(step.context * (index + 1), PROMPTS) for index in range(PROMPTS)]
    found = packing(step.device, step.model, lengths, tp=step.tp)
    for choice, tokens, seconds in (("padded", found.padding_tokens, found.saved_seconds), ("packed", 0, 0.0)):
        note = f"lost in a prefill of {PROMPTS} prompts up to {step.context:,} tokens: {tokens:,} dummy tokens"
        yield MechanismCost(mechanism="prompt batch", choice=choice, moved_bytes=0, seconds=seconds, note=note)


def _offsets(step: DecodeStep) -> Iterator[MechanismCost]:
    for how in COPIES:
        copy = cu_seqlens_copy(step.device, batch=step.batch, how=how)
        note = ("looked up on the device", "one copy", "two copies, one of them on the host")[copy.copies]
        yield MechanismCost(
            mechanism="cu_seqlens", choice=how, moved_bytes=copy.moved_bytes, seconds=copy.seconds, note=note
        )


def _queries(step: DecodeStep) -> Iterator[MechanismCost]:
    heads = ceil_div(step.model.num_attention_heads, step.tp)
    rounds = step.model.num_layers * ceil_div(step.batch * heads, step.device.cores)
    for choice, interleaved in (("interleaved", True), ("separate", False)):
        read = qkv_read(step.device, head_dim=step.model.query_head_dim, interleaved=interleaved)
        yield MechanismCost(
            mechanism="Q, K and V",
            choice=choice,
            moved_bytes=read.granule_bytes * step.batch * heads * step.model.num_layers,
            seconds=rounds * read.seconds,
            note=f"{read.bursts} bursts and {read.lines} cache lines a head",
        )


def _pages(step: DecodeStep, step_s: float) -> Iterator[MechanismCost]:
    listed = free_list(step.device, batch=step.batch, page_tokens=step.page_tokens, step_s=step_s)
    yield MechanismCost(
        mechanism="free list",
        choice="atomic head",
        moved_bytes=round(listed.accesses * step.device.table_line_bytes),
        seconds=listed.seconds,
        note=f"{listed.pages_per_step:.3g} pages a step",
    )
    page_bytes = step.page_tokens * sum(group.bytes_per_token(step.tp, step.kv_bytes) for group in step.model.groups)
    hazard = extend_while_read(
        step.device,
        sequences=step.batch,
        page_tokens=step.page_tokens,
        page_bytes=page_bytes,
        layers=step.model.num_layers,
    )
    for choice, moved, seconds in (
        ("copy on write", round(hazard.copy_bytes), hazard.copy_seconds),
        ("stream wait", 0, hazard.wait_seconds),
    ):
        note = f"{hazard.appends:.4g} appends a step to pages being read"
        yield MechanismCost(mechanism="append while read", choice=choice, moved_bytes=moved, seconds=seconds, note=note)
