"""Checks of a family, run once for all tests that look at them."""

from functools import cache

from simulator.validation import Report, validate


@cache
def checked(family: str) -> Report:
    """The report of one family; read only."""
    return validate([family])
