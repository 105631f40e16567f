"""Arithmetic that takes numbers and arrays alike, with the same result to the last bit."""

import math
from collections.abc import Callable
from typing import Any

# A float, an int, or a numpy array of either.
Number = Any


def _is_array(value: Number) -> bool:
    return type(value) not in (float, int, bool)


def larger(one: Number, other: Number) -> Number:
    """The larger of two, element by element."""
    if _is_array(one) or _is_array(other):
        import numpy as np

        return np.maximum(one, other)
    return one if one > other else other


def smaller(one: Number, other: Number) -> Number:
    """The smaller of two, element by element."""
    if _is_array(one) or _is_array(other):
        import numpy as np

        return np.minimum(one, other)
    return one if one < other else other


def ceiling(value: Number) -> Number:
    """The next whole number."""
    if _is_array(value):
        import numpy as np

        return np.ceil(value)
    return math.ceil(value)


def floor_of(value: Number) -> Number:
    """The whole number before."""
    if _is_array(value):
        import numpy as np

        return np.floor(value)
    return math.floor(value)


def pick(flag: Number, yes: Number, no: Number) -> Number:
    """``yes`` where ``flag`` holds, else ``no``."""
    if _is_array(flag):
        import numpy as np

        return np.where(flag, yes, no)
    return yes if flag else no


def anywhere(flag: Number) -> bool:
    """Whether ``flag`` holds for any element."""
    return bool(flag.any()) if _is_array(flag) else bool(flag)


def each(function: Callable[[float], tuple[float, ...]], value: Number) -> tuple[Number, ...]:
    """The values that ``function`` gives for each element, one array for each of them."""
    if _is_array(value):
        import numpy as np

        return tuple(np.array([function(one) for one in value.tolist()]).T)
    return function(value)


def steady(value: Number) -> Number:
    """An array that is the same everywhere as one number, which is quicker to work with; else ``value``."""
    if _is_array(value) and value.ndim and value.size and (value == value.flat[0]).all():
        return value.flat[0].item()
    return value
