"""The HBM budget of one device: weights, activations, runtime, and the KV pool that is left.

``gpu_memory_utilization`` is a share of what ``engine.fraction_of`` says:

    total               share * total - weights - activations - runtime - graphs          (vLLM, vllm-ascend)
    free_after_weights  share * (free - weights - activations - runtime - graphs)         (TensorRT-LLM)
    free_at_start       share * free - weights, the rest of ``free`` serves the others    (SGLang)

and never more than what is free at the start less everything else. Pipeline stages are planned alike: each gets
the pool of a device with the largest weights and the largest KV bytes per token among the stages.

With ``decode_context_parallel_size`` d, the d devices that would hold copies of the same KV heads deal the tokens of a
context among them instead (vLLM ``v1/kv_cache_interface.py``): a page is as many bytes on each and covers d times the
tokens, a request of T tokens takes ``ceil(T / (d * page_size))`` pages.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

from simulator.config import EngineConfig
from simulator.device import Device
from simulator.model import Model, kv_dtype_bytes
from simulator.models.activations import activation_bytes
from simulator.units import ceil_div, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """One change that would make the model fit, with its numbers; ``fits`` is false when it would not either.

    Unchanged settings repeat the budget's own. ``kv_bytes_available`` and ``max_concurrency`` are what the change
    leaves.
    """

    kind: str
    fits: bool
    tensor_parallel_size: int
    weight_dtype: str
    kv_cache_dtype: str
    max_model_len: int
    weights_bytes_per_device: int
    kv_bytes_available: int
    kv_tokens: int
    max_concurrency: float

    def __str__(self) -> str:
        """One line for the terminal."""
        what = {
            "more_devices": f"tensor_parallel_size {self.tensor_parallel_size}",
            "narrower_types": f"weights {self.weight_dtype}, KV cache {self.kv_cache_dtype}",
            "shorter_length": f"max_model_len {self.max_model_len:,}",
        }[self.kind]
        if not self.fits:
            return f"{what}: would not fit either"
        left = f"{format_bytes(self.kv_bytes_available)} for {self.kv_tokens:,} KV tokens"
        return f"{what}: leaves {left}, {self.max_concurrency:.2f} requests of {self.max_model_len:,} tokens at once"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """What one device holds. Bytes are of one device.

    ``kv_bytes_available`` is what the budget leaves, 0 when less than nothing (``overdraft_bytes`` says by how
    much). ``kv_capacity_bytes`` is the pool: all of that, or the device's ``kv_capacity_bytes``. A page covers
    ``page_size`` tokens of every layer on the device, and as many on each of the devices that share a context;
    ``kv_tokens`` are the tokens of the whole pages.
    ``max_concurrency`` is how many requests of ``max_model_len`` tokens the pool holds at once, each in whole
    pages, windows respected. ``fits`` means at least one; otherwise ``shortfall_bytes`` are missing.
    """

    hbm_bytes: int
    usable_bytes: int
    weights_bytes_per_device: int
    activation_bytes: int
    runtime_bytes: int
    graph_bytes: int
    kv_bytes_per_token_per_device: int
    kv_bytes_available: int
    overdraft_bytes: int
    kv_capacity_bytes: int
    page_size: int
    page_bytes: int
    max_pages: int
    kv_tokens: int
    max_concurrency: float
    max_model_len: int
    request_bytes: int
    fits: bool
    shortfall_bytes: int
    ways_out: tuple[WayOut, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data, for JSON."""
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "ways_out"}
        ways = [{field.name: getattr(way, field.name) for field in fields(way)} for way in self.ways_out]
        return {**plain, "ways_out": ways}


def memory_budget(device: Device, model: Model, engine: EngineConfig, *, page_size: int = 128) -> MemoryBudget:
    """The budget of one device; ``page_size`` in tokens.

    Not fitting is a value: ``fits`` is false and ``ways_out`` lists three changes with their numbers. Raises
    ``ValueError`` for a split the model cannot have, a ``max_model_len`` beyond the model's, and a
    ``kv_capacity_bytes`` beyond what the budget leaves.
    """
    from simulator.models.ways_out import ways_out  # it asks back for budgets of changed settings

    budget = plain_budget(device, model, engine, page_size=page_size)
    wanted, left = device.kv_capacity_bytes, budget.kv_bytes_available
    # With nothing left at all the answer is that the model does not fit, not that the pool is too large.
    if wanted is not None and wanted > left > 0:
        raise ValueError(f"kv_capacity_bytes {wanted:,} exceeds the {left:,} bytes the memory budget leaves")
    if budget.fits:
        return budget
    return replace(budget, ways_out=ways_out(device, model, engine, budget))


