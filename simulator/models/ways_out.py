"""What to change when a model does not fit: more devices, narrower types, or a shorter length, each with numbers."""

from simulator.config import EngineConfig
from simulator.device import Device
from simulator.memory import MemoryBudget, WayOut, plain_budget, resolve_max_model_len
from simulator.model import Model, with_weight_dtype
from simulator.models.weights import FORMATS

_NARROWER = (("auto", "int8"), ("int8", "auto"), ("int8", "int8"), ("int4", "int8"))


def ways_out(device: Device, model: Model, engine: EngineConfig, budget: MemoryBudget) -> tuple[WayOut, ...]:
    """The three ways, in the order of what they cost the user."""
    page_size = budget.page_size
    return (
        more_devices(device, model, engine, page_size=page_size),
        narrower_types(device, model, engine, page_size=page_size),
        shorter_length(device, model, engine, page_size=page_size),
    )


def more_devices(device: Device, model: Model, engine: EngineConfig, *, page_size: int) -> WayOut:
    """The smallest larger tensor parallelism that fits; the largest possible one when none does."""
    heads = model.num_attention_heads
    wider = [tp for tp in range(engine.tensor_parallel_size + 1, heads + 1) if heads % tp == 0]
    chosen = engine
    for tp in wider:
        chosen = _changed(engine, tensor_parallel_size=tp)
        if plain_budget(device, model, chosen, page_size=page_size).fits:
            break
    return _way("more_devices", model, chosen, plain_budget(device, model, chosen, page_size=page_size))


def narrower_types(device: Device, model: Model, engine: EngineConfig, *, page_size: int) -> WayOut:
    """The mildest narrowing of KV cache and weights that fits; the strongest one when none does."""
    narrowed, chosen = model, engine
    for weights, cache in _NARROWER:
        narrowed, chosen = _narrow_weights(model, weights), _narrow_cache(model, engine, cache)
        if plain_budget(device, narrowed, chosen, page_size=page_size).fits:
            break
    return _way("narrower_types", narrowed, chosen, plain_budget(device, narrowed, chosen, page_size=page_size))


def shorter_length(device: Device, model: Model, engine: EngineConfig, *, page_size: int) -> WayOut:
    """The largest ``max_model_len`` that fits."""
    length = largest_model_len(device, model, engine, page_size=page_size)
    chosen = _changed(engine, max_model_len=max(1, length))
    return _way("shorter_length", model, chosen, plain_budget(device, model, chosen, page_size=page_size))


def largest_model_len(device: Device, model: Model, engine: EngineConfig, *, page_size: int = 128) -> int:
    """The largest ``max_model_len`` of which one request fits: the engine's own, else whole pages, 0 for none."""
    longest = resolve_max_model_len(model, engine)

    def fits(tokens: int) -> bool:
        trial = _changed(engine, max_model_len=tokens)
        return plain_budget(device, model, trial, page_size=page_size).fits

    if fits(longest):
        return longest
    low, high = 0, (longest - 1) // page_size
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * page_size) else (low, middle - 1)
    return low * page_size


def _changed(engine: EngineConfig, **settings: int | str) -> EngineConfig:
    return engine.model_copy(update=settings)


def _narrow_weights(model: Model, dtype: str) -> Model:
    """The model with weights of at most ``dtype``'s width."""
    if dtype == "auto" or FORMATS.get(model.weight_dtype, FORMATS["int4"]).bits <= FORMATS[dtype].bits:
        return model
    return with_weight_dtype(model, dtype)


def _narrow_cache(model: Model, engine: EngineConfig, dtype: str) -> EngineConfig:
    held = model.dtype if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype
    if dtype == "auto" or FORMATS[held].bits <= FORMATS[dtype].bits:
        return engine
    return _changed(engine, kv_cache_dtype=dtype)


def _way(kind: str, model: Model, engine: EngineConfig, budget: MemoryBudget) -> WayOut:
    return WayOut(
        kind=kind,
        fits=budget.fits,
        tensor_parallel_size=engine.tensor_parallel_size,
        weight_dtype=model.weight_dtype,
        kv_cache_dtype=engine.kv_cache_dtype,
        max_model_len=budget.max_model_len,
        weights_bytes_per_device=budget.weights_bytes_per_device,
        kv_bytes_available=budget.kv_bytes_available,
        kv_tokens=budget.kv_tokens,
        max_concurrency=budget.max_concurrency,
    )
