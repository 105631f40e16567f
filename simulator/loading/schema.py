"""JSON Schema of the scenario file, for editors: completion, descriptions and checks while typing."""

from typing import Any

from pydantic import AliasChoices, BaseModel

from simulator.loading import shape
from simulator.scenario import Scenario


def scenario_schema() -> dict[str, Any]:
    """The schema (draft 2020-12), aliases such as ``block_size`` included."""
    schema = Scenario.model_json_schema(mode="validation", by_alias=False)
    for model in _models(Scenario, {}).values():
        definition = schema if model is Scenario else schema["$defs"].get(model.__name__)
        if definition is not None and "properties" in definition:
            _add_aliases(model, definition["properties"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "ascend-kv-sim scenario"}


def _add_aliases(model: type[BaseModel], properties: dict[str, Any]) -> None:
    for name, info in model.model_fields.items():
        if isinstance(info.validation_alias, AliasChoices) and name in properties:
            for alias in shape.spellings(name, info)[1:]:
                properties[alias] = {**properties[name], "description": f"Another name of {name}."}


def _models(model: type[BaseModel], found: dict[str, type[BaseModel]]) -> dict[str, type[BaseModel]]:
    """Every config class reachable from ``model``, by class name."""
    if model.__name__ not in found:
        found[model.__name__] = model
        for info in model.model_fields.values():
            for inner in shape.nested_models(info.annotation):
                _models(inner, found)
    return found
