"""Laws of prompt and output lengths, as a scenario spells them, in tokens.

A bare number is a fixed length. Every law draws whole tokens, one random number a length.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from simulator.fields import Config
from simulator.traffic import draws, lognormal
from simulator.traffic.requests import MAX_TOKENS, FloatArray, IntArray

_ZIPF_RANGE = 10_000_000


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a number of tokens")
    return value


Tokens = Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=MAX_TOKENS)]
TokenMean = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, le=MAX_TOKENS)]


class FixedLength(Config):
    """Every request has ``value`` tokens."""

    dist: Literal["fixed"]
    value: Tokens

    def draw(self, rng: np.random.Generator, count: int, *, base_dir: Path | None = None) -> IntArray:
        """``count`` lengths in tokens."""
        return np.full(count, self.value, np.int64)


class UniformLength(Config):
    """Whole lengths from ``min`` to ``max``, both included, all equally likely."""

    dist: Literal["uniform"]
    min: Tokens
    max: Tokens

    @model_validator(mode="after")
    def _ordered(self) -> "UniformLength":
        _check_order(self.min, self.max)
        return self

    def draw(self, rng: np.random.Generator, count: int, *, base_dir: Path | None = None) -> IntArray:
        """``count`` lengths in tokens."""
        return self.min + np.floor(rng.random(count) * (self.max - self.min + 1)).astype(np.int64)


class LognormalLength(Config):
    """A lognormal length, clipped to ``min``..``max`` and rounded to whole tokens.

    ``mean``, ``p95`` and ``cv`` describe the lengths as they come out, **after clipping** (before rounding), so the cap
    does not lower the mean that was asked for; a length beyond ``max`` becomes ``max``, as a serving limit does it.
    ``sigma`` is the spread of the logarithm before clipping. At most one of the three; none means ``cv: 1``, the
    middle of what public traces show (output CV 0.73 to 2.15).
    """

    dist: Literal["lognormal"]
    mean: TokenMean
    p95: TokenMean | None = None
    cv: float | None = Field(None, gt=0, le=1000)
    sigma: float | None = Field(None, gt=0, le=lognormal.MAX_SIGMA)
    min: Tokens = 1
    max: Tokens = MAX_TOKENS

    @model_validator(mode="after")
    def _solvable(self) -> "LognormalLength":
        given = [name for name in ("p95", "cv", "sigma") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"give one of p95, cv, sigma; found {' and '.join(given)}")
        _check_order(self.min, self.max)
        self.parameters()
        return self

    def parameters(self) -> tuple[float, float]:
        """``(mu, sigma)`` of the logarithm before clipping. Raises ``ValueError`` when the moments cannot be had."""
        limits = (self.mean, float(self.min), float(self.max))
        if self.p95 is not None:
            return lognormal.solve_p95(self.p95, *limits)
        if self.sigma is not None:
            return lognormal.solve_sigma(self.sigma, *limits)
        return lognormal.solve_cv(1.0 if self.cv is None else self.cv, *limits)

    def draw(self, rng: np.random.Generator, count: int, *, base_dir: Path | None = None) -> IntArray:
        """``count`` lengths in tokens."""
        mu, sigma = self.parameters()
        lengths: FloatArray = np.exp(mu + sigma * rng.standard_normal(count))
        clipped: FloatArray = np.clip(lengths, self.min, self.max)
        return np.rint(clipped).astype(np.int64)


class ZipfLength(Config):
    """Length k between ``min`` and ``max`` with probability in proportion to ``k**-s``."""

    dist: Literal["zipf"]
    s: float = Field(gt=0, le=20)
    min: Tokens = 1
    max: Tokens

    @model_validator(mode="after")
    def _ordered(self) -> "ZipfLength":
        _check_order(self.min, self.max)
        if self.max - self.min >= _ZIPF_RANGE:
            raise ValueError(f"max - min is {self.max - self.min}: zipf allows a range below {_ZIPF_RANGE} tokens")
        return self

    def draw(self, rng: np.random.Generator, count: int, *, base_dir: Path | None = None) -> IntArray:
        """``count`` lengths in tokens."""
        return draws.power_law(rng.random(count), self.s, low=self.min, high=self.max)


class EmpiricalLength(Config):
    """Lengths drawn with replacement from ``values`` (in proportion to ``weights``) or from one column of a CSV file.

    ``file`` is relative to the scenario; without ``column`` the file holds one number a line.
    """

    dist: Literal["empirical"]
    values: tuple[Tokens, ...] | None = Field(None, min_length=1)
    weights: tuple[Annotated[float, Field(ge=0, le=1e12)], ...] | None = None
    file: str | None = None
    column: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "EmpiricalLength":
        if (self.values is None) == (self.file is None):
            raise ValueError("give either values or file")
        if self.file is None and self.column is not None:
            raise ValueError("column belongs to file; values are already given")
        if self.weights is not None:
            _check_weights(self.weights, len(self.values or ()))
        return self

    def draw(self, rng: np.random.Generator, count: int, *, base_dir: Path | None = None) -> IntArray:
        """``count`` lengths in tokens. Raises ``ValueError`` (file and line named) when the file cannot be used."""
        if self.file is None:
            values = np.asarray(self.values, np.int64)
        else:
            from simulator.traffic.value_files import read_lengths

            values = read_lengths(Path(base_dir or ".") / self.file, self.column)
        weights = np.ones(len(values)) if self.weights is None else np.asarray(self.weights)
        return values[draws.weighted(rng.random(count), weights)]


def _check_order(low: int, high: int) -> None:
    if low > high:
        raise ValueError(f"min {low} is above max {high}")


def _check_weights(weights: tuple[float, ...], count: int) -> None:
    if len(weights) != count:
        raise ValueError(f"{len(weights)} weights for {count} values: give one weight a value")
    if not sum(weights) > 0:
        raise ValueError("all weights are zero")


AnyLength = Annotated[
    FixedLength | UniformLength | LognormalLength | ZipfLength | EmpiricalLength, Field(discriminator="dist")
]


def _bare_number(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"dist": "fixed", "value": value}
    return value


Length = Annotated[AnyLength, BeforeValidator(_bare_number, json_schema_input_type=int | AnyLength)]
