"""Decode attention as the engine charges it, while a batch grows and changes, against the launch played out."""

from dataclasses import dataclass

import launch_recurrence
import numpy as np
import pytest
from batch_worlds import Offsets, evolving

from simulator.device import DeviceConfig, load_device
from simulator.kernel import PagedKernel
from simulator.kernels.batch_attention import BatchAttention
from simulator.kernels.batch_lengths import MOST_STEPS, Found, Mark, Skews, StepLengths
from simulator.kernels.core_race import Finish
from simulator.kernels.decode_attention import GroupAttention, attention_shape
from simulator.kernels.step_load import known_lengths
from simulator.kernels.tiles import KernelOptions
from simulator.model import ModelConfig, load_model
from simulator.models.model_shape import AttentionGroup, Model
from simulator.rng import stream

DEVICES = [load_device(DeviceConfig(preset=name)) for name in ("910B1", "910B2", "910B3", "910B4", "910C")]
#: launches longer than this many pages over all heads take too long to play
MOST_PAGES = 6000


@dataclass(frozen=True)
class Charged:
    """Seconds of all layers with the launch floor: as charged, and played."""

    charged_s: float
    played_s: float
    page: int
    lengths: list[int]

    @property
    def error(self) -> float:
        return self.charged_s / self.played_s - 1.0


def attention_of(
    model: Model, device_index: int, page: int, run_pages: float = 1.0
) -> tuple[BatchAttention, PagedKernel]:
    device, group = DEVICES[device_index], model.groups[0]
    one = GroupAttention(
        device,
        attention_shape(model, group, tp=1, kv_bytes=2.0),
        group=group,
        page_tokens=page,
        options=KernelOptions(run_pages=run_pages),
    )
    return BatchAttention((one,), device.launch_s), one.kernel


def charged(seed: int, *, run: int = 1, steps: int = 60, every: int = 10) -> list[Charged]:
    """Every tenth step, or so, of one random batch: model, device, page size, lengths, comings and goings."""
    rng = stream(seed, "launches", index=17)
    names = ("llama-3.1-8b", "llama-3.2-1b", "qwen2.5-7b", "llama-2-7b", "qwen3-32b")
    model = load_model(ModelConfig(preset=names[rng.integers(len(names))]))
    page = int(rng.choice([8, 16, 32, 64, 128, 256]))
    attention, kernel = attention_of(model, int(rng.integers(len(DEVICES))), page, float(run))
    layers, floor_s, found = model.num_layers, kernel.device.launch_s, []
    for at, step in enumerate(evolving(rng, most=100, longest=20000, steps=steps)):
        sums = step.sums(page)
        if sums[2] * kernel.plan.steps_per_group > MOST_PAGES:
            break
        seconds = attention.seconds(*sums, step.told)
        if at % every == 0:
            played = launch_recurrence.seconds(kernel, step.lengths, run)
            found.append(Charged(layers * floor_s + seconds, layers * (floor_s + played), page, step.lengths))
    return found


def test_attention_as_charged_is_within_2_percent_of_the_played_launch_while_batches_grow_and_change() -> None:
    found = [one for seed in range(24) for one in charged(seed)]
    assert len(found) > 60
    for one in found:
        assert abs(one.error) <= 0.02, one


def test_a_skew_is_looked_at_again_before_sequences_of_a_page_or_two_begin_another() -> None:
    # 21 sequences of 194 tokens on average, pages of 256: three of them begin their third page within two steps.
    for one in charged(1046, steps=200):
        assert abs(one.error) <= 0.02, one


@pytest.mark.parametrize(
    ("seed", "run", "steps"),
    [
        # Short sequences on one core outgrow a long one that is last: six of 62 tokens and one of 5,535.
        (1163, 1, 80),
        (1111, 1, 40),
        # 128 and 62 tokens in pages of 64: two of three sequences begin a page, so others lie on each core.
        (3209, 1, 200),
        # Forty sequences begin their ninth page within three steps.
        (2510, 1, 130),
        # One of eight sequences, with a third of the pages, leaves.
        (4148, 4, 110),
        (4365, 4, 80),
    ],
)
def test_a_skew_is_looked_at_again_when_cores_outgrow_others_or_pages_are_dealt_anew(
    seed: int, run: int, steps: int
) -> None:
    for one in charged(seed, run=run, steps=steps, every=1):
        assert abs(one.error) <= 0.02, one


@pytest.mark.long
@pytest.mark.parametrize(("first", "run"), [(1000, 1), (1200, 1), (4000, 4)])
def test_attention_as_charged_is_within_2_percent_in_every_step_of_many_batches(first: int, run: int) -> None:
    for seed in range(first, first + 200):
        for one in charged(seed, run=run, steps=200):
            assert abs(one.error) <= 0.02, one


