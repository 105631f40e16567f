"""Sweeps: the same rows however they are run, and nothing lost or doubled when they are killed."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet
import pytest

import cli
from simulator import planner
from simulator.errors import InputError
from simulator.planning.grid import parse_axis
from simulator.planning.sweep_journal import Journal
from simulator.planning.tasks import one_by_one
from simulator.showing.answer_folder import parquet_bytes
from simulator.sweep import JOURNAL, Point, grid_points, scenario_hash, sweep
from tests.test_compare import TIGHT

PARQUET = "sweep.parquet"
GRID = ("workload.arrivals.rate=5,20", "engine.max_num_seqs=8:24:8")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "tight.yaml"
    path.write_text(TIGHT)
    return str(path)


def made(file: str, replications: int = 1) -> list[Point]:
    axes = [parse_axis(text, "--grid") for text in GRID]
    settings = ["workload.requests=20"]
    return grid_points(file, settings, axes, replications=replications, allocators=("paged",))


def test_every_combination_is_a_row_in_the_order_of_the_grid(file: str, tmp_path: Path) -> None:
    done = sweep(made(file), tmp_path / "out", one_by_one)
    rows = pyarrow.parquet.read_table(io.BytesIO(parquet_bytes(done.rows))).to_pylist()
    pairs = [(row["parameter.workload.arrivals.rate"], row["parameter.engine.max_num_seqs"]) for row in rows]
    assert pairs == [(rate, seats) for rate in (5, 20) for seats in (8, 16, 24)]
    assert len({row["scenario_hash"] for row in rows}) == 6
    assert {"allocator", "oom_rate", "oom_rate_ci.low", "kv.waste.internal", "latency.ttft_s.p99"} <= set(rows[0])
    assert "wall_s" not in rows[0]


def test_a_killed_sweep_goes_on_with_nothing_lost_or_doubled(file: str, tmp_path: Path) -> None:
    points = made(file)
    whole = sweep(points, tmp_path / "whole", one_by_one).rows
    journal = (tmp_path / "whole" / JOURNAL).read_bytes()
    lines = journal.splitlines(keepends=True)
    for kept in (0, 1, len(lines) // 2, len(lines)):
        folder = tmp_path / f"kept{kept}"
        folder.mkdir()
        torn = lines[kept][: len(lines[kept]) // 2] if kept < len(lines) else b""
        (folder / JOURNAL).write_bytes(b"".join(lines[:kept]) + torn)
        done = sweep(points, folder, one_by_one)
        assert done.resumed == kept
        assert parquet_bytes(done.rows) == parquet_bytes(whole)
        assert (folder / JOURNAL).read_bytes() == journal


def test_a_larger_grid_uses_the_points_of_the_smaller(file: str, tmp_path: Path) -> None:
    sweep(made(file), tmp_path / "out", one_by_one)
    assert sweep(made(file, replications=2), tmp_path / "out", one_by_one).resumed == 6


def test_two_processes_give_the_bytes_of_one(file: str, tmp_path: Path) -> None:
    one = planner.swept(made(file), tmp_path / "one", jobs=1)
    two = planner.swept(made(file), tmp_path / "two", jobs=2)
    assert parquet_bytes(one.rows) == parquet_bytes(two.rows)


def test_the_hash_follows_the_scenario_and_nothing_else(file: str, tmp_path: Path) -> None:
    first, second = made(file)[:2]
    assert scenario_hash(first.scenario) == first.scenario_hash != second.scenario_hash
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (moved / "tight.yaml").write_text(TIGHT + "# a comment\n")
    assert made(str(moved / "tight.yaml"))[0].scenario_hash == first.scenario_hash


def test_a_journal_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text("these are notes\n")
    with pytest.raises(InputError, match="is no journal"), Journal(tmp_path / JOURNAL):
        pass
    assert (tmp_path / JOURNAL).read_text() == "these are notes\n"


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        Journal(tmp_path / JOURNAL),
        pytest.raises(InputError, match="another sweep is at work"),
        Journal(tmp_path / JOURNAL),
    ):
        pass


def test_a_point_is_kept_once(tmp_path: Path) -> None:
    with Journal(tmp_path / JOURNAL) as journal:
        journal.add("a", [{"x": 1}])
        journal.add("a", [{"x": 2}])
        assert journal.rows == {"a": [{"x": 1}]}
    assert len((tmp_path / JOURNAL).read_text().splitlines()) == 1


def test_columns_of_mixed_values_stay_readable(file: str, tmp_path: Path) -> None:
    axes = [parse_axis("engine.queue_timeout=null,5,0.5", "--grid")]
    done = sweep(grid_points(file, ["workload.requests=5"], axes, allocators=("paged",)), tmp_path, one_by_one)
    column = (
        pyarrow.parquet.read_table(io.BytesIO(parquet_bytes(done.rows)))
        .column("parameter.engine.queue_timeout")
        .to_pylist()
    )
    assert column == [None, 5.0, 0.5]


# ---- the command


def words(file: str, out: Path, *more: str) -> list[str]:
    grids = [word for text in GRID for word in ("--grid", text)]
    return ["sweep", file, *grids, "--set", "workload.requests=20", "--out", str(out), "--quiet", *more]


def test_the_command_says_where_the_rows_are(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(words(file, tmp_path / "out", "--jobs", "1", "--format", "json"))
    assert not left.value.code
    document = json.loads(capsys.readouterr().out)
    assert document == {"points": 6, "resumed": 0, "rows": 18, "parquet": str(tmp_path / "out" / PARQUET)}


def test_a_wrong_value_is_named_before_anything_runs(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["sweep", file, "--grid", "engine.max_num_seq=1:2:1", "--out", str(tmp_path / "out")])
    assert left.value.code == 2
    assert "max_num_seqs" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def command(arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
    script = Path(cli.__file__).resolve()
    return subprocess.Popen([sys.executable, str(script), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.long
def test_a_sweep_survives_kill_9_at_any_moment(file: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        cli.main(words(file, tmp_path / "whole", "--jobs", "1"))
    kills = 0
    for delay_s in (0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5):
        running = command(words(file, tmp_path / "killed", "--jobs", "1"))
        time.sleep(delay_s)
        kills += running.poll() is None
        running.send_signal(signal.SIGKILL)
        running.communicate()
    finished = command(words(file, tmp_path / "killed", "--jobs", "1"))
    finished.communicate()
    assert kills and finished.returncode == 0
    assert (tmp_path / "killed" / PARQUET).read_bytes() == (tmp_path / "whole" / PARQUET).read_bytes()
    keys = [json.loads(line)["point"] for line in (tmp_path / "killed" / JOURNAL).read_text().splitlines()]
    assert len(keys) == len(set(keys)) == 6


@pytest.mark.long
def test_dask_gives_the_same_bytes(file: str, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    with pytest.raises(SystemExit):
        cli.main(words(file, tmp_path / "here", "--jobs", "1"))
    running = command(words(file, tmp_path / "dask", "--dask", "local", "--jobs", "2"))
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 0, errors.decode()
    assert (tmp_path / "dask" / PARQUET).read_bytes() == (tmp_path / "here" / PARQUET).read_bytes()


@pytest.mark.long
def test_a_dask_worker_may_be_killed_in_the_middle(file: str, tmp_path: Path) -> None:
    """A scheduler and two workers as processes of their own; one worker is killed as soon as a point is done."""
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    longer = ("--set", "workload.requests=1500")
    with pytest.raises(SystemExit):
        cli.main(words(file, tmp_path / "here", "--jobs", "1", *longer))
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).resolve().parent)}
    address_file = tmp_path / "scheduler.json"
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    scheduler = subprocess.Popen(
        [*dask, "--scheduler-file", str(address_file), "--port", "0", "--no-dashboard", "--host", "127.0.0.1"],
        env=environment, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    workers = []
    try:
        while not address_file.exists() or not address_file.read_text().strip():
            assert scheduler.poll() is None
            time.sleep(0.1)
        address = json.loads(address_file.read_text())["address"]
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny"]
        for _ in range(2):
            workers.append(subprocess.Popen([*worker, "--no-dashboard"], env=environment, stderr=subprocess.DEVNULL))
        running = command(words(file, tmp_path / "dask", "--dask", address, *longer))
        journal = tmp_path / "dask" / JOURNAL
        while running.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n")):
            time.sleep(0.005)
        assert journal.read_bytes().count(b"\n") < 6, "all was done before a worker could be killed"
        workers[0].kill()
        _, errors = running.communicate(timeout=180)
        assert running.returncode == 0, errors.decode()
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()
    assert (tmp_path / "dask" / PARQUET).read_bytes() == (tmp_path / "here" / PARQUET).read_bytes()
