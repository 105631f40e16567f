"""`simulate kernel`, `simulate calibrate` and `simulate claims` from the command line."""

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cli
from simulator.commands import devices
from simulator.showing.asking import Asked
from simulator.showing.kernel_command import KernelQuestion

Run = Callable[..., tuple[int, str, str]]
KEYS = {
    *("page_size", "page_bytes", "tile_bytes", "tiles_fit", "kv_bytes", "table_bytes", "lookups", "dma_transfers"),
    *("cycles", "seconds", "bandwidth_utilization", "bound"),
}
MODEL = ("--model", "llama-2-7b", "--device", "910B2")


@pytest.fixture
def simulate(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line in this process, in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(word) for word in words])
        captured = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), captured.out, captured.err

    return run


def kernel(simulate: Run, *words: str) -> list[dict[str, object]]:
    code, out, _ = simulate("kernel", *words, "--format", "json", "--no-report")
    assert code == 0
    rows = json.loads(out)
    assert isinstance(rows, list)
    return rows


def test_rows_have_the_promised_fields_and_hand_counts(simulate: Run) -> None:
    (row,) = kernel(simulate, *MODEL, "--page-size", "128", "--context", "2048", "--batch", "16")
    assert set(row) >= KEYS
    assert row["kv_bytes"] == 16 * 2048 * 2 * 32 * 128 * 2
    assert row["lookups"] == 16 * 16 * 32 * 2
    assert (row["page_bytes"], row["tile_bytes"], row["tiles_fit"]) == (2 * 2**20, 32768, 4)
    assert row["cycles"] == pytest.approx(row["seconds"] * 1.8e9, rel=1e-6)  # type: ignore[operator]


def test_one_of_the_page_sizes_is_recommended_and_pages_of_one_size_once(simulate: Run) -> None:
    rows = kernel(simulate, *MODEL, "--page-size", "64,16,64,1024")
    assert [row["page_size"] for row in rows] == [16, 64, 1024]
    assert [row["recommended"] for row in rows].count(True) == 1


def test_what_has_to_be_typed_again_is_what_is_not_as_usual() -> None:
    parameters = inspect.signature(devices.kernel).parameters
    usual = {name: parameters[name].default for name in ("tile", "table", "prefetch", "layout", "overflow")}
    given: dict[str, Any] = {"model": "llama-2-7b", "device": "910B2", "count": None, "page_size": "16,32"}
    given |= {"asked": Asked(scenario=None), "context": None, "batch": None}
    question = KernelQuestion(**given, **usual, stages=True)
    told = {name: value for name, value in question.unusual().items() if value is not None}
    assert told == {"model": "llama-2-7b", "device": "910B2", "page-size": "16,32"}
    other = replace(question, tile="whole_page", overflow="reload")
    assert other.unusual().items() - question.unusual().items() == {("tile", "whole_page"), ("overflow", "reload")}


def test_the_articles_cliff_at_64_tokens_appears_only_when_whole_pages_are_read_again(simulate: Run) -> None:
    cliff = [*MODEL, "--page-size", "32,64", "--tile", "whole_page", "--overflow", "reload"]
    falls = [row["bandwidth_utilization"] for row in kernel(simulate, *cliff)]
    rises = [row["bandwidth_utilization"] for row in kernel(simulate, *MODEL, "--page-size", "32,64")]
    assert falls[1] < 0.6 * falls[0]  # type: ignore[operator]
    assert rises[1] > rises[0]  # type: ignore[operator]


def test_seven_stages_come_with_the_rows_when_asked_for(simulate: Run) -> None:
    (row,) = kernel(simulate, *MODEL, "--page-size", "128", "--stages")
    stages = row["stages"]
    assert isinstance(stages, list)
    assert [stage["name"] for stage in stages] == [
        *("host_prep", "allocation", "packing", "attention", "kv_write", "logits_sampling", "bookkeeping")
    ]
    code, out, _ = simulate("kernel", *MODEL, "--page-size", "128", "--stages", "--no-report")
    assert code == 0
    assert "logits sampling" in out


def test_every_mechanism_has_its_choices_with_seconds(simulate: Run) -> None:
    (row,) = kernel(simulate, *MODEL, "--page-size", "16", "--context", "2048", "--batch", "32", "--mechanisms")
    listed = row["mechanisms"]
    assert isinstance(listed, list)
    seconds = {(one["mechanism"], one["choice"]): one["seconds"] for one in listed}
    assert seconds["page ids", "hbm"] > seconds["page ids", "dcache"]
    assert seconds["tile prefetch", "none"] > seconds["tile prefetch", "next"] > seconds["tile prefetch", "all"]
    assert seconds["page bytes", "not aligned"] > 1.5 * seconds["page bytes", "multiple of 128"]
    assert seconds["prompt batch", "packed"] == 0 < seconds["prompt batch", "padded"]
    assert seconds["cu_seqlens", "pageable"] > seconds["cu_seqlens", "pinned"] > seconds["cu_seqlens", "prebuilt"]
    assert seconds["Q, K and V", "separate"] == pytest.approx(3 * seconds["Q, K and V", "interleaved"], rel=0.1)
    # 2 pages a step, 2 accesses each, 300 cycles of 1.8 GHz.
    assert seconds["free list", "atomic head"] == pytest.approx(2 * 2 * 300 / 1.8e9)
    # Half a MiB a token and 16 tokens a page, read and written, for 15 of 16 of the sequences.
    copied = 30 * 16 * 512 * 1024 * 2
    assert seconds["append while read", "copy on write"] == pytest.approx(copied / 1.45e12)
    assert seconds["append while read", "stream wait"] == pytest.approx(32 * 21.5e-6)


