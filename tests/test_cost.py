"""Step times: equalities between the paths, hand calculations, published decode rows."""

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.config import EngineConfig
from simulator.cost import StepCost, StepLoad
from simulator.device import Device, DeviceConfig, load_device
from simulator.kernels.stages import STAGES
from simulator.kernels.step_load import known_lengths
from simulator.model import Model, ModelConfig, load_model
from simulator.units import ceil_div


@cache
def model(name: str) -> Model:
    return load_model(ModelConfig(preset=name))


@cache
def device(name: str = "910B2") -> Device:
    return load_device(DeviceConfig(preset=name))


@cache
def cost(name: str, page: int = 128, tp: int = 1, card: str = "910B2") -> StepCost:
    return StepCost(device(card), model(name), EngineConfig(tensor_parallel_size=tp), page_tokens=page)


def decode_load(contexts: list[int], page: int = 128, window: int | None = None) -> StepLoad:
    return StepLoad(
        decode_sequences=len(contexts),
        decode_context_tokens=sum(contexts),
        decode_pages=sum(ceil_div(context, page) for context in contexts),
        decode_windowed_tokens=0 if window is None else sum(min(context, window) for context in contexts),
        decode_lengths=known_lengths(contexts),
        sampled_sequences=len(contexts),
    )


MODELS = ["qwen2.5-7b", "llama-2-7b", "gemma-3-27b", "deepseek-v3", "mixtral-8x7b", "gpt-oss-20b"]


def window_of(name: str) -> int | None:
    return next((group.window for group in model(name).groups if group.window is not None), None)


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(MODELS),
    page=st.sampled_from([16, 64, 128, 512]),
    tp=st.sampled_from([1, 4]),
    contexts=st.lists(st.integers(1, 130_000), min_size=1, max_size=50),
)
def test_decode_scalar_array_and_general_step_are_the_same_integer(
    name: str, page: int, tp: int, contexts: list[int]
) -> None:
    step = cost(name, page, tp)
    loads = [decode_load([c + i for c in contexts], page, window_of(name)) for i in (0, 1, 17)]
    general = [step.step_ns(load) for load in loads]
    sums = [(load.decode_context_tokens, load.decode_pages, load.decode_windowed_tokens) for load in loads]
    lengths = [load.decode_lengths for load in loads]
    assert [step.decode_ns(len(contexts), *row, one) for row, one in zip(sums, lengths, strict=True)] == general
    columns = np.array(sums, np.int64).T
    rows = np.array(contexts) + np.array([[0], [1], [17]])
    assert step.decode_ns_array(len(contexts), *columns, lambda: rows).tolist() == general
    many = [np.repeat(column, 10) for column in columns]
    long = np.repeat(rows, 10, axis=0)
    assert step.decode_ns_array(len(contexts), *many, lambda: long).tolist() == np.repeat(general, 10).tolist()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("page", [128, 1024])
