"""Claims of two published articles about paged KV caches, checked by this program's own model.

The claims' text and the articles' numbers are data (``presets/claims.yaml``); every computed value and every verdict
comes from a function of ``claims_memory`` or ``claims_kernel`` that asks the device, the model and the kernel.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from simulator.device import Device, DeviceConfig, load_device
from simulator.model import Model, ModelConfig, load_model
from simulator.units import format_bytes, format_seconds

CLAIMS = Path(__file__).parent / "presets" / "claims.yaml"
ARTICLES = {"A": "PagedAttention in ATB", "B": "Paged KV cache in cann-recipes-infer"}

Verdict = Literal["right", "partly", "plausible", "implausible", "unsupported", "poor", "wrong"]
Unit = Literal["bytes", "GB", "GB/s", "s", "share", "points", "x", "tokens", "pages", "cycles", "entries", "", "TB/s"]
Given = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One computed figure."""

    name: str
    value: float
    unit: Unit = ""

    def __str__(self) -> str:
        """``name: figure`` for people."""
        return f"{self.name}: {_spelled(self.value, self.unit)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the model says about a claim."""

    verdict: Verdict
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim with what was found. ``number`` is the article's letter and the claim's place in it."""

    number: str
    article: str
    claim: str
    claimed: str
    computed: tuple[Value, ...]
    formula: str
    verdict: Verdict
    why: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON entry."""
        return asdict(self)


Check = Callable[[Given], Finding]


def check_claims() -> tuple[Claim, ...]:
    """All claims in the order of the articles, each computed now."""
    checks = _checks()
    return tuple(_checked(entry, checks[entry["id"]]) for entry in _entries())


def _checked(entry: Mapping[str, Any], check: Check) -> Claim:
    finding = check(_numbers(entry.get("given", {})))
    return Claim(
        number=entry["id"],
        article=ARTICLES[entry["id"][0]],
        claim=entry["claim"],
        claimed=str(entry["claimed"]),
        computed=finding.values,
        formula=entry["formula"],
        verdict=finding.verdict,
        why=entry["why"],
    )


def _checks() -> dict[str, Check]:
    from simulator.claiming import claims_kernel, claims_memory

    return claims_memory.CHECKS | claims_kernel.CHECKS


def _entries() -> list[dict[str, Any]]:
    from simulator.loading.yaml_source import read_yaml

    entries: list[dict[str, Any]] = read_yaml(CLAIMS).data["claims"]
    return entries


def _numbers(given: Mapping[str, Any]) -> dict[str, float]:
    from simulator.units import parse_bytes, parse_seconds

    return {
        name: value
        if isinstance(value, (int, float))
        else parse_seconds(value)
        if name.endswith("_s")
        else parse_bytes(value)
        for name, value in given.items()
    }


def near(value: float, claimed: float, tolerance: float = 0.05) -> bool:
    """Whether a computed value is what was claimed, up to rounding."""
    return abs(value - claimed) <= tolerance * abs(claimed)


@cache
def model(name: str) -> Model:
    """A catalogue model."""
    return load_model(ModelConfig(preset=name))


@cache
def device(name: str = "910B1") -> Device:
    """A catalogue device; the articles' is a 910B."""
    return load_device(DeviceConfig(preset=name))


def _spelled(value: float, unit: Unit) -> str:
    if unit == "bytes":
        return format_bytes(value)
    if unit == "s":
        return format_seconds(value)
    if unit == "share":
        return f"{100 * value:.3g} %"
    number = f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
    return f"{number} {unit}".strip()
