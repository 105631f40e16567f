"""Decode batches that grow step by step while sequences come and go."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simulator.kernels.batch_lengths import Skews, StepLengths
from simulator.units import ceil_div


class Offsets:
    """A batch as the attention cost sees it."""

    def __init__(self) -> None:
        self.step, self.changes = 0, 0
        self.members: list[int] = []
        self.skews = Skews()

    @property
    def size(self) -> int:
        return len(self.members)

    def offsets(self) -> np.ndarray:
        return np.array(self.members, np.int64)

    def join(self, length: int) -> None:
        self.members.append(length - self.step)
        self.changes += 1

    def leave(self, place: int) -> None:
        del self.members[place]
        self.changes += 1


@dataclass(frozen=True)
class Step:
    lengths: list[int]
    told: StepLengths

    def sums(self, page: int) -> tuple[int, int, int, int]:
        return len(self.lengths), sum(self.lengths), sum(ceil_div(one, page) for one in self.lengths), 0


def first_lengths(rng: np.random.Generator, most: int, longest: int) -> list[int]:
    """Log-uniform, uniform, few long among many short, or lognormal ones."""
    count, kind = log_uniform(rng, 2, most), rng.integers(4)
    low, high = log_uniform(rng, 1, 300), log_uniform(rng, 300, longest)
    median = log_uniform(rng, 10, longest // 4)
    draw = (
        lambda: log_uniform(rng, 1, longest),
        lambda: 1 + int(rng.integers(high)),
        lambda: low + int(rng.integers(low + 1)) if rng.random() < 0.8 else high,
        lambda: max(1, min(longest, int(median * np.exp(rng.normal())))),
    )[kind]
    return [draw() for _ in range(count)]


def evolving(rng: np.random.Generator, *, most: int, longest: int, steps: int) -> Iterator[Step]:
    """Steps of a batch from which a sequence leaves now and then, and which one like the others joins."""
    batch = Offsets()
    kinds = first_lengths(rng, most, longest)
    for length in kinds:
        batch.join(length)
    often = rng.choice([0.0, 0.02, 0.3, 1.0])
    for step in range(1, steps + 1):
        yield Step((batch.offsets() + step).tolist(), StepLengths(batch, batch.skews, step))
        batch.step = step
        if rng.random() < often and batch.size > 2:
            batch.leave(int(rng.integers(batch.size)))
        if rng.random() < often:
            batch.join(kinds[int(rng.integers(len(kinds)))])


def log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))
