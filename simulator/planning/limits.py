"""What the devices could hold: pages in the memory budget, and changes that would leave more."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from simulator.planning.demand import ENDLESS_PAGES
from simulator.planning.trial import sized
from simulator.scenario import Scenario
from simulator.serving.pool import build_allocator
from simulator.serving.pool_parts import PoolParts


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A change that makes room for the pages that are needed, or the largest of its kind that does not."""

    change: str
    settings: Mapping[str, Any]
    devices: int
    hbm_limit_max_pages: int
    fits: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def hbm_limit_pages(scenario: Scenario, index: int) -> int:
    """Pages of allocator ``index`` in all that the memory budget leaves for KV, whatever the scenario asks for."""
    kv_bytes = scenario.budget.kv_bytes_available
    if kv_bytes <= 0:
        return 0
    config = scenario.allocators[index]
    parts = PoolParts(scenario.loaded_model, scenario.engine, kv_bytes, 1.0)
    endless = build_allocator(*sized(config, parts, ENDLESS_PAGES), key="")
    whole = config.model_copy(update={"max_pages": None, "safety_factor": None, "kv_capacity_bytes": None})
    return build_allocator(whole, parts, key="").capacity_bytes // (endless.capacity_bytes // ENDLESS_PAGES)


def ways_to_hold(scenario: Scenario, index: int, pages: int) -> tuple[Way, ...]:
    """More devices and a narrower KV cache, the first of each that holds ``pages``.

    The number of pages needed is taken as it is; a faster engine needs rather fewer.
    """
    return tuple(
        way for way in (_first(_wider(scenario, index), pages), _first(_narrower(scenario, index), pages)) if way
    )


def _first(ways: Iterator[Way], pages: int) -> Way | None:
    last = None
    for way in ways:
        last = Way(**{**asdict(way), "fits": way.hbm_limit_max_pages >= pages})
        if last.fits:
            return last
    return last


def _wider(scenario: Scenario, index: int) -> Iterator[Way]:
    """Tensor parallelism doubled, and doubled again, with as many more devices."""
    before = scenario.engine.tensor_parallel_size
    factor = 2
    while scenario.loaded_model.num_attention_heads % (before * factor) == 0:
        count = scenario.loaded_device.count * factor
        settings = {"engine.tensor_parallel_size": before * factor, "device.count": count}
        changed = changed_scenario(scenario, settings)
        if changed is None:
            return
        yield _way("more_devices", settings, changed, index)
        factor *= 2


def _narrower(scenario: Scenario, index: int) -> Iterator[Way]:
    if scenario.engine.kv_cache_dtype not in ("int8", "fp8", "int4"):
        settings = {"engine.kv_cache_dtype": "int8"}
        changed = changed_scenario(scenario, settings)
        if changed is not None:
            yield _way("narrower_cache", settings, changed, index)


def _way(change: str, settings: Mapping[str, Any], changed: Scenario, index: int) -> Way:
    return Way(
        change=change,
        settings=settings,
        devices=changed.loaded_device.fleet_count,
        hbm_limit_max_pages=hbm_limit_pages(changed, index),
        fits=False,
    )


def changed_scenario(scenario: Scenario, settings: Mapping[str, Any]) -> Scenario | None:
    """The scenario with other settings; ``None`` when they contradict one another or the model."""
    data = scenario.resolved()
    for key, value in settings.items():
        section, _, name = key.partition(".")
        data[section][name] = value
    try:
        changed = Scenario.model_validate(data)
        changed._base_dir = scenario.base_dir
        _ = changed.budget
    except ValueError:
        return None
    return changed
