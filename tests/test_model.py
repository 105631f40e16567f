"""Models: published parameter counts, the KV rule, sharding, quantised storage, and refusals."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simulator.model import (
    PRESETS,
    Model,
    ModelConfig,
    kv_dtype_bytes,
    load_model,
    model_aliases,
    model_names,
    with_weight_dtype,
)
from simulator.models.hf_config import model_from_config
from simulator.models.hf_families import FAMILIES

SAFETENSORS = "total parameters in the safetensors index of the Hugging Face repository"

# name: (published count, where it is published)
PUBLISHED = {
    "llama-2-7b": (6_738_415_616, SAFETENSORS),
    "llama-2-13b": (13_015_864_320, SAFETENSORS),
    "llama-2-70b": (68_976_648_192, SAFETENSORS),
    "llama-3.1-8b": (8_030_261_248, SAFETENSORS),
    "llama-3.1-70b": (70_553_706_496, SAFETENSORS),
    "llama-3.1-405b": (405_853_388_800, SAFETENSORS),
    "llama-3.2-1b": (1_235_814_400, SAFETENSORS),
    "qwen2.5-0.5b": (494_032_768, SAFETENSORS),
    "qwen2.5-3b": (3_085_938_688, SAFETENSORS),
    "qwen2.5-7b": (7_615_616_512, SAFETENSORS),
    "qwen2.5-32b": (32_763_876_352, SAFETENSORS),
    "qwen2.5-72b": (72_706_203_648, SAFETENSORS),
    "qwen3-8b": (8_190_735_360, SAFETENSORS),
    "qwen3-32b": (32_762_123_264, SAFETENSORS),
    "qwen3-30b-a3b": (30_532_122_624, SAFETENSORS),
    "qwen3-235b-a22b": (235_093_634_560, SAFETENSORS),
    "mixtral-8x7b": (46_702_792_704, SAFETENSORS),
    "mistral-7b": (7_241_732_096, SAFETENSORS),
    "deepseek-v2-lite": (15_706_484_224, SAFETENSORS),
    "deepseek-v3": (671_026_419_200, "DeepSeek-V3 technical report: 671B, without the multi-token prediction module"),
    "gemma-3-27b": (1_416_000_000 + 25_600_000_000, "Gemma 3 technical report, table 1: embedding + non-embedding"),
    "gpt-oss-20b": (20_910_000_000, "gpt-oss model card, table 1"),
    "gpt-oss-120b": (116_830_000_000, "gpt-oss model card, table 1"),
}

# name: (published active parameters, of which the input embedding is not counted)
ACTIVE = {
    "mixtral-8x7b": (12.9e9, False),  # Mixtral of Experts, section 2
    "deepseek-v3": (37e9, False),  # DeepSeek-V3 technical report
    "qwen3-30b-a3b": (3.3e9, False),  # Qwen3 model card
    "qwen3-235b-a22b": (22e9, False),  # Qwen3 model card
    "gpt-oss-20b": (3.61e9, True),  # gpt-oss model card, table 1
    "gpt-oss-120b": (5.13e9, True),  # gpt-oss model card, table 1
}


def load(preset: str, **keys: object) -> Model:
    return load_model(ModelConfig.model_validate({"preset": preset, **keys}))


def llama(**keys: object) -> dict[str, object]:
    """A small Llama config."""
    base = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
        "torch_dtype": "bfloat16",
    }
    return {**base, **keys}


def build(config: dict[str, object]) -> Model:
    return model_from_config(config, name="small", place="config.json")


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_within_half_a_percent_of_the_published_ones(name):
    published, _source = PUBLISHED[name]
    assert load(name).parameters == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize("name", [name for name, (_count, source) in PUBLISHED.items() if source == SAFETENSORS])
def test_parameter_counts_equal_the_checkpoint_exactly(name):
    assert load(name).parameters == PUBLISHED[name][0]


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_match_the_published_figures(name):
    published, without_embedding = ACTIVE[name]
    model = load(name)
    active = model.active_parameters - (model.vocab_size * model.hidden_size if without_embedding else 0)
    assert active == pytest.approx(published, rel=0.025)


# Families without a preset: config values of the released model, and its published count.
OTHER = {
    "phi-3-mini": (
        {
            **llama(hidden_size=3072, intermediate_size=8192, num_hidden_layers=32, num_attention_heads=32),
            "model_type": "phi3",
            "num_key_value_heads": 32,
            "vocab_size": 32064,
        },
        3_821_079_552,
    ),
    "gemma-2-9b": (
        {
            **llama(hidden_size=3584, intermediate_size=14336, num_hidden_layers=42, num_attention_heads=16),
            "model_type": "gemma2",
            "num_key_value_heads": 8,
            "head_dim": 256,
            "sliding_window": 4096,
            "vocab_size": 256000,
        },
        9_241_705_984,
    ),
    "qwen1.5-moe-a2.7b": (
        {
            **llama(hidden_size=2048, intermediate_size=5632, num_hidden_layers=24, num_attention_heads=16),
            "model_type": "qwen2_moe",
            "num_key_value_heads": 16,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "vocab_size": 151936,
        },
        14_315_784_192,
    ),
    "deepseek-v2": (
        {
            **llama(hidden_size=5120, intermediate_size=12288, num_hidden_layers=60, num_attention_heads=128),
            "model_type": "deepseek_v2",
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "n_routed_experts": 160,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1536,
            "first_k_dense_replace": 1,
            "vocab_size": 102400,
        },
        235_741_434_880,
    ),
    "llama-4-scout text": (
        {
            "model_type": "llama4",
            "text_config": {
                **llama(hidden_size=5120, intermediate_size=8192, num_hidden_layers=48, num_attention_heads=40),
                "model_type": "llama4_text",
                "num_key_value_heads": 8,
                "head_dim": 128,
                "intermediate_size_mlp": 16384,
                "interleave_moe_layer_step": 1,
                "num_local_experts": 16,
                "num_experts_per_tok": 1,
                "attention_chunk_size": 8192,
                "vocab_size": 202048,
            },
            "vision_config": {},
        },
        107_770_000_000,
    ),
    "glm-4.5-air": (
        {
            **llama(hidden_size=4096, intermediate_size=10944, num_hidden_layers=46, num_attention_heads=96),
            "model_type": "glm4_moe",
            "num_key_value_heads": 8,
            "head_dim": 128,
            "attention_bias": True,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "first_k_dense_replace": 1,
            "vocab_size": 151552,
        },
        106_850_000_000,
    ),
    "opt-13b": (
        {
            "model_type": "opt",
            "hidden_size": 5120,
            "ffn_dim": 20480,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "vocab_size": 50272,
            "max_position_embeddings": 2048,
            "torch_dtype": "float16",
        },
        12_853_473_280,
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_other_architectures_match_their_published_counts(name):
    config, published = OTHER[name]
    assert build(dict(config)).parameters == pytest.approx(published, rel=0.005)


def test_every_preset_loads_and_names_its_source():
    assert len(model_names()) >= 25
    for name in model_names():
        assert load(name).source.startswith("https://huggingface.co/")


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("meta-llama/Llama-2-70b-hf", "llama-2-70b"),
        ("qwen/qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("DeepSeek-AI/DeepSeek-R1", "deepseek-v3"),
        ("LLAMA-3.1-8B", "llama-3.1-8b"),
    ],
)
def test_hugging_face_ids_are_aliases_in_any_case(alias, name):
    assert load(alias).name == name


def test_no_alias_has_two_meanings():
    aliases = [
        alias.lower()
        for name in model_names()
        for alias in json.loads((PRESETS / f"{name}.json").read_text())["aliases"]
    ]
    assert len(aliases) == len(set(aliases)) == len(model_aliases())


@pytest.mark.parametrize(
    ("name", "tp", "dtype", "bytes_per_token"),
    [
        ("llama-2-7b", 1, "auto", 2 * 32 * 32 * 128 * 2),  # 512 KiB, MHA
        ("llama-2-70b", 1, "auto", 2 * 80 * 8 * 128 * 2),  # 320 KiB, GQA
        ("llama-2-70b", 4, "auto", 2 * 80 * 2 * 128 * 2),
        ("llama-2-70b", 16, "auto", 2 * 80 * 1 * 128 * 2),  # 8 KV heads on 16 devices: one each, replicated
        ("llama-3.1-8b", 1, "auto", 131_072),  # inference-sim TestKVBytesPerToken_Llama8B
        ("llama-3.1-8b", 4, "auto", 32_768),
        ("llama-3.1-8b", 1, "fp8", 65_536),
        ("llama-3.1-8b", 1, "int4", 32_768),
        ("qwen3-8b", 1, "auto", 147_456),
        ("qwen3-235b-a22b", 4, "auto", 48_128),  # vllm issue 21348
        ("deepseek-v3", 1, "auto", 61 * (512 + 64) * 2),
        ("deepseek-v3", 16, "auto", 61 * (512 + 64) * 2),  # the latent is on every device
        ("deepseek-v3", 8, "fp8", 61 * (512 + 64)),
        ("gemma-3-27b", 1, "auto", 2 * 62 * 16 * 128 * 2),  # before any window is full
        ("gpt-oss-20b", 8, "auto", 2 * 24 * 1 * 64 * 2),
    ],
)
def test_kv_bytes_per_token_follow_the_rule(name, tp, dtype, bytes_per_token):
    assert load(name).kv_bytes_per_token(tp, 1, dtype) == bytes_per_token


def test_an_explicit_head_dim_decides_over_hidden_size():
    config = llama(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, head_dim=256)
    assert build(config).kv_bytes_per_token() == 262_144


def test_kv_heads_fewer_than_devices_are_replicated_not_divided():
    config = llama(num_hidden_layers=2, hidden_size=32, num_attention_heads=8, num_key_value_heads=4, head_dim=4)
    assert build(config).kv_bytes_per_token(8) == 2 * 2 * 1 * 4 * 2 == 32


def test_multi_query_attention_keeps_one_head_everywhere():
    model = build(llama(num_key_value_heads=1))
    assert model.kv_bytes_per_token(1) == model.kv_bytes_per_token(8) == 2 * 4 * 1 * 8 * 2


def test_kv_heads_default_to_attention_heads_for_llama():
    config = llama()
    del config["num_key_value_heads"]
    assert build(config).kv_bytes_per_token() == 2 * 4 * 8 * 8 * 2


def test_published_kv_sizes_of_long_contexts_come_out():
    # 70B at 128 Ki tokens: 40 GiB with 8 KV heads. 7B, 8 sequences of 2048: 8.59 GB.
    assert load("llama-2-70b").kv_bytes(131_072) == 40 * 2**30
    assert 8 * load("llama-2-7b").kv_bytes(2048) == 8_589_934_592


@given(
    tokens=st.integers(0, 300_000),
    more=st.integers(0, 300_000),
    name=st.sampled_from(["llama-2-70b", "deepseek-v2-lite"]),
)
def test_kv_bytes_without_windows_are_linear_in_tokens(tokens, more, name):
    model = load(name)
    assert model.kv_bytes(tokens) + model.kv_bytes(more) == model.kv_bytes(tokens + more)


@given(tokens=st.integers(1, 9000), name=st.sampled_from(["gemma-3-27b", "gpt-oss-20b", "mistral-7b"]))
def test_windowed_layers_stop_growing_at_the_window(tokens, name):
    model = load(name)
    held = 0
    for group in model.groups:
        for token in (1, tokens):
            assert group.held_tokens(token) <= token
        visible = tokens if group.window is None else min(tokens, group.window)
        held += visible * group.layers * 2 * group.kv_heads * group.head_dim * 2
    assert model.kv_bytes(tokens) == held


def test_hybrid_models_have_the_published_layer_patterns():
    assert [(g.kind, g.layers, g.window) for g in load("gemma-3-27b").groups] == [
        ("sliding", 52, 1024),
        ("full", 10, None),
    ]
    assert [(g.kind, g.layers, g.window) for g in load("gpt-oss-120b").groups] == [
        ("sliding", 18, 128),
        ("full", 18, None),
    ]
    assert [(g.kind, g.window) for g in load("mistral-7b").groups] == [("sliding", 4096)]
    assert [(g.kind, g.window) for g in load("qwen2.5-7b").groups] == [("full", None)]


def test_qwen_windows_start_at_max_window_layers_when_switched_on():
    config = llama(model_type="qwen2", sliding_window=100, max_window_layers=3, use_sliding_window=True)
    assert [(g.kind, g.layers) for g in build(config).groups] == [("full", 3), ("sliding", 1)]
    assert [(g.kind, g.layers) for g in build({**config, "use_sliding_window": False}).groups] == [("full", 4)]


def test_layer_types_of_the_file_decide():
    types = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    config = llama(model_type="mistral", sliding_window=64, layer_types=types)
    assert [(g.kind, g.layers) for g in build(config).groups] == [("sliding", 2), ("full", 2)]


def test_chunked_layers_of_llama_4_hold_one_chunk():
    groups = build(dict(OTHER["llama-4-scout text"][0])).groups
    assert [(g.kind, g.layers, g.window) for g in groups] == [("chunked", 36, 8192), ("full", 12, None)]


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("auto", 2), ("fp32", 4), ("fp16", 2), ("bf16", 2), ("fp8", 1), ("int8", 1), ("int4", 0.5)],
)
def test_kv_dtypes_have_their_widths(dtype, size):
    assert kv_dtype_bytes(load("qwen3-8b"), dtype) == size


def test_an_unknown_kv_dtype_is_refused():
    with pytest.raises(ValueError, match="fp6"):
        kv_dtype_bytes(load("qwen3-8b"), "fp6")


def test_whole_weights_are_two_bytes_a_parameter():
    for name in ("llama-2-7b", "gemma-3-27b", "deepseek-v2-lite", "opt-13b"):
        model = load(name)
        assert model.weight_bytes_per_device() == 2 * model.parameters


def test_replicated_kv_projections_cost_weight_bytes():
    model = load("llama-2-70b")  # 8 KV heads
    layer_kv = 2 * 8 * 128 * 8192 * 2  # K and V projections, all heads, bytes
    split = model.weight_bytes_per_device(8)
    norms = (2 * 80 + 1) * 8192 * 2
    assert split - norms == (2 * model.parameters - norms) / 8
    replicated = model.weight_bytes_per_device(16)
    rest = 2 * model.parameters - norms - 80 * layer_kv
    assert replicated == norms + rest / 16 + 80 * layer_kv / 8


def test_deepseek_latent_projections_are_on_every_device():
    model = load("deepseek-v2-lite")
    down = 27 * (512 + 64) * 2048 * 2  # kv_a_proj, never split
    assert model.weight_bytes_per_device(16) > 2 * model.parameters / 16 + down * 15 / 16


@given(
    name=st.sampled_from(["llama-2-70b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v2-lite", "gemma-3-27b"]),
    log_tp=st.integers(0, 3),
    pp=st.integers(1, 8),
)
def test_devices_together_hold_at_least_the_whole_model(name, log_tp, pp):
    model, tp = load(name), 2**log_tp
    assert model.weight_bytes_per_device(tp, pp) * tp * pp >= model.weight_bytes_per_device()
    assert model.weight_bytes_per_device(tp, pp) <= model.weight_bytes_per_device(max(1, tp // 2), pp)


@given(layers=st.integers(1, 130), pp=st.integers(1, 16))
def test_stages_hold_every_layer_once_and_differ_by_one_at_most(layers, pp):
    assume(pp <= layers)
    stages = build(llama(num_hidden_layers=layers)).stage_layers(pp)
    assert [layer for stage in stages for layer in stage] == list(range(layers))
    assert max(map(len, stages)) - min(map(len, stages)) <= 1


def test_an_uneven_rest_goes_to_the_stages_before_the_last():
    # vLLM's rule: 126 layers on 4 stages
    assert [len(stage) for stage in load("llama-3.1-405b").stage_layers(4)] == [31, 32, 32, 31]


def test_the_largest_stage_decides():
    model = build(llama(num_hidden_layers=4))
    layer = (64 * 64 * 2 + 2 * 16 * 64 + 3 * 64 * 160 + 2 * 64) * 2
    embedding = 1000 * 64 * 2
    assert model.weight_bytes_per_device(1, 2) == 2 * layer + embedding + 64 * 2  # the last stage: head and norm
    assert model.kv_bytes_per_token(1, 2) == model.kv_bytes_per_token() // 2
    assert model.kv_bytes_per_token(1, 3) == 2 * model.kv_bytes_per_token() // 4


def test_a_tied_head_is_held_by_the_first_and_the_last_stage():
    tied = build(llama(tie_word_embeddings=True))
    free = build(llama())
    assert tied.parameters == free.parameters - 64_000
    assert tied.weight_bytes_per_device(1, 2) == free.weight_bytes_per_device(1, 2)


@pytest.mark.parametrize("tp", [3, 5, 64])
def test_tensor_parallelism_must_divide_the_heads(tp):
    with pytest.raises(ValueError, match=rf"tensor_parallel_size {tp} does not divide the 32 attention heads"):
        load("llama-3.1-8b").check_parallelism(tp)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="pipeline_parallel_size 33 exceeds the 32 layers"):
        load("llama-3.1-8b").check_parallelism(1, 33)


def test_gpt_oss_checkpoints_have_their_published_sizes():
    # Model card, table 1: checkpoint sizes 12.8 GiB and 60.8 GiB.
    assert load("gpt-oss-20b").weight_bytes_per_device() / 2**30 == pytest.approx(12.8, abs=0.05)
    assert load("gpt-oss-120b").weight_bytes_per_device() / 2**30 == pytest.approx(60.8, abs=0.05)


def test_deepseek_fp8_blocks_carry_one_fp32_scale():
    model = load("deepseek-v3")
    head_and_embedding = 2 * 129_280 * 7168
    router = 58 * 256 * 7168
    quantised = model.parameters - head_and_embedding - router
    expected = quantised * (1 + 4 / 128**2) + 2 * (head_and_embedding + router)
    assert model.weight_bytes_per_device() == pytest.approx(expected, rel=1e-4)
    assert model.weight_dtype == "fp8"


@pytest.mark.parametrize(("dtype", "ratio"), [("fp8", 1 / 2), ("int8", 1 / 2), ("int4", 1 / 4 * (1 + 20 / 128 / 4))])
def test_narrower_weights_shrink_the_linear_layers_only(dtype, ratio):
    model = load("llama-2-7b")
    kept = (2 * 32_000 * 4096 + 65 * 4096) * 2
    linear = 2 * model.parameters - kept
    shrunk = with_weight_dtype(model, dtype).weight_bytes_per_device()
    assert shrunk == pytest.approx(kept + linear * ratio, rel=1e-3)
    assert load("llama-2-7b", weight_dtype=dtype).weight_bytes_per_device() == shrunk


def test_wider_weights_replace_a_quantised_checkpoint():
    model = load("deepseek-v3", weight_dtype="bf16")
    assert model.weight_bytes_per_device() == 2 * model.parameters


def test_awq_and_gptq_have_a_scale_and_a_zero_point_for_each_group():
    quantised = build(llama(quantization_config={"quant_method": "awq", "bits": 4, "group_size": 32}))
    plain = build(llama())
    linear = 4 * (64 * 64 * 2 + 2 * 16 * 64 + 3 * 64 * 160)
    saved = linear * 2 - linear * (4 + 20 / 32) / 8
    assert plain.weight_bytes_per_device() - quantised.weight_bytes_per_device() == saved


def test_modules_left_out_of_quantisation_keep_their_precision():
    names = ["lm_head", "model.layers.0.mlp.down_proj", "re:.*layers.3.self_attn.*"]
    config = {"quant_method": "fp8", "weight_block_size": [64, 64], "ignored_layers": names}
    some = build(llama(quantization_config=config))
    every = build(llama(quantization_config={**config, "ignored_layers": []}))
    assert len(some.shapes) == 3
    kept = 64 * 160 + 2 * 64 * 64 + 2 * 16 * 64
    scales = 4 * (math.ceil(160 / 64) + 1 + 1 + 1 + 1)
    assert some.weight_bytes_per_device() - every.weight_bytes_per_device() == kept - scales


def test_compressed_tensors_are_read():
    scheme = {"num_bits": 8, "type": "int", "strategy": "channel", "group_size": None}
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": scheme}}}
    assert build(llama(quantization_config=config)).weight_dtype == "int8"


def test_linear_work_is_two_operations_a_weight():
    model = load("llama-2-7b")
    weights = model.parameters - 2 * 32_000 * 4096 - 4096
    assert model.linear_flops_per_token == 2 * weights
    assert model.head_flops_per_row == 2 * 32_000 * 4096


def test_experts_touched_follow_independent_routing():
    model = load("mixtral-8x7b")  # 2 of 8
    assert model.expected_experts(0) == 0
    assert model.expected_experts(1) == pytest.approx(2)
    assert model.expected_experts(2) == pytest.approx(8 * (1 - 0.75**2))
    assert model.expected_experts(1000) == pytest.approx(8)
    assert load("llama-2-7b").expected_experts(5) == 0


def test_one_token_streams_the_active_weights():
    for name in ("mixtral-8x7b", "llama-2-7b"):
        model = load(name)
        active = model.active_parameters - model.vocab_size * model.hidden_size  # embedding rows are looked up
        assert model.streamed_weight_bytes(1) == pytest.approx(2 * active)


def test_many_tokens_stream_all_the_weights():
    model = load("qwen3-30b-a3b")
    everything = 2 * (model.parameters - model.vocab_size * model.hidden_size)
    assert model.streamed_weight_bytes(5000) == pytest.approx(everything)


def test_an_unknown_preset_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"'llama-2-8b'; did you mean 'llama-2-7b'"):
        load("llama-2-8b")


def test_a_preset_or_a_config_must_be_given_not_both():
    for keys in ({}, {"preset": "llama-2-7b", "config": "config.json"}):
        with pytest.raises(ValueError, match="either preset"):
            ModelConfig.model_validate(keys)


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "torch_dtype",
    ],
)
def test_a_missing_key_is_named(key):
    config = llama()
    del config[key]
    with pytest.raises(ValueError, match=f"config.json: key '{key}' is missing"):
        build(config)


@pytest.mark.parametrize("value", [-1, 0, 1.5, "64", True, 10**12])
def test_a_senseless_size_is_refused(value):
    with pytest.raises(ValueError, match="key 'hidden_size' must be a positive integer"):
        build(llama(hidden_size=value))


def test_an_unknown_architecture_is_refused():
    with pytest.raises(ValueError, match="model_type 'mamba2' is unknown"):
        build(llama(model_type="mamba2"))
    with pytest.raises(ValueError, match="did you mean 'qwen3_moe'"):
        build(llama(model_type="qwen3_mo"))


@pytest.mark.parametrize(
    "quantisation",
    [
        {"quant_method": "aqlm"},
        {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "awq", "bits": 3, "group_size": 128},
        {"quant_method": "compressed-tensors", "config_groups": {}},
        "fp8",
    ],
)
def test_an_unknown_quantisation_is_refused(quantisation):
    with pytest.raises(ValueError, match="key 'quantization_config'"):
        build(llama(quantization_config=quantisation))


def test_unknown_layer_types_are_refused():
    with pytest.raises(ValueError, match="'layer_types' names 'linear_attention'"):
        build(llama(layer_types=["linear_attention"] * 4))
    with pytest.raises(ValueError, match="'layer_types' has 1 entries for 4 layers"):
        build(llama(layer_types=["full_attention"]))


def test_a_config_file_is_found_beside_the_scenario(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(llama()))
    for path in ("mine", "mine/config.json"):
        assert load_model(ModelConfig(config=path), tmp_path).name == "mine"


@pytest.mark.parametrize(
    ("text", "message"), [("[1]", "expected a mapping"), ("{", "not JSON"), (None, "cannot be read")]
)
def test_an_unusable_config_file_is_named(tmp_path: Path, text, message):
    if text is not None:
        (tmp_path / "c.json").write_text(text)
    with pytest.raises(ValueError, match=rf"c\.json.*{message}"):
        load_model(ModelConfig(config="c.json"), tmp_path)


def test_yarn_stretches_the_longest_sequence():
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert build(llama(rope_scaling=scaling)).max_position_embeddings == 2048
    assert load("llama-2-70b", max_position_embeddings=131072).max_position_embeddings == 131072


def test_parts_that_are_not_modelled_are_named():
    assert load("gemma-3-27b").excluded == ("vision_config",)
    assert load("deepseek-v3").excluded == ("multi-token prediction layers",)


JUNK = st.sampled_from([None, True, -1, 0, 1, 3, 10**8, 1.5, "x", [], [1], [[1]], [None], {}, {"a": 1}])
KEYS = [
    "model_type text_config hidden_size num_hidden_layers num_key_value_heads head_dim layer_types sliding_window",
    "mlp_only_layers no_rope_layers num_experts num_experts_per_tok quantization_config rope_scaling torch_dtype",
    "attention_bias tie_word_embeddings decoder_sparse_step moe_intermediate_size use_sliding_window",
]


@given(
    st.dictionaries(st.sampled_from(" ".join(KEYS).split()), JUNK, min_size=1, max_size=3),
    st.sampled_from(list(FAMILIES)),
)
@settings(max_examples=300)
def test_a_senseless_config_is_refused_or_gives_a_model_never_a_crash(junk, family):
    refusal = ""
    try:
        model = build({**llama(model_type=family, num_experts=4, num_experts_per_tok=2), **junk})
    except ValueError as error:
        refusal = str(error)
    if refusal:
        assert refusal.startswith("config.json: ")
    else:
        assert model.parameters > 0
        assert model.kv_bytes_per_token() > 0


def test_key_value_heads_must_divide_the_heads():
    with pytest.raises(ValueError, match="'num_key_value_heads' must divide the 8 attention heads"):
        build(llama(num_key_value_heads=3))


def test_more_active_experts_than_experts_are_refused():
    with pytest.raises(ValueError, match="'num_experts_per_tok' 9 exceeds the 8 experts"):
        build(llama(model_type="mixtral", num_local_experts=8, num_experts_per_tok=9))