def test_a_skew_holds_while_pages_grow_steadily() -> None:
    mark = Mark(1.1, 10, 50, 2)
    assert mark.fits(30, 10**9)
    mark.expect(100, 0.25, 1.0)  # a page in four steps
    assert [mark.fits(step, pages) for step, pages in ((10, 101), (10, 98), (30, 105), (30, 107), (30, 103))] == [
        *(True, False, True, False, False)
    ]


@pytest.mark.parametrize(
    ("done_s", "growth_s", "steps"),
    [
        # The launch takes 100 and grows by 100 / 200 a step; 2 of slack.
        ([100.0, 90.0], [0.5, 0.5], 64),  # like the mean
        ([100.0, 90.0], [0.6, 0.1], 20),  # the last one itself outgrows it: 2 / 0.1
        ([100.0, 90.0], [0.1, 1.3], 15),  # another one does: (10 + 2) / 0.8
    ],
)
def test_a_launch_is_alike_until_a_core_outgrows_it(done_s: list[float], growth_s: list[float], steps: int) -> None:
    assert Finish(done_s, growth_s).steps_alike(2.0, 200.0, 64) in (steps, steps - 1)


def test_a_skew_holds_for_its_steps_and_changes_and_what_was_found_for_later_is_forgotten() -> None:
    skews, asker = Skews(), object()
    assert skews.at(1, 0, asker, 9) is None
    skews.put(Mark(1.1, 1, 5, 2), 0)
    skews.put(Mark(1.2, 5, 9, 2), 0)  # asked ahead
    assert [mark and mark.skew for mark in (skews.at(step, 0, asker, 9) for step in (7, 3, 3, 5, 7))] == [
        *(1.2, 1.1, 1.1, None, None)
    ]
    assert skews.at(4, 2, asker, 9) is not None
    assert skews.at(4, 3, asker, 9) is None
    assert skews.at(4, 2, object(), 9) is None  # another cost model knows nothing


def test_a_skew_of_long_lengths_holds_for_many_steps_and_a_great_one_until_somebody_comes() -> None:
    batch = Offsets()
    for _ in range(32):
        batch.join(100_000)
    told = StepLengths(batch, batch.skews, 1)
    slight, great = (
        told.remember(1, Found(1.001, 0.001, 64), 100_000, 800, 128),
        told.remember(1, Found(1.3, 0.2, 64), 640, 9, 128),
    )
    assert (slight.until, slight.changes - batch.changes) == (1 + MOST_STEPS, 8)
    assert (great.until, great.changes - batch.changes) == (6, 0)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-20b", "deepseek-v3"])
@pytest.mark.parametrize("page", [16, 128, 1024])
def test_steps_asked_at_once_or_ahead_or_one_by_one_have_the_same_skews(name: str, page: int) -> None:
    model = load_model(ModelConfig(preset=name))
    groups = tuple(_group(model, group, page) for group in model.groups)
    window = max((group.window or 0 for group in model.groups), default=0)

    def batch() -> Offsets:
        made = Offsets()
        for length in (5, 700, 31, 1300, 2):
            made.join(length)
        return made

    def sums(made: Offsets, step: int) -> tuple[int, int, int, int]:
        lengths = (made.offsets() + step).tolist()
        windowed = sum(min(one, window) for one in lengths)
        return len(lengths), sum(lengths), sum(-(-one // page) for one in lengths), windowed

    single, attention = batch(), BatchAttention(groups, 2e-5)
    one_by_one = []
    for step in range(1, 101):
        one_by_one.append(attention.skew(sums(single, step), StepLengths(single, single.skews, step)))
        single.step = step
        if step == 60:
            single.leave(1)
    many, attention, at_once = batch(), BatchAttention(groups, 2e-5), []
    for first, behind in ((1, 41), (31, 61), (61, 101)):  # ten steps of the first stretch are not taken after all
        steps = np.arange(first, behind)
        columns = np.array([sums(many, int(step))[1:] for step in steps]).T
        told = StepLengths(many, many.skews, steps)
        at_once[first - 1 :] = attention.skews(many.size, tuple(columns), told) or [1.0] * len(steps)
        many.step = 30 if first == 1 else behind - 1
        if behind == 61:
            many.leave(1)
    assert at_once == one_by_one
    assert len(set(at_once)) > 1 or attention.needs_lengths


def _group(model: Model, group: AttentionGroup, page: int) -> GroupAttention:
    shape = attention_shape(model, group, tp=1, kv_bytes=2.0)
    return GroupAttention(DEVICES[1], shape, group=group, page_tokens=page, options=KernelOptions())


def test_a_lone_sequence_is_told_by_its_sums() -> None:
    attention, kernel = attention_of(load_model(ModelConfig(preset="llama-3.1-8b")), 1, 16)
    for length in (1, 15, 16, 17, 300, 5000):
        seconds = attention.seconds(1, length, -(-length // 16), 0, known_lengths([length]))
        played = launch_recurrence.seconds(kernel, [length])
        floor = kernel.device.launch_s
        assert floor + seconds / 32 == pytest.approx(floor + played, rel=0.01)
