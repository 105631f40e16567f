"""Planted mistakes are noticed to the last one, and are no interruption."""

import json
from pathlib import Path

import pytest

import cli

WORLD = """
device: {preset: 910B3}
model: {preset: llama-3.1-8b}
workload: {arrivals: {process: fixed, rate: 5}, prompt_tokens: 300, output_tokens: 20, requests: 30}
engine: {step_time: 20ms, max_model_len: 4096, max_num_seqs: 16, on_oom: fail}
allocators: [{kind: paged, page_size: 16, max_pages: 2000}]
"""


def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> tuple[int, dict[str, object]]:
    file = tmp_path / "world.yaml"
    file.write_text(WORLD + f"faults: [{{kind: {kind}, every: 10}}]\n")
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(file), "--no-report", "--quiet", "--format", "json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)["runs"][0]["faults"]


@pytest.mark.parametrize("kind", ["missed_end_of_sequence", "forgotten_decrement"])
def test_a_leak_shorter_than_a_check_interval_is_noticed(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run(tmp_path, capsys, kind)
    assert code == 0
    # every tenth of thirty releases goes wrong, and each leaves at least a page that nobody has
    assert found["planted"] == 3
    assert int(str(found["noticed"])) >= 3


@pytest.mark.parametrize("kind", ["stale_page_table", "double_release"])
def test_a_mistake_that_stops_a_run_is_a_finding_and_no_interruption(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run(tmp_path, capsys, kind)
    assert code == 0
    assert int(str(found["planted"])) >= 1
    assert int(str(found["noticed"])) >= 1