def test_a_long_quiet_stretch_costs_what_its_steps_cost(name: str, count: int, page: int) -> None:
    step, steps = cost(name, page), np.arange(100)
    tokens, pages, windowed = count * (5000 + steps), np.full(100, count * 5120 // page), np.full(100, count * 1024)
    apart = 150 * (np.arange(count) - (count - 1) // 2) * (count % 2)
    rows = 5000 + apart + steps[:, None]
    loads = [StepLoad(decode_sequences=count, sampled_sequences=count, decode_pages=int(pages[0])) for _ in steps]
    for load, total, row in zip(loads, tokens, rows.tolist(), strict=True):
        load.decode_context_tokens, load.decode_windowed_tokens = int(total), count * 1024
        load.decode_lengths = known_lengths(row)
    assert step.decode_ns_array(count, tokens, pages, windowed, lambda: rows).tolist() == [
        step.step_ns(load) for load in loads
    ]


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(["llama-3.2-1b", "qwen2.5-7b", "llama-2-7b", "qwen3-32b"]),
    page=st.sampled_from([8, 16, 32, 64, 128]),
    logs=st.lists(st.floats(0, 17), min_size=1, max_size=100),
)
def test_a_step_by_sums_is_within_2_percent_of_one_with_every_length_known(
    name: str, page: int, logs: list[float]
) -> None:
    contexts = [int(2**log) for log in logs]
    step, load = cost(name, page), decode_load(contexts, page)
    (group,) = step.groups
    assert not group.kernel.needs_lengths
    known = group.kernel.seconds(len(contexts), 0, 0, known_lengths(contexts))
    sums = group.kernel.seconds(len(contexts), sum(contexts), load.decode_pages)
    assert group.layers * abs(sums - known) <= 0.02 * step.seconds(load)


def test_given_step_time_replaces_the_model_everywhere() -> None:
    step = StepCost(device(), model("qwen2.5-7b"), EngineConfig(step_time=0.01), page_tokens=128)
    assert step.step_ns(StepLoad()) == step.decode_ns(3, 100, 3) == 10_000_000
    sums = np.array([1, 2]), np.array([1, 1]), np.array([0, 0])
    assert step.decode_ns_array(3, *sums, None).tolist() == [10_000_000] * 2


def test_seven_stages_sum_to_the_step() -> None:
    for name in MODELS:
        load = replace(
            decode_load([700, 4000, 1], window=window_of(name)),
            prefill_tokens=900,
            prefill_pairs=900 * 901 // 2,
            prefill_context_tokens=900,
            prefill_sequences=1,
            prefill_pages=8,
            new_pages=9,
            copied_bytes=10**9,
            swapped_bytes=10**8,
            allocator_cycles=5000,
        )
        stages = cost(name).breakdown(load)
        assert tuple(stage.name for stage in stages) == STAGES
        assert sum(stage.seconds for stage in stages) == pytest.approx(cost(name).seconds(load), rel=1e-6)


def test_a_lone_decode_step_is_the_sum_of_its_parts_by_hand() -> None:
    card = device()
    seconds = cost("llama-2-7b").seconds(decode_load([1]))
    weights = (model("llama-2-7b").parameters - 32000 * 4096) * 2  # the input embedding is looked up, not streamed
    parts = card.host_step_s + card.host_sequence_s + 32 * 10 * card.launch_s + weights / card.hbm_sustained_bandwidth
    assert seconds == pytest.approx(parts, rel=0.01)


def test_large_prefill_is_bound_by_the_cube() -> None:
    tokens = 8192
    load = StepLoad(
        prefill_tokens=tokens,
        prefill_pairs=tokens * (tokens + 1) // 2,
        prefill_context_tokens=tokens,
        prefill_sequences=1,
        sampled_sequences=1,
    )
    packing = cost("llama-2-7b").breakdown(load)[2]
    assert packing.bound == "compute"
    flops = 2 * (model("llama-2-7b").parameters - 2 * 32000 * 4096) * tokens
    assert packing.flops == pytest.approx(flops, rel=0.01)
    assert packing.seconds - packing.launch_s == pytest.approx(flops / (354e12 * 0.88), rel=0.01)


def test_a_mixture_streams_only_the_experts_its_tokens_reach() -> None:
    one, many = (cost("mixtral-8x7b", 128, 2).token_work(tokens)[0].moved_bytes for tokens in (1, 4096))
    whole = (46_702_792_704 - 2 * 32000 * 4096) * 2 / 2
    expert = 3 * 4096 * 14336 * 2 / 2
    assert many == pytest.approx(whole, rel=0.01)
    assert one == pytest.approx(whole - 32 * 6 * expert, rel=0.01)


def test_all_reduce_moves_ring_traffic_twice_a_layer() -> None:
    reduce = cost("qwen3-32b", 128, 4).token_work(100)[1]
    moved = 2 * 64 * 2 * 3 / 4 * 100 * 5120 * 2
    assert reduce.moved_bytes == moved
    assert reduce.seconds == pytest.approx(moved / 392e9 + 128 * device().link_latency_s)


def test_pipeline_stages_add_hand_overs_and_nothing_else() -> None:
    one, two = (
        StepCost(device(), model("qwen3-32b"), EngineConfig(pipeline_parallel_size=pp), page_tokens=128).seconds(
            decode_load([1000] * 8)
        )
        for pp in (1, 2)
    )
    assert two - one == pytest.approx(8 * 5120 * 2 / 392e9 + device().link_latency_s, rel=1e-6)


def test_memory_moves_take_their_channel() -> None:
    step = cost("qwen2.5-7b")
    base = step.seconds(StepLoad())
    assert step.seconds(StepLoad(copied_bytes=10**9)) - base == pytest.approx(1 / 1450)
    assert step.seconds(StepLoad(swapped_bytes=10**9)) - base == pytest.approx(1 / 25.3)
    assert step.seconds(StepLoad(allocator_cycles=10**6)) - base == pytest.approx(1e6 / 1.8e9)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(MODELS),
    field=st.sampled_from(
        [field.name for field in fields(StepLoad) if field.name not in ("new_pages", "prefill_pages", "decode_lengths")]
    ),
    more=st.integers(1, 10_000),
)
def test_more_work_never_takes_less_time(name: str, field: str, more: int) -> None:
    load = replace(
        decode_load([5000] * 20, window=window_of(name)),
        prefill_tokens=500,
        prefill_pairs=200_000,
        prefill_context_tokens=600,
        prefill_sequences=2,
    )
    if field in ("decode_sequences", "decode_pages", "decode_windowed_tokens"):
        more = min(more, 20)  # sums stay consistent with each other
    grown = replace(load, **{field: getattr(load, field) + more})
    assert cost(name).seconds(grown) >= cost(name).seconds(load) * 0.999


