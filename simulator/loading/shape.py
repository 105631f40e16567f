"""Walks pydantic config classes along a YAML path: which keys and types are allowed at a place.

Error messages, ``--set`` and the JSON Schema need to know the fields of the mapping that a user wrote. Where several
classes are possible (``kind: paged | contiguous``), the ones that contradict the data are dropped.
"""

from collections.abc import Iterable
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

from simulator.loading.yaml_source import KeyPath


def types_at(root: type[BaseModel], data: Any, path: KeyPath) -> list[Any]:
    """The types that the value at ``path`` of ``data`` may have, unions flattened; empty when unknown."""
    types: list[Any] = [root]
    for part in path:
        types = [inner for kind in _fitting(types, data) for inner in inner_types(kind, part)]
        data = child(data, part)
    return _fitting(types, data)


def models_at(root: type[BaseModel], data: Any, path: KeyPath) -> list[type[BaseModel]]:
    """The config classes among ``types_at``."""
    return [kind for kind in types_at(root, data, path) if _is_model(kind)]


def field_names(models: Iterable[type[BaseModel]]) -> tuple[str, ...]:
    """Every key that the classes accept, in order of definition, aliases left out."""
    return tuple(dict.fromkeys(name for model in models for name in model.model_fields))


def spellings(name: str, info: FieldInfo) -> tuple[str, ...]:
    """All keys that set one field: its name first, then its aliases."""
    alias = info.validation_alias
    others: list[str] = []
    if isinstance(alias, AliasChoices):
        others = [choice for choice in alias.choices if isinstance(choice, str)]
    elif isinstance(alias, str):
        others = [alias]
    return tuple(dict.fromkeys((name, *others)))


def same_field(models: Iterable[type[BaseModel]], key: str) -> tuple[str, ...]:
    """All spellings of the field that ``key`` sets (``block_size`` and ``page_size``); ``(key,)`` if none."""
    for model in models:
        for name, info in model.model_fields.items():
            if key in spellings(name, info):
                return spellings(name, info)
    return (key,)


def find_key(mapping: dict[Any, Any], key: str | int, models: Iterable[type[BaseModel]] = ()) -> Any | None:
    """The key as the user spelled it (``-`` for ``_``, an alias), or ``None`` when it is not there."""
    if key in mapping:
        return key
    if isinstance(key, str):
        wanted = {name.replace("-", "_") for name in same_field(models, key)}
        for candidate in mapping:
            if isinstance(candidate, str) and candidate.replace("-", "_") in wanted:
                return candidate
    return None


def child(data: Any, part: str | int) -> Any:
    """The value below ``part``, ``None`` when there is none."""
    if isinstance(data, dict):
        return data.get(part)
    if isinstance(data, list) and isinstance(part, int) and 0 <= part < len(data):
        return data[part]
    return None


def flatten(annotation: Any) -> list[Any]:
    """The members of a possibly annotated, possibly nested union."""
    if get_origin(annotation) is Annotated:
        return flatten(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [inner for member in get_args(annotation) for inner in flatten(member)]
    return [annotation]


def literals(annotation: Any) -> list[Any]:
    """The values of every ``Literal`` in ``annotation``."""
    return [value for kind in flatten(annotation) if get_origin(kind) is Literal for value in get_args(kind)]


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def inner_types(kind: Any, part: str | int) -> list[Any]:
    """The types that ``part`` of a value of type ``kind`` may have; empty when unknown."""
    if _is_model(kind):
        for name, info in kind.model_fields.items():
            if str(part).replace("-", "_") in spellings(name, info):
                return flatten(info.annotation)
        return []
    arguments = get_args(kind)
    if get_origin(kind) in (list, tuple) and arguments:
        return flatten(arguments[0])
    if get_origin(kind) is dict and arguments:
        return flatten(arguments[1])
    return []


def _fitting(types: list[Any], data: Any) -> list[Any]:
    if not isinstance(data, dict):
        return types
    fitting = [kind for kind in types if not _is_model(kind) or not _contradicted(kind, data)]
    return fitting or types


def _contradicted(model: type[BaseModel], data: dict[Any, Any]) -> bool:
    for name, info in model.model_fields.items():
        only = literals(info.annotation)
        # A one-value Literal is a tag; longer ones are ordinary choices and say nothing about the class.
        if info.is_required() and only and isinstance(data.get(name), str) and data[name] not in only:
            return True
    return False


def nested_models(annotation: Any) -> list[type[BaseModel]]:
    """Every config class named in ``annotation``, at any depth of containers."""
    found: list[type[BaseModel]] = []
    for kind in flatten(annotation):
        if _is_model(kind):
            found.append(kind)
        else:
            found += [model for inner in get_args(kind) for model in nested_models(inner)]
    return found
