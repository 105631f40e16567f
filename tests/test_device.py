"""The device catalogue: published figures, provenance, user's own devices, and refusals."""

import time
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from simulator.device import FIGURES, PRESETS, DeviceConfig, device_names, load_device

GIB = 2**30
REQUIRED = (
    *("hbm_bytes", "hbm_usable_bytes", "hbm_bandwidth", "hbm_sustained_bandwidth", "hbm_latency_cycles"),
    *("l2_bytes", "l2_bandwidth", "l2_latency_cycles", "l1_latency_cycles", "lds_bytes", "ub_bytes"),
    *("cores", "clock_hz", "cube_flops", "dma_startup_s", "dma_issue_s", "launch_s", "host_step_s"),
    *("link_bandwidth", "host_bandwidth"),
)


def load(**keys: object):
    return load_device(DeviceConfig.model_validate(keys))


def test_the_catalogue_holds_the_five_real_devices_and_the_imaginary_one():
    assert device_names() == ["910B1", "910B2", "910B3", "910B4", "910C", "seed_910"]


@pytest.mark.parametrize(
    ("name", "memory_gib", "cores", "clock_ghz", "bandwidth"),
    [  # CANN platform configuration files: memory_size, ai_core_cnt, cube_freq; brochure bandwidths
        ("910B1", 64, 24, 1.85, 1.6e12),
        ("910B2", 64, 24, 1.80, 1.6e12),
        ("910B3", 64, 20, 1.80, 1.6e12),
        ("910B4", 32, 20, 1.50, 0.8e12),
        ("910C", 64, 24, 1.85, 1.6e12),
    ],
)
def test_presets_hold_the_vendor_figures(name, memory_gib, cores, clock_ghz, bandwidth):
    device = load(preset=name)
    assert device.hbm_bytes == memory_gib * GIB
    assert (device.cores, device.vector_cores) == (cores, 2 * cores)
    assert device.clock_hz == pytest.approx(clock_ghz * 1e9)
    assert device.hbm_bandwidth == bandwidth
    assert device.lds_bytes == 512 * 1024
    assert device.ub_bytes == 192 * 1024
    # A cube core does 16 x 16 x 16 multiply-adds a cycle, 2 operations each.
    assert device.cube_flops == pytest.approx(cores * 2 * 16**3 * clock_ghz * 1e9, rel=0.005)


@pytest.mark.parametrize("name", device_names())
def test_every_figure_says_where_it_is_from(name):
    device = load(preset=name)
    for figure in FIGURES:
        source, confidence = device.provenance(figure)
        assert len(source) > 10
        assert "without a source" not in source
        assert confidence in ("vendor", "measured", "assumed")


def test_nothing_of_the_imaginary_device_claims_to_be_real():
    device = load(preset="seed_910")
    assert device.hbm_bytes == device.hbm_usable_bytes == 128 * 10**9
    assert {device.provenance(figure)[1] for figure in FIGURES} == {"assumed"}


def test_usable_memory_of_a_64_gib_card_is_what_the_framework_logs():
    assert load(preset="910B3").hbm_usable_bytes == round(61.27 * GIB)


def test_preset_names_ignore_case_and_count_is_taken_over():
    device = load(preset="910b3", count=4, replicas=2)
    assert (device.name, device.count, device.replicas) == ("910B3", 4, 2)


def test_a_software_stack_replaces_its_figures_and_nothing_else():
    tuned, eager = load(preset="910B2"), load(preset="910B2", stack="eager")
    changed = {figure for figure in FIGURES if getattr(tuned, figure) != getattr(eager, figure)}
    assert changed == {"launch_s", "host_step_s"}
    assert eager.launch_s == pytest.approx(41e-6)
    assert load(preset="910B2", stack="eager", launch_s="30us").launch_s == pytest.approx(30e-6)


def test_an_unknown_software_stack_names_the_ones_there_are():
    with pytest.raises(ValueError, match=r"unknown software stack of 910B2 'eagre'.*eager"):
        load(preset="910B2", stack="eagre")


