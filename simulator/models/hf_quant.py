"""What a checkpoint's ``quantization_config`` says about the storage of each weight."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator.models.hf_reader import Reader, listed
from simulator.models.weights import FORMATS, Matrix, WeightFormat

_METHODS = ("fp8", "fbgemm_fp8", "gptq", "awq", "mxfp4", "compressed-tensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Formats of the weights: ``linear`` for quantised layers, ``plain`` for the rest and for the ``skipped``."""

    plain: WeightFormat
    linear: WeightFormat
    skipped: tuple[str, ...] = ()
    experts_only: bool = False

    def of(self, matrix: Matrix, module: str) -> WeightFormat:
        """Format of ``matrix``, whose full module path is ``module``."""
        if not matrix.linear or (self.experts_only and ".experts." not in matrix.name):
            return self.plain
        return self.plain if any(_matches(pattern, module) for pattern in self.skipped) else self.linear


def _matches(pattern: str, module: str) -> bool:
    """Whether a list entry names ``module``: ``re:`` patterns match, others are whole path components."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    return f".{pattern}." in f".{module}."


def read_storage(reader: Reader) -> Storage:
    """Storage as ``torch_dtype`` and ``quantization_config`` say. Raises ``ValueError`` for an unknown method."""
    plain = FORMATS[reader.dtype()]
    config = reader.get("quantization_config")
    if config is None:
        return Storage(plain=plain, linear=plain)
    if not isinstance(config, Mapping):
        raise reader.error("quantization_config", f"must be a mapping, found {config!r}")
    skipped = next(
        (config[key] for key in ("modules_to_not_convert", "ignored_layers", "ignore") if config.get(key)), ()
    )
    patterns = tuple(_checked(reader, pattern) for pattern in skipped) if isinstance(skipped, list) else ()
    method = config.get("quant_method")
    return Storage(
        plain=plain,
        linear=_format(reader, config, method),
        # The MXFP4 list of gpt-oss uses glob patterns; its meaning is that the experts alone are converted.
        skipped=() if method == "mxfp4" else patterns,
        experts_only=method == "mxfp4",
    )


def _checked(reader: Reader, pattern: object) -> str:
    """An entry of the list of modules left out. Raises ``ValueError`` when it cannot be matched."""
    if not isinstance(pattern, str):
        raise reader.error("quantization_config", f"leaves out {pattern!r}: expected a module name")
    try:
        re.compile(pattern.removeprefix("re:") if pattern.startswith("re:") else "")
    except re.error as error:
        raise reader.error("quantization_config", f"leaves out {pattern!r}: {error}") from None
    return pattern


def _format(reader: Reader, config: Mapping[str, Any], method: object) -> WeightFormat:
    if method == "fp8":
        return _fp8(reader, config)
    if method == "fbgemm_fp8":
        return FORMATS["fp8"]
    if method in ("gptq", "awq"):
        return _grouped(
            reader, config.get("bits", config.get("w_bit")), config.get("group_size", config.get("q_group_size"))
        )
    if method == "mxfp4":
        return FORMATS["mxfp4"]
    if method == "compressed-tensors":
        return _compressed(reader, config)
    raise reader.error("quantization_config", f"has quant_method {method!r}: known are {listed(_METHODS)}")


def _fp8(reader: Reader, config: Mapping[str, Any]) -> WeightFormat:
    block = config.get("weight_block_size")
    if block is None:
        return FORMATS["fp8"]
    if not (isinstance(block, list) and len(block) == 2 and all(isinstance(side, int) and side > 0 for side in block)):
        raise reader.error("quantization_config", f"has weight_block_size {block!r}: expected two positive integers")
    return replace(FORMATS["fp8"], scale_rows=block[0], scale_columns=block[1])


def _grouped(reader: Reader, bits: object, group: object) -> WeightFormat:
    if bits not in (4, 8) or not isinstance(group, int):
        raise reader.error(
            "quantization_config", f"has bits {bits!r} and group_size {group!r}: expected 4 or 8, and a size"
        )
    return WeightFormat(
        name=f"int{bits}", bits=int(str(bits)), scale_bits=16 + int(str(bits)), scale_columns=max(group, 0)
    )


def _compressed(reader: Reader, config: Mapping[str, Any]) -> WeightFormat:
    groups = config.get("config_groups")
    schemes = [group.get("weights") for group in groups.values()] if isinstance(groups, Mapping) else []
    if not schemes or any(scheme != schemes[0] for scheme in schemes) or not isinstance(schemes[0], Mapping):
        raise reader.error("quantization_config", "has config_groups that do not store all weights alike")
    scheme = schemes[0]
    bits, kind = scheme.get("num_bits"), scheme.get("type")
    if (bits, kind) not in ((8, "float"), (8, "int"), (4, "int")):
        raise reader.error("quantization_config", f"stores weights as {bits!r}-bit {kind!r}: known are fp8, int8, int4")
    base = FORMATS["fp8" if kind == "float" else f"int{bits}"]
    group = scheme.get("group_size")
    return (
        replace(base, scale_bits=16, scale_columns=group)
        if isinstance(group, int) and group > 0
        else replace(base, scale_bits=32 if bits == 8 else 16, scale_columns=0)
    )
