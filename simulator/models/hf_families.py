"""The architectures: what each Hugging Face ``model_type`` has in a layer beside what its config says.

The biases, norms and defaults are those of the architecture's ``configuration_*.py`` and ``modeling_*.py`` in
transformers; ``tests/test_model.py`` holds each family to the published parameter count of a released model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from simulator.models.hf_reader import Reader

Windowed = tuple[Literal["full", "sliding", "chunked"], int | None]
FULL: Windowed = ("full", None)
WindowRule = Callable[[Reader, int], Windowed]
MoeRule = Callable[[Reader], "Moe | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """Routed experts of a model and the layers that have them."""

    prefix: str
    experts: int
    per_token: int
    width: int
    layers: frozenset[int]
    shared_width: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What an architecture fixes. A text instead of a truth value names the config key that decides."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    qkv_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool | str = False
    norms: int = 2
    norm_bias: bool = False
    sinks: bool = False
    gated_mlp: bool = True
    mlp_width: str = "intermediate_size"
    learned_positions: int = -1
    window: WindowRule = lambda reader, layer: FULL
    moe: MoeRule = lambda reader: None
    mla: bool = False


def _sliding(reader: Reader, name: str = "sliding_window") -> Windowed:
    window = reader.optional_count(name)
    return ("sliding", window) if window else FULL


def _every_layer(reader: Reader, layer: int) -> Windowed:
    """Mistral, Mixtral, Phi-3: a window in all layers, or (null) in none."""
    return _sliding(reader)


def _upper_layers(reader: Reader, layer: int) -> Windowed:
    """Qwen: off unless ``use_sliding_window``; then the layers from ``max_window_layers`` up."""
    if not reader.flag("use_sliding_window"):
        return FULL
    return _sliding(reader) if layer >= reader.optional_count("max_window_layers") else FULL


def _alternating(reader: Reader, layer: int) -> Windowed:
    """Gemma 2 and gpt-oss: even layers have the window."""
    return FULL if layer % 2 else _sliding(reader)


def _one_in_several(reader: Reader, layer: int) -> Windowed:
    """Gemma 3: every ``sliding_window_pattern``-th layer sees everything."""
    key = "sliding_window_pattern" if reader.get("sliding_window_pattern") else "_sliding_window_pattern"
    return FULL if (layer + 1) % reader.count(key) == 0 else _sliding(reader)


def _chunked(reader: Reader, layer: int) -> Windowed:
    """Llama 4: chunked attention wherever rotary positions are used, i.e. not in every fourth layer."""
    chunk = reader.optional_count("attention_chunk_size")
    listed = reader.for_layer("no_rope_layers", layer) if reader.get("no_rope_layers") else None
    with_rope = (layer + 1) % 4 != 0 if listed is None else bool(listed)
    return ("chunked", chunk) if chunk and with_rope else FULL


def layer_window(reader: Reader, family: Family, layer: int) -> Windowed:
    """Attention kind and window of a layer; ``layer_types`` of the file, when given, decides."""
    kind = reader.for_layer("layer_types", layer)
    if kind is None or reader.get("use_sliding_window") is False:
        return family.window(reader, layer)
    if kind == "full_attention":
        return FULL
    if kind == "sliding_attention":
        return "sliding", reader.count("sliding_window")
    if kind == "chunked_attention":
        return "chunked", reader.count("attention_chunk_size")
    raise reader.error("layer_types", f"names {kind!r}: full, sliding and chunked attention are known")


def _all_layers(reader: Reader) -> frozenset[int]:
    return frozenset(range(reader.layers()))


def _mixtral_moe(reader: Reader) -> Moe:
    return Moe(
        prefix="block_sparse_moe",
        experts=reader.count("num_local_experts"),
        per_token=reader.count("num_experts_per_tok"),
        width=reader.count("intermediate_size"),
        layers=_all_layers(reader),
    )


def _qwen_moe(reader: Reader) -> Moe | None:
    experts = reader.optional_count("num_experts")
    if not experts:
        return None
    dense, step = set(reader.names("mlp_only_layers") or ()), reader.count("decoder_sparse_step")
    shared = reader.optional_count("shared_expert_intermediate_size")
    return Moe(
        prefix="mlp",
        experts=experts,
        per_token=reader.count("num_experts_per_tok"),
        width=reader.count("moe_intermediate_size"),
        layers=frozenset(i for i in _all_layers(reader) if i not in dense and (i + 1) % step == 0),
        shared_width=shared,
        shared_gate=bool(shared),
    )


def _deepseek_moe(reader: Reader) -> Moe | None:
    experts = reader.optional_count("n_routed_experts")
    if not experts:
        return None
    first, step = reader.optional_count("first_k_dense_replace"), reader.count("moe_layer_freq")
    width = reader.count("moe_intermediate_size")
    return Moe(
        prefix="mlp",
        experts=experts,
        per_token=reader.count("num_experts_per_tok"),
        width=width,
        layers=frozenset(i for i in _all_layers(reader) if i >= first and i % step == 0),
        shared_width=reader.optional_count("n_shared_experts") * width,
        router_bias=reader.get("topk_method") == "noaux_tc",
    )


def _gpt_oss_moe(reader: Reader) -> Moe:
    return Moe(
        prefix="mlp",
        experts=reader.count("num_local_experts"),
        per_token=reader.count("num_experts_per_tok"),
        width=reader.count("intermediate_size"),
        layers=_all_layers(reader),
        router_bias=True,
        expert_bias=True,
    )


def _llama4_moe(reader: Reader) -> Moe:
    step = reader.count("interleave_moe_layer_step")
    width = reader.count("intermediate_size")
    return Moe(
        prefix="feed_forward",
        experts=reader.count("num_local_experts"),
        per_token=reader.count("num_experts_per_tok"),
        width=width,
        layers=frozenset(i for i in _all_layers(reader) if (i + 1) % step == 0),
        shared_width=width,
    )


_QWEN_MOE = {"decoder_sparse_step": 1, "mlp_only_layers": []}
_LLAMA = Family(
    defaults={"num_key_value_heads": "num_attention_heads"},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
)
_QWEN2 = Family(qkv_bias=True, window=_upper_layers)
_GEMMA3 = Family(
    defaults={
        "tie_word_embeddings": True,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "_sliding_window_pattern": 6,
    },
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm=True,
    norms=4,
    window=_one_in_several,
)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family(window=_every_layer),
    "mixtral": Family(window=_every_layer, moe=_mixtral_moe),
    "phi3": Family(window=_every_layer),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_moe": Family(defaults=_QWEN_MOE, qkv_bias=True, window=_upper_layers, moe=_qwen_moe),
    "qwen3": Family(qkv_bias="attention_bias", output_bias="attention_bias", qk_norm=True, window=_upper_layers),
    "qwen3_moe": Family(
        defaults=_QWEN_MOE,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm=True,
        window=_upper_layers,
        moe=_qwen_moe,
    ),
    "deepseek_v2": Family(defaults={"moe_layer_freq": 1}, mla=True, moe=_deepseek_moe),
    "deepseek_v3": Family(defaults={"moe_layer_freq": 1, "topk_method": "noaux_tc"}, mla=True, moe=_deepseek_moe),
    "glm4_moe": Family(
        defaults={"moe_layer_freq": 1, "topk_method": "noaux_tc"},
        qkv_bias="attention_bias",
        qk_norm="use_qk_norm",
        moe=_deepseek_moe,
    ),
    "gemma2": Family(defaults={"tie_word_embeddings": True}, norms=4, window=_alternating),
    "gemma3_text": _GEMMA3,
    "gemma3": _GEMMA3,
    "gpt_oss": Family(qkv_bias=True, output_bias=True, sinks=True, window=_alternating, moe=_gpt_oss_moe),
    "llama4_text": Family(mlp_width="intermediate_size_mlp", window=_chunked, moe=_llama4_moe),
    "opt": Family(
        defaults={"tie_word_embeddings": True, "num_key_value_heads": "num_attention_heads"},
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_bias=True,
        gated_mlp=False,
        mlp_width="ffn_dim",
        learned_positions=2,
    ),
}
FAMILIES["kimi_k2"] = FAMILIES["deepseek_v3"]
