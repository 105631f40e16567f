"""YAML text to plain data, with the line of every key.

Reads the JSON-like heart of YAML 1.2: mappings, lists, strings, numbers, ``true``/``false`` and ``null``. Unlike
YAML 1.1, ``on`` and ``yes`` are text, ``1e9`` is a number and ``12:30`` is not sixty-based. Refused, with the line:
duplicate keys, anchors and aliases (so a small file cannot expand into a large one), tags, several documents,
text that is not UTF-8, and files beyond the limits below. Reading executes nothing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from simulator.errors import InputError, Problem, printable
from simulator.loading.text_source import decoded, read_bytes

MAX_BYTES = 4 * 2**20
MAX_NODES = 100_000
MAX_DEPTH = 40
_MAX_INTEGER = 2**63 - 1

KeyPath = tuple[str | int, ...]

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True, slots=True)
class YamlSource:
    """A parsed file: ``data`` and, for every key path in it, the 1-based line."""

    file: str
    data: dict[Any, Any]
    lines: dict[KeyPath, int]

    def line(self, path: KeyPath) -> int:
        """Line of ``path``, or of its nearest parent that is in the file; 1 when there is none."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return 1


def read_yaml(path: Path, shown_as: str | None = None) -> YamlSource:
    """Parse the file at ``path``; messages name it ``shown_as``. Raises ``InputError``."""
    name = shown_as or str(path)
    return parse_yaml(read_bytes(path, name, limit_bytes=MAX_BYTES), name)


def parse_yaml(text: bytes | str, file: str) -> YamlSource:
    """Parse one YAML mapping. Raises ``InputError`` that names ``file``, the line and what is wrong."""
    builder = _Builder(file)
    data = builder.build(decoded(text, file) if isinstance(text, bytes) else text)
    if not isinstance(data, dict):
        what = "is empty" if data is None else f"holds {'a list' if isinstance(data, list) else 'a single value'}"
        raise _error(file, 1, f"{what}: expected a mapping of keys such as 'device:' and 'model:'")
    return YamlSource(file, data, builder.lines)


def parse_value(text: str, option: str) -> Any:
    """The value of a command-line option written as YAML: a scalar, ``[a, b]`` or ``{key: value}``.

    Raises ``InputError`` that names ``option``.
    """
    try:
        return _Builder("").build(text)
    except InputError as error:
        raise InputError(Problem(option=option, message=problem.message) for problem in error.problems) from None