# Decode on vllm-ascend 0.7.3, eager: Qwen2.5-7B inter-token latency at 1 request a second (about 7 running) and the
# offline latency test (batch 8, 32 in, 128 out), vllm-ascend issue 776; Qwen3-32B TP4 on Atlas 800T A2, 735 in, 1880
# out, at concurrency 1, 24 and 34, vllm-ascend suffix-decoding guide. The eager stack's host cost is calibrated on the
# first row alone, its launch floor is the intercept of 1,216 fused-attention points on a 910B.
CALIBRATION = ("qwen2.5-7b", 1, 7, 350, 35.3)
ROWS = [
    ("qwen2.5-7b", 1, 8, 96, 33.4),
    ("qwen3-32b", 4, 1, 1675, 53.1),
    ("qwen3-32b", 4, 24, 1675, 64.0),
    ("qwen3-32b", 4, 34, 1675, 70.0),
]


def eager_ms(name: str, tp: int, batch: int, context: int, **changes: float) -> float:
    card = replace(load_device(DeviceConfig(preset="910B2", stack="eager")), **changes)  # type: ignore[arg-type]
    step = StepCost(card, model(name), EngineConfig(tensor_parallel_size=tp), page_tokens=128)
    return step.seconds(decode_load([context] * batch)) * 1e3


def test_the_eager_host_cost_is_what_its_one_row_leaves() -> None:
    *row, measured_ms = CALIBRATION
    eager = load_device(DeviceConfig(preset="910B2", stack="eager"))
    left_ms = measured_ms - eager_ms(*row, host_step_s=0.0)  # type: ignore[arg-type]
    assert left_ms == pytest.approx(eager.host_step_s * 1e3, rel=0.01)


@pytest.mark.parametrize(("name", "tp", "batch", "context", "measured_ms"), ROWS)
def test_decode_rows_follow_once_the_host_cost_is_calibrated(
    name: str, tp: int, batch: int, context: int, measured_ms: float
) -> None:
    assert eager_ms(name, tp, batch, context) == pytest.approx(measured_ms, rel=0.08)


# Later stacks launch faster; these are the rows the catalogue's host cost comes from, so only a sanity check.
@pytest.mark.parametrize(("name", "batch", "measured_ms"), [("qwen2.5-7b", 5, 22.5), ("qwen3-8b", 10, 25.9)])
def test_the_catalogue_host_cost_gives_the_tuned_stacks_rows(name: str, batch: int, measured_ms: float) -> None:
    assert cost(name).seconds(decode_load([400] * batch)) * 1e3 == pytest.approx(measured_ms, rel=0.15)
