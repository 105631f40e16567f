"""The memory budget: logged pools of real engines, the rules of real planners, and what to do when it does not fit."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.config import EngineConfig
from simulator.device import Device, DeviceConfig, load_device
from simulator.memory import memory_budget, request_bytes, request_pages, resolve_max_model_len
from simulator.model import Model, ModelConfig, load_model, with_weight_dtype
from simulator.models.activations import activation_bytes
from simulator.models.ways_out import largest_model_len

GIB = 2**30
SWAP_SPACE = 4 * GIB


def device(**keys: object) -> Device:
    return load_device(DeviceConfig.model_validate({"preset": "910B3", **keys}))


def model(preset: str, **keys: object) -> Model:
    return load_model(ModelConfig.model_validate({"preset": preset, **keys}))


def engine(**keys: object) -> EngineConfig:
    return EngineConfig.model_validate(keys)


def pool_of(capacity_bytes: int) -> dict[str, object]:
    """A device with room to spare and a KV pool of exactly ``capacity_bytes``."""
    return {
        "kv_capacity_bytes": capacity_bytes,
        "hbm_bytes": "900GiB",
        "hbm_usable_bytes": "900GiB",
        "hbm_free_bytes": "900GiB",
    }


# Pools that real engines logged: model, tensor parallelism, page size, block bytes, CPU blocks of 4 GiB swap space,
# device blocks, length, concurrency as logged. vllm-ascend issue 145; open-r1 bug report on 910B2; log of 2025-02-18.
LOGGED = [
    ("qwen2.5-vl-7b", 1, 16, 917_504, 4_681, 35_511, 4_096, 138.71),
    ("qwen2.5-3b", 1, 128, 4_718_592, 910, 3_915, 32_768, 15.29),
    ("qwen2.5-0.5b", 2, 16, 98_304, 43_690, 572_252, 32_768, 279.42),
]


@pytest.mark.parametrize(("name", "tp", "page_size", "page_bytes", "cpu_pages", "pages", "length", "times"), LOGGED)
def test_logged_block_counts_of_a_910b_come_out(name, tp, page_size, page_bytes, cpu_pages, pages, length, times):
    npu = device(**pool_of(pages * page_bytes + page_bytes - 1))
    settings = engine(tensor_parallel_size=tp, max_model_len=length)
    budget = memory_budget(npu, model(name), settings, page_size=page_size)
    assert budget.page_bytes == page_bytes
    assert SWAP_SPACE // budget.page_bytes == cpu_pages
    assert budget.max_pages == pages
    assert budget.kv_tokens / length == pytest.approx(times, abs=0.005)
    assert budget.max_concurrency == pytest.approx(times, abs=0.005)  # these lengths are whole pages


def test_the_budget_line_of_vllm_ascend_comes_out():
    # Pull request 8289: 61.27 GiB x 0.9 = 55.14; weights 1.14, activation 0.22, non-torch 0.13, graph 0.04.
    small = model("qwen2.5-0.5b")
    weights = small.weight_bytes_per_device()
    gap = round(1.14 * GIB) - weights  # its weights are not of a catalogue model: the gap goes to the runtime
    settings = engine(
        activation_bytes="0.22GiB", runtime_bytes=round(0.13 * GIB) + gap, graph_bytes="0.04GiB", max_model_len=4096
    )
    budget = memory_budget(device(), small, settings)
    assert budget.usable_bytes * 0.9 / GIB == pytest.approx(55.14, abs=0.005)
    assert budget.kv_bytes_available / GIB == pytest.approx(53.61, abs=0.005)


def rtx3090(length: int, peak_gib: float) -> tuple[Device, Model, EngineConfig]:
    """vllm issue 10517: Llama-3.1-8B on 23.58 GiB at 0.9, non-torch 0.35 GiB, peak as logged, pages of 16."""
    card = device(
        hbm_usable_bytes="23.58GiB", hbm_free_bytes="23.58GiB", runtime_reserve_bytes="0.35GiB", graph_bytes=0
    )
    llama = model("llama-3.1-8b")
    settings = engine(max_model_len=length, activation_bytes=round(peak_gib * GIB) - llama.weight_bytes_per_device())
    return card, llama, settings


@pytest.mark.parametrize(
    ("length", "peak_gib", "pages", "times"), [(20_000, 17.06, 1952, 1.56), (29_000, 17.98, 1478, 0.82)]
)
def test_a_logged_pool_comes_out_of_its_logged_parts(length, peak_gib, pages, times):
    card, llama, settings = rtx3090(length, peak_gib)
    budget = memory_budget(card, llama, settings, page_size=16)
    assert budget.page_bytes == 2 * 2**20
    assert SWAP_SPACE // budget.page_bytes == 2048
    # The log rounds to 0.01 GiB, which is five pages of 2 MiB.
    assert abs(budget.max_pages - pages) <= 5
    exact = memory_budget(
        replace(card, kv_capacity_bytes=(pages - 5) * budget.page_bytes), llama, settings, page_size=16
    )
    assert exact.kv_tokens / length == pytest.approx(times, abs=0.01)
    assert budget.fits == (times > 1)


def test_too_long_a_length_names_the_largest_that_fits():
    # Same issue: the engine refused 29,000 with 1,478 pages of 16 tokens, 23,648 in all.
    card, llama, settings = rtx3090(29_000, 17.06)
    card = replace(card, kv_capacity_bytes=1478 * 2**21)
    budget = memory_budget(card, llama, settings, page_size=16)
    assert not budget.fits
    assert budget.kv_tokens == 23_648
    shorter = {way.kind: way for way in budget.ways_out}["shorter_length"]
    assert (shorter.fits, shorter.max_model_len) == (True, 23_648)


@pytest.mark.parametrize(("length", "peak_gib"), [(20_000, 17.06), (29_000, 17.98)])
def test_activations_follow_from_shapes_as_the_profiler_logged_them(length, peak_gib):
    llama = model("llama-3.1-8b")
    settings = engine(max_num_batched_tokens=length, max_num_seqs=256)
    peak = llama.weight_bytes_per_device() + activation_bytes(llama, settings, llama.max_position_embeddings)
    assert peak / GIB == pytest.approx(peak_gib, abs=0.03)


def test_small_models_are_bound_by_the_logits_of_the_sampled_rows():
    qwen = model("qwen2.5-0.5b")
    settings = engine(max_num_batched_tokens=256, max_num_seqs=256)
    logits = 256 * 151_936 * 6
    assert activation_bytes(qwen, settings, 4096) == logits + 256 * 896 * 2 + 4096 * 64 * 2


def test_activations_grow_with_the_token_budget_and_shrink_with_devices():
    llama = model("llama-2-70b")
    sizes = [activation_bytes(llama, engine(max_num_batched_tokens=tokens), 4096) for tokens in (4096, 8192, 16384)]
    assert sizes == sorted(set(sizes))
    wide = [
        activation_bytes(llama, engine(max_num_batched_tokens=16384, tensor_parallel_size=tp), 4096) for tp in (1, 2, 4)
    ]
    assert wide == sorted(set(wide), reverse=True)


def test_without_chunked_prefill_a_whole_prompt_is_in_flight():
    llama = model("llama-3.1-8b")
    chunked = engine(max_num_batched_tokens=2048)
    whole = engine(max_num_batched_tokens=2048, enable_chunked_prefill=False)
    assert activation_bytes(llama, whole, 30_000) == activation_bytes(
        llama, engine(max_num_batched_tokens=30_000), 30_000
    )
    assert activation_bytes(llama, chunked, 30_000) < activation_bytes(llama, whole, 30_000)


@pytest.mark.parametrize(("length", "answer"), [(16_385, 16_384), (16_383, 16_383), (16_384, 16_384)])
def test_the_longest_length_of_8_gib_is_found(length, answer):
    # vLLM test_estimate_max_model_len: 32 layers, 32 KV heads of 128, fp16, pages of 16, 8 GiB
    npu = device(**pool_of(8 * GIB))
    llama = model("llama-2-7b", max_position_embeddings=20_000)
    assert largest_model_len(npu, llama, engine(max_model_len=length), page_size=16) == answer


def test_a_capacity_quoted_by_qwen_users_is_the_longest_length():
    # QwenLM/Qwen3 issue 295: 32 layers, 32 KV heads of 128: 7344 tokens hold 3.586 GiB, 7200 is advised
    npu = device(**pool_of(int(3.59 * GIB)))
    shape = model("llama-2-7b", max_position_embeddings=32_768)
    assert largest_model_len(npu, shape, engine(), page_size=16) == 7344
    assert memory_budget(npu, shape, engine(max_model_len=7200), page_size=16).fits


def test_block_manager_of_lmdeploy_comes_out():
    # InternLM/lmdeploy issue 3411: block_size 8 MB, max_block_count 6214, 6214 * 64 = 397,696 tokens
    budget = memory_budget(device(**pool_of(6214 * 8 * 2**20)), model("llama-3.1-8b"), engine(), page_size=64)
    assert (budget.page_bytes, budget.max_pages, budget.kv_tokens) == (8 * 2**20, 6214, 397_696)
    assert budget.kv_bytes_per_token_per_device == 131_072


def test_a_share_of_what_is_free_is_tensorrt_llms_pool():
    # NVIDIA/TensorRT-LLM issue 1400: 132,608 tokens of 524,288 bytes are 69,524,783,104 bytes
    llama = model("llama-2-7b")
    settings = engine(
        fraction_of="free_after_weights", activation_bytes=0, runtime_bytes=0, graph_bytes=0, max_model_len=4096
    )
    free = llama.weight_bytes_per_device() + 69_524_783_104 * 10 // 9 + 100
    card = device(hbm_bytes=free, hbm_usable_bytes=free, hbm_free_bytes=free)
    budget = memory_budget(card, llama, settings, page_size=64)
    assert budget.kv_bytes_available == pytest.approx(69_524_783_104, abs=1000)
    assert budget.kv_tokens == 132_608


def test_the_three_meanings_of_the_fraction_differ_as_documented():
    npu, llama = device(), model("llama-2-7b")
    fixed = {"activation_bytes": "1GiB", "runtime_bytes": "2GiB", "graph_bytes": "1GiB", "gpu_memory_utilization": 0.8}
    weights, usable, free = llama.weight_bytes_per_device(), npu.hbm_usable_bytes, npu.hbm_free_bytes
    expected = {
        "total": 0.8 * usable - weights - 4 * GIB,
        "free_after_weights": 0.8 * (free - weights - 4 * GIB),
        "free_at_start": 0.8 * free - weights,
    }
    for base, left in expected.items():
        budget = memory_budget(npu, llama, engine(fraction_of=base, **fixed))
        assert budget.kv_bytes_available == pytest.approx(left, abs=1)


@pytest.mark.parametrize("base", ["total", "free_after_weights", "free_at_start"])
@given(share=st.floats(0.05, 1.0), activation_gib=st.integers(0, 30))
def test_nothing_is_promised_twice(base, share, activation_gib):
    npu, llama = device(), model("llama-2-7b")
    settings = engine(fraction_of=base, gpu_memory_utilization=share, activation_bytes=activation_gib * GIB)
    budget = memory_budget(npu, llama, settings)
    if budget.overdraft_bytes == 0:
        others = budget.weights_bytes_per_device + budget.activation_bytes + budget.runtime_bytes + budget.graph_bytes
        assert others + budget.kv_bytes_available <= npu.hbm_free_bytes


def test_several_devices_pay_for_communication_buffers():
    npu, llama = device(count=2), model("llama-2-7b")
    one, two = (memory_budget(npu, llama, engine(tensor_parallel_size=tp)) for tp in (1, 2))
    assert two.runtime_bytes - one.runtime_bytes == 400 * 2**20


def test_a_pool_beyond_the_budget_is_refused_with_both_numbers():
    left = memory_budget(device(), model("llama-2-7b"), engine()).kv_bytes_available
    assert memory_budget(device(kv_capacity_bytes=left), model("llama-2-7b"), engine()).kv_capacity_bytes == left
    with pytest.raises(ValueError, match=rf"{left + 1:,} exceeds the {left:,} bytes"):
        memory_budget(device(kv_capacity_bytes=left + 1), model("llama-2-7b"), engine())


def test_the_length_defaults_to_the_models_and_may_not_exceed_it():
    llama = model("llama-2-7b")
    assert resolve_max_model_len(llama, engine()) == 4096
    with pytest.raises(ValueError, match=r"max_model_len 8192 exceeds the max_position_embeddings 4096"):
        memory_budget(device(), llama, engine(max_model_len=8192))
    stretched = model("llama-2-7b", max_position_embeddings=8192)
    assert memory_budget(device(), stretched, engine(max_model_len=8192)).max_model_len == 8192


def test_heads_must_divide_over_the_devices():
    with pytest.raises(ValueError, match="does not divide"):
        memory_budget(device(), model("llama-2-7b"), engine(tensor_parallel_size=3))


@given(page_size=st.sampled_from([1, 16, 128, 512]), capacity=st.integers(1, 40 * GIB))
def test_pages_are_whole_and_within_the_pool(page_size, capacity):
    budget = memory_budget(device(kv_capacity_bytes=capacity), model("llama-2-7b"), engine(), page_size=page_size)
    assert budget.max_pages * budget.page_bytes <= capacity < (budget.max_pages + 1) * budget.page_bytes
    assert budget.kv_tokens == budget.max_pages * page_size


# Windows


def test_a_windowed_request_needs_the_pages_around_its_window():
    # vLLM kv_cache_interface: window 1024, pages of 16, 1024 tokens in flight: cdiv(1023 + 1024, 16) + 1
    assert request_pages(16_384, page_size=16, window=1024, in_flight_tokens=1024) == 129
    assert 387 // 129 == 3
    full = request_pages(16_384, page_size=16)
    assert 3459 // (full + 129) == 3
    assert request_pages(10, page_size=16, window=1024) == 1


@given(tokens=st.integers(1, 5000), page_size=st.sampled_from([1, 3, 16, 128]), window=st.integers(1, 2000))
def test_window_pages_cover_the_window_wherever_it_starts(tokens, page_size, window):
    held = set(range(max(0, tokens - window), tokens))
    touched = {position // page_size for position in held}
    assert len(touched) <= request_pages(tokens, page_size=page_size, window=window)


def test_windows_raise_the_concurrency_of_hybrid_models():
    gemma = model("gemma-3-27b")
    npu = device(count=2)
    budget = memory_budget(npu, gemma, engine(tensor_parallel_size=2))
    full = 131_072 * 10 * 2 * 8 * 128 * 2  # 10 layers see everything
    sliding = (1024 + 128) * 52 * 2 * 8 * 128 * 2  # 52 keep the window and one page more
    assert budget.request_bytes == full + sliding
    assert budget.max_concurrency == budget.max_pages * budget.page_bytes / (full + sliding)
    assert budget.max_concurrency > 5 * budget.kv_tokens / 131_072


def test_vllm_profiles_plan_for_a_whole_step_in_flight():
    gemma = model("gemma-3-27b")
    plain, vllm = (
        request_bytes(gemma, engine(profile=profile, max_num_batched_tokens=2048), 100_000, page_size=16)
        for profile in ("generic", "vllm-0.33")
    )
    assert vllm - plain == 52 * 2 * 16 * 128 * 2 * (2048 - 16 + 16 * ((1023 + 2048) % 16 != 0))


# Ways out


def way(budget, kind):
    return next(way for way in budget.ways_out if way.kind == kind)


def test_a_budget_that_fits_needs_no_way_out():
    budget = memory_budget(device(), model("llama-2-7b"), engine())
    assert budget.fits
    assert (budget.shortfall_bytes, budget.overdraft_bytes, budget.ways_out) == (0, 0, ())


def test_a_model_too_large_for_one_card_gets_three_ways_out_with_numbers():
    npu, llama = device(count=8), model("llama-2-70b")
    budget = memory_budget(npu, llama, engine())
    assert not budget.fits
    assert budget.max_pages == budget.kv_bytes_available == 0
    allowed = int(npu.hbm_usable_bytes * 0.9)
    others = budget.weights_bytes_per_device + budget.activation_bytes + budget.runtime_bytes + budget.graph_bytes
    assert budget.overdraft_bytes == others - allowed
    assert budget.shortfall_bytes == others - allowed + 4096 * 327_680
    assert [way.kind for way in budget.ways_out] == ["more_devices", "narrower_types", "shorter_length"]
    assert way(budget, "more_devices").tensor_parallel_size == 4  # 138 GB over two cards of 59 GB is too much
    assert not way(budget, "shorter_length").fits
    assert way(budget, "narrower_types").weight_dtype == "int4"


def test_every_way_out_that_fits_fits_when_taken():
    npu, llama = device(count=8), model("llama-3.1-70b")
    budget = memory_budget(npu, llama, engine(tensor_parallel_size=2, gpu_memory_utilization=0.95))
    assert not budget.fits
    for found in budget.ways_out:
        changed = llama if found.weight_dtype == llama.weight_dtype else with_weight_dtype(llama, found.weight_dtype)
        settings = engine(
            tensor_parallel_size=found.tensor_parallel_size,
            kv_cache_dtype=found.kv_cache_dtype,
            max_model_len=found.max_model_len,
            gpu_memory_utilization=0.95,
        )
        taken = memory_budget(npu, changed, settings)
        assert taken.fits == found.fits
        assert taken.kv_tokens == found.kv_tokens
        assert taken.max_concurrency == found.max_concurrency


@given(capacity=st.integers(1, 3 * GIB), page_size=st.sampled_from([16, 100, 128]))
def test_the_longest_length_is_the_one_a_linear_search_finds(capacity, page_size):
    npu, llama = device(**pool_of(capacity)), model("llama-2-7b")
    found = largest_model_len(npu, llama, engine(), page_size=page_size)
    pages = capacity // (page_size * 524_288)
    assert found == min(4096, pages * page_size)


def test_a_pool_too_small_for_one_request_says_what_is_missing():
    npu = device(**pool_of(20 * 128 * 524_288))
    budget = memory_budget(npu, model("llama-2-7b"), engine())
    assert budget.max_pages == 20
    assert budget.shortfall_bytes == 12 * 128 * 524_288
    assert way(budget, "shorter_length").max_model_len == 2560


def test_narrower_types_prefer_the_mildest_change():
    npu = device(**pool_of(17 * 128 * 524_288))  # 17 of the 32 pages of one request
    found = way(memory_budget(npu, model("llama-2-7b"), engine()), "narrower_types")
    assert (found.weight_dtype, found.kv_cache_dtype, found.fits) == ("fp16", "int8", True)


def test_plain_data_carries_the_promised_fields():
    data = memory_budget(device(), model("llama-2-70b"), engine()).to_dict()
    promised = (
        "hbm_bytes usable_bytes weights_bytes_per_device activation_bytes runtime_bytes kv_bytes_per_token_per_device "
        "kv_bytes_available kv_tokens max_pages max_concurrency max_model_len page_size fits shortfall_bytes"
    )
    assert set(promised.split()) <= set(data)
    assert all(isinstance(entry, dict) for entry in data["ways_out"])
