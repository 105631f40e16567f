"""Fit named device parameters to measured step times or transfer bandwidths.

Least squares on relative errors, in the logarithm of each parameter, within bounds around its present value. What the
data cannot tell is said: a parameter whose change moves no residual, or moves them as others do, is reported as not
identifiable and keeps its place at the mercy of the others.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from simulator.config import EngineConfig
from simulator.cost import StepCost, StepLoad
from simulator.device import FIGURES, Device
from simulator.errors import InputError, Problem, nearest_name
from simulator.kernels.dma import make_dma
from simulator.kernels.measured_rows import StepRow, TransferRow
from simulator.models.model_shape import Model
from simulator.units import ceil_div

# How far a parameter may move from its present value, as factors.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "host_step_s": (0.01, 30.0),
    "host_sequence_s": (0.01, 10.0),
    "launch_s": (0.05, 10.0),
    "hbm_sustained_bandwidth": (0.5, 1.3),
    "dma_startup_s": (0.2, 5.0),
    "dma_issue_s": (0.2, 5.0),
    "link_latency_s": (0.05, 20.0),
}
# What is fitted when nobody says: what decides decode steps, and what decides transfers.
STEP_PARAMETERS = ("host_step_s", "host_sequence_s")
TRANSFER_PARAMETERS = ("dma_startup_s", "hbm_sustained_bandwidth")
# A direction in parameter space along which 10 % moves the residuals by less than this (root mean square) is unseen.
UNSEEN = 1e-3
# A parameter has a part in a direction when its component of the unit vector is at least this.
PART = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One parameter: value before and after, whether the data identify it, and why not."""

    name: str
    before: float
    after: float
    identifiable: bool
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The fit: parameters, relative errors (mean and largest) before and after and of each row, the fitted device."""

    parameters: tuple[Fitted, ...]
    mean_error_before: float
    mean_error_after: float
    largest_error_before: float
    largest_error_after: float
    rows: int
    errors_before: tuple[float, ...]
    errors_after: tuple[float, ...]
    device: Device

    def to_dict(self) -> dict[str, Any]:
        """The JSON document: everything but the device."""
        return {
            "rows": self.rows,
            "mean_error_before": self.mean_error_before,
            "mean_error_after": self.mean_error_after,
            "largest_error_before": self.largest_error_before,
            "largest_error_after": self.largest_error_after,
            "parameters": [asdict(parameter) for parameter in self.parameters],
            "errors_before": list(self.errors_before),
            "errors_after": list(self.errors_after),
        }


def calibrate(
    device: Device,
    model: Model,
    engine: EngineConfig,
    rows: Sequence[StepRow] | Sequence[TransferRow],
    *,
    parameters: Sequence[str] = (),
    page_tokens: int = 128,
) -> Calibration:
    """Fit ``parameters`` (for none: the usual ones) to ``rows``.

    Raises ``InputError`` for a parameter that cannot be fitted or no rows.
    """
    if not rows:
        raise InputError([Problem(message="there are no measured rows to fit")])
    parameters = parameters or (TRANSFER_PARAMETERS if isinstance(rows[0], TransferRow) else STEP_PARAMETERS)
    _check(device, parameters)
    start = [float(getattr(device, name)) for name in parameters]

    def errors(factors: Iterable[float]) -> list[float]:
        values: dict[str, Any] = {
            name: value * factor for name, value, factor in zip(parameters, start, factors, strict=True)
        }
        return _errors(replace(device, **values), model, engine, rows, page_tokens)

    factors, sees = _fit(errors, parameters)
    before, after = errors([1.0] * len(start)), errors(factors)
    values: dict[str, Any] = {
        name: value * factor for name, value, factor in zip(parameters, start, factors, strict=True)
    }
    return Calibration(
        parameters=tuple(
            Fitted(name=name, before=first, after=values[name], identifiable=not sees[name], note=sees[name])
            for name, first in zip(parameters, start, strict=True)
        ),
        mean_error_before=_mean(before),
        mean_error_after=_mean(after),
        largest_error_before=max(map(abs, before)),
        largest_error_after=max(map(abs, after)),
        rows=len(rows),
        errors_before=tuple(before),
        errors_after=tuple(after),
        device=replace(device, **values),
    )


def _check(device: Device, parameters: Sequence[str]) -> None:
    problems = []
    for name in parameters:
        if name not in BOUNDS:
            nearest, message = nearest_name(name, BOUNDS), f"{name!r} cannot be fitted"
            problems.append(Problem(option="--fit", message=message, nearest=nearest, allowed=tuple(BOUNDS)))
        elif getattr(device, name) <= 0:
            message = f"{name} is 0 and has no scale to fit: set device.{name} to a positive start"
            problems.append(Problem(option="--fit", message=message))
        elif parameters.count(name) > 1:
            problems.append(Problem(option="--fit", message=f"{name} is given more than once"))
    if problems:
        raise InputError(problems)


def device_yaml(fit: Calibration, *, measured: str) -> str:
    """A device file with the fitted figures, each saying how well it was fitted to ``measured`` (a file's name)."""
    device = fit.device
    error = f"mean error {fit.mean_error_before:.1%} before, {fit.mean_error_after:.1%} after"
    source = f"fitted to {fit.rows} rows of {measured}: {error}"
    lines = [f"name: {json.dumps(device.name + ' calibrated')}", f"description: {json.dumps(source)}"]
    notes = {parameter.name: parameter.note for parameter in fit.parameters}
    for name in FIGURES:
        origin, confidence = device.provenance(name) if name in device.sources else ("", "assumed")
        if name in notes:
            origin, confidence = source + (f"; not identifiable: {notes[name]}" if notes[name] else ""), "measured"
        value = getattr(device, name)
        lines.append(f"{name}: {{value: {value!r}, source: {json.dumps(origin)}, confidence: {confidence}}}")
    return "\n".join(lines) + "\n"


def _fit(
    errors: Callable[[Iterable[float]], list[float]], parameters: Sequence[str]
) -> tuple[list[float], dict[str, str]]:
    """Factors of the best fit, and for each parameter why it is not identifiable (empty when it is)."""
    import numpy as np
    from scipy.optimize import least_squares

    low, high = (np.log([BOUNDS[name][side] for name in parameters]) for side in (0, 1))

    def residuals(logs: Any) -> Any:
        return np.array(errors(np.exp(logs)))

    result = least_squares(residuals, np.zeros(len(parameters)), bounds=(low, high), x_scale=0.1)
    factors = [float(factor) for factor in np.exp(result.x)]
    jacobian = np.array(result.jac, float)
    _, strengths, directions = np.linalg.svd(jacobian, full_matrices=True)
    strengths = np.concatenate([strengths, np.zeros(len(parameters) - len(strengths))])
    scale = 0.1 / np.sqrt(len(jacobian))
    unseen = directions[strengths * scale < UNSEEN]
    notes = {}
    for index, name in enumerate(parameters):
        mixed = {
            other: None
            for row in unseen
            if abs(row[index]) > PART
            for position, other in enumerate(parameters)
            if position != index and abs(row[position]) > PART
        }
        edge = min(result.x[index] - low[index], high[index] - result.x[index]) < 1e-3
        if np.linalg.norm(jacobian[:, index]) * scale < UNSEEN:
            notes[name] = "the rows do not depend on it"
        elif mixed:
            notes[name] = f"only together with {', '.join(mixed)}"
        else:
            notes[name] = "the fit ends at its bound" if edge else ""
    return factors, notes


def _errors(
    device: Device,
    model: Model,
    engine: EngineConfig,
    rows: Sequence[Any],
    page_tokens: int,
) -> list[float]:
    """Relative error of each row."""
    if isinstance(rows[0], TransferRow):
        dma = make_dma(device)
        cores = device.cores
        return [
            cores * row.transfer_bytes / dma.seconds(row.transfer_bytes, cores) / 1e9 / row.gb_per_s - 1.0
            for row in rows
        ]
    cost = StepCost(device, model, engine, page_tokens=page_tokens)
    pooled_tokens = page_tokens * engine.decode_context_parallel_size
    return [cost.seconds(_load(row, pooled_tokens, model)) * 1e3 / row.step_ms - 1.0 for row in rows]


def _load(row: StepRow, page_tokens: int, model: Model) -> StepLoad:
    window = next((group.window for group in model.groups if group.window is not None), None)
    return StepLoad(
        decode_sequences=row.batch,
        decode_context_tokens=row.batch * row.context_tokens,
        decode_pages=row.batch * ceil_div(row.context_tokens, page_tokens),
        decode_windowed_tokens=0 if window is None else row.batch * min(row.context_tokens, window),
        sampled_sequences=row.batch,
    )


def _mean(errors: Sequence[float]) -> float:
    return sum(map(abs, errors)) / len(errors)
