"""One run of this simulator, timed as the peer is: requests, pool, simulation and figures, not the imports."""

import json
import sys
import time
from pathlib import Path

from simulator import core
from simulator.metrics import RunResult
from simulator.scenario import parse_scenario
from simulator.serving.pool import build_allocator
from simulator.simulation import pool_parts, run_one

SCENARIO = """
device: {preset: 910B3, count: 1}
model: {preset: llama-3.2-1b}
workload: {}
engine: {profile: vllm-0.11, max_num_seqs: 128, max_num_batched_tokens: 8192, max_model_len: 131072, step_time: 35ms}
allocators: []
"""


def timed(settings: list[str]) -> tuple[float, float, RunResult]:
    """Seconds of wall time and of processor time."""
    wall, cpu = time.perf_counter(), time.process_time()
    scenario = parse_scenario(SCENARIO, Path(), tuple(settings))
    requests = scenario.requests()
    allocator = build_allocator(scenario.allocators[0], pool_parts(scenario, requests), key="allocators.0")
    result = run_one(scenario, requests, allocator, label="ours")
    return time.perf_counter() - wall, time.process_time() - cpu, result


wall_s, cpu_s, run = timed(json.loads(sys.argv[1]))
figures = {key: run.summary[key] for key in ("steps", "preemptions", "requests", "batch")}
print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s, "core": core, **figures}))
