"""A real vLLM engine as its log shows it: step times, arrivals and lengths that a simulation of it needs.

The log (``presets/validation/vllm_measured.csv.gz``) samples eight runs of one engine every half second: tokens
computed, running and waiting requests, blocks in use. It does not say when each request came nor how long it was. So:

arrivals   from the run at scale 100, where hardly anybody waits: request i came when the prompt tokens computed so
           far reached those of the first i requests; other scales are the same arrivals, faster
prompts    gamma, mean as measured (342.3), CV 1 assumed
outputs    lognormal cut at a longest length, mean 715 (measured: 702 to 729); of CVs 1 to 10 and cuts 800 to 1,100
           those that come nearest to the use of memory in two runs (two thirds of the outputs are cut, CV 0.4 is left)
steps      seconds by the number of running sequences, as two runs show them
"""

import csv
import gzip
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from simulator.cost import StepLoad
from simulator.kernels.step_load import Lengths
from simulator.traffic.requests import Requests
from simulator.units import NS_PER_S
from simulator.validating.bench import Floats, Ints, draws, gamma_lengths, lognormal_lengths, requests_of

BLOCKS, BLOCK_TOKENS, SEATS, REQUESTS = 36_282, 16, 256, 500
SCALES = (100, 200, 400, 500, 600, 800, 900, 1000)
#: the runs that step times and the outputs' law were calibrated on
CALIBRATION = (100, 600)
MEAN_PROMPT, MEAN_OUTPUT = 342.3, 715.0
OUTPUT_CV, LONGEST_OUTPUT = 10.0, 900


@dataclass(frozen=True, slots=True)
class Log:
    """One run: a row a sample, throughputs since the sample before."""

    time_s: Floats
    prompt_tokens_per_s: Floats
    output_tokens_per_s: Floats
    running: Floats
    pending: Floats
    blocks: Floats

    @property
    def duration_s(self) -> float:
        """From the first sample to the last."""
        return float(self.time_s[-1])

    @property
    def mean_blocks(self) -> float:
        """Blocks in use, averaged over time (trapezoids between samples)."""
        return float(np.trapezoid(self.blocks, self.time_s)) / self.duration_s


@cache
def load_logs() -> dict[int, Log]:
    """The eight runs by their scale."""
    packed = files("simulator") / "presets" / "validation" / "vllm_measured.csv.gz"
    rows = csv.reader(gzip.decompress(packed.read_bytes()).decode().splitlines()[1:])
    table = np.array([[float(cell) for cell in row] for row in rows])
    return {scale: Log(*table[table[:, 0] == scale, 1:].T) for scale in SCALES}


def requests_at(scale: int) -> Requests:
    """The 500 requests, with the arrivals of scale 100 sped up."""
    prompts, outputs = lengths()
    log = load_logs()[100]
    computed = np.concatenate([[0.0], np.cumsum(log.prompt_tokens_per_s[1:] * np.diff(log.time_s))])
    reached = np.cumsum(prompts) * (computed[-1] / prompts.sum())
    arrivals = np.interp(np.concatenate([[0.0], reached[:-1]]), computed, log.time_s)
    return requests_of(np.rint(arrivals * (100 / scale) * NS_PER_S).astype(np.int64), prompts, outputs)


def lengths() -> tuple[Ints, Ints]:
    """Prompts and outputs with the measured means."""
    rng = draws(80)
    prompts = gamma_lengths(rng, MEAN_PROMPT, 1.0, REQUESTS)
    drawn = lognormal_lengths(rng, MEAN_OUTPUT, OUTPUT_CV, REQUESTS).astype(np.float64)
    for _ in range(50):  # what the cut takes away is given back by scaling
        outputs = np.minimum(drawn, LONGEST_OUTPUT)
        drawn *= MEAN_OUTPUT / outputs.mean()
    prompts = np.maximum(1, np.rint(prompts * (MEAN_PROMPT / prompts.mean()))).astype(np.int64)
    return prompts, np.maximum(1, np.rint(np.minimum(drawn, LONGEST_OUTPUT))).astype(np.int64)


@cache
def step_seconds() -> tuple[Floats, Floats]:
    """Running sequences, and seconds of a step with so many: time over steps of two runs, by bins of the former.

    A step gives every running sequence one token, so a sample's steps are its outputs over its running sequences.
    """
    parts = [_samples(load_logs()[scale]) for scale in CALIBRATION]
    running, steps, seconds = (np.concatenate(column) for column in zip(*parts, strict=True))
    bins = np.searchsorted(_BIN_EDGES, running, side="right")
    found = [(bins == index) for index in range(len(_BIN_EDGES) + 1) if np.any(bins == index)]
    at = np.array([running[mask].mean() for mask in found])
    return at, np.array([seconds[mask].sum() / steps[mask].sum() for mask in found])


_BIN_EDGES = (5, 20, 50, 100, 150, 200, 250)


def _samples(log: Log) -> tuple[Floats, Floats, Floats]:
    """Running sequences, steps and seconds of each sample with work."""
    seconds = np.diff(log.time_s)
    running = (log.running[1:] + log.running[:-1]) / 2
    outputs = log.output_tokens_per_s[1:] * seconds
    busy = (running >= 1) & (outputs > 0)
    return running[busy], outputs[busy] / running[busy], seconds[busy]


class MeasuredCost:
    """Step times of that engine in place of a model of its device: they depend on the sequences in a step only."""

    def __init__(self) -> None:
        at, seconds = step_seconds()
        self._step_ns_of = np.rint(np.interp(np.arange(SEATS + 1), at, seconds) * NS_PER_S).astype(np.int64).tolist()

    def step_ns(self, load: StepLoad) -> int:
        return self.decode_ns(load.decode_sequences + load.prefill_sequences, 0, 0)

    def decode_ns(
        self,
        sequences: int,
        context_tokens: int,
        pages: int,
        windowed_tokens: int = 0,
        lengths: Lengths | None = None,
    ) -> int:
        del context_tokens, pages, windowed_tokens, lengths
        return int(self._step_ns_of[sequences])

    def decode_ns_array(
        self, sequences: int, context_tokens: Ints, pages: Ints, windowed_tokens: Ints, lengths: Lengths | None
    ) -> Ints:
        """The same for arrays of sums."""
        del pages, windowed_tokens, lengths
        return np.full(len(context_tokens), self._step_ns_of[sequences], np.int64)

    def memory_ns(self, copied_bytes: int, swapped_bytes: int, allocator_cycles: int) -> int:
        """Part of the step times already."""
        del copied_bytes, swapped_bytes, allocator_cycles
        return 0
