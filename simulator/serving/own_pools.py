"""A pool for each group of layers with the same window, sized as cann-recipes-infer sizes them.

Window pools are as large as the windows of ``max_num_seqs`` sequences, whatever comes; full attention has the rest. Of
a ``max_pages`` or ``safety_factor`` given, the window pools and all null pages are taken off first.
"""

from simulator.allocators.group_pools import GroupPools, own_pages, window_pool_pages
from simulator.allocators.paged import PageGroup, table_bytes
from simulator.config import PagedConfig
from simulator.errors import InputError, Problem
from simulator.profiles import PROFILES
from simulator.serving.pool_parts import PoolParts, asked_pages, pages_key, too_much
from simulator.units import format_bytes


def has_own_pools(config: PagedConfig, parts: PoolParts) -> bool:
    """Whether groups have pools of their own: only where there are several, one of them of full attention, and pages
    are given in tokens. A pool without end needs no division."""
    wanted = config.pools or ("per_group" if PROFILES[parts.engine.profile].group_pools else "shared")
    windows = parts.window_buckets
    divisible = len(windows) > 1 and None in windows and isinstance(config.page_size, int)
    return wanted == "per_group" and divisible and config.max_pages != "unlimited"


def group_pools(config: PagedConfig, parts: PoolParts, *, budget: int, key: str) -> GroupPools:
    """The allocator of ``config``. Raises ``InputError`` when the window pools alone are too much."""
    assert isinstance(config.page_size, int)
    engine, profile, page_tokens = parts.engine, PROFILES[parts.engine.profile], config.page_size
    groups = tuple(PageGroup(token_bytes, 1, window) for window, (_, token_bytes) in parts.window_buckets.items())
    layout = own_pages(page_tokens, groups)
    null_page = profile.null_page if config.null_page is None else config.null_page
    sizes = [
        0
        if group.window_tokens is None
        else window_pool_pages(
            group.window_tokens,
            page_tokens=page_tokens,
            sequences=engine.max_num_seqs,
            next_tokens=engine.num_lookahead_tokens,
        )
        for group in groups
    ]
    page_bytes = [layout.bytes_of(group) for group in groups]
    fixed_bytes = sum((size + null_page) * width for size, width in zip(sizes, page_bytes, strict=True))
    tables = table_bytes(
        rows=engine.max_num_seqs,
        max_model_len=parts.max_model_len,
        page_tokens=page_tokens,
        align_bytes=config.page_table_align_bytes,
        tables=len(groups),
    )
    full = next(index for index, group in enumerate(groups) if group.window_tokens is None)
    asked = asked_pages(config, parts, page_tokens)
    if asked is None:
        sizes[full] = (budget - tables - fixed_bytes) // page_bytes[full]
    else:
        sizes[full] = asked - sum(sizes) - null_page * len(groups)
        wanted = fixed_bytes + max(0, sizes[full]) * page_bytes[full]
        if wanted + tables > budget:
            raise InputError([too_much(f"{key}.{pages_key(config)}", wanted, budget, tables=tables)])
    if sizes[full] < 1:
        raise InputError([_nothing_left(f"{key}.{pages_key(config)}", config, fixed_bytes, budget)])
    return GroupPools(
        layout,
        sizes=sizes,
        free_order=config.free_order or profile.free_order,
        null_page=null_page,
        reverse_release=profile.reverse_release,
        chunk_tokens=0 if engine.scheduler == "static" else engine.max_num_batched_tokens,
        lookahead_tokens=engine.num_lookahead_tokens,
    )


def _nothing_left(key: str, config: PagedConfig, fixed_bytes: int, budget: int) -> Problem:
    given = f"{config.max_pages} pages" if config.max_pages is not None else format_bytes(budget)
    message = (
        f"{given} leave nothing for full attention: the pools of window layers take {format_bytes(fixed_bytes)} "
        "(max_num_seqs windows); lower engine.max_num_seqs, or set pools: shared"
    )
    return Problem(key=key, message=message)
