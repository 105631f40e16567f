"""Requests per second of the engine, with real page ids. Run: ``python -m pytest benchmarks/bench_engine.py``.

Chat lengths (1,000 prompt, 200 output tokens), Poisson arrivals, pages of 16 tokens. ``chat`` has some 55 sequences in
the batch and enough pages; ``starved`` has half the pages and preempts. Step times are fixed, so that what is timed is
the simulator and not where a device model happens to put the load.
"""

from pathlib import Path
from typing import Any

import pytest

from simulator.metrics import RunResult
from simulator.scenario import Scenario, parse_scenario
from simulator.serving.pool import build_allocator
from simulator.simulation import pool_parts, run_one

CHAT = """
device: {preset: 910B3, count: 1}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: poisson, rate: 8}
  prompt_tokens: 1000
  output_tokens: 200
  requests: 8000
engine: {max_num_seqs: 128, max_num_batched_tokens: 8192, max_model_len: 8192, step_time: 35ms}
allocators: [{kind: paged, page_size: 16, max_pages: 8192}]
"""
LONG_OUTPUTS = ("workload.output_tokens=2000", "workload.prompt_tokens=1000", "workload.arrivals.rate=0.8")
WORLDS = {
    "chat": (),
    "starved": ("allocators.0.max_pages=4096", "workload.arrivals.rate=14"),
    "long_outputs": (*LONG_OUTPUTS, "allocators.0.max_pages=16384", "workload.requests=2000"),
    "contiguous": ("allocators=[{kind: contiguous, reserve: exact}]",),
    "paged_cow": ("allocators=[{kind: paged_cow, page_size: 16, max_pages: 8192}]",),
}


@pytest.mark.parametrize("world", WORLDS)
def test_requests_per_second(benchmark: Any, world: str) -> None:
    scenario: Scenario = parse_scenario(CHAT, Path(), WORLDS[world])
    requests = scenario.requests()

    def run() -> RunResult:
        allocator = build_allocator(scenario.allocators[0], pool_parts(scenario, requests), key="allocators.0")
        return run_one(scenario, requests, allocator, label=world)

    result = benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    summary = result.summary
    benchmark.extra_info.update(
        requests_per_s=round(len(requests) / benchmark.stats.stats.median),
        mean_batch=round(summary["batch"]["mean"], 1),
        steps=summary["steps"],
        preemptions=summary["preemptions"],
    )
    assert summary["requests"]["completed"] == len(requests)
