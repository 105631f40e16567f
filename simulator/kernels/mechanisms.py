"""Mechanisms of paged serving that are argued about, each by its own bytes, transfers and seconds.

Each function answers what one choice is worth on a device: row stride of the page table, padded or packed
batches, how ``cu_seqlens`` reaches the device, interleaved or separate Q, K and V, the free list, and how an append
to a page that attention reads is kept safe.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.device import Device
from simulator.kernels.dma import GRANULE_BYTES, make_dma
from simulator.kernels.tiles import TABLE_ENTRY_BYTES
from simulator.models.model_shape import Model
from simulator.units import align_up, ceil_div

HostCopy = Literal["pageable", "pinned", "prebuilt"]
INDEX_BYTES = 4
ELEMENT_BYTES = 2
# A pointer swing on a list head: one read and one compare-and-swap, each to global memory.
FREE_LIST_ACCESSES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A page-table row: entries it needs, entries from one row to the next, bytes, cache lines two rows share."""

    entries: int
    stride_entries: int
    row_bytes: int
    padding_bytes: int
    shares_line: bool


def table_row(device: Device, *, max_model_len: int, page_tokens: int, align_bytes: int) -> TableRow:
    """The row of one sequence. Rows that begin inside another row's cache line cost a shared, doubly read line."""
    entries = ceil_div(max_model_len, page_tokens)
    row_bytes = align_up(entries * TABLE_ENTRY_BYTES, align_bytes)
    return TableRow(
        entries=entries,
        stride_entries=row_bytes // TABLE_ENTRY_BYTES,
        row_bytes=row_bytes,
        padding_bytes=row_bytes - entries * TABLE_ENTRY_BYTES,
        shares_line=row_bytes % device.table_line_bytes != 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """A batch of prompts padded to its longest against packed end to end."""

    packed_tokens: int
    padded_tokens: int
    padding_tokens: int
    packed_pairs: int
    padded_pairs: int
    saved_flops: int
    saved_seconds: float


def packing(device: Device, model: Model, lengths: Sequence[int], *, tp: int = 1) -> Packing:
    """What padding costs: dummy tokens in every product, and masked pairs in attention (causal, per sequence)."""
    longest, packed = max(lengths), sum(lengths)
    padded = longest * len(lengths)
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    padded_pairs = len(lengths) * longest * (longest + 1) // 2
    saved = (padded - packed) * model.linear_flops_per_token + model.attention_flops(padded_pairs - pairs)
    return Packing(
        packed_tokens=packed,
        padded_tokens=padded,
        padding_tokens=padded - packed,
        packed_pairs=pairs,
        padded_pairs=padded_pairs,
        saved_flops=saved,
        saved_seconds=saved / tp / (device.cube_flops * device.cube_efficiency),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Bytes to the device, copies made on the way, seconds."""

    moved_bytes: int
    copies: int
    seconds: float


def cu_seqlens_copy(device: Device, *, batch: int, how: HostCopy) -> Copy:
    """``batch + 1`` offsets to the device. Pageable memory is staged first; a pre-built array is only looked up.

    Each copy is a command of its own and takes the launch floor besides its bytes.
    """
    size = (batch + 1) * INDEX_BYTES
    if how == "prebuilt":
        return Copy(moved_bytes=0, copies=0, seconds=device.l2_latency_cycles / device.clock_hz)
    bandwidth = device.host_bandwidth if how == "pinned" else device.pageable_host_bandwidth
    copies = 1 if how == "pinned" else 2
    return Copy(moved_bytes=size * copies, copies=copies, seconds=copies * device.launch_s + size / bandwidth)


@dataclass(frozen=True, slots=True, kw_only=True)
class QkvRead:
    """Reading Q, K and V of one token and head: bursts, cache lines of 128 bytes, bytes in whole granules, seconds."""

    bursts: int
    burst_bytes: int
    lines: int
    granule_bytes: int
    seconds: float


def qkv_read(device: Device, *, head_dim: int, interleaved: bool, active_cores: int | None = None) -> QkvRead:
    """Interleaved [token, head, 3, dim] is one burst; separate arrays are three. Both touch as many cache lines."""
    one = head_dim * ELEMENT_BYTES
    bursts, burst = (1, 3 * one) if interleaved else (3, one)
    granules = bursts * align_up(burst, GRANULE_BYTES)
    dma = make_dma(device)
    return QkvRead(
        bursts=bursts,
        burst_bytes=burst,
        lines=bursts * ceil_div(burst, 128),
        granule_bytes=granules,
        seconds=bursts * dma.seconds(granules / bursts, device.cores if active_cores is None else active_cores),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeList:
    """Page take and return traffic of one decode step, and its share of the step."""

    pages_per_step: float
    accesses: float
    seconds: float
    share: float


def free_list(device: Device, *, batch: int, page_tokens: int, step_s: float) -> FreeList:
    """Every ``page_tokens`` steps a sequence takes a page (and one that ends returns as many)."""
    pages = batch / page_tokens
    accesses = pages * FREE_LIST_ACCESSES
    seconds = accesses * device.hbm_latency_cycles / device.clock_hz
    return FreeList(pages_per_step=pages, accesses=accesses, seconds=seconds, share=seconds / step_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """Appends to pages that attention of the same step reads, and what each way to keep them apart costs a step."""

    appends: float
    copy_bytes: float
    copy_seconds: float
    wait_seconds: float


def extend_while_read(device: Device, *, sequences: int, page_tokens: int, page_bytes: int, layers: int) -> Hazard:
    """An append races with a read unless it opens a page, which happens once in ``page_tokens`` tokens.

    Copy-on-write copies the half-filled page (read and written, all layers: ``page_bytes`` covers them); a stream
    wait orders the cache write before attention and exposes one launch a layer.
    """
    appends = sequences * (1.0 - 1.0 / page_tokens)
    copied = appends * page_bytes * 2.0
    return Hazard(
        appends=appends,
        copy_bytes=copied,
        copy_seconds=copied / device.hbm_sustained_bandwidth,
        wait_seconds=layers * device.launch_s,
    )
