"""Small mistakes for mutation testing: every place of a module where one token or one statement could be wrong.

A mutant is the module's syntax tree with one change. What no test can or need notice is left alone: annotations,
docstrings, texts of messages, asserts that only narrow a type, decorators, ``__slots__``, imports, ``strict`` of
``zip``, ``None`` for ``False``.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
#: parts of a node that hold nothing to mutate
_SKIPPED = {"annotation", "returns", "decorator_list", "msg", "type_params", "bases"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Mutant:
    """The ``number``-th change of a module. ``function`` is the outermost one that contains it, as ``(name, line)``;
    ``None`` where it lies in a class body, a default or at the top."""

    number: int
    line: int
    what: str
    function: tuple[str, int] | None


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a module."""
    return [
        Mutant(number, line, what, function)
        for number, (line, what, function, _) in enumerate(_changes(ast.parse(source)))
    ]


def mutated(source: str, number: int) -> ast.Module:
    """The tree of the ``number``-th mutant."""
    tree = ast.parse(source)
    for found, (*_, apply) in enumerate(_changes(tree)):
        if found == number:
            apply()
            return ast.fix_missing_locations(tree)
    raise IndexError(f"there is no mutant {number}")


Change = tuple[int, str, "tuple[str, int] | None", Callable[[], None]]


def _changes(tree: ast.Module) -> Iterator[Change]:
    yield from _inside(tree, None)


def _inside(node: ast.AST, function: tuple[str, int] | None) -> Iterator[Change]:
    for name, value in ast.iter_fields(node):
        if name in _SKIPPED:
            continue
        items = value if isinstance(value, list) else [value]
        for index, child in enumerate(items):
            if not isinstance(child, ast.AST) or _left_alone(child):
                continue
            inner = function
            if isinstance(node, _FUNCTIONS) and name == "body" and function is None:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                inner = (node.name, first)
            place = _Place(node, name, index if isinstance(value, list) else None)
            for what, apply in _of(child, place):
                yield getattr(child, "lineno", getattr(node, "lineno", 0)), what, inner, apply
            yield from _inside(child, inner)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a node hangs in the tree."""

    parent: ast.AST
    name: str
    index: int | None

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.name, node)
        else:
            getattr(self.parent, self.name)[self.index] = node


def _left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Raise | ast.JoinedStr | ast.Delete):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring, or ``...``
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return True
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return True
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("__slots__", "__all__"):
        return True
    return isinstance(node, ast.Assert) and _narrows(node.test)


def _narrows(test: ast.expr) -> bool:
    text = ast.unparse(test)
    return text.startswith("isinstance(") or text.endswith("is not None")


def _of(node: ast.AST, place: _Place) -> Iterator[tuple[str, Callable[[], None]]]:
    yield from _operators(node)
    yield from _values(node, place)
    yield from _conditions(node)
    yield from _statements(node, place)


def _operators(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in _SWAPS:
        other = _SWAPS[type(node.op)]
        yield f"{type(node.op).__name__} -> {other.__name__}", lambda: setattr(node, "op", other())
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _SWAPS:
        swapped = _SWAPS[type(node.ops[0])]
        yield f"{type(node.ops[0]).__name__} -> {swapped.__name__}", lambda: setattr(node, "ops", [swapped()])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        call, name = node, _CALLS[node.func.id]
        yield f"{node.func.id} -> {name}", lambda: setattr(call, "func", ast.Name(name, ast.Load()))


def _values(node: ast.AST, place: _Place) -> Iterator[tuple[str, Callable[[], None]]]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        value: Any = node.value
        other = not value if isinstance(value, bool) else value + 1
        yield f"{value} -> {other}", lambda: setattr(node, "value", other)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield f"{type(node.op).__name__} dropped", lambda: place.put(node.operand)


def _conditions(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    def negated(test: ast.expr) -> ast.expr:
        return ast.UnaryOp(ast.Not(), test)

    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "condition negated", lambda: setattr(node, "test", negated(node.test))
    if isinstance(node, ast.comprehension):
        for index, test in enumerate(node.ifs):
            yield "filter negated", lambda i=index, t=test: node.ifs.__setitem__(i, negated(t))  # type: ignore[misc]


def _statements(node: ast.AST, place: _Place) -> Iterator[tuple[str, Callable[[], None]]]:
    if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) not in ("None", "False"):
        yield "returns None", lambda: setattr(node, "value", ast.IfExp(_no(), node.value, ast.Constant(None)))
    if isinstance(node, ast.Break | ast.Continue):
        swapped = ast.Continue if isinstance(node, ast.Break) else ast.Break
        yield f"{type(node).__name__} -> {swapped.__name__}", lambda: place.put(swapped())
    stored = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
    if stored or isinstance(node, ast.Expr | ast.AugAssign | ast.Assert):
        # Kept behind a condition: names of the function stay what they are.
        yield "statement dropped", lambda: place.put(ast.If(_no(), [node], []))


def _no() -> ast.expr:
    return ast.Constant(False)
