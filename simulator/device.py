"""The device: what one NPU has, each figure with the source it came from and how sure it is.

A catalogue entry, a user's own file and an inline mapping have the same shape: a field is a bare value
(``hbm_bandwidth: 1.6TB/s``) or ``{value, source, confidence}``. Fields of a scenario override the preset's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import (
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue

from simulator.errors import InputError, Problem, nearest_name
from simulator.fields import Bandwidth, Bytes, Config, Flops, Hertz, Ratio, Seconds
from simulator.loading.explain import complaints, to_problems
from simulator.loading.yaml_source import KeyPath, YamlSource, dotted, read_yaml

Confidence = Literal["vendor", "measured", "assumed"]
T = TypeVar("T")

PRESETS = Path(__file__).parent / "presets" / "devices"


class Sourced(Config, Generic[T]):
    """One figure and where it is from. A bare value is the scenario's own word: ``assumed``."""

    model_config = ConfigDict(title="Sourced figure")

    value: T
    source: str = "given without a source"
    confidence: Confidence = "assumed"

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, data: Any) -> Any:
        fields = data if isinstance(data, (dict, Sourced)) else {"value": data}
        if isinstance(fields, dict) and isinstance(fields.get("value"), bool):
            raise ValueError("found true or false, but this is no yes-or-no key")
        return fields

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle finds classes by name, and the class of a generic's argument has none.
        return _sourced, (self.value, self.source, self.confidence)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        sourced = handler.resolve_ref_schema(handler(core_schema))
        sourced["properties"]["value"] = {"type": ["number", "string"]}
        return {"anyOf": [{"type": ["number", "string"]}, sourced]}


def _sourced(value: Any, source: str, confidence: Confidence) -> Sourced[Any]:
    return Sourced[Any](value=value, source=source, confidence=confidence)


class DeviceFields(Config):
    """The figures of a device, all optional: what is missing comes from the preset, if there is one."""

    model_config = ConfigDict(defer_build=True)  # three classes of 30 fields: start-up builds the used ones only

    hbm_bytes: Sourced[Bytes] | None = Field(None, description="memory on the card")
    hbm_usable_bytes: Sourced[Bytes] | None = Field(None, description="memory the framework sees as total")
    hbm_free_bytes: Sourced[Bytes] | None = Field(None, description="free when the engine starts; default: usable")
    hbm_bandwidth: Sourced[Bandwidth] | None = Field(None, description="peak")
    hbm_sustained_bandwidth: Sourced[Bandwidth] | None = Field(None, description="what long streams reach")
    hbm_latency_cycles: Sourced[PositiveFloat] | None = None
    l2_bytes: Sourced[Bytes] | None = None
    l2_bandwidth: Sourced[Bandwidth] | None = None
    l2_latency_cycles: Sourced[PositiveFloat] | None = None
    l1_latency_cycles: Sourced[PositiveFloat] | None = Field(None, description="scalar load that hits the data cache")
    lds_bytes: Sourced[Bytes] | None = Field(None, description="on-chip tile buffer: L1 of one cube core")
    ub_bytes: Sourced[Bytes] | None = Field(None, description="unified buffer of one vector core")
    tile_bytes: Sourced[Bytes] | None = Field(None, description="share of lds_bytes that K and V tiles may take")
    table_line_bytes: Sourced[Bytes] | None = Field(None, description="data-cache line of page-table reads")
    cores: Sourced[PositiveInt] | None = Field(None, description="cube (matrix) cores")
    vector_cores: Sourced[PositiveInt] | None = None
    clock_hz: Sourced[Hertz] | None = None
    cube_flops: Sourced[Flops] | None = Field(None, description="dense FP16 peak")
    cube_efficiency: Sourced[Ratio] | None = Field(None, description="share of cube_flops that large matmuls reach")
    dma_startup_s: Sourced[Seconds] | None = Field(None, description="fixed part of one transfer, all cores busy")
    dma_issue_s: Sourced[Seconds] | None = Field(None, description="least time between two transfers of a core")
    unaligned_ratio: Sourced[Ratio] | None = Field(None, description="bandwidth left when rows are unaligned")
    launch_s: Sourced[Seconds] | None = Field(None, description="floor of one attention kernel call")
    host_step_s: Sourced[Seconds] | None = Field(None, description="host work of one engine step")
    host_sequence_s: Sourced[Seconds] | None = Field(None, description="host work of each sequence in a step")
    link_bandwidth: Sourced[Bandwidth] | None = Field(None, description="one way, to the other devices of a node")
    link_latency_s: Sourced[Seconds] | None = Field(None, description="fixed part of one collective")
    host_bandwidth: Sourced[Bandwidth] | None = Field(None, description="pinned host memory")
    pageable_host_bandwidth: Sourced[Bandwidth] | None = None
    runtime_reserve_bytes: Sourced[Bytes] | None = Field(None, description="driver and runtime, outside the framework")
    collective_buffer_bytes: Sourced[Bytes] | None = Field(None, description="per device, when there are several")
    graph_bytes: Sourced[Bytes] | None = Field(None, description="captured graphs")
    pool_uncertainty_bytes: Sourced[Bytes] | None = Field(
        None, description="how far the KV pool may be off, to either side; `size` plans for it"
    )


