"""Inverse-CDF draws: one uniform in, one value out.

Every value costs exactly one uniform, so a longer series starts with the shorter one, and two settings compared
under one seed see coupled values.
"""

from collections.abc import Sequence

import numpy as np

from simulator.traffic.requests import FloatArray, IntArray


def weighted(uniforms: FloatArray, weights: Sequence[float] | FloatArray) -> IntArray:
    """Index 0..len(weights)-1, drawn in proportion to ``weights`` (non-negative, not all zero)."""
    cumulative = np.cumsum(np.asarray(weights, np.float64))
    indices: IntArray = np.searchsorted(cumulative, uniforms * cumulative[-1], side="right").astype(np.int64)
    return np.minimum(indices, len(cumulative) - 1)


def power_law(uniforms: FloatArray, s: float, *, low: int, high: int) -> IntArray:
    """Whole number k in low..high with probability in proportion to ``k**-s`` (Zipf's law, truncated)."""
    logs = np.log(np.arange(low, high + 1, dtype=np.float64))
    return weighted(uniforms, np.exp(-s * (logs - logs[0]))) + low
