"""Typed YAML fields: the quantities of ``units`` as pydantic types, and the strict base of every config.

A field typed ``Bytes`` accepts ``4096`` or ``"61.27GiB"`` in YAML and is an ``int`` in Python; likewise
``Seconds``, ``PerSecond``, ``Bandwidth``, ``Hertz`` and ``Flops``. Unknown keys are errors everywhere.
"""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from simulator import units


class Config(BaseModel):
    """Base of every typed YAML mapping: immutable, unknown keys refused, ``-`` accepted for ``_`` in keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False, validate_default=False
    )

    @model_validator(mode="before")
    @classmethod
    def _dashes_to_underscores(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {key.replace("-", "_") if isinstance(key, str) else key: value for key, value in data.items()}
        return data


_Spelled = int | float | str
Bytes = Annotated[int, BeforeValidator(units.parse_bytes, json_schema_input_type=_Spelled), Field(ge=0, le=2**62)]
Seconds = Annotated[float, BeforeValidator(units.parse_seconds, json_schema_input_type=_Spelled), Field(ge=0, le=9e9)]
PerSecond = Annotated[float, BeforeValidator(units.parse_rate, json_schema_input_type=_Spelled), Field(gt=0)]
Bandwidth = Annotated[float, BeforeValidator(units.parse_bandwidth, json_schema_input_type=_Spelled), Field(ge=1)]
Hertz = Annotated[float, BeforeValidator(units.parse_hertz, json_schema_input_type=_Spelled), Field(ge=1)]
Flops = Annotated[float, BeforeValidator(units.parse_flops, json_schema_input_type=_Spelled), Field(ge=1)]
Ratio = Annotated[float, Field(ge=0, le=1)]
