"""Results folders of every command, small, for tests that look at their files and pages."""

from pathlib import Path

import pytest

import cli

#: contiguous reservations for 256 requests do not fit, pages do
TEXT = """\
name: tight
description: a pool that is too small for reservations
device: {preset: 910B3, kv_capacity_bytes: 1GiB}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: poisson, rate: 12/s}
  prompt_tokens: {dist: uniform, min: 10, max: 400}
  output_tokens: {dist: fixed, value: 20}
  requests: 50
engine: {max_num_seqs: 32, max_model_len: 2048, on_oom: fail, step_time: 20ms}
allocators:
  - {kind: contiguous}
  - {kind: paged, page_size: 16, max_pages: 140}
"""
_RATE = "workload.arrivals.rate"
COMMANDS = {
    "run": ("run", "tight.yaml", "--perfetto"),
    "compare": ("compare", "tight.yaml", "--replications", "3"),
    "vary": ("compare", "tight.yaml", "--replications", "2", "--vary", f"{_RATE}=4:20:8", "--lang", "zh"),
    "size": ("size", "tight.yaml", "--target-oom", "0.1", "--max-replications", "4", "--pool-interval", "400MiB:1GiB"),
    "solve": ("size", "tight.yaml", "--target-oom", "0.2", "--max-replications", "4", "--solve", f"{_RATE}=4:40:12"),
    "sweep": ("sweep", "tight.yaml", "--grid", f"{_RATE}=4,12,20", "--grid", "engine.max_num_seqs=4,8,16"),
    "kernel": ("kernel", "--model", "llama-2-7b", "--device", "910B2", "--page-size", "16,128,1024"),
}
_ONE_PROCESS = ("compare", "size", "sweep")


def make_folder(name: str, base: Path) -> Path:
    """The results of one of ``COMMANDS``, in a folder below ``base``, which also holds the scenario."""
    (base / "tight.yaml").write_text(TEXT)
    words = list(COMMANDS[name])
    words[1:2] = [str(base / words[1])] if words[1].endswith(".yaml") else words[1:2]
    jobs = ["--jobs", "1"] if words[0] in _ONE_PROCESS else []
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, *jobs, "--out", str(base / name), "--quiet"])
    assert not ended.value.code, name
    return base / name


class Folders:
    """The folders, each made when it is first asked for."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._made: dict[str, Path] = {}

    def __getitem__(self, name: str) -> Path:
        if name not in self._made:
            self._made[name] = make_folder(name, self.base)
        return self._made[name]
