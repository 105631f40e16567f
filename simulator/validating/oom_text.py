"""What an out-of-memory message of PyTorch on an NPU says about its cause.

The framework reserves memory of the device and allocates out of that. A request fails for want of memory of the device
(``exhaustion``), although what the framework reserved and does not use would do (``fragmentation``), or because other
processes hold most of the device (``foreign``).
"""

import re
from typing import Literal

Cause = Literal["exhaustion", "fragmentation", "foreign"]

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_AMOUNT = r"([\d.]+) (KiB|MiB|GiB)"
_PARTS = {
    "asked": rf"Tried to allocate {_AMOUNT}",
    "total": rf"{_AMOUNT} total",
    "allocated": rf"{_AMOUNT} (?:already )?allocated",
    "free": rf"{_AMOUNT} free",
    "reserved": rf"{_AMOUNT} reserved",
}
#: part of the device that others must hold before they are to blame
_MOST = 0.5


def amounts(text: str) -> dict[str, float]:
    """The bytes that the message names. Raises ``ValueError`` when it does not say what was asked and what there is."""
    found = {name: re.search(pattern, text) for name, pattern in _PARTS.items()}
    named = {name: float(match[1]) * _UNITS[match[2]] for name, match in found.items() if match}
    missing = {"asked", "total", "allocated"} - set(named)
    if missing:
        raise ValueError(f"no out-of-memory message: {', '.join(sorted(missing))} not found in {text!r}")
    return named


def foreign_bytes(text: str) -> float:
    """Bytes that other processes hold; 0 when the message does not tell."""
    named = amounts(text)
    return max(0.0, named["total"] - named["reserved"] - named["free"]) if {"reserved", "free"} <= set(named) else 0.0


def cause(text: str) -> Cause:
    """Why the allocation failed."""
    named = amounts(text)
    if foreign_bytes(text) > _MOST * named["total"]:
        return "foreign"
    unused = named.get("reserved", named["allocated"]) - named["allocated"]
    return "fragmentation" if unused >= named["asked"] else "exhaustion"