def test_an_override_replaces_one_figure_and_its_provenance():
    device = load(preset="910B3", hbm_bandwidth="1.8TB/s")
    assert device.hbm_bandwidth == 1.8e12
    assert device.provenance("hbm_bandwidth") == ("given without a source", "assumed")
    assert device.l2_bandwidth == load(preset="910B3").l2_bandwidth


def test_an_override_may_carry_its_own_source():
    figure = {"value": "1.5TB/s", "source": "my copy benchmark", "confidence": "measured"}
    assert load(preset="910B3", hbm_sustained_bandwidth=figure).provenance("hbm_sustained_bandwidth") == (
        "my copy benchmark",
        "measured",
    )


def test_an_unknown_preset_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"'910B5'.*did you mean '910B"):
        load(preset="910B5")


def test_preset_and_file_exclude_each_other():
    with pytest.raises(ValidationError, match="not both"):
        load(preset="910B3", file="x.yaml")


def test_an_inline_device_names_what_it_lacks():
    with pytest.raises(ValueError, match=r"lacks hbm_usable_bytes, hbm_bandwidth, .*host_bandwidth: give them"):
        load(hbm_bytes="64GiB")


def required_figures() -> dict[str, object]:
    """Bare values of the figures a device file must have."""
    preset = yaml.safe_load((PRESETS / "910B3.yaml").read_text())
    return {name: preset[name]["value"] for name in REQUIRED}


def test_an_inline_device_needs_only_the_required_figures():
    device = load(name="mine", **required_figures())
    assert device.name == "mine"
    assert device.vector_cores == 40
    assert device.tile_bytes == 128 * 1024
    assert device.hbm_free_bytes == device.hbm_usable_bytes
    assert device.runtime_reserve_bytes == 0


def test_a_device_file_is_found_beside_the_scenario(tmp_path: Path):
    text = yaml.safe_dump({"name": "lab card", **required_figures(), "hbm_usable_bytes": "60GiB"})
    (tmp_path / "lab.yaml").write_text(text)
    device = load_device(DeviceConfig(file="lab.yaml", count=2), tmp_path)
    assert (device.name, device.hbm_usable_bytes, device.count) == ("lab card", 60 * GIB, 2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hbm_bandwith: 1TB/s", r"lab.yaml:2: hbm_bandwith: unknown key; did you mean 'hbm_bandwidth'"),
        ("cores: none", r"lab.yaml:2: cores"),
        ("hbm_bytes: {value: 64GiB, confidence: sure}", r"lab.yaml:2: hbm_bytes.confidence"),
        ("hbm_bytes: 64 gigs", r"lab.yaml:2: hbm_bytes.*unknown unit"),
    ],
)
def test_a_wrong_line_of_a_device_file_is_named(tmp_path: Path, line: str, message: str):
    (tmp_path / "lab.yaml").write_text(f"name: lab\n{line}\n")
    with pytest.raises(ValueError, match=message):
        load_device(DeviceConfig(file="lab.yaml"), tmp_path)


def test_a_missing_device_file_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match=r"nowhere\.yaml"):
        load_device(DeviceConfig(file="nowhere.yaml"), tmp_path)


@pytest.mark.parametrize(
    "figures",
    [{"hbm_usable_bytes": "70GiB"}, {"hbm_sustained_bandwidth": "2TB/s"}, {"tile_bytes": "1MiB"}],
)
def test_figures_that_contradict_each_other_are_refused(figures):
    with pytest.raises(ValueError, match="is larger than"):
        load(preset="910B3", **figures)


def test_a_figure_that_does_not_exist_has_no_provenance():
    with pytest.raises(ValueError, match="did you mean 'hbm_bytes'"):
        load(preset="910B3").provenance("hbm_byte")


def test_loading_a_preset_takes_a_few_milliseconds():
    seconds = []
    for name in device_names():
        start = time.perf_counter()
        load(preset=name)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.015


def test_the_schema_accepts_bare_and_sourced_values():
    kinds = DeviceConfig.model_json_schema()["$defs"]
    sourced = [kind for name, kind in kinds.items() if name.startswith("Sourced")]
    assert sourced
    assert all(kind["anyOf"][0] == {"type": ["number", "string"]} for kind in sourced)
    assert all("confidence" in kind["anyOf"][1]["properties"] for kind in sourced)