class DeviceFile(DeviceFields):
    """A device file, in the catalogue or the user's own."""

    name: str
    description: str = ""
    stacks: dict[str, DeviceFields] = Field({}, description="figures that differ under another software stack")


class DeviceConfig(DeviceFields):
    """The scenario's ``device`` mapping: a preset or a file, or every required field inline; and how many."""

    preset: str | None = Field(None, description="name of a catalogue device")
    file: str | None = Field(None, description="path of a device YAML, relative to the scenario")
    name: str | None = None
    stack: str | None = Field(None, description="software stack of the preset or file, such as eager")
    count: int = Field(1, ge=1, description="devices in one instance")
    replicas: int = Field(1, ge=1, description="instances behind a router, each of count devices")
    kv_capacity_bytes: Bytes | None = Field(None, description="KV pool of a device, up to what the budget leaves")

    @model_validator(mode="after")
    def _one_base(self) -> "DeviceConfig":
        if self.preset is not None and self.file is not None:
            raise ValueError("give preset or file, not both")
        if self.stack is not None and self.preset is None and self.file is None:
            raise ValueError("stack chooses among the figures of a preset or file: give one of them")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of ``count`` in an instance. Bytes are of one device, bandwidths bytes a second, clocks hertz."""

    name: str
    count: int = 1
    replicas: int = 1
    kv_capacity_bytes: int | None = None
    hbm_bytes: int
    hbm_usable_bytes: int
    hbm_free_bytes: int
    hbm_bandwidth: float
    hbm_sustained_bandwidth: float
    hbm_latency_cycles: float
    l2_bytes: int
    l2_bandwidth: float
    l2_latency_cycles: float
    l1_latency_cycles: float
    lds_bytes: int
    ub_bytes: int
    tile_bytes: int
    table_line_bytes: int
    cores: int
    vector_cores: int
    clock_hz: float
    cube_flops: float
    cube_efficiency: float
    dma_startup_s: float
    dma_issue_s: float
    unaligned_ratio: float
    launch_s: float
    host_step_s: float
    host_sequence_s: float
    link_bandwidth: float
    link_latency_s: float
    host_bandwidth: float
    pageable_host_bandwidth: float
    runtime_reserve_bytes: int
    collective_buffer_bytes: int
    graph_bytes: int
    pool_uncertainty_bytes: int
    sources: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def fleet_count(self) -> int:
        """Devices of all instances together."""
        return self.count * self.replicas

    def provenance(self, name: str) -> tuple[str, str]:
        """``(source, confidence)`` of a field. Raises ``ValueError`` for a name that is no figure."""
        if name not in self.sources:
            raise _unknown("device figure", name, list(self.sources))
        return self.sources[name]


FIGURES = tuple(DeviceFields.model_fields)
_DEFAULTS: dict[str, float] = {
    "table_line_bytes": 64,
    "cube_efficiency": 1.0,
    "unaligned_ratio": 1.0,
    "host_sequence_s": 0.0,
    "link_latency_s": 0.0,
    "runtime_reserve_bytes": 0,
    "collective_buffer_bytes": 0,
    "graph_bytes": 0,
    "pool_uncertainty_bytes": 0,
}
_COPIES = {
    "hbm_free_bytes": ("hbm_usable_bytes", 1),
    "tile_bytes": ("lds_bytes", 0.25),
    "vector_cores": ("cores", 2),
    "pageable_host_bandwidth": ("host_bandwidth", 1),
}


def device_names() -> list[str]:
    """The catalogue's names, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def load_device(config: DeviceConfig, base_dir: Path | None = None) -> Device:
    """The device a scenario describes; ``file`` is looked up from ``base_dir``.

    Raises ``ValueError`` for an unknown preset or stack (with the nearest name), an unreadable or wrong file, a
    missing figure, or figures that contradict each other.
    """
    base = _base(config, base_dir or Path())
    name = config.name or (base.name if base is not None else "inline device")
    figures = {} if base is None else _given(base)
    if base is not None and config.stack is not None:
        if config.stack not in base.stacks:
            raise _unknown(f"software stack of {base.name}", config.stack, sorted(base.stacks))
        figures.update(_given(base.stacks[config.stack]))
    figures.update(_given(config))
    figures.update({key: value for key, value in _defaults(figures).items() if key not in figures})
    missing = [key for key in FIGURES if key not in figures and key not in _COPIES]
    if missing:
        raise ValueError(f"device {name!r} lacks {', '.join(missing)}: give them, or name a preset to start from")
    device = Device(
        name=name,
        count=config.count,
        replicas=config.replicas,
        kv_capacity_bytes=config.kv_capacity_bytes,
        sources={key: (figure.source, figure.confidence) for key, figure in figures.items()},
        **{key: figure.value for key, figure in figures.items()},
    )
    _check(device)
    return device


