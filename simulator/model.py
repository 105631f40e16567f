"""The model catalogue: a preset name, a Hugging Face id or a ``config.json`` to a ``Model``."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from simulator.errors import InputError, Problem, nearest_name
from simulator.fields import Config
from simulator.loading.text_source import decoded, read_bytes
from simulator.models.hf_config import model_from_config
from simulator.models.model_shape import (
    AttentionGroup,
    AttentionKind,
    LayerShape,
    Model,
    kv_dtype_bytes,
    with_weight_dtype,
)

__all__ = [
    "AttentionGroup",
    "AttentionKind",
    "LayerShape",
    "Model",
    "ModelConfig",
    "hub_id",
    "kv_dtype_bytes",
    "load_model",
    "model_aliases",
    "model_names",
    "with_weight_dtype",
]

_MAX_BYTES = 4 * 2**20
PRESETS = Path(__file__).parent / "presets" / "models"
WeightDType = Literal["auto", "fp32", "fp16", "bf16", "fp8", "int8", "int4", "mxfp4"]


class ModelConfig(Config):
    """The scenario's ``model`` mapping."""

    preset: str | None = Field(None, description="catalogue name or Hugging Face id")
    config: str | None = Field(None, description="path of a Hugging Face config.json, relative to the scenario")
    name: str | None = None
    weight_dtype: WeightDType = Field("auto", description="storage of the linear layers; auto: as the checkpoint")
    max_position_embeddings: int | None = Field(
        None, ge=1, description="longest sequence, when rotary scaling stretches it"
    )

    @model_validator(mode="after")
    def _one_origin(self) -> "ModelConfig":
        if (self.preset is None) == (self.config is None):
            raise ValueError("give either preset (a catalogue name) or config (a Hugging Face config.json)")
        return self


def model_names() -> list[str]:
    """The catalogue's names, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.json"))


@cache
def model_aliases() -> dict[str, str]:
    """Lower-case Hugging Face id to catalogue name."""
    return {alias.lower(): name for name in model_names() for alias in _preset(name).get("aliases", ())}


def hub_id(preset: str) -> str:
    """The Hugging Face id of a preset, which its engines load it by: the one that was given, else its first."""
    if "/" in preset:
        return preset.strip()
    name = _preset_name(preset)
    return str(next(iter(_preset(name).get("aliases", ())), name))


def load_model(config: ModelConfig, base_dir: Path | None = None) -> Model:
    """The model a scenario names; ``config`` is looked up from ``base_dir``.

    Raises ``ValueError`` for an unknown preset (with the nearest name), an unreadable file, an unknown
    architecture, or a key that is missing or senseless.
    """
    if config.preset is not None:
        name = _preset_name(config.preset)
        model = model_from_config(_preset(name), name=config.name or name, place=f"preset {name}")
    else:
        path = (base_dir or Path()) / str(config.config)
        path = path / "config.json" if path.is_dir() else path
        model = model_from_config(_read(path), name=config.name or path.resolve().parent.name, place=str(path))
    if config.max_position_embeddings is not None:
        model = replace(model, max_position_embeddings=config.max_position_embeddings)
    return model if config.weight_dtype == "auto" else with_weight_dtype(model, config.weight_dtype)


def _preset_name(preset: str) -> str:
    wanted = preset.strip().lower()
    if "/" not in wanted and (PRESETS / f"{wanted}.json").is_file():
        return wanted
    aliases = model_aliases()
    if wanted in aliases:
        return aliases[wanted]
    names = model_names()
    nearest = nearest_name(wanted, [*names, *aliases])
    raise InputError([Problem(message=f"unknown model preset {preset!r}", nearest=nearest, allowed=tuple(names))])


@cache
def _preset(name: str) -> dict[str, Any]:
    return _read(PRESETS / f"{name}.json")


def _read(path: Path) -> dict[str, Any]:
    text = decoded(read_bytes(path, str(path), limit_bytes=_MAX_BYTES), str(path))
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a mapping such as a Hugging Face config.json")
    return content
