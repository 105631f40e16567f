"""Turns pydantic's errors into ``Problem`` records a user can act on.

pydantic reports a location inside the config classes, with names of union members mixed in. Here it is mapped
back to the path in the file, several complaints about one value are merged, and each says what was found, what
is allowed and which valid name is nearest.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from simulator.errors import InputError, Problem, nearest_name, shown
from simulator.loading import shape
from simulator.loading.yaml_source import KeyPath

_WANTED = {
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "text",
    "path_type": "a file name",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
    "none_required": "null",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", ">="),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "<="),
}

_MISSING = "required key is missing"
_UNKNOWN = "unknown key"
_LENGTHS = {
    "too_short": ("min_length", "at least", "item"),
    "too_long": ("max_length", "at most", "item"),
    "string_too_short": ("min_length", "at least", "character"),
    "string_too_long": ("max_length", "at most", "character"),
}

Locate = Callable[[KeyPath], Problem]
"""Gives a ``Problem`` that carries only the place (file and line, or option) of a path."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """One error at one path of the user's data."""

    path: KeyPath
    message: str
    wanted: str = ""
    allowed: tuple[str, ...] = ()
    nearest: str | None = None
    inner: tuple[Problem, ...] = ()


def complaints(error: ValidationError, root: type[BaseModel], data: Any) -> list[Complaint]:
    """Every error, at most one a path, in the order in which pydantic met them."""
    grouped: dict[KeyPath, list[Complaint]] = {}
    for detail in error.errors(include_url=False):
        if _miscounted(detail, root, data):
            continue
        one = _complaint(detail, root, data)
        grouped.setdefault(one.path, []).append(one)
    found = [_merged(group) for path, group in grouped.items() if not _overruled(path, group, grouped)]
    meant = {(*complaint.path[:-1], complaint.nearest) for complaint in found if complaint.message == _UNKNOWN}
    return [complaint for complaint in found if not (complaint.message == _MISSING and complaint.path in meant)]


def misplaced_booleans(root: type[BaseModel], data: Any, path: KeyPath = ()) -> Iterable[Complaint]:
    """``true`` or ``false`` where only a number or a text makes sense: pydantic would take them as 1 and 0."""
    here = _value(data, path)
    if isinstance(here, bool):
        types = shape.types_at(root, data, path)
        if types and not any(kind in (bool, Any, object) or bool in map(type, shape.literals(kind)) for kind in types):
            yield Complaint(path, f"found {shown(here)}, but this is no yes-or-no key")
    elif isinstance(here, dict | list):
        for part in here if isinstance(here, dict) else range(len(here)):
            yield from misplaced_booleans(root, data, (*path, part))


def to_problems(complaint: Complaint, locate: Locate) -> Iterable[Problem]:
    """The ``Problem`` records of a complaint, at the place that ``locate`` gives."""
    place = locate(complaint.path)
    if complaint.inner:
        return [placed(problem, place) for problem in complaint.inner]
    return [replace(place, message=complaint.message, allowed=complaint.allowed, nearest=complaint.nearest)]


def placed(problem: Problem, place: Problem) -> Problem:
    """``problem`` at ``place``, unless it knows its own line or option."""
    if problem.option or (problem.file and problem.line is not None):
        return problem
    if problem.file:
        problem = replace(problem, message=f"{problem.file}: {problem.message}")
    return replace(problem, file=place.file, line=place.line, option=place.option, key=place.key)


def _value(data: Any, path: KeyPath) -> Any:
    for part in path:
        data = shape.child(data, part)
    return data


def _complaint(detail: Any, root: type[BaseModel], data: Any) -> Complaint:
    kind, context = detail["type"], detail.get("ctx", {})
    path = user_path(detail["loc"], root, data, keep_last=kind in ("missing", "extra_forbidden"))
    if kind == "extra_forbidden":
        return _unknown_key(path, root, data)
    if kind == "missing":
        return Complaint(path, _MISSING)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _union_tag(path, kind, context, root, data)
    if kind == "invalid_key":
        return Complaint(path, "a key must be a name")
    found = _value(data, path)
    if kind in ("literal_error", "enum"):
        names = tuple(re.findall(r"'([^']*)'", context["expected"])) or (context["expected"],)
        wanted = names[0] if len(names) == 1 else f"one of {', '.join(names)}"
        return Complaint(
            path,
            f"found {shown(found)}",
            repr(wanted) if len(names) == 1 else wanted,
            names,
            nearest_name(found, names),
        )
    if kind in _BOUNDS:
        name, sign = _BOUNDS[kind]
        return Complaint(path, f"found {shown(found)}; must be {sign} {_number(context[name])}")
    if kind in _LENGTHS:
        bound, side, unit = _LENGTHS[kind]
        count = context[bound]
        return Complaint(path, f"found {shown(found)}; must have {side} {count} {unit}{'s' if count != 1 else ''}")
    if kind == "value_error":
        return _value_error(path, context.get("error"))
    if kind in _WANTED:
        return Complaint(path, f"found {shown(found)}", _WANTED[kind])
    return Complaint(path, f"found {shown(found)}: {detail['msg'][:1].lower()}{detail['msg'][1:]}")


