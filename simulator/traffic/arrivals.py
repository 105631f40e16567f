"""Arrival processes, as a scenario spells them, and the arrival times they give.

A process yields blocks of arrival times in seconds, without end; ``arrival_ns`` takes as many as are asked for. Blocks
do not show in the result: a longer run starts with the shorter one.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Protocol

import numpy as np
from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from simulator import units
from simulator.fields import Config, PerSecond, Ratio, Seconds
from simulator.rng import stream
from simulator.traffic.requests import MAX_REQUESTS, MAX_TIME_S, FloatArray, IntArray

BLOCK = 16_384

RATE_KEYS = AliasChoices("rate", "request_rate")

Rate = Annotated[PerSecond, Field(ge=1e-9, le=1e9)]
RateOrZero = Annotated[float, BeforeValidator(units.parse_rate), Field(ge=0, le=1e9)]


class OpenProcess(Protocol):
    """A source of arrivals that does not wait for completions."""

    @property
    def mean_rate(self) -> float:
        """Arrivals a second in the long run."""

    def blocks(self, seed: int, replication: int) -> Iterator[FloatArray]:
        """Arrival times in seconds, non-decreasing, block after block, for ever."""


class PoissonArrivals(Config):
    """Independent arrivals at ``rate``: exponential gaps."""

    process: Literal["poisson"]
    rate: Rate = Field(validation_alias=RATE_KEYS)

    @property
    def mean_rate(self) -> float:
        """Arrivals a second."""
        return self.rate

    def blocks(self, seed: int, replication: int) -> Iterator[FloatArray]:
        """Arrival times in seconds, without end."""
        rng, start = stream(seed, "arrivals", replication), 0.0
        while True:
            times = start + np.cumsum(rng.standard_exponential(BLOCK)) / self.rate
            start = float(times[-1])
            yield times


class FixedArrivals(Config):
    """Arrivals at even distances, the first at 0: ``rate`` a second, or one each ``interval`` (0 = all at once)."""

    process: Literal["fixed"]
    rate: Rate | None = Field(None, validation_alias=RATE_KEYS)
    interval: Seconds | None = None

    @model_validator(mode="after")
    def _one_spelling(self) -> "FixedArrivals":
        if (self.rate is None) == (self.interval is None):
            raise ValueError("give either rate or interval")
        return self

    @property
    def interval_s(self) -> float:
        """Seconds between arrivals."""
        return self.interval if self.interval is not None else 1 / (self.rate or 1.0)

    @property
    def mean_rate(self) -> float:
        """Arrivals a second; infinite when all come at once."""
        return 1 / self.interval_s if self.interval_s > 0 else float("inf")

    def blocks(self, seed: int, replication: int) -> Iterator[FloatArray]:
        """Arrival times in seconds, without end."""
        first = 0
        while True:
            times: FloatArray = np.arange(first, first + BLOCK, dtype=np.float64) * self.interval_s
            yield times
            first += BLOCK


class GammaArrivals(Config):
    """Gamma-distributed gaps: ``cv`` is their coefficient of variation (1 = Poisson, above = bursts).

    ``burstiness`` is vLLM's name for the gamma shape, 1 / cv**2.
    """

    process: Literal["gamma"]
    rate: Rate = Field(validation_alias=RATE_KEYS)
    cv: float | None = Field(None, ge=0.01, le=100)
    burstiness: float | None = Field(None, ge=1e-4, le=1e4)

    @model_validator(mode="after")
    def _one_spelling(self) -> "GammaArrivals":
        if (self.cv is None) == (self.burstiness is None):
            raise ValueError("give either cv or burstiness")
        return self

    @property
    def mean_rate(self) -> float:
        """Arrivals a second."""
        return self.rate

    def blocks(self, seed: int, replication: int) -> Iterator[FloatArray]:
        """Arrival times in seconds, without end."""
        shape = self.burstiness if self.burstiness is not None else (self.cv or 1.0) ** -2
        rng, start = stream(seed, "arrivals", replication), 0.0
        while True:
            times = start + np.cumsum(rng.standard_gamma(shape, BLOCK)) / (shape * self.rate)
            start = float(times[-1])
            yield times


class DiurnalArrivals(Config):
    """Poisson arrivals whose rate swings as ``rate * (1 + amplitude * cos(2 pi (t - peak_at) / period))``."""

    process: Literal["diurnal"]
    rate: Rate = Field(validation_alias=RATE_KEYS)
    amplitude: Ratio = 0.5
    period: Annotated[Seconds, Field(gt=0)] = 86_400.0
    peak_at: Seconds = 0.0

    @property
    def mean_rate(self) -> float:
        """Arrivals a second over whole periods."""
        return self.rate

    def blocks(self, seed: int, replication: int) -> Iterator[FloatArray]:
        """Arrival times in seconds, without end; candidates at the peak rate, thinned (Lewis and Shedler 1979)."""
        rng, start = stream(seed, "arrivals", replication), 0.0
        peak = 1 + self.amplitude
        while True:
            times = start + np.cumsum(rng.standard_exponential(BLOCK)) / (self.rate * peak)
            start = float(times[-1])
            level = 1 + self.amplitude * np.cos(2 * np.pi * (times - self.peak_at) / self.period)
            yield times[rng.random(BLOCK) * peak < level]


class ClosedArrivals(Config):
    """``users`` who each wait for their answer, think, and ask again.

    The think time comes before each request, the first one too. Exponential by default: with a fixed time users who
    start together would stay in step.
    """

    process: Literal["closed"]
    users: int = Field(ge=1, le=1_000_000, validation_alias=AliasChoices("users", "max_concurrency"))
    think: Annotated[Seconds, Field(le=1e6)] = 0.0
    think_dist: Literal["exponential", "fixed"] = "exponential"

    def think_ns(self, count: int, *, seed: int, replication: int) -> IntArray:
        """The think time before each of ``count`` requests, in nanoseconds."""
        shape = np.ones(count)
        if self.think_dist == "exponential":
            shape = stream(seed, "think", replication).standard_exponential(count)
        return np.rint(self.think * units.NS_PER_S * shape).astype(np.int64)


def arrival_ns(
    process: OpenProcess, *, requests: int | None, horizon: float | None, seed: int, replication: int
) -> IntArray:
    """The first ``requests`` arrivals, those before ``horizon`` seconds, or whichever ends first, in nanoseconds.

    Raises ``ValueError`` when they would be too many or too far away to simulate.
    """
    taken: list[IntArray] = []
    room = MAX_REQUESTS if requests is None else requests
    for block in process.blocks(seed, replication):
        end = len(block) if horizon is None else int(np.searchsorted(block, horizon))
        times = block[: min(end, room)]
        _check_times(times)
        taken.append(np.rint(times * units.NS_PER_S).astype(np.int64))
        room -= len(times)
        if end < len(block) or room == 0:
            break
    if room == 0 and requests is None:
        raise ValueError(f"more than {MAX_REQUESTS} arrivals before the horizon: lower the rate, or give requests")
    return np.concatenate(taken)


def _check_times(times: FloatArray) -> None:
    if len(times) and times[-1] > MAX_TIME_S:
        raise ValueError(
            f"arrivals reach {units.format_seconds(float(times[-1]))}, beyond the clock's {MAX_TIME_S:g} s: "
            "raise the rate, or lower requests or horizon"
        )
