"""A real vLLM engine as its logs show it: step times, and the 500 requests it was sent.

The engine's log (``presets/validation/vllm_measured.csv.gz``) samples eight runs of one engine every half second:
tokens computed, running and waiting requests, blocks in use. The client's log of the run at scale 100
(``vllm_requests.csv.gz``) has when each request was sent, when it ended, and its prompt's tokens by the client's own
tokenizer. So:

arrivals   as sent at scale 100; other scales are the same, faster
prompts    the client's counts, all multiplied by the ratio of the engine's total to the client's (0.80)
outputs    steps between a request's first token and its end, of the engine's log: tokens generated over the requests
           that the client's log has running. Three in five come out at 995 to 1,029, which is the limit of 1,024; the
           others end by themselves. Decoding was greedy, so other runs have nearly the same outputs
steps      seconds by sequences, blocks and prompt tokens, fitted to two runs
"""

import csv
import gzip
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from simulator.cost import StepLoad
from simulator.kernels.step_load import Lengths
from simulator.traffic.requests import Requests
from simulator.units import NS_PER_S
from simulator.validating.bench import Floats, Ints, requests_of

BLOCKS, BLOCK_TOKENS, SEATS, REQUESTS = 36_282, 16, 256, 500
SCALES = (100, 200, 400, 500, 600, 800, 900, 1000)
#: the runs that step times were fitted to; requests are those of the first
CALIBRATION = (100, 600)
#: most outputs of a request (the client's ``max_tokens``), and from where on steps are taken for it
LONGEST_OUTPUT, NEARLY = 1024, 950
#: of the grid on which steps of the engine's log are counted
_TICK_S = 0.02


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
    table = _table("vllm_measured")
    return {scale: Log(*table[table[:, 0] == scale, 1:].T) for scale in SCALES}


def _table(name: str) -> Floats:
    packed = files("simulator") / "presets" / "validation" / f"{name}.csv.gz"
    rows = csv.reader(gzip.decompress(packed.read_bytes()).decode().splitlines()[1:])
    return np.array([[float(cell) for cell in row] for row in rows])


@dataclass(frozen=True, slots=True)
class Sent:
    """The client's log of the run at scale 100: when a request was sent and ended, and its prompt by its own count."""

    sent_s: Floats
    ended_s: Floats
    client_tokens: Floats


@cache
def load_sent() -> Sent:
    """The 500 requests in the order in which they were sent."""
    table = _table("vllm_requests")
    return Sent(table[:, 3] - table[:, 2], table[:, 3], table[:, 1])


def requests_at(scale: int) -> Requests:
    """The 500 requests, with the arrivals of scale 100 sped up."""
    prompts, outputs = lengths()
    arrivals = load_sent().sent_s - load_sent().sent_s[0]
    return requests_of(np.rint(arrivals * (100 / scale) * NS_PER_S).astype(np.int64), prompts, outputs)


@cache
def lengths() -> tuple[Ints, Ints]:
    """Prompts and outputs."""
    sent, log = load_sent(), load_logs()[100]
    computed = float((log.prompt_tokens_per_s[1:] * np.diff(log.time_s)).sum())
    prompts = np.rint(sent.client_tokens * (computed / sent.client_tokens.sum()))
    steps = np.rint(steps_between(sent, log))
    outputs = np.where(steps > NEARLY, LONGEST_OUTPUT, np.maximum(1, steps))
    return np.maximum(1, prompts).astype(np.int64), outputs.astype(np.int64)


def steps_between(sent: Sent, log: Log, *, until_s: float = math.inf) -> Floats:
    """Steps from each request's start to its end, or ``until_s``: the engine's tokens a second over those running."""
    ticks = np.arange(0, sent.ended_s.max() + 1, _TICK_S)
    running = np.searchsorted(np.sort(sent.sent_s), ticks, "right") - np.searchsorted(
        np.sort(sent.ended_s), ticks, "right"
    )
    sample = np.clip(np.searchsorted(log.time_s, ticks), 1, len(log.time_s) - 1)
    rates = np.where(running > 0, log.output_tokens_per_s[sample] / np.maximum(running, 1), 0.0)
    steps = np.concatenate([[0.0], np.cumsum(rates * _TICK_S)])[:-1]
    ended_s = np.minimum(sent.ended_s, until_s)
    return np.asarray(np.interp(ended_s, ticks, steps) - np.interp(sent.sent_s, ticks, steps), np.float64)


