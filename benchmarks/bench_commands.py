"""Whole commands as a user runs them, start-up included. Run: ``python -m pytest benchmarks/bench_commands.py``.

``--benchmark-min-rounds`` and the like are pytest-benchmark's; ``-k run_of_every`` picks some.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SCENARIOS = sorted(path.stem for path in (ROOT / "scenarios").glob("*.yaml"))
CHAT = """
device: {preset: 910B3, count: 1}
model: {preset: llama-3.1-8b}
workload: {arrivals: {process: poisson, rate: 8}, prompt_tokens: 1000, output_tokens: 200, requests: 10}
engine: {max_num_seqs: 128, max_num_batched_tokens: 8192, max_model_len: 8192}
allocators: [{kind: paged, page_size: 16, max_pages: 8192}]
"""
SEVEN_POOLS = "1000,2000,5000,10000,20000,50000,100000"
COMMANDS = {
    "help": ("--help",),
    "smallest_run": ("run", "chat.yaml", "--no-report"),
    "cache_curve": (
        *("cache-curve", "mooncake_conversation", "--capacity", SEVEN_POOLS),
        *("--policy", "lru", "--policy", "fifo", "--policy", "lfu"),
    ),
}


def _simulate(folder: Path, *words: str) -> None:
    # as a user has it: modules are read as bytecode from the second time on
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, ROOT / "cli.py", *words]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with ``chat.yaml`` in it."""
    (tmp_path / "chat.yaml").write_text(CHAT)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_command(benchmark: Any, folder: Path, command: str) -> None:
    benchmark.pedantic(_simulate, (folder, *COMMANDS[command]), rounds=9, warmup_rounds=1)


@pytest.mark.parametrize("requests", [10_000, 100_000])
def test_requests(benchmark: Any, folder: Path, requests: int) -> None:
    words = ("run", "chat.yaml", "--no-report", "--set", f"workload.requests={requests}")
    benchmark.pedantic(_simulate, (folder, *words), rounds=3)


def test_a_hundred_replications_of_ten_thousand_requests(benchmark: Any, folder: Path) -> None:
    words = ("run", "chat.yaml", "--no-report", "--set", "workload.requests=10000", "--replications", "100")
    benchmark.pedantic(_simulate, (folder, *words), rounds=1)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_run_of_every_scenario_with_its_report(benchmark: Any, folder: Path, scenario: str) -> None:
    words = ("run", scenario, "--out", "out")
    benchmark.pedantic(_simulate, (folder, *words), rounds=1)
