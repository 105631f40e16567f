"""One replay of the mocker, timed. Runs in the peer's own environment; the workload comes as JSON in the argument."""

import json
import sys
import time

import dynamo._core as mocker

workload = json.loads(sys.argv[1])
engine = {"engine": {"max_num_seqs": 128, "max_num_batched_tokens": 8192, **workload["engine"]}}
common = {"extra_engine_args": json.dumps(engine), "capture_planner_details": False}
wall, cpu = time.perf_counter(), time.process_time()
if "trace" in workload:
    report = mocker.run_mocker_trace_replay([workload["trace"]], trace_block_size=512, **common)
else:
    report = mocker.run_mocker_synthetic_trace_replay(
        workload["prompt_tokens"],
        workload["output_tokens"],
        workload["requests"],
        request_rate=workload["rate"],
        arrival_seed=42,
        **common,
    )
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
print(json.dumps({"wall_s": wall, "cpu_s": cpu, "summary": report.summary}, default=str))
