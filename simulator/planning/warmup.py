"""Where the start of a run ends: MSER-5 truncation for runs that reach a steady state.

An empty system loses nothing, so figures of a whole run are too good. MSER-5 (White, Cobb and Spratt 2000) cuts the
first part of a series such that the mean of the rest has the smallest standard error: of batches of five samples it
drops the first ``d`` that minimise ``sum((rest - mean(rest))**2) / len(rest)**2``, at most the first half.
"""

import numpy as np

from simulator.traffic.requests import FloatArray, IntArray

_BATCH = 5


def mser5(series: FloatArray | IntArray) -> int:
    """How many leading samples of an evenly spaced series to drop: a multiple of 5, at most half of them."""
    batches = len(series) // _BATCH
    if batches < 2:
        return 0
    means = np.asarray(series[: batches * _BATCH], np.float64).reshape(batches, _BATCH).mean(axis=1)
    left = np.arange(batches, 0, -1)
    # Sums over the tail from each start, by running sums from the end.
    total = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum((means**2)[::-1])[::-1]
    spread = (squares - total**2 / left) / left.astype(np.float64) ** 2
    return int(np.argmin(spread[: batches // 2 + 1])) * _BATCH