def plain_budget(device: Device, model: Model, engine: EngineConfig, *, page_size: int = 128) -> MemoryBudget:
    """``memory_budget`` without ways out; the pool is what was asked for or what is left, the smaller."""
    tp, pp = engine.tensor_parallel_size, engine.pipeline_parallel_size
    dcp = engine.decode_context_parallel_size
    model.check_parallelism(tp, pp)
    model.check_context_parallelism(tp, dcp)
    length = resolve_max_model_len(model, engine)
    parts = _parts(device, model, engine, length)
    left = _left_for_kv(device, engine, parts)
    available = max(0, left)
    wanted = device.kv_capacity_bytes
    capacity = available if wanted is None else min(wanted, available)
    token_bytes = model.kv_bytes_per_token(tp, pp, engine.kv_cache_dtype, dcp=dcp)
    page_tokens = page_size * dcp
    page_bytes = page_tokens * token_bytes
    max_pages = capacity // page_bytes
    request = request_bytes(model, engine, length, page_size=page_size)
    pool = max_pages * page_bytes
    fits = request <= pool
    return MemoryBudget(
        hbm_bytes=device.hbm_bytes,
        usable_bytes=device.hbm_usable_bytes,
        weights_bytes_per_device=parts.weights,
        activation_bytes=parts.activations,
        runtime_bytes=parts.runtime,
        graph_bytes=parts.graphs,
        kv_bytes_per_token_per_device=token_bytes,
        kv_bytes_available=available,
        overdraft_bytes=max(0, -left),
        kv_capacity_bytes=capacity,
        page_size=page_size,
        page_bytes=page_bytes,
        max_pages=max_pages,
        kv_tokens=max_pages * page_tokens,
        max_concurrency=pool / request,
        max_model_len=length,
        request_bytes=request,
        fits=fits,
        shortfall_bytes=0 if fits else request - pool + max(0, -left),
    )


def resolve_max_model_len(model: Model, engine: EngineConfig) -> int:
    """The engine's ``max_model_len``, or the model's. Raises ``ValueError`` when it exceeds the model's."""
    limit = model.max_position_embeddings
    if engine.max_model_len is None:
        return limit
    if engine.max_model_len > limit:
        raise ValueError(
            f"max_model_len {engine.max_model_len} exceeds the max_position_embeddings {limit} of {model.name}; "
            "set model.max_position_embeddings if its positions are stretched"
        )
    return engine.max_model_len


def request_bytes(model: Model, engine: EngineConfig, tokens: int, *, page_size: int) -> int:
    """KV bytes on one device of a request of ``tokens`` in whole pages, windows respected; largest of the stages.

    A windowed layer holds the pages its window touches, one more than fit because a window need not start on a
    page edge; vLLM plans for a whole step of tokens in flight on top (``vllm/v1/kv_cache_interface.py``).
    """
    in_flight = engine.max_num_batched_tokens if engine.profile in ("vllm-0.33", "vllm-0.11") else 1
    width, dcp = kv_dtype_bytes(model, engine.kv_cache_dtype), engine.decode_context_parallel_size
    page_tokens = page_size * dcp
    return max(
        sum(
            group.bytes_per_token(engine.tensor_parallel_size, width, dcp)
            * page_tokens
            * request_pages(tokens, page_size=page_tokens, window=group.window, in_flight_tokens=in_flight)
            for group in groups
        )
        for groups in model.stage_groups(engine.pipeline_parallel_size)
    )


def request_pages(tokens: int, *, page_size: int, window: int | None = None, in_flight_tokens: int = 1) -> int:
    """Pages one request of ``tokens`` needs in a layer: all of them, or those around the window."""
    pages = ceil_div(tokens, page_size)
    if window is None:
        return pages
    return min(pages, ceil_div(min(window - 1 + in_flight_tokens, tokens), page_size) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What is on the device beside the KV pool, in bytes."""

    weights: int
    activations: int
    runtime: int
    graphs: int

    @property
    def total(self) -> int:
        return self.weights + self.activations + self.runtime + self.graphs


def _parts(device: Device, model: Model, engine: EngineConfig, length: int) -> _Parts:
    tp, pp = engine.tensor_parallel_size, engine.pipeline_parallel_size
    collectives = device.collective_buffer_bytes if tp * pp > 1 else 0
    return _Parts(
        weights=model.weight_bytes_per_device(tp, pp),
        activations=_given(engine.activation_bytes, activation_bytes(model, engine, length)),
        runtime=_given(engine.runtime_bytes, device.runtime_reserve_bytes + collectives),
        graphs=_given(engine.graph_bytes, device.graph_bytes),
    )


def _given(override: int | None, value: int) -> int:
    return value if override is None else override


def _left_for_kv(device: Device, engine: EngineConfig, parts: _Parts) -> int:
    """Bytes left for the KV pool, negative when the rest alone is too much."""
    share, free = engine.gpu_memory_utilization, device.hbm_free_bytes
    physical = free - parts.total
    if engine.fraction_of == "total":
        return min(int(device.hbm_usable_bytes * share) - parts.total, physical)
    if engine.fraction_of == "free_after_weights":
        return int(physical * share) if physical > 0 else physical
    return min(int(free * share) - parts.weights, physical)
