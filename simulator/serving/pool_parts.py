"""What a pool is sized from, and how a scenario's own size for it is read."""

from dataclasses import dataclass
from typing import Final

from simulator.config import AllocatorConfig, EngineConfig
from simulator.errors import Problem
from simulator.memory import resolve_max_model_len
from simulator.model import Model, kv_dtype_bytes
from simulator.models.model_shape import AttentionGroup
from simulator.units import format_bytes

#: pages of a pool that is called unlimited: more than any workload asks for, small enough for exact arithmetic
UNLIMITED_PAGES: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class PoolParts:
    """What an allocator is built from. ``kv_bytes`` is the budget's KV memory of one device; ``mean_tokens`` the mean
    length (prompt + output) of the workload's requests, which ``safety_factor`` refers to."""

    model: Model
    engine: EngineConfig
    kv_bytes: int
    mean_tokens: float

    @property
    def max_model_len(self) -> int:
        """The longest sequence the engine serves."""
        return resolve_max_model_len(self.model, self.engine)

    @property
    def stage_groups(self) -> tuple[AttentionGroup, ...]:
        """The attention groups of the pipeline stage with the most KV per token."""
        width = kv_dtype_bytes(self.model, self.engine.kv_cache_dtype)
        stages = self.model.stage_groups(self.engine.pipeline_parallel_size)
        tp = self.engine.tensor_parallel_size
        return max(stages, key=lambda groups: sum(group.bytes_per_token(tp, width) for group in groups))

    def page_tokens(self, page_size: int) -> int:
        """Tokens that a page of ``page_size`` covers on all devices that share a context."""
        return page_size * self.engine.decode_context_parallel_size

    def _token_bytes(self, group: AttentionGroup) -> int:
        width = kv_dtype_bytes(self.model, self.engine.kv_cache_dtype)
        engine = self.engine
        return group.bytes_per_token(engine.tensor_parallel_size, width, engine.decode_context_parallel_size)

    @property
    def window_buckets(self) -> dict[int | None, tuple[int, int]]:
        """Layers, and KV bytes of a token in all of them, by attention window (``None``: full attention)."""
        buckets: dict[int | None, tuple[int, int]] = {}
        for group in self.stage_groups:
            layers, token_bytes = buckets.get(group.window, (0, 0))
            buckets[group.window] = layers + group.layers, token_bytes + self._token_bytes(group)
        return buckets

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of a token on one device."""
        return sum(map(self._token_bytes, self.stage_groups))


def asked_pages(config: AllocatorConfig, parts: PoolParts, page_tokens: int) -> int | None:
    """``max_pages = ceil(max_batch * avg_seq_len * safety_factor / page_size)``, or the number given."""
    if config.max_pages == "unlimited":
        return UNLIMITED_PAGES
    if config.max_pages is not None:
        return config.max_pages
    if config.safety_factor is None:
        return None
    tokens = parts.engine.max_num_seqs * parts.mean_tokens * config.safety_factor
    return max(1, -int(-tokens // page_tokens))


def pages_key(config: AllocatorConfig) -> str:
    """The key by which ``config`` asks for a number of pages."""
    return "max_pages" if config.max_pages is not None else "safety_factor"


def no_page(key: str, page_bytes: int, table_bytes: int, budget: int) -> Problem:
    """The complaint about a pool that holds no page at all."""
    tables = f", of which page tables take {format_bytes(table_bytes)}" if table_bytes else ""
    left = f"the memory budget leaves {format_bytes(budget)}{tables}"
    return Problem(key=key, message=f"not one page of {format_bytes(page_bytes)} fits: {left}")


def too_much(key: str, wanted: int, budget: int, *, tables: int = 0) -> Problem:
    """More was asked for, at ``key``, than the budget leaves, ``tables`` bytes of page tables beside it."""
    beside = f" and {format_bytes(tables)} ({tables:,} bytes) of page tables" if tables else ""
    return Problem(
        key=key,
        message=f"asks for {format_bytes(wanted)} ({wanted:,} bytes) of KV memory{beside} on each device; the memory "
        f"budget leaves {format_bytes(budget)} ({budget:,} bytes)",
    )
