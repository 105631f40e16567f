"""Calibration finds planted parameters, and says which ones it cannot find."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from simulator.calibrate import calibrate, device_yaml
from simulator.config import EngineConfig
from simulator.cost import StepCost, StepLoad
from simulator.device import Device, DeviceConfig, load_device
from simulator.kernels.measured_rows import StepRow, TransferRow, read_measured
from simulator.model import Model, ModelConfig, load_model


@cache
def device() -> Device:
    return load_device(DeviceConfig(preset="910B2"))


@cache
def model() -> Model:
    return load_model(ModelConfig(preset="qwen2.5-7b"))


def measured(truth: Device, host_sequence_s: float) -> list[StepRow]:
    truth = replace(truth, host_sequence_s=host_sequence_s)
    cost = StepCost(truth, model(), EngineConfig(), page_tokens=128)
    rows = []
    for batch, context in [(1, 128), (4, 1000), (16, 500), (64, 4000), (128, 9000), (256, 2000)]:
        pages = batch * -(-context // 128)
        load = StepLoad(
            decode_sequences=batch, decode_context_tokens=batch * context, decode_pages=pages, sampled_sequences=batch
        )
        rows.append(StepRow(batch=batch, context_tokens=context, step_ms=cost.seconds(load) * 1e3))
    return rows


def test_planted_host_costs_and_bandwidth_are_found() -> None:
    truth = replace(device(), host_step_s=17e-3, hbm_sustained_bandwidth=1.25e12)
    rows = measured(truth, 0.4e-3)
    fit = calibrate(
        device(),
        model(),
        EngineConfig(),
        rows,
        parameters=["host_step_s", "host_sequence_s", "hbm_sustained_bandwidth"],
    )
    assert fit.largest_error_after < 1e-3 < fit.mean_error_before
    assert fit.device.host_step_s == pytest.approx(17e-3, rel=0.01)
    assert fit.device.hbm_sustained_bandwidth == pytest.approx(1.25e12, rel=0.01)
    assert fit.device.host_sequence_s == pytest.approx(0.4e-3, rel=0.01)
    assert all(parameter.identifiable for parameter in fit.parameters)


def test_host_and_launch_cost_of_one_model_cannot_be_told_apart() -> None:
    rows = measured(replace(device(), host_step_s=20e-3), 0.25e-3)
    fit = calibrate(device(), model(), EngineConfig(), rows, parameters=["host_step_s", "launch_s"])
    assert fit.largest_error_after < 1e-3
    host, launch = fit.parameters
    assert (host.identifiable, launch.identifiable) == (False, False)
    assert host.note == "only together with launch_s"


def test_small_steps_cannot_tell_the_host_from_the_bandwidth_of_the_weights() -> None:
    rows = [StepRow(batch=b, context_tokens=c, step_ms=ms) for b, c, ms in [(1, 500, 33), (7, 350, 35.3), (16, 60, 37)]]
    fit = calibrate(device(), model(), EngineConfig(), rows, parameters=["host_step_s", "hbm_sustained_bandwidth"])
    assert fit.parameters[0].note == "only together with hbm_sustained_bandwidth"


def test_a_parameter_that_no_row_depends_on_is_named() -> None:
    rows = measured(replace(device(), host_step_s=20e-3), 0.25e-3)
    fit = calibrate(device(), model(), EngineConfig(), rows, parameters=["host_step_s", "link_latency_s"])
    assert [parameter.note for parameter in fit.parameters] == ["", "the rows do not depend on it"]


def test_transfer_rows_give_start_up_and_bandwidth() -> None:
    sizes = [8192, 16384, 32768, 131072]
    rows = [TransferRow(transfer_bytes=s, gb_per_s=24 * s / (80e-9 + s * 24 / 1.3e12) / 1e9) for s in sizes]
    fit = calibrate(device(), model(), EngineConfig(), rows, parameters=["dma_startup_s", "hbm_sustained_bandwidth"])
    assert fit.device.dma_startup_s == pytest.approx(80e-9, rel=0.02)
    assert fit.device.hbm_sustained_bandwidth == pytest.approx(1.3e12, rel=0.02)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch,context_tokens,step_ms\n4,100,fast\n", r"2: step_ms: 'fast' is not a number"),
        ("batch,context_tokens,step_ms\n4,100,-1\n", r"2: step_ms: -1.0 must be positive"),
        ("batch,step_ms\n4,100\n", r"expected columns batch, context_tokens, step_ms .*; found batch, step_ms"),
        ("batch,context_tokens,step_ms\n", "no measured rows"),
        ("batch,context_tokens,step_ms\n4.5,100,30\n", r"2: batch: 4.5 must be a whole number"),
        ("batch,context_tokens,step_ms\n4,100\n", r"2: step_ms: None is not a number"),
        ("", "found nothing"),
        ("batch,context_tokens,step_ms\n4,100,nan\n", r"2: step_ms: nan must be positive"),
    ],
)
def test_bad_measurements_are_named_by_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "measured.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_measured(path)


def test_good_measurements_are_read(tmp_path: Path) -> None:
    path = tmp_path / "measured.csv"
    path.write_text("batch,context_tokens,step_ms\n4,100,30.5\n")
    assert read_measured(path) == [StepRow(batch=4, context_tokens=100, step_ms=30.5)]
    path.write_text("transfer_bytes,gb_per_s\n8192,1065\n")
    assert read_measured(path) == [TransferRow(transfer_bytes=8192, gb_per_s=1065.0)]


def test_an_unknown_parameter_is_refused_with_the_ones_allowed() -> None:
    with pytest.raises(ValueError, match=r"'colour' cannot be fitted.* allowed: host_step_s"):
        calibrate(
            device(), model(), EngineConfig(), [StepRow(batch=1, context_tokens=1, step_ms=1.0)], parameters=["colour"]
        )


def test_the_written_device_file_loads_with_the_fitted_values_and_their_source(tmp_path: Path) -> None:
    rows = measured(replace(device(), host_step_s=17e-3), 0.25e-3)
    fit = calibrate(device(), model(), EngineConfig(), rows, parameters=["host_step_s"])
    (tmp_path / "mine.yaml").write_text(device_yaml(fit, measured="steps.csv"))
    loaded = load_device(DeviceConfig(file="mine.yaml"), tmp_path)
    assert loaded.host_step_s == pytest.approx(17e-3, rel=0.01)
    assert loaded.hbm_bytes == device().hbm_bytes
    assert loaded.provenance("host_step_s")[0].startswith("fitted to 6 rows of steps.csv: mean error")
    assert loaded.provenance("hbm_bandwidth") == device().provenance("hbm_bandwidth")
