"""What a paged-attention launch moves: the tiles of a page, the buffers they fit, the options of the kernel.

A *tile* is what one DMA transfer brings on chip. Kernels of the 910B load K and V of one KV head at a time
(``per_head``: page_tokens * head_dim elements); ``whole_page`` is the variant a published article assumes,
where a page's K and V of all heads have to be on chip together.
"""

from dataclasses import dataclass
from typing import Literal

from simulator.device import Device
from simulator.kernels.dma import GRANULE_BYTES
from simulator.units import ceil_div

TableMode = Literal["hbm", "dcache", "l1"]
TileKind = Literal["per_head", "whole_page"]
Prefetch = Literal["none", "next", "all"]
Layout = Literal["token_major", "head_major"]
Overflow = Literal["split", "reload"]

TABLE_ENTRY_BYTES = 4
QUERY_BYTES = 2
PAGE_ALIGN_BYTES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Attention of one layer on one device. ``latent``: K and V are one shared row (MLA), ``kv_heads`` is 1."""

    kv_heads: int
    query_heads: int
    head_dim: int
    v_head_dim: int
    dtype_bytes: float = 2.0
    latent: bool = False

    @property
    def group_heads(self) -> int:
        """Query heads that read one KV head."""
        return ceil_div(self.query_heads, self.kv_heads)

    @property
    def token_bytes(self) -> float:
        """KV bytes of one token, all heads, this layer."""
        per_head = self.head_dim if self.latent else self.head_dim + self.v_head_dim
        return self.kv_heads * per_head * self.dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOptions:
    """How the kernel is written, each choice a mechanism with its own traffic.

    ``table`` is where page ids are read: global memory each time, through the 64-byte-line data cache, or a
    row copied on chip once a task. ``prefetch`` is how many tiles are in flight: one, two, or all that fit.
    ``layout`` is the order inside a page: tokens then heads (a head's rows are strided), or heads then tokens.
    ``overflow`` says what a tile larger than its buffer does: pass by pass, or read again for every pass.
    ``run_pages`` is the mean number of physically adjacent pages, which one burst covers.
    """

    table: TableMode = "dcache"
    tile: TileKind = "per_head"
    prefetch: Prefetch = "next"
    layout: Layout = "token_major"
    overflow: Overflow = "split"
    run_pages: float = 1.0
    l2_hit_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePlan:
    """How the pages of one launch become transfers.

    A *step* is the work on one group of adjacent pages for one head (or all heads): ``transfers`` transfers
    (K then V; one when both come together), each in ``passes`` parts when the tile exceeds its buffer.
    """

    page_tokens: int
    page_bytes: int
    tile_bytes: int
    buffer_bytes: int
    tiles_fit: int
    buffers: int
    passes: int
    reload: int
    transfers: int
    steps_per_group: int
    group_pages: float
    max_group_pages: int
    touches: float
    aligned: bool

    @property
    def parts(self) -> int:
        """DMA transfers of one step."""
        return self.transfers * self.passes


def plan_tiles(device: Device, shape: AttentionShape, options: KernelOptions, page_tokens: int) -> TilePlan:
    """Fit pages of ``page_tokens`` tokens to the on-chip buffer. Raises ``ValueError`` for a page of no tokens."""
    if page_tokens < 1:
        raise ValueError(f"page_tokens must be at least 1, not {page_tokens}")
    page_bytes = round(page_tokens * shape.token_bytes)
    whole = options.tile == "whole_page"
    joined = whole or shape.latent
    tile_bytes = (
        page_bytes if joined else round(page_tokens * max(shape.head_dim, shape.v_head_dim) * shape.dtype_bytes)
    )
    buffer_bytes = _buffer_bytes(device, shape, options)
    fit = buffer_bytes // tile_bytes
    passes = 1 if fit else ceil_div(tile_bytes, buffer_bytes)
    group = max(1.0, min(options.run_pages, fit // 2))
    wanted = {"none": 1, "next": 2, "all": int(fit / group)}[options.prefetch]
    return TilePlan(
        page_tokens=page_tokens,
        page_bytes=page_bytes,
        tile_bytes=tile_bytes,
        buffer_bytes=buffer_bytes,
        tiles_fit=fit,
        buffers=max(1, min(wanted, fit)),
        passes=passes,
        reload=passes if options.overflow == "reload" else 1,
        transfers=1 if joined else 2,
        steps_per_group=1 if joined else shape.kv_heads,
        group_pages=group,
        max_group_pages=max(1, fit // 2),
        touches=_touches(shape, options),
        aligned=page_bytes % PAGE_ALIGN_BYTES == 0,
    )


def _buffer_bytes(device: Device, shape: AttentionShape, options: KernelOptions) -> int:
    """On-chip bytes that tiles may take.

    Kernels for K and V heads leave ``device.tile_bytes`` to them. A latent kernel keeps its query rows resident
    (128 heads of 576 are 144 KiB) and gives the rest of the buffer to the one tile that serves as K and as V.
    """
    if options.tile == "whole_page":
        return device.lds_bytes
    if shape.latent:
        return max(device.tile_bytes, device.lds_bytes - shape.query_heads * shape.head_dim * QUERY_BYTES)
    return device.tile_bytes


def _touches(shape: AttentionShape, options: KernelOptions) -> float:
    """Cores that ask for one granule: heads whose rows of a token share it, each on its own core."""
    row_bytes = shape.head_dim * shape.dtype_bytes
    if options.layout == "head_major" or options.tile == "whole_page" or shape.latent:
        return 1.0
    return max(1.0, min(float(shape.kv_heads), GRANULE_BYTES / row_bytes))
