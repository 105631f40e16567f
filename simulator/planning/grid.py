"""``key=1:10:1`` and ``key=a,b,c``: the values that a key of the scenario takes, one after another."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from simulator.errors import InputError, Problem, printable
from simulator.loading.overrides import Override
from simulator.loading.yaml_source import parse_value

_MAX_VALUES = 100_000


@dataclass(frozen=True, slots=True)
class Axis:
    """One key and its values, in order."""

    key: str
    values: tuple[Any, ...]
    option: str

    def override(self, value: Any) -> Override:
        """The change that gives the key one of its values."""
        return Override(self.key, value, f"{self.option.split()[0]} {self.key}={value}")


def parse_axis(text: str, option: str) -> Axis:
    """An axis as given to ``option``: a range with both ends (``8:128:8``) or a list. Raises ``InputError``."""
    shown = f"{option} {printable(text)}"
    key, equals, spelled = text.partition("=")
    if not equals or not key.strip() or not spelled.strip():
        raise _error(shown, "expected key=start:stop:step or key=value,value,...")
    values = _range(spelled, shown) if _is_range(spelled) else _list(spelled, shown)
    return Axis(key.strip(), values, shown)


def points(axes: Sequence[Axis]) -> Iterator[tuple[Any, ...]]:
    """Every combination of values, the last axis fastest. Raises ``InputError`` when two axes are about one key."""
    seen: set[str] = set()
    for axis in axes:
        key = axis.key.replace("-", "_")
        if key in seen:
            raise _error(axis.option, "gives values to a key that has some already: give one list")
        seen.add(key)
    return itertools.product(*(axis.values for axis in axes))


def _is_range(spelled: str) -> bool:
    return ":" in spelled and not set(spelled) & set(",[]{} ")


def _range(spelled: str, option: str) -> tuple[Any, ...]:
    pieces = spelled.split(":")
    try:
        start, stop, step = (Decimal(piece) for piece in (*pieces, "1")[: max(3, len(pieces))])
        wide = (stop - start) / step if step > 0 else Decimal(0)
    except (ArithmeticError, ValueError):
        raise _error(option, f"{spelled!r} is no range: expected start:stop:step in numbers, such as 8:128:8") from None
    if not all(one.is_finite() for one in (start, stop, step)) or step <= 0 or stop < start:
        raise _error(option, f"{spelled!r} is empty or endless: expected start <= stop and step > 0")
    # Decimals, so that 0.1:0.5:0.1 ends with 0.5.
    if wide >= _MAX_VALUES:
        raise _error(option, f"{printable(spelled)!r} has more than {_MAX_VALUES:,} values, the most that are allowed")
    count = int(wide) + 1
    whole = all(one == one.to_integral_value() for one in (start, step))
    return tuple(int(start + n * step) if whole else float(start + n * step) for n in range(count))


def _list(spelled: str, option: str) -> tuple[Any, ...]:
    text = spelled.strip()
    values = parse_value(text if text.startswith("[") else f"[{text}]", option)
    if not isinstance(values, list) or not values:
        raise _error(option, f"{spelled!r} is no list of values")
    unique = list({repr(value): value for value in values}.values())
    return tuple(unique)


def _error(option: str, message: str) -> InputError:
    return InputError([Problem(option=option, message=message)])
