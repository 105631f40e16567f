"""A Hugging Face ``config.json`` as typed look-ups: a key that is missing or of the wrong kind is refused by name.

Only two sources of values exist: the file, and the documented defaults of the architecture's configuration class in
transformers, which the families of ``hf_families`` quote. Nothing is guessed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.errors import shown

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
_MAX_COUNT = 10**9
_MAX_LAYERS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """The keys of one config; ``place`` starts every error message, ``defaults`` are the architecture's own."""

    place: str
    keys: Mapping[str, Any]
    defaults: Mapping[str, Any]

    def get(self, key: str) -> Any:
        """The value, or the architecture's default, or ``None``; a null in the file counts as given."""
        return self.keys[key] if key in self.keys else self.defaults.get(key)

    def count(self, key: str) -> int:
        """A positive integer. Raises ``ValueError`` when it is missing or anything else."""
        value = self.get(key)
        if value is None:
            raise self.error(key, "is missing")
        return self._count(key, value, least=1)

    def optional_count(self, key: str) -> int:
        """A non-negative integer, 0 when the key is missing or null."""
        value = self.get(key)
        return 0 if value is None else self._count(key, value, least=0)

    def flag(self, key: str) -> bool:
        """A boolean; false when neither the file nor the architecture says anything."""
        value = self.get(key)
        if not isinstance(value, bool | None):
            raise self.error(key, f"must be true or false, found {shown(value)}")
        return bool(value)

    def names(self, key: str) -> list[str | int] | None:
        """A list of texts or integers, or ``None`` when missing."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(entry, str | int) for entry in value):
            raise self.error(key, f"must be a list of names or numbers, found {shown(value)}")
        return value

    def for_layer(self, key: str, layer: int) -> str | int | None:
        """The entry of a list that has one for every layer, or ``None`` when there is no list."""
        entries = self.names(key)
        if entries is None:
            return None
        if len(entries) != self.layers():
            raise self.error(key, f"has {len(entries)} entries for {self.layers()} layers")
        return entries[layer]

    def layers(self) -> int:
        """The number of layers, bounded so that a slip of the pen does not take for ever."""
        layers = self.count("num_hidden_layers")
        if layers > _MAX_LAYERS:
            raise self.error("num_hidden_layers", f"must be at most {_MAX_LAYERS:,}, found {layers:,}")
        return layers

    def dtype(self) -> str:
        """The precision of activations: ``bf16``, ``fp16`` or ``fp32``."""
        value = self.get("torch_dtype") or self.get("dtype")
        if value is None:
            raise self.error("torch_dtype", "is missing")
        name = str(value).removeprefix("torch.")
        if name not in _DTYPES:
            raise self.error("torch_dtype", f"must be one of {', '.join(_DTYPES)}, found {shown(value)}")
        return _DTYPES[name]

    def error(self, key: str, message: str) -> ValueError:
        """The error to raise about ``key``."""
        return ValueError(f"{self.place}: key {key!r} {message}")

    def _count(self, key: str, value: Any, *, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX_COUNT:
            kind = "a positive integer" if least else "an integer of 0 or more"
            raise self.error(key, f"must be {kind} up to {_MAX_COUNT:,}, found {shown(value)}")
        return value


def text_part(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The language model's keys of a possibly multimodal config, and the names of the parts left out."""
    nested = config.get("text_config")
    keys = {**config, **nested} if isinstance(nested, Mapping) else dict(config)
    left_out = [key for key in config if key.endswith("_config") and key in ("vision_config", "audio_config")]
    if keys.get("num_nextn_predict_layers"):
        left_out.append("multi-token prediction layers")
    return keys, tuple(left_out)


def listed(names: Sequence[str]) -> str:
    """Names for an error message."""
    return ", ".join(sorted(names))