def _base(config: DeviceConfig, base_dir: Path) -> DeviceFile | None:
    if config.preset is not None:
        return _preset(_preset_name(config.preset))
    return None if config.file is None else _read(base_dir / config.file)


@cache
def _preset(name: str) -> DeviceFile:
    return _read(PRESETS / f"{name}.yaml")


def _preset_name(preset: str) -> str:
    by_lower = {name.lower(): name for name in device_names()}
    if preset.lower() not in by_lower:
        raise _unknown("device preset", preset, device_names())
    return by_lower[preset.lower()]


def _unknown(what: str, name: str, names: Sequence[str]) -> InputError:
    nearest = nearest_name(name, names)
    return InputError([Problem(message=f"unknown {what} {name!r}", nearest=nearest, allowed=tuple(names))])


def _read(path: Path) -> DeviceFile:
    source = read_yaml(path)
    try:
        return DeviceFile.model_validate(source.data)
    except ValidationError as error:
        found = complaints(error, DeviceFile, source.data)
    raise InputError(problem for item in found for problem in to_problems(item, partial(_place, source)))


def _place(source: YamlSource, path: KeyPath) -> Problem:
    return Problem(message="", file=source.file, line=source.line(path), key=dotted(path))


def _given(config: DeviceFields) -> dict[str, Sourced[Any]]:
    return {name: figure for name in FIGURES if (figure := getattr(config, name)) is not None}


def _defaults(figures: Mapping[str, Sourced[Any]]) -> dict[str, Sourced[Any]]:
    """What optional figures are when nobody gives them; each says so in its source."""
    found = {key: Sourced[Any](value=value, source="neutral default") for key, value in _DEFAULTS.items()}
    for key, (origin, factor) in _COPIES.items():
        if origin in figures:
            whole = isinstance(figures[origin].value, int)
            value = figures[origin].value * factor
            found[key] = Sourced[Any](value=int(value) if whole else value, source=f"{factor} x {origin}")
    return found


def _check(device: Device) -> None:
    """Refuse figures that contradict each other."""
    for small, large in (
        ("hbm_usable_bytes", "hbm_bytes"),
        ("hbm_free_bytes", "hbm_usable_bytes"),
        ("hbm_sustained_bandwidth", "hbm_bandwidth"),
        ("tile_bytes", "lds_bytes"),
    ):
        less, more = getattr(device, small), getattr(device, large)
        if less > more:
            raise ValueError(f"device {device.name!r}: {small} ({less:,}) is larger than {large} ({more:,})")
