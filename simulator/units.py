"""Quantities and their spelling: bytes, seconds, rates; and the integer arithmetic of pages.

Inside the program bytes and tokens are ``int``, spans of time are ``float`` seconds, and points on the
simulated clock are ``int`` nanoseconds: integers add exactly, so a leap over many steps lands on the same
instant as the steps taken one by one, and a simulated month (2.6e15 ns) still resolves one nanosecond.

``GiB`` is 2**30 bytes and ``GB`` is 10**9 bytes, here and nowhere else.
"""

import math
import re
from typing import Final

NS_PER_S: Final = 1_000_000_000

_BYTES = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "m": 10**6,
    "mb": 10**6,
    "g": 10**9,
    "gb": 10**9,
    "t": 10**12,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SECONDS = {"": 1.0, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_HERTZ = {"": 1.0, "hz": 1.0, "khz": 1e3, "mhz": 1e6, "ghz": 1e9}
_FLOPS = {"": 1.0, "flops": 1.0, "gflops": 1e9, "tflops": 1e12, "pflops": 1e15}
_PER_S = {"": 1.0, "/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600}
_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*$", re.ASCII)


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest integer not below ``numerator / denominator``; both are integers, the denominator positive."""
    return -(-numerator // denominator)


def align_up(value: int, alignment: int) -> int:
    """Smallest multiple of ``alignment`` that is not below ``value``."""
    return ceil_div(value, alignment) * alignment


def parse_bytes(text: object) -> int:
    """Bytes of ``4096``, ``"16KiB"``, ``"61.27GiB"`` or ``"64 GB"``, rounded to a whole byte.

    Raises ``ValueError`` naming the text and the units allowed.
    """
    return round(_parse(text, _BYTES, "a size such as 16KiB or 61.27GiB"))


def parse_bandwidth(text: object) -> float:
    """Bytes per second of ``"1.6TB/s"`` or a bare number. Raises ``ValueError``."""
    if isinstance(text, str):
        stripped = text.strip()
        text = stripped[:-2] if stripped.lower().endswith("/s") else stripped
    return _parse(text, _BYTES, "a bandwidth such as 1.6TB/s")


def parse_seconds(text: object) -> float:
    """Seconds of ``30``, ``"30s"``, ``"5min"``, ``"60ns"``. Raises ``ValueError``."""
    return _parse(text, _SECONDS, "a time such as 30s, 10ms or 5min")


def parse_hertz(text: object) -> float:
    """Cycles per second of ``"1.85GHz"`` or a bare number. Raises ``ValueError``."""
    return _parse(text, _HERTZ, "a clock such as 1.85GHz")


def parse_flops(text: object) -> float:
    """Operations per second of ``"364TFLOPS"`` or a bare number. Raises ``ValueError``."""
    return _parse(text, _FLOPS, "a compute rate such as 364TFLOPS")


def parse_rate(text: object) -> float:
    """Events per second of ``8``, ``"8/s"``, ``"30/min"``. Raises ``ValueError``."""
    return _parse(text, _PER_S, "a rate such as 8/s or 30/min")


def _parse(text: object, factors: dict[str, float] | dict[str, int], wanted: str) -> float:
    if isinstance(text, bool) or not isinstance(text, (int, float, str)):
        raise ValueError(f"{text!r} is not {wanted}")
    if isinstance(text, (int, float)):
        number, unit = float(text), ""
        if isinstance(text, int):
            return text
    else:
        match = _NUMBER.match(text)
        if match is None:
            raise ValueError(f"{text!r} is not {wanted}")
        number, unit = float(match[1].replace("_", "")), match[2]
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not finite: give {wanted}")
    factor = factors.get(unit.lower())
    if factor is None:
        known = ", ".join(name for name in factors if name)
        raise ValueError(f"{text!r} has unknown unit {unit!r}: give {wanted} (units: {known})")
    quantity = number * factor
    if not math.isfinite(quantity):
        raise ValueError(f"{text!r} is too large")
    return quantity


def format_bytes(count: float) -> str:
    """``"61.27 GiB"``: binary units, four significant digits."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.4g} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def format_seconds(seconds: float) -> str:
    """``"41 us"``, ``"12.5 ms"``, ``"3.2 s"``, ``"5.1 min"``, ``"2.3 h"``; ``"-"`` for a time that nobody has."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    for limit, scale, unit in (
        (1e-6, 1e-9, "ns"),
        (1e-3, 1e-6, "us"),
        (1.0, 1e-3, "ms"),
        (120.0, 1.0, "s"),
        (7200.0, 60.0, "min"),
    ):
        if seconds < limit:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 3600:.3g} h"


def to_ns(seconds: float) -> int:
    """Nanoseconds on the simulated clock, rounded half to even."""
    return round(seconds * NS_PER_S)


def format_percent(ratio: float) -> str:
    """``"0 %"``, ``"0.03 %"``, ``"7.4 %"``, ``"61 %"``; never rounds a real loss to zero or a partial one to 100."""
    value = 100 * ratio
    if value in (0, 100):
        return f"{value:.0f} %"
    if value < 0.01:
        return "< 0.01 %"
    if value > 99.99:
        return "> 99.99 %"
    return f"{value:.2g} %" if value < 10 else f"{value:.3g} %" if value < 99.95 else f"{value:.2f} %"