def _value_error(path: KeyPath, error: Any) -> Complaint:
    if isinstance(error, InputError):
        return Complaint(path, "", inner=error.problems)
    return Complaint(path, str(error))


def _unknown_key(path: KeyPath, root: type[BaseModel], data: Any) -> Complaint:
    models = shape.models_at(root, data, path[:-1])
    twin = [name for name in shape.same_field(models, str(path[-1])) if name != path[-1]]
    given = [name for name in twin if name in (_value(data, path[:-1]) or {})]
    if given:
        return Complaint(path, f"means the same as {given[0]!r}, which is given, too: keep one")
    names = shape.field_names(models)
    return Complaint(path, _UNKNOWN, allowed=names, nearest=nearest_name(path[-1], names))


def _union_tag(path: KeyPath, kind: str, context: Any, root: type[BaseModel], data: Any) -> Complaint:
    tag = str(context["discriminator"]).strip("'").partition("'")[0]
    models = shape.models_at(root, {}, path) or shape.models_at(root, data, path)
    names = tuple(
        dict.fromkeys(
            str(value)
            for model in _all_models(root, data, path) or models
            if tag in model.model_fields
            for value in shape.literals(model.model_fields[tag].annotation)
        )
    )
    if kind == "union_tag_not_found":
        return Complaint((*path, tag), _MISSING, allowed=names)
    found = context["tag"]
    return Complaint((*path, tag), f"found {shown(found)}", allowed=names, nearest=nearest_name(found, names))


def _all_models(root: type[BaseModel], data: Any, path: KeyPath) -> list[type[BaseModel]]:
    """The classes possible at ``path`` whatever its own keys say."""
    parent = shape.types_at(root, data, path[:-1]) if path else []
    inner = [found for kind in parent for found in shape.inner_types(kind, path[-1])]
    return [kind for kind in inner if isinstance(kind, type) and issubclass(kind, BaseModel)]


def user_path(loc: tuple[Any, ...], root: type[BaseModel], data: Any, *, keep_last: bool) -> KeyPath:
    """The path in ``data`` of a pydantic location: union members skipped, keys as the user spelled them.

    With ``keep_last`` the last part is kept even when it is not in the data (a missing key).
    """
    path: KeyPath = ()
    node = data
    for position, part in enumerate(loc):
        if isinstance(node, dict):
            key = shape.find_key(node, part, shape.models_at(root, data, path))
            if key is None:
                if keep_last and position == len(loc) - 1:
                    return (*path, part)
                continue
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            key = part
        else:
            continue
        path, node = (*path, key), node[key]
    return path


def _number(bound: Any) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _overruled(path: KeyPath, group: list[Complaint], grouped: dict[KeyPath, list[Complaint]]) -> bool:
    """A type complaint about a mapping is noise when another union member complains about what is in it."""
    if not all(complaint.wanted for complaint in group):
        return False
    return any(other[: len(path)] == path and len(other) > len(path) for other in grouped)


def _miscounted(detail: Any, root: type[BaseModel], data: Any) -> bool:
    """pydantic counts only the valid items of a tuple, and so calls one too short in which an item is wrong."""
    if detail["type"] != "too_short":
        return False
    found = _value(data, user_path(detail["loc"], root, data, keep_last=False))
    return isinstance(found, list) and len(found) >= int(detail["ctx"]["min_length"])


def _merged(group: list[Complaint]) -> Complaint:
    plain = [complaint for complaint in group if not complaint.wanted]
    if plain:
        return plain[0]
    first = group[0]
    if len(group) == 1 and first.allowed:
        return first
    wanted = list(dict.fromkeys(complaint.wanted for complaint in group))
    nearest = next((complaint.nearest for complaint in group if complaint.nearest), None)
    return Complaint(first.path, f"{first.message}; expected {' or '.join(wanted)}", nearest=nearest)
