"""Classes of requests: lengths, samples and shared prefixes, and how they are drawn."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from simulator.fields import Config, Ratio
from simulator.rng import stream
from simulator.traffic import draws
from simulator.traffic.lengths import Length, Tokens
from simulator.traffic.requests import FloatArray, IntArray
from simulator.traffic.traces import TraceFile, load_pairs

Samples = Annotated[int, Field(ge=1, le=1024)]
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]
BeamWidth = Annotated[int, Field(ge=0, le=1024)]


class SharedPrefix(Config):
    """System prompts: a share of the requests (``fraction``) starts with one of ``groups`` texts of ``tokens`` tokens.

    The prefix is part of the prompt; a prompt shorter than ``tokens`` lies wholly within it. ``popularity: zipf`` picks
    group g = 1, 2, ... in proportion to ``g**-s``.
    """

    groups: int = Field(1, ge=1, le=10_000_000)
    tokens: Tokens
    popularity: Literal["uniform", "zipf"] = "uniform"
    s: float = Field(1.0, ge=0, le=20)
    fraction: Ratio = 1.0

    def draw(self, uniforms: FloatArray) -> IntArray:
        """The group (0-based) of each request, -1 for none; one uniform a request."""
        within = np.divide(uniforms, self.fraction, out=np.ones_like(uniforms), where=uniforms < self.fraction)
        s = self.s if self.popularity == "zipf" else 0.0
        group = draws.power_law(np.minimum(within, np.nextafter(1.0, 0.0)), s, low=1, high=self.groups) - 1
        return np.where(uniforms < self.fraction, group, -1)


class ClassFields(Config):
    """What a request class says about its requests, beside the arrivals. ``token_pairs`` draws both lengths together,
    with replacement, from the rows of a trace or of a CSV with ``prompt_tokens,output_tokens``. Of two requests the one
    with the smaller ``priority`` (0 if not given) is more urgent, where ``engine.scheduling_policy`` heeds it."""

    prompt_tokens: Length | None = None
    output_tokens: Length | None = None
    token_pairs: TraceFile | None = None
    samples: Samples | None = None
    beam_width: BeamWidth | None = None
    shared_prefix: SharedPrefix | None = None
    priority: Priority | None = None

    @model_validator(mode="after")
    def _one_source_of_lengths(self) -> "ClassFields":
        if self.token_pairs and (self.prompt_tokens or self.output_tokens):
            raise ValueError("token_pairs brings both lengths: remove prompt_tokens and output_tokens")
        _check_search(self.samples, self.beam_width)
        return self


def _check_search(samples: int | None, beam_width: int | None) -> None:
    if (samples or 1) > 1 and (beam_width or 0) > 1:
        raise ValueError("samples and beam_width cannot both be above 1: parallel sampling or beam search")


class RequestClass(ClassFields):
    """One class of a mix, met in proportion to ``weight``; what it leaves out is as the workload says."""

    name: str = Field(min_length=1, max_length=64)
    weight: float = Field(1.0, gt=0, le=1e9)


@dataclass(frozen=True, slots=True)
class ResolvedClass:
    """A class with nothing left open. ``owns_prefix`` is false when it shares the workload's prefix groups."""

    name: str
    weight: float
    lengths: ClassFields
    samples: int
    beam_width: int
    shared_prefix: SharedPrefix | None
    owns_prefix: bool
    priority: int


def resolve(own: RequestClass, workload: ClassFields) -> ResolvedClass:
    """Fills what the class leaves out. Raises ``ValueError`` when a length is still missing."""
    lengths = own if own.token_pairs or (own.prompt_tokens and own.output_tokens) else _mixed_lengths(own, workload)
    samples = own.samples or workload.samples or 1
    beam_width = (workload.beam_width if own.beam_width is None else own.beam_width) or 0
    _check_search(samples, beam_width)
    return ResolvedClass(
        name=own.name,
        weight=own.weight,
        lengths=lengths,
        samples=samples,
        beam_width=beam_width,
        shared_prefix=own.shared_prefix or workload.shared_prefix,
        owns_prefix=own.shared_prefix is not None,
        priority=(workload.priority if own.priority is None else own.priority) or 0,
    )


def _mixed_lengths(own: RequestClass, workload: ClassFields) -> ClassFields:
    if workload.token_pairs and not (own.prompt_tokens or own.output_tokens):
        return workload
    mixed = ClassFields(
        prompt_tokens=own.prompt_tokens or workload.prompt_tokens,
        output_tokens=own.output_tokens or workload.output_tokens,
    )
    for key in ("prompt_tokens", "output_tokens"):
        if getattr(mixed, key) is None:
            raise ValueError(
                f"{key} is missing for class {own.name!r}: give it there, in the workload, or use token_pairs"
            )
    return mixed


def draw_lengths(
    fields: ClassFields, count: int, *, seed: int, replication: int, index: int, base_dir: Path | None
) -> tuple[IntArray, IntArray]:
    """Prompt and output tokens of the ``count`` requests of class ``index``; each from a stream of its own."""
    prompt_rng = stream(seed, "prompt_tokens", replication, index)
    if fields.token_pairs:
        pairs = load_pairs(fields.token_pairs, base_dir)
        rows = np.floor(prompt_rng.random(count) * len(pairs)).astype(np.int64)
        return pairs.prompt_tokens[rows], pairs.output_tokens[rows]
    assert fields.prompt_tokens and fields.output_tokens
    output_rng = stream(seed, "output_tokens", replication, index)
    return (
        fields.prompt_tokens.draw(prompt_rng, count, base_dir=base_dir),
        fields.output_tokens.draw(output_rng, count, base_dir=base_dir),
    )
