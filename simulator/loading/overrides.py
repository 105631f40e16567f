"""``--set dotted.key=value``: changes to a scenario's raw data, and where each value came from.

The value is YAML (``8``, ``2/s``, ``[1, 2]``, ``{process: fixed, rate: 2}``); list items are named by their index.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from simulator.errors import InputError, Problem, printable, shown
from simulator.loading import shape
from simulator.loading.yaml_source import KeyPath, YamlSource, dotted, parse_value


@dataclass(frozen=True, slots=True)
class Override:
    """One change: ``value`` at the dotted ``key``; messages name ``option``, the way the user asked for it."""

    key: str
    value: Any
    option: str

    @classmethod
    def parse(cls, setting: str) -> "Override":
        """``dotted.key=value`` as given to ``--set``. Raises ``InputError``."""
        option = f"--set {printable(setting)}"
        key, equals, text = setting.partition("=")
        if not equals or not key.strip() or not text.strip():
            raise _error(
                option, "expected dotted.key=value, such as engine.max_num_seqs=64 (null: back to the default)"
            )
        return cls(key.strip(), parse_value(text, option), option)


@dataclass(slots=True)
class Origins:
    """Where each key path was given: a line of the file, or a command-line option."""

    source: YamlSource
    options: dict[KeyPath, str] = field(default_factory=dict)

    def place(self, path: KeyPath) -> Problem:
        """A ``Problem`` with the file and line, or the option, of ``path``; its message is empty."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.options:
                return Problem(option=self.options[path[:end]], key=dotted(path), message="")
            if path[:end] in self.source.lines:
                break
        return Problem(file=self.source.file, line=self.source.line(path), key=dotted(path), message="")

    def sort_key(self, problem: Problem) -> tuple[bool, str, int]:
        """Problems of the file by line, then those of options."""
        return (bool(problem.option), problem.file, problem.line or 0)


def apply_overrides(origins: Origins, settings: Sequence[str | Override], root: type[BaseModel]) -> None:
    """Change ``origins.source.data`` by each ``key=value``. Raises one ``InputError`` for all that cannot be."""
    problems: list[Problem] = []
    for setting in settings:
        try:
            _apply(origins, Override.parse(setting) if isinstance(setting, str) else setting, root)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)


def _apply(origins: Origins, override: Override, root: type[BaseModel]) -> None:
    node: Any = origins.source.data
    path: KeyPath = ()
    parts = override.key.split(".")
    if not all(parts):
        raise _error(override.option, "a part of the dotted key is empty")
    for part in parts[:-1]:
        step = _step(node, part, path, override.option, root, origins.source.data)
        if isinstance(node, dict) and node.get(step) is None:
            node[step] = {}
            origins.options[(*path, step)] = override.option
        path, node = (*path, step), node[step]
    last = _step(node, parts[-1], path, override.option, root, origins.source.data)
    if override.value is None and isinstance(node, dict):
        node.pop(last, None)
    else:
        node[last] = override.value
    path = (*path, last)
    for known in (origins.source.lines, origins.options):
        for stale in [place for place in known if place[: len(path)] == path]:
            del known[stale]
    origins.options[path] = override.option


def _step(node: Any, part: str, path: KeyPath, option: str, root: type[BaseModel], data: Any) -> str | int:
    if isinstance(node, dict):
        found = shape.find_key(node, part, shape.models_at(root, data, path))
        return part.replace("-", "_") if found is None else found
    if not isinstance(node, list):
        raise _error(option, f"{dotted(path)} is {shown(node)}, which has no keys below it")
    if not part.isascii() or not part.isdigit() or int(part[:9]) >= len(node):
        allowed = f"0 to {len(node) - 1}" if node else "none, it is empty"
        found = f"{printable(part)!r} is not an index of it"
        raise _error(option, f"{dotted(path)} is a list: {found} (allowed: {allowed})")
    return int(part)


def _error(option: str, message: str) -> InputError:
    return InputError([Problem(option=option, message=message)])