def test_a_scenario_brings_its_own_lengths(simulate: Run) -> None:
    (row,) = kernel(simulate, "llama7b_8x2048", "--page-size", "16")
    assert row["context_tokens"] != 4096


def test_pictures_and_numbers_are_written_where_asked(simulate: Run, tmp_path: Path) -> None:
    code, _, _ = simulate("kernel", *MODEL, "--page-size", "16,128", "--out", "found")
    assert code == 0
    assert (tmp_path / "found/kernel_costs.svg").read_bytes().startswith(b"<?xml")
    assert (tmp_path / "found/kernel_costs.png").read_bytes().startswith(b"\x89PNG")
    assert len(json.loads((tmp_path / "found/summary.json").read_text())["pages"]) == 2


@pytest.mark.parametrize("sizes", ["0", "x", "16,,32", "-4", "9999999999"])
def test_a_wrong_page_size_is_refused(simulate: Run, sizes: str) -> None:
    code, out, err = simulate("kernel", *MODEL, "--page-size", sizes)
    assert (code, out) == (2, "")
    assert "--page-size" in err


def test_pages_that_are_not_aligned_are_warned_of(simulate: Run) -> None:
    # One KV head of 64 on each of two devices at half a byte: 64 bytes of K and V a token.
    small = ("--model", "qwen2.5-0.5b", "--device", "910B2", "--count", "2", "--set", "engine.kv_cache_dtype=int4")
    code, _, err = simulate("kernel", *small, "--page-size", "1,2", "--no-report")
    assert code == 0
    assert err.startswith("warning: pages of 1 (64 bytes) are no multiple of 128 bytes")


def test_a_model_that_leaves_no_room_still_has_a_kernel_cost(simulate: Run) -> None:
    code, out, _ = simulate(
        "kernel", "--model", "llama-2-70b", "--device", "910B4", "--page-size", "128", "--no-report"
    )
    assert code == 0
    assert "leaves no room" in out


def measured(tmp_path: Path) -> Path:
    """Steps of a host that takes 20 ms and 0.3 ms a sequence, and a device that takes 12 ms."""
    lines = [f"{batch},300,{20 + 0.3 * batch + 12}" for batch in (1, 4, 16, 32)]
    path = tmp_path / "steps.csv"
    path.write_text("batch,context_tokens,step_ms\n" + "\n".join(lines) + "\n")
    return path


def test_calibration_shows_errors_and_writes_a_device_that_a_scenario_can_use(simulate: Run, tmp_path: Path) -> None:
    code, out, _ = simulate("calibrate", "azure_conv", measured(tmp_path), "--out", "mine.yaml", "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert found["mean_error_after"] < 0.02 < found["mean_error_before"]
    assert {row["name"]: row["identifiable"] for row in found["parameters"]} == {
        "host_step_s": True,
        "host_sequence_s": True,
    }
    own = ("--set", f"device.file={tmp_path / 'mine.yaml'}", "--set", "device.preset=null")
    code, _, err = simulate("memory", "azure_conv", *own)
    assert code == 0, err


def test_calibration_names_the_parameters_that_the_rows_cannot_tell_apart(simulate: Run, tmp_path: Path) -> None:
    code, out, _ = simulate("calibrate", "azure_conv", measured(tmp_path), "--fit", "host_step_s,launch_s")
    assert code == 0
    assert "cannot tell: host_step_s, launch_s" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere.csv",), "nowhere.csv: cannot be read"),
        (("steps.csv", "--fit", "launch"), "did you mean 'launch_s'?"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(
    simulate: Run, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    measured(tmp_path)
    code, _, err = simulate("calibrate", "azure_conv", *words)
    assert code == 2
    assert message in err


def test_claims_are_listed_with_claim_value_formula_and_verdict(simulate: Run) -> None:
    code, out, _ = simulate("claims", "--format", "json")
    entries = json.loads(out)
    assert code == 0
    assert len(entries) == 37
    for entry in entries:
        assert entry["claimed"]
        assert entry["formula"]
        assert entry["verdict"]
        assert {value["name"] for value in entry["computed"]}
    code, out, _ = simulate("claims")
    assert code == 0
    assert out.startswith("37 claims: ")
