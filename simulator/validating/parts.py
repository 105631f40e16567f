"""Devices, models and settings that checks put together: figures of a public report in place of a scenario's."""

from typing import Any

from simulator.config import EngineConfig
from simulator.device import Device, DeviceConfig, load_device
from simulator.model import Model, ModelConfig, load_model
from simulator.models.hf_config import model_from_config

GIB = 2**30
MIB = 2**20
#: bytes that vLLM's first engine sets aside in host memory
SWAP_SPACE_BYTES = 4 * GIB


def preset_device(name: str = "910B3", **figures: Any) -> Device:
    """A catalogue device with some figures replaced."""
    return load_device(DeviceConfig.model_validate({"preset": name, **figures}))


def card(memory_gib: float, **figures: Any) -> Device:
    """A device of which only the memory matters: ``memory_gib`` seen by the framework, all of it free, no runtime."""
    size = round(memory_gib * GIB)
    memory = {"hbm_bytes": size, "hbm_usable_bytes": size, "hbm_free_bytes": size}
    return preset_device(**{**memory, "runtime_reserve_bytes": 0, "graph_bytes": 0, **figures})


def pool_of(capacity_bytes: int) -> Device:
    """A device with room to spare and a KV pool of exactly ``capacity_bytes``."""
    return card(2000, kv_capacity_bytes=capacity_bytes)


def preset_model(name: str, **keys: Any) -> Model:
    """A catalogue model."""
    return load_model(ModelConfig.model_validate({"preset": name, **keys}))


def transformer(
    layers: int, kv_heads: int, *, head_dim: int = 128, hidden: int = 4096, longest: int = 1 << 21
) -> Model:
    """A 16-bit model of which only the KV shape matters."""
    heads = hidden // head_dim
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": 1000,
        "max_position_embeddings": longest,
        "torch_dtype": "bfloat16",
    }
    return model_from_config(config, name=f"{layers} layers of {kv_heads} KV heads", place="a check")


def settings(**keys: Any) -> EngineConfig:
    """Engine settings, sizes as texts welcome."""
    return EngineConfig.model_validate(keys)


def bare(**keys: Any) -> EngineConfig:
    """Engine settings of an engine that needs memory for nothing but weights and KV."""
    return settings(**{"activation_bytes": 0, "runtime_bytes": 0, "graph_bytes": 0, **keys})
