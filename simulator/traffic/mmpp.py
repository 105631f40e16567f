"""Markov-modulated Poisson arrivals: traffic that switches between calm and bursts."""

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from simulator.fields import Config, Seconds
from simulator.rng import stream
from simulator.traffic import draws
from simulator.traffic.arrivals import RATE_KEYS, Rate, RateOrZero
from simulator.traffic.requests import FloatArray

_ARRIVALS = 1024
_SOJOURNS = 256
_MAX_SWITCHES = 1000


class MmppState(Config):
    """One state of the traffic: its arrival ``rate`` (0 = silent) and the mean ``duration`` of a stay."""

    rate: RateOrZero
    duration: Annotated[Seconds, Field(gt=0, le=1e9)]


class MmppArrivals(Config):
    """Poisson arrivals whose rate follows a chain of states, visited in the order given, round and round.

    Stays are exponential with mean ``duration``; the start is stationary. With ``rate`` the states' rates count only
    in proportion, scaled so that the long-run mean is ``rate``.
    """

    process: Literal["mmpp"]
    states: tuple[MmppState, ...] = Field(min_length=2, max_length=64)
    rate: Rate | None = Field(None, validation_alias=RATE_KEYS)

    @model_validator(mode="after")
    def _sensible(self) -> "MmppArrivals":
        if not any(state.rate > 0 for state in self.states):
            raise ValueError("every state has rate 0: nothing would arrive")
        switches = len(self.states) / (sum(self._durations) * self.mean_rate)
        if switches > _MAX_SWITCHES:
            raise ValueError(
                f"the states switch {switches:.3g} times an arrival (allowed: {_MAX_SWITCHES}); "
                "so fast they only average out: use poisson"
            )
        return self

    @property
    def _durations(self) -> list[float]:
        return [state.duration for state in self.states]

    @property
    def _own_rate(self) -> float:
        """Long-run arrivals a second of the states as written."""
        return sum(state.rate * state.duration for state in self.states) / sum(self._durations)

    @property
    def mean_rate(self) -> float:
        """Arrivals a second in the long run."""
        return self._own_rate if self.rate is None else self.rate

    def blocks(self, seed: int, replication: int) -> Iterator[FloatArray]:
        """Arrival times in seconds, without end.

        Unit-rate arrivals on the axis of accumulated rate, mapped back to time through the inverse of the integral of
        the rate, which is linear within a stay.
        """
        rng = stream(seed, "arrivals", replication)
        stays = self._stays(stream(seed, "arrivals", replication, 1))
        knots_s, knots_mass, mass = np.zeros(1), np.zeros(1), 0.0
        while True:
            masses = mass + np.cumsum(rng.standard_exponential(_ARRIVALS))
            mass = float(masses[-1])
            knots_s, knots_mass = _extended(knots_s, knots_mass, stays, mass)
            yield np.interp(masses, knots_mass, knots_s)
            done = int(np.searchsorted(knots_mass, mass)) - 1
            knots_s, knots_mass = knots_s[done:], knots_mass[done:]

    def _stays(self, rng: np.random.Generator) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Blocks of (seconds in the state, rate in it). Stays are memoryless, so the first may be drawn in full."""
        durations = np.asarray(self._durations)
        rates = np.asarray([state.rate for state in self.states]) * (self.mean_rate / self._own_rate)
        state = int(draws.weighted(rng.random(1), durations)[0])
        while True:
            order = (state + np.arange(_SOJOURNS)) % len(durations)
            yield durations[order] * rng.standard_exponential(_SOJOURNS), rates[order]
            state = int(order[-1]) + 1


def _extended(
    knots_s: FloatArray, knots_mass: FloatArray, stays: Iterator[tuple[FloatArray, FloatArray]], mass: float
) -> tuple[FloatArray, FloatArray]:
    """The knots (time, accumulated rate), followed by as many stays as it takes to pass ``mass``."""
    times, masses = [knots_s], [knots_mass]
    while masses[-1][-1] <= mass:
        durations, rates = next(stays)
        times.append(times[-1][-1] + np.cumsum(durations))
        masses.append(masses[-1][-1] + np.cumsum(durations * rates))
    return np.concatenate(times), np.concatenate(masses)
