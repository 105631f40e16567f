"""Closed forms that checks compare with: Erlang, Kaufman and Roberts, Che (see each for its source)."""

import heapq
import math

import numpy as np

from simulator.validating.bench import Floats, Ints


def erlang_b(servers: int, load: float) -> float:
    """Probability that an arrival is lost in M/G/c/c (Erlang 1917)."""
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival waits in M/M/c (Erlang 1917)."""
    blocked = erlang_b(servers, load)
    return blocked / (1 - load / servers * (1 - blocked))


def kaufman_roberts(pages: int, classes: list[tuple[float, int]]) -> tuple[list[float], float]:
    """Blocking of each class ``(load, pages)`` and mean pages in use, complete sharing (Kaufman 1981, Roberts 1981)."""
    q = [1.0]
    for j in range(1, pages + 1):
        q.append(sum(load * size * q[j - size] for load, size in classes if size <= j) / j)
    total = sum(q)
    blocking = [sum(q[pages - size + 1 :]) / total for _, size in classes]
    return blocking, sum(j * value for j, value in enumerate(q)) / total


def lost_of(arrivals: Ints, holding: Ints, servers: int) -> int:
    """Arrivals that find all servers taken, by an event list: what a loss system loses of these very draws."""
    ends: list[int] = []
    lost = 0
    for arrival, held in zip(arrivals.tolist(), holding.tolist(), strict=True):
        while ends and ends[0] <= arrival:
            heapq.heappop(ends)
        if len(ends) == servers:
            lost += 1
        else:
            heapq.heappush(ends, arrival + held)
    return lost


def waits_of(arrivals: Ints, service: Ints, servers: int) -> Ints:
    """The wait of each arrival, first come first served (Lindley 1952; Kiefer and Wolfowitz 1955)."""
    free = [0] * servers
    waits = []
    for arrival, length in zip(arrivals.tolist(), service.tolist(), strict=True):
        start = max(arrival, heapq.heappop(free))
        heapq.heappush(free, start + length)
        waits.append(start - arrival)
    return np.array(waits, np.int64)


def zipf(items: int, exponent: float) -> Floats:
    """Shares of ``items`` by rank."""
    weights = np.arange(1, items + 1, dtype=np.float64) ** -exponent
    return np.asarray(weights / weights.sum(), np.float64)


def che(shares: Floats, capacity: int, *, fifo: bool = False) -> float:
    """Hit ratio of a cache under independent references (Che, Tung and Wang 2002; FIFO: Gelenbe, Fricker et al.)."""

    def resident(time: float) -> Floats:
        return np.asarray(shares * time / (1 + shares * time) if fifo else -np.expm1(-shares * time), np.float64)

    low, high = 0.0, 1e18
    for _ in range(200):
        middle = math.sqrt(max(low, 1e-9) * high) if high > 2 * low + 1 else (low + high) / 2
        low, high = (middle, high) if float(resident(middle).sum()) < capacity else (low, middle)
    return float((shares * resident((low + high) / 2)).sum())
