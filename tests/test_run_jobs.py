"""`simulate run --jobs`: the same bytes from any number of processes, which end with the one that started them."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import cli
from simulator.errors import InputError, Problem
from simulator.planning.run_parts import Part, run_parts
from simulator.planning.tasks import in_order, processes
from simulator.scenario import parse_scenario

SCRIPT = Path(cli.__file__).resolve()
#: every allocator, and a memory tight enough that all of them are refused something
TEXT = """\
name: tight
device: {preset: 910B3, kv_capacity_bytes: 256MiB}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: poisson, rate: 20/s}
  prompt_tokens: {dist: uniform, min: 10, max: 400}
  output_tokens: {dist: uniform, min: 5, max: 60}
  requests: 60
engine: {max_num_seqs: 16, max_model_len: 1024, on_oom: preempt_recompute}
allocators:
  - {kind: contiguous}
  - {kind: paged, page_size: 16}
  - {kind: paged_cow, page_size: 16}
  - {kind: paged_defrag, page_size: 16, run_length: 4, trigger: {on_failure: true}}
"""
ENDLESS = ("--set", "workload.requests=1000000", "--set", "workload.arrivals.rate=1", "--allocator", "paged")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tight.yaml"
    path.write_text(TEXT)
    return path


def run(words: Sequence[str | Path]) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("more", [(), ("--replications", "2", "--perfetto"), ("--allocator", "paged", "--verify")])
def test_processes_give_the_bytes_of_one(
    more: tuple[str, ...], file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []
    for jobs in ("1", "3"):
        out = tmp_path / f"jobs{jobs}"
        assert run(["run", file, "--jobs", jobs, "--out", out, "-q", *more]) == 0
        files = {path.name: path.read_bytes() for path in out.iterdir() if path.name != "timing.json"}
        seen.append((files, capsys.readouterr().out))
    assert seen[0] == seen[1]
    assert {"pool_map.parquet", "manifest.json"} <= seen[0][0].keys()


def test_without_files_nothing_else_is_printed_either(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for jobs in ("1", "2"):
        assert run(["run", file, "--jobs", jobs, "--no-report", "--format", "json"]) == 0
        document = json.loads(capsys.readouterr().out)
        printed.append([{key: value for key, value in one.items() if key != "wall_s"} for one in document["runs"]])
    assert printed[0] == printed[1]
    assert [one["label"] for one in printed[0]] == ["contiguous", "paged", "paged_cow", "paged_defrag"]


def test_what_a_process_finds_wrong_is_said_as_by_one(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for jobs in ("1", "2"):
        assert run(["run", file, "--jobs", jobs, "--no-report", "--set", "allocators.1.max_pages=100000000"]) == 2
        said.append(capsys.readouterr())
    assert said[0] == said[1]
    assert said[0].err.startswith("--set allocators.1.max_pages=100000000: allocators.1.max_pages: asks for")
    assert said[0].err.count("\n") == 1


def test_bad_input_keeps_its_problems_across_processes() -> None:
    error = InputError([Problem(key="a.b", message="is wrong", allowed=("c",)), Problem(message="and so is this")])
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.problems) == (str(error), error.problems)


def refuse(task: int) -> int:
    raise InputError([Problem(key=f"task.{task}", message="is refused")])


def test_the_planner_s_processes_say_what_they_refuse() -> None:
    with processes(2) as runner, pytest.raises(InputError, match=r"^task\.0: is refused$"):
        in_order(runner, refuse, [0])


def die(task: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_a_process_that_is_killed_is_no_bug_of_the_program() -> None:
    with pytest.raises(InputError, match="--jobs: one of the processes was killed"), processes(2) as runner:
        in_order(runner, die, [0])


def test_who_watches_sees_one_run_after_the_other(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", file, "--watch", "--jobs", "2", "--no-report"]) == 2
    assert capsys.readouterr().err.startswith("--watch: shows one run at a time")


def test_progress_names_every_run(file: Path) -> None:
    told = []
    scenario = parse_scenario(TEXT, Path(), file=str(file))
    parts = [
        Part(scenario=scenario, seed=0, label="paged", replication=number, replications=2, verify=False, mapped=False,
             logged=False)
        for number in range(2)
    ]  # fmt: skip
    found = run_parts(parts, 2, progress=lambda *told_now: told.append(told_now))
    assert {name for name, *_ in told} <= {"paged-0", "paged-1"}
    assert all(done <= total == 60 for _, done, total, _ in told)
    assert [one.run.summary["replication"] for one in found] == [0, 1]


# ---- Ctrl-C, kill


def start(words: Sequence[str | Path]) -> "subprocess.Popen[str]":
    command = [sys.executable, str(SCRIPT), *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def children(process: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


def workers_of(process: "subprocess.Popen[str]") -> list[int]:
    """The processes that work for it, once there are two."""
    for _ in range(600):
        found = children(process.pid)
        if len(found) >= 2:
            return found
        assert process.poll() is None
        time.sleep(0.05)
    raise AssertionError("no processes came")


def test_ctrl_c_keeps_what_the_processes_have(file: Path) -> None:
    process = start(["run", file, "--jobs", "2", "--replications", "2", "--no-report", "--format", "json", *ENDLESS])
    workers_of(process)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    runs = json.loads(out)["runs"]
    assert [one["replication"] for one in runs] == list(range(len(runs))) != []
    assert {one["ended_because"] for one in runs} == {"interrupted"}
    assert all(one["requests"]["arrived"] for one in runs)


def test_processes_end_soon_after_the_one_they_work_for_was_killed(file: Path) -> None:
    process = start(["run", file, "--jobs", "2", "--replications", "2", "--no-report", *ENDLESS])
    workers = workers_of(process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    for _ in range(200):
        alive = [pid for pid in workers if Path(f"/proc/{pid}").exists()]
        if not alive:
            return
        time.sleep(0.05)
    raise AssertionError(f"{alive} go on for nobody")