def resolve_scalar(text: str) -> Any:
    """Value of an unquoted scalar by the YAML 1.2 core schema. Raises ``ValueError`` beyond 64 bits."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text):
        lowered = text.lower()
        return float(lowered.replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _integer(text: str) -> int:
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    # Longer digits are hopeless anyway, and int() itself refuses or crawls on very long ones.
    value = int(text[2:] if base != 10 else text, base) if len(text) <= 24 else None
    if value is None or abs(value) > _MAX_INTEGER:
        raise ValueError(f"{text[:24]}{'...' if len(text) > 24 else ''} is beyond the 64-bit integer range")
    return value


def _error(file: str, line: int | None, message: str, key: KeyPath = ()) -> InputError:
    return InputError([Problem(file=file, line=line, key=dotted(key), message=message)])


def dotted(path: KeyPath) -> str:
    """``("allocators", 0, "kind")`` as ``allocators.0.kind``; long or unprintable keys are made fit to print."""
    return ".".join(printable(str(part)) for part in path)


def parse_dotted(key: str) -> KeyPath:
    """``allocators.0.kind`` as ``("allocators", 0, "kind")``."""
    return tuple(int(part) if part.isdecimal() and part.isascii() else part for part in key.split("."))


@dataclass(slots=True)
class _Frame:
    """A mapping or list being filled; ``key`` is the mapping key that waits for its value."""

    container: dict[Any, Any] | list[Any]
    path: KeyPath
    key: Any = None
    has_key: bool = False
    seen: dict[Any, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Builder:
    """Builds data from parser events with its own stack, so that depth is bounded before anything nests."""

    file: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    stack: list[_Frame] = field(default_factory=list)
    root: Any = None
    documents: int = 0
    nodes: int = 0

    def build(self, text: str) -> Any:
        for event in self._events(text):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.ScalarEvent):
                self._check_node(event, line)
                self._scalar(event, line)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._check_node(event, line)
                self._open({} if isinstance(event, yaml.MappingStartEvent) else [], line)
            elif isinstance(event, yaml.CollectionEndEvent):
                self.stack.pop()
            elif isinstance(event, yaml.AliasEvent):
                raise self._refused(line, f"alias '*{event.anchor}'")
            elif isinstance(event, yaml.DocumentStartEvent):
                self.documents += 1
                if self.documents > 1:
                    raise _error(self.file, line, "holds more than one YAML document ('---'): keep one")
        return self.root

    def _events(self, text: str) -> Iterator[Any]:
        try:
            yield from yaml.parse(text, Loader=_LOADER)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            row = mark.line if mark is not None else 0
            hint = ": indent with spaces, not tabs" if _starts_with_tab(text, row) else ""
            raise _error(self.file, row + 1, f"is not valid YAML: {error.problem or error.context}{hint}") from None
        except yaml.YAMLError as error:
            reason = getattr(error, "reason", None) or str(error)
            position = getattr(error, "position", 0) or 0
            line = text.count("\n", 0, position) + 1
            raise _error(self.file, line, f"is not valid YAML: {reason}") from None

    def _check_node(self, event: Any, line: int) -> None:
        if event.anchor is not None:
            raise self._refused(line, f"anchor '&{event.anchor}'")
        if event.tag is not None:
            raise _error(self.file, line, f"tag '{event.tag}' is refused: tags are not used here")
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise _error(self.file, line, f"holds more than {MAX_NODES} values, the limit for a YAML file")

    def _refused(self, line: int, what: str) -> InputError:
        return _error(self.file, line, f"{what} is refused: write the value out in each place")

    def _scalar(self, event: Any, line: int) -> None:
        quoted = not event.implicit[0]
        frame = self.stack[-1] if self.stack else None
        try:
            value = event.value if quoted else resolve_scalar(event.value)
        except ValueError as error:
            raise _error(self.file, line, str(error), self._next_path()) from None
        if frame is not None and isinstance(frame.container, dict) and not frame.has_key:
            self._key(frame, value, line)
        else:
            self._place(value, line)

    def _key(self, frame: _Frame, key: Any, line: int) -> None:
        if isinstance(key, bool | float) or key is None:
            raise _error(self.file, line, f"a key must be a name, not {key!r}", frame.path)
        path = (*frame.path, key)
        # vLLM's files spell keys with - or _, so the two count as one.
        same = key.replace("-", "_") if isinstance(key, str) else key
        if same in frame.seen:
            raise _error(self.file, line, f"duplicate key, first given on line {frame.seen[same]}", path)
        frame.seen[same] = self.lines[path] = line
        frame.key, frame.has_key = key, True

    def _open(self, container: dict[Any, Any] | list[Any], line: int) -> None:
        frame = self.stack[-1] if self.stack else None
        if frame is not None and isinstance(frame.container, dict) and not frame.has_key:
            raise _error(self.file, line, "a key must be a name, not a mapping or a list", frame.path)
        if len(self.stack) >= MAX_DEPTH:
            raise _error(self.file, line, f"is nested deeper than {MAX_DEPTH} levels")
        path = self._next_path()
        self._place(container, line)
        self.stack.append(_Frame(container, path))

    def _next_path(self) -> KeyPath:
        if not self.stack:
            return ()
        frame = self.stack[-1]
        return (*frame.path, frame.key if isinstance(frame.container, dict) else len(frame.container))

    def _place(self, value: Any, line: int) -> None:
        if not self.stack:
            self.root = value
            return
        frame = self.stack[-1]
        if isinstance(frame.container, dict):
            frame.container[frame.key] = value
            frame.key, frame.has_key = None, False
        else:
            self.lines[(*frame.path, len(frame.container))] = line
            frame.container.append(value)


def _starts_with_tab(text: str, row: int) -> bool:
    lines = text.split("\n", row + 1)
    return row < len(lines) and lines[row].lstrip(" ").startswith("\t")
