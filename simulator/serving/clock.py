"""Where the simulated clock ends: it counts nanoseconds in 64 bits."""

from typing import Final

from simulator.errors import InputError, Problem

LAST_NS: Final = 2**63 - 1


def on_clock(time_ns: int) -> int:
    """``time_ns`` if the clock reaches so far. Raises ``InputError`` beyond its end, 292 years after the start."""
    if time_ns > LAST_NS:
        message = (
            f"the run passes the end of the clock, {LAST_NS / 1e9:.2g} s (292 years): "
            "its steps are too slow, or too many"
        )
        raise InputError([Problem(message=message)])
    return time_ns
