"""Results are old or new, never half: killed programs, full disks and folders that cannot be written."""

import contextlib
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import cli
from simulator.errors import InputError
from simulator.files import staged, write_text

SCRIPT = Path(cli.__file__).resolve()
TIGHT = """\
name: tight
device: {preset: 910B3}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: poisson, rate: 20}
  prompt_tokens: {dist: uniform, min: 10, max: 400}
  output_tokens: {dist: uniform, min: 5, max: 60}
  requests: 40
engine: {max_num_seqs: 16, max_model_len: 1024, on_oom: fail}
allocators: [{kind: paged, page_size: 16, max_pages: 100}]
"""
RUN = ("run", "tight.yaml", "-q", "--out", "out")
SIZE = ("size", "tight.yaml", "-q", "--target-oom", "0.2", "--max-replications", "4", "--jobs", "1", "--out", "out")
SWEEP = ("sweep", "tight.yaml", "-q", "--grid", "workload.arrivals.rate=5:60:5", "--jobs", "1", "--out", "out")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tight.yaml").write_text(TIGHT)
    return tmp_path


def start(words: Sequence[str], folder: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finished(words: Sequence[str], folder: Path, most_bytes: int | None = None) -> tuple[int, str]:
    """Exit code and stderr of the command, run here, where no file may grow beyond ``most_bytes``."""
    said = io.StringIO()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = soft if most_bytes is None else most_bytes
    with contextlib.chdir(folder), contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            cli.main(words)
        except SystemExit as ended:
            return int(ended.code or 0), said.getvalue()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    raise AssertionError("the command line returned")


def contents(folder: Path) -> dict[str, str]:
    """SHA-256 of every file that is not hidden; wall times differ between equal runs and are left out."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if not path.name.startswith(".") and path.name != "timing.json"
    }


def whole(folder: Path) -> bool:
    """Whether there is a manifest; then every file must be as it says."""
    if not (folder / "manifest.json").exists():
        return False
    recorded = json.loads((folder / "manifest.json").read_text())["outputs"]
    now = contents(folder)
    assert {name: now.get(name) for name in recorded} == recorded
    return True


def killed_at(words: Sequence[str], folder: Path, delay_s: float, *, once_writing: bool) -> bool:
    """Start the command, send SIGKILL after ``delay_s`` (from when it begins to write); whether it was still alive."""
    process = start(words, folder)
    if once_writing:
        while process.poll() is None and not list((folder / "out").glob(".new-*")):
            time.sleep(0.002)
    time.sleep(delay_s)
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return alive


def kill_often(words: Sequence[str], folder: Path, times: int) -> int:
    """Over results of seed 0, make those of seed 1 and kill the program, ``times`` times; how often it was alive.

    After each kill every file is the complete old or the complete new one. In the end the command, left alone, gives
    the bytes that it gives in an empty folder.
    """
    seeds = [("--seed", "0"), ("--seed", "1")]
    kept = []
    for seed in seeds:
        began = time.monotonic()
        code, errors = finished([*words, *seed], folder)
        assert code in (0, 3), errors
        kept.append((contents(folder / "out"), time.monotonic() - began))
        (folder / "out").rename(folder / f"seed{seed[1]}")
    (old, _), (new, whole_s) = kept
    rng = random.Random(7)
    alive = 0
    for number in range(times):
        if number % 2 == 0:
            shutil.rmtree(folder / "out", ignore_errors=True)
            shutil.copytree(folder / "seed0", folder / "out")
        writing = number % 3 == 0
        delay_s = rng.uniform(0, 0.6 if writing else whole_s)
        alive += killed_at([*words, "--seed", "1"], folder, delay_s, once_writing=writing)
        for name, sha256 in contents(folder / "out").items():
            assert name == "journal.jsonl" or sha256 in (old.get(name), new.get(name)), f"{name} is neither"
        whole(folder / "out")
    assert finished([*words, "--seed", "1"], folder)[0] in (0, 3)
    after = contents(folder / "out")
    assert {name: after[name] for name in new if name != "journal.jsonl"} == {
        name: sha256 for name, sha256 in new.items() if name != "journal.jsonl"
    }
    left = [path.name for path in (folder / "out").iterdir() if path.name.startswith(".new-")]
    assert not left, "what a killed run had begun is cleared away"
    return alive


# ---- kill -9


def test_a_killed_run_leaves_old_or_new_files(folder: Path) -> None:
    assert kill_often(RUN, folder, 3) >= 1


@pytest.mark.long
@pytest.mark.parametrize("words", [RUN, SIZE, SWEEP], ids=["run", "size", "sweep"])
def test_fifty_kills_at_random_moments_leave_old_or_new_files(words: tuple[str, ...], folder: Path) -> None:
    assert kill_often(words, folder, 50) >= 25
    if words is SWEEP:
        lines = (folder / "out" / "journal.jsonl").read_text().splitlines()
        keys = [json.loads(line)["point"] for line in lines]
        assert len(keys) == len(set(keys)) == 24, "12 points of each seed, none lost, none twice"


# ---- replaced together


def files_of(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_files_take_their_places_together(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    for name in ("a", "b", "last"):
        (tmp_path / name).write_text("old")
    with staged(tmp_path, last="last", dropping=["b"]) as stage:
        for name in ("last", "a", "c"):
            write_text(stage / name, "new")
        assert {name: (tmp_path / name).read_text() for name in ("a", "b", "last")} == dict.fromkeys(
            ("a", "b", "last"), "old"
        )
    assert files_of(tmp_path) == {"mine.txt": "kept", "a": "new", "c": "new", "last": "new"}


def test_a_failure_leaves_a_complete_folder_as_it_was(tmp_path: Path) -> None:
    before = {"a": "old", "last": "old"}
    for name, text in before.items():
        (tmp_path / name).write_text(text)

    def fail() -> None:
        with staged(tmp_path, last="last") as stage:
            write_text(stage / "b", "new")
            (stage / "a").mkdir()
            write_text(stage / "a", "new")

    with pytest.raises(InputError, match=f"{tmp_path.name}/a: cannot"):
        fail()
    assert files_of(tmp_path) == before


def test_a_failure_in_a_folder_without_results_keeps_what_was_written(tmp_path: Path) -> None:
    with contextlib.suppress(ZeroDivisionError), staged(tmp_path / "new", last="last") as stage:
        write_text(stage / "a", "new")
        raise ZeroDivisionError
    assert files_of(tmp_path / "new") == {"a": "new"}


def test_two_writers_of_a_folder_take_turns(tmp_path: Path) -> None:
    order: list[str] = []

    def other() -> None:
        with staged(tmp_path, last="last") as stage:
            order.append("second")
            write_text(stage / "last", "second")

    with staged(tmp_path, last="last") as stage:
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(0.1)
        order.append("first")
        write_text(stage / "last", "first")
    thread.join()
    assert order == ["first", "second"]
    assert (tmp_path / "last").read_text() == "second"


# ---- no room, no permission


@pytest.mark.parametrize(
    ("words", "limit_bytes", "file"),
    [
        (RUN, 20_000, "out/"),
        (SIZE, 5_000, "out/"),
        (SWEEP, 5_000, "out/journal.jsonl"),
        (("sweep", *SWEEP[1:4], "workload.arrivals.rate=5,10", *SWEEP[5:]), 9_000, "out/sweep.parquet"),
        (("init", "new.yaml"), 100, "new.yaml"),
        (("kernel", "tight.yaml", "--out", "out"), 2_000, "out/"),
    ],
)
def test_a_file_that_has_no_room_is_named(words: tuple[str, ...], limit_bytes: int, file: str, folder: Path) -> None:
    code, errors = finished(words, folder, limit_bytes)
    assert code == 2, errors
    assert errors.startswith(file) and errors.count("\n") == 1
    assert "cannot be written: File too large" in errors


def test_results_survive_a_disk_that_fills_up_and_a_sweep_goes_on_afterwards(folder: Path) -> None:
    assert finished(RUN, folder)[0] == 0
    before = contents(folder / "out")
    assert finished([*RUN, "--seed", "1"], folder, 20_000)[0] == 2
    assert finished(("report", "out", "--lang", "zh"), folder, 20_000)[0] == 2
    assert contents(folder / "out") == before
    assert whole(folder / "out")
    shutil.rmtree(folder / "out")
    code, errors = finished(SWEEP, folder, 9_000)
    assert code == 2 and "finished points are kept" in errors
    kept = (folder / "out" / "journal.jsonl").read_text().count("\n")
    assert kept >= 1
    code, errors = finished([*SWEEP, "--format", "json"], folder)
    assert code == 0
    resumed = (folder / "out" / "sweep.parquet").read_bytes()
    shutil.rmtree(folder / "out")
    assert finished(SWEEP, folder)[0] == 0
    assert (folder / "out" / "sweep.parquet").read_bytes() == resumed


def test_data_are_kept_when_only_their_pictures_have_no_room(folder: Path) -> None:
    assert finished(RUN, folder, 20_000)[0] == 2
    assert {"summary.json", "requests.parquet"} <= set(contents(folder / "out"))
    assert not (folder / "out" / "manifest.json").exists()
    assert json.loads((folder / "out" / "summary.json").read_text())["runs"]


@pytest.mark.parametrize(
    "words",
    [
        (*RUN[:-1], "{}"),
        (*SIZE[:-1], "{}"),
        (*SWEEP[:-1], "{}"),
        ("kernel", "tight.yaml", "--out", "{}"),
        ("init", "{}/new.yaml"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("place", ["a file", "a system folder"])
def test_a_place_that_cannot_be_written_is_named(
    words: tuple[str, ...],
    place: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    out = "tight.yaml" if place == "a file" else "/proc/nowhere"
    with pytest.raises(SystemExit) as ended:
        cli.main([word.format(out) for word in words])
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert said.err.startswith(out) and "cannot be written" in said.err


@pytest.mark.long
def test_a_full_and_a_read_only_file_system(folder: Path) -> None:
    disk = folder / "disk"
    disk.mkdir()
    inside = ["unshare", "-rm", "sh", "-c"]
    if subprocess.run(
        [*inside, f"mount -t tmpfs -o size=300k none {disk}"], check=False, capture_output=True
    ).returncode:
        pytest.skip("this machine lets nobody mount a file system of their own")
    python = f"{sys.executable} {SCRIPT}"
    for options, says in (("size=300k", "No space left on device"), ("size=9m,ro", "Read-only file system")):
        for words in (RUN, SIZE, SWEEP):
            line = " ".join([*words[:-1], str(disk / "out"), "--seed", "3"])
            fill = f"mount -t tmpfs -o {options} none {disk}; dd if=/dev/zero of={disk}/fill bs=1k count=290"
            done = subprocess.run(
                [*inside, f"{fill}; {python} {line}"], cwd=folder, capture_output=True, text=True, check=False
            )
            assert done.returncode == 2, done.stderr
            assert says in done.stderr.splitlines()[-1]
            assert "Traceback" not in done.stderr


def test_the_disk_may_be_full_where_stdout_goes(folder: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no device that is always full")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, SCRIPT, *RUN, "--format", "json"],
            cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert whole(folder / "out"), "the results are there"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission(folder: Path) -> None:
    (folder / "out").mkdir(mode=0o555)
    code, errors = finished(RUN, folder)
    assert code == 2
    assert "out: cannot be written: Permission denied" in errors
