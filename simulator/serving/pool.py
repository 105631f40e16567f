"""From a scenario's parts to an allocator with a pool: page layout, number of pages, table memory.

The pool is what the memory budget leaves for KV, less the page tables; a scenario may ask for less, never for more.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from simulator.allocators.base import Allocator
from simulator.allocators.contiguous import ContiguousAllocator
from simulator.allocators.host_pool import HostPool
from simulator.allocators.paged import PagedAllocator, PageGroup, PageLayout, table_bytes
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.paged_defrag import PagedDefragAllocator
from simulator.allocators.sharing import RULES
from simulator.config import (
    AllocatorConfig,
    ContiguousConfig,
    PagedBase,
    PagedConfig,
    PagedCowConfig,
    PagedDefragConfig,
)
from simulator.errors import InputError, Problem
from simulator.profiles import PROFILES
from simulator.serving.own_pools import group_pools, has_own_pools
from simulator.serving.pool_parts import PoolParts, asked_pages, no_page, pages_key, too_much
from simulator.units import ceil_div

PagedKinds = PagedConfig | PagedCowConfig | PagedDefragConfig


def build_allocator(config: AllocatorConfig, parts: PoolParts, *, key: str) -> Allocator:
    """The allocator of ``config``. ``key`` names its place in the scenario for messages. Raises ``InputError``."""
    allocator = _build(config, parts, key)
    allocator.another = partial(_build, config, parts, key)
    return allocator


def _build(config: AllocatorConfig, parts: PoolParts, key: str) -> Allocator:
    budget = _capacity(config, parts, key)
    if isinstance(config, ContiguousConfig):
        return ContiguousAllocator(
            config,
            capacity_bytes=_contiguous_bytes(config, parts, budget, key),
            bytes_per_token=parts.bytes_per_token,
            max_model_len=parts.max_model_len,
        )
    if isinstance(config, PagedConfig) and has_own_pools(config, parts):
        return group_pools(config, parts, budget=budget, key=key)
    layout = page_layout(config, parts, key=key)
    return _paged(config, parts, layout, _max_pages(config, parts, layout, budget, key))


def _paged(config: PagedKinds, parts: PoolParts, layout: PageLayout, max_pages: int) -> Allocator:
    profile = PROFILES[parts.engine.profile]
    null_page = profile.null_page if config.null_page is None else config.null_page
    # static batches compute whole prompts, whatever the token budget
    chunk_tokens = 0 if parts.engine.scheduler == "static" else parts.engine.max_num_batched_tokens
    host = None
    if parts.engine.on_oom == "preempt_swap":
        host = HostPool(parts.engine.swap_bytes // layout.page_bytes)
    if isinstance(config, PagedCowConfig):
        rules = RULES[parts.engine.profile]
        changes: dict[str, Any] = {"free_order": config.free_order, "null_page": config.null_page}
        return PagedCowAllocator(
            layout,
            max_pages=max_pages,
            rules=replace(rules, **{name: value for name, value in changes.items() if value is not None}),
            enable_prefix_caching=config.enable_prefix_caching,
            eviction_policy=config.eviction_policy,
            hit_rate_window=config.hit_rate_window,
            chunk_tokens=chunk_tokens,
            host=host,
        )
    if isinstance(config, PagedDefragConfig):
        return PagedDefragAllocator(
            layout,
            max_pages=max_pages,
            run_length=config.run_length,
            trigger=config.trigger,
            max_moves_per_step=config.max_moves_per_step,
            grow_by=config.grow_by,
            strict_runs=config.strict_runs,
            free_order="fifo" if (config.free_order or profile.free_order) == "fifo" else "lifo",
            null_page=null_page,
            reverse_release=profile.reverse_release,
            chunk_tokens=chunk_tokens,
            host=host,
        )
    assert isinstance(config, PagedConfig)
    return PagedAllocator(
        layout,
        max_pages=max_pages,
        free_order=config.free_order or profile.free_order,
        null_page=null_page,
        reverse_release=profile.reverse_release,
        chunk_tokens=chunk_tokens,
        host=host,
    )


# ---- page layout


def page_layout(config: PagedBase, parts: PoolParts, *, key: str) -> PageLayout:
    """How pages cover the model's layers.

    A page size in tokens: layers are bucketed by window, every bucket is cut into groups as long as the smallest
    bucket, one page covers one group (vLLM 0.11, ``_get_kv_cache_groups_uniform_page_size``). A page size in bytes: a
    page covers one layer, and each layer has a table of its own.
    """
    buckets = parts.window_buckets
    widest = max(ceil_div(token_bytes, layers) for layers, token_bytes in buckets.values())
    if isinstance(config.page_size, str):
        return _layer_pages(int(config.page_size[:-1]), buckets, widest, key)
    unit, page_tokens = min(layers for layers, _ in buckets.values()), parts.page_tokens(config.page_size)
    if len(buckets) == 1:
        page_bytes = page_tokens * next(iter(buckets.values()))[1]
    else:
        page_bytes = page_tokens * unit * widest
    groups = [
        PageGroup(token_bytes, copies=ceil_div(layers, unit), window_tokens=window)
        for window, (layers, token_bytes) in buckets.items()
    ]
    return PageLayout(page_tokens, page_bytes, tuple(groups))


def _layer_pages(page_bytes: int, buckets: dict[int | None, tuple[int, int]], widest: int, key: str) -> PageLayout:
    page_tokens = page_bytes // widest
    if page_tokens < 1:
        raise InputError(
            [
                Problem(
                    key=f"{key}.page_size",
                    message=f"a page of {page_bytes:,} bytes cannot hold one token: K and V of a token take {widest:,} "
                    "bytes a layer on this device",
                )
            ]
        )
    groups = [
        PageGroup(token_bytes, copies=layers, window_tokens=window) for window, (layers, token_bytes) in buckets.items()
    ]
    return PageLayout(page_tokens, page_bytes, tuple(groups))


# ---- pool size


def _capacity(config: AllocatorConfig, parts: PoolParts, key: str) -> int:
    wanted = config.kv_capacity_bytes
    if wanted is None:
        return parts.kv_bytes
    if wanted > parts.kv_bytes:
        raise InputError([too_much(f"{key}.kv_capacity_bytes", wanted, parts.kv_bytes)])
    return wanted


def _contiguous_bytes(config: ContiguousConfig, parts: PoolParts, budget: int, key: str) -> int:
    """A contiguous pool may be sized in granules (``max_pages``) or by ``safety_factor`` as a paged one."""
    granule_bytes = int(config.page_size[:-1]) if isinstance(config.page_size, str) else 0
    granule_bytes = granule_bytes or int(config.page_size) * parts.bytes_per_token
    pages = asked_pages(config, parts, max(1, granule_bytes // parts.bytes_per_token))
    if pages is None:
        if granule_bytes > budget:
            raise InputError([no_page(f"{key}.page_size", granule_bytes, 0, budget)])
        return budget
    wanted = pages * granule_bytes
    if wanted > budget and config.max_pages != "unlimited":
        raise InputError([too_much(f"{key}.{pages_key(config)}", wanted, budget)])
    return wanted


def _max_pages(config: PagedKinds, parts: PoolParts, layout: PageLayout, budget: int, key: str) -> int:
    tables = table_bytes(
        rows=parts.engine.max_num_seqs,
        max_model_len=parts.max_model_len,
        page_tokens=layout.page_tokens,
        align_bytes=config.page_table_align_bytes,
        tables=layout.row_pages,
    )
    pages = asked_pages(config, parts, layout.page_tokens)
    if pages is None:
        pages = max(0, budget - tables) // layout.page_bytes
        if not pages:
            raise InputError([no_page(f"{key}.page_size", layout.page_bytes, tables, budget)])
        return pages
    wanted = pages * layout.page_bytes
    if wanted + tables > budget and config.max_pages != "unlimited":
        raise InputError([too_much(f"{key}.{pages_key(config)}", wanted, budget, tables=tables)])
    return pages
