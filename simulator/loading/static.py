"""Scenarios for questions that need no workload: what fits on a device, what an attention step costs."""

from collections.abc import Sequence
from pathlib import Path

from simulator.errors import InputError, Problem
from simulator.loading.overrides import Override
from simulator.scenario import Scenario, ScenarioText, load_scenario, parse_scenario

_ANY_WORKLOAD = """
device: {count: 1}
model: {}
workload:
  arrivals: {process: fixed, interval: 1s}
  prompt_tokens: {dist: fixed, value: 1}
  output_tokens: {dist: fixed, value: 1}
  requests: 1
"""
#: letters that a scenario's name may have
_LONGEST_NAME = 100


def budget_scenario(
    scenario: str | ScenarioText | None,
    settings: Sequence[str],
    *,
    model: str | None = None,
    device: str | None = None,
    count: int | None = None,
    max_model_len: int | None = None,
) -> Scenario:
    """``scenario`` changed by the options, or the scenario that the options alone describe.

    ``count`` devices also set the tensor parallel size. Raises ``InputError``.
    """
    changes = [
        *_named("model", model, file_key="config"),
        *_named("device", device, file_key="file"),
        *_number("--count", ("device.count", "engine.tensor_parallel_size"), count),
        *_number("--max-model-len", ("engine.max_model_len",), max_model_len),
    ]
    if scenario is not None:
        return load_scenario(scenario, [*changes, *settings])
    missing = [name for name, given in (("--model", model), ("--device", device)) if given is None]
    if missing:
        raise InputError([Problem(message=f"give a SCENARIO, or both --model and --device ({missing[0]} is missing)")])
    title = "".join(filter(str.isprintable, f"{_stem(model)}_{_stem(device)}"))[:_LONGEST_NAME]
    name = Override("name", title, "--model")
    return parse_scenario(_ANY_WORKLOAD, Path(), [name, *changes, *settings], file="options")


def _stem(name: str | None) -> str:
    """What to call a preset or a file in the name of a scenario: ``Qwen/Qwen3-32B`` is ``Qwen3-32B``."""
    last = Path(name or "").name
    parent = Path(name or "").absolute().parent.name
    # A folder of a model has a ``config.json``, which tells nothing.
    return parent if last == "config.json" and parent else last.removesuffix(".yaml").removesuffix(".json")


def _named(part: str, name: str | None, *, file_key: str) -> list[Override]:
    """A preset name or a path becomes the whole ``part``; a path is what exists or looks like one."""
    if name is None:
        return []
    is_path = name.endswith((".yaml", ".yml", ".json")) or Path(name).exists()
    value = str(Path(name).absolute()) if is_path else name
    option = f"--{part} {name}"
    unset = "preset" if is_path else file_key
    return [
        Override(f"{part}.{unset}", None, option),
        Override(f"{part}.{file_key if is_path else 'preset'}", value, option),
    ]


def _number(option: str, keys: Sequence[str], value: int | None) -> list[Override]:
    return [] if value is None else [Override(key, value, f"{option} {value}") for key in keys]