#: samples that are added up before step times are fitted: about five seconds, so that one sample's noise is small
_SAMPLES = 10
#: a longer time between samples was idle: the log pauses when nothing runs
_LONGEST_SAMPLE_S = 2.0


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """A step: a fixed part, and parts for sequences, their square, their blocks, and prompt tokens computed."""

    fixed: float
    sequence: float
    squared: float
    block: float
    prompt_token: float

    def of(self, sequences: int, blocks: Any, prompt_tokens: int) -> Any:
        """Seconds of a step; arrays of blocks in, arrays out."""
        batch = self.fixed + sequences * (self.sequence + sequences * self.squared)
        return batch + blocks * self.block + prompt_tokens * self.prompt_token


@cache
def step_seconds() -> StepSeconds:
    """Seconds of a step of that engine, fitted to two runs by least squares (errors taken relative to time)."""
    sums = np.vstack([_sums(load_logs()[scale]) for scale in CALIBRATION])
    weights = 1 / np.sqrt(sums[:, 5])
    fitted, *_ = np.linalg.lstsq(sums[:, :5] * weights[:, None], sums[:, 5] * weights, rcond=None)
    return StepSeconds(*fitted.tolist())


def _sums(log: Log) -> Floats:
    """Steps, and steps times sequences, their square and blocks, prompt tokens, seconds: of ten samples together.

    A step gives every running sequence one token, so a sample's steps are its outputs over its running sequences.
    """
    seconds = np.diff(log.time_s)
    running, blocks = ((column[1:] + column[:-1]) / 2 for column in (log.running, log.blocks))
    outputs, prompts = log.output_tokens_per_s[1:] * seconds, log.prompt_tokens_per_s[1:] * seconds
    busy = (running >= 2) & (outputs > 0) & (seconds < _LONGEST_SAMPLE_S)
    steps = outputs / np.maximum(running, 1)
    rows = np.column_stack([steps, steps * running, steps * running**2, steps * blocks, prompts, seconds])[busy]
    whole = len(rows) // _SAMPLES * _SAMPLES
    return np.asarray(rows[:whole].reshape(-1, _SAMPLES, 6).sum(axis=1), np.float64)


class MeasuredCost:
    """Step times of that engine in place of a model of its device."""

    fixed_ns: int | None = None

    def __init__(self) -> None:
        self._seconds = step_seconds()

    def step_ns(self, load: StepLoad) -> int:
        sequences, pages = load.decode_sequences + load.prefill_sequences, load.decode_pages + load.prefill_pages
        return int(self._seconds.of(sequences, pages, load.prefill_tokens) * NS_PER_S)

    def decode_ns(
        self,
        sequences: int,
        context_tokens: int,
        pages: int,
        windowed_tokens: int = 0,
        lengths: Lengths | None = None,
    ) -> int:
        del context_tokens, windowed_tokens, lengths
        return int(self._seconds.of(sequences, pages, 0) * NS_PER_S)

    def decode_ns_array(
        self, sequences: int, context_tokens: Ints, pages: Ints, windowed_tokens: Ints, lengths: Lengths | None
    ) -> Ints:
        """The same for arrays of sums."""
        del context_tokens, windowed_tokens, lengths
        return np.asarray(self._seconds.of(sequences, pages, 0) * NS_PER_S).astype(np.int64)

    def memory_ns(self, copied_bytes: int, swapped_bytes: int, allocator_cycles: int) -> int:
        """Part of the step times already."""
        del copied_bytes, swapped_bytes, allocator_cycles
        return 0
