"""Rows of ``simulate list``: what ships with the program."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from simulator import units

Row = dict[str, Any]


def rows(what: str) -> list[Row]:
    """One row an item of ``models``, ``devices``, ``allocators`` or ``scenarios``, sorted by name."""
    return _LISTS[what]()


def as_text(items: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The rows for people: ``_bytes`` as GiB, counts in billions, no underscores in the headings."""
    return [{_heading(key): _cell(key, value) for key, value in item.items()} for item in items]


def _heading(key: str) -> str:
    return key.removesuffix("_bytes").replace("_", " ")


def _cell(key: str, value: Any) -> str:
    if key.endswith("_bytes"):
        return units.format_bytes(value)
    if key.endswith("_bandwidth"):
        return f"{value / 1e12:.4g} TB/s"
    if key.endswith("_flops"):
        return f"{value / 1e12:.4g} TFLOPS"
    if key.endswith("parameters"):
        return f"{value / 1e9:.4g} B"
    return str(value)


def _models() -> list[Row]:
    from simulator.model import ModelConfig, load_model, model_names

    found: list[Row] = []
    for name in model_names():
        model = load_model(ModelConfig(preset=name))
        row = {
            "name": name,
            "parameters": model.parameters,
            "active_parameters": model.active_parameters,
            "layers": model.num_layers,
            "positions": model.max_position_embeddings,
            "kv_per_token_bytes": model.kv_bytes_per_token(),
        }
        found.append(row)
    return found


def _devices() -> list[Row]:
    from simulator.device import DeviceConfig, device_names, load_device

    found: list[Row] = []
    for name in device_names():
        device = load_device(DeviceConfig(preset=name))
        row = {
            "name": name,
            "hbm_bytes": device.hbm_bytes,
            "hbm_usable_bytes": device.hbm_usable_bytes,
            "hbm_bandwidth": device.hbm_bandwidth,
            "cores": device.cores,
            "cube_flops": device.cube_flops,
        }
        found.append(row)
    return found


def _allocators() -> list[Row]:
    from simulator.config import AllocatorConfig

    classes = get_args(get_args(AllocatorConfig)[0])
    return [
        {"name": get_args(each.model_fields["kind"].annotation)[0], "summary": _first_line(each)} for each in classes
    ]


def _scenarios() -> list[Row]:
    from simulator.loading.catalogue import scenario_dir, scenario_names
    from simulator.loading.yaml_source import read_yaml

    found: list[Row] = []
    for name in scenario_names():
        data = read_yaml(scenario_dir() / f"{name}.yaml").data
        found.append({"name": name, "description": str(data.get("description", "")).strip()})
    return found


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0]


_LISTS: dict[str, Callable[[], list[Row]]] = {
    "models": _models,
    "devices": _devices,
    "allocators": _allocators,
    "scenarios": _scenarios,
}
