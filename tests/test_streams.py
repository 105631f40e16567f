"""A program that nobody listens to: closed pipes, streams and homes. The work is done, the exit code says so."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from scenario_text import VALID

import cli

SCRIPT = str(Path(cli.__file__).resolve())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text(VALID)
    return tmp_path


def unheard(words: Sequence[str], folder: Path, *, both: bool = False) -> tuple[int, str]:
    """Exit code and stderr of a command whose reader has gone before it writes; ``both``: stderr's reader as well."""
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen(
        [sys.executable, SCRIPT, *words], cwd=folder, stdout=writing, stderr=writing if both else subprocess.PIPE
    )
    os.close(writing)
    said = process.communicate(timeout=120)[1]
    return process.returncode, (said or b"").decode()


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("run", "--help"),
        ("--version",),
        ("schema",),
        ("list", "devices"),
        ("memory", "good.yaml"),
        ("run", "good.yaml", "-q", "--no-report"),
        ("run", "good.yaml", "-q", "--no-report", "--format", "json"),
    ],
    ids=" ".join,
)
def test_who_stops_reading_ends_the_program_without_a_word_and_without_a_failure(
    words: tuple[str, ...], folder: Path
) -> None:
    assert unheard(words, folder) == (0, "")


@pytest.mark.parametrize("both", [False, True], ids=["stdout", "both"])
def test_results_are_written_though_nobody_reads_the_table(both: bool, folder: Path) -> None:
    for words in (
        ("run", "good.yaml", "--out", "run"),
        ("sweep", "good.yaml", "--grid", "engine.max_num_seqs=4,8", "--jobs", "1", "--out", "sweep"),
    ):
        assert unheard(words, folder, both=both)[0] == 0
        manifest = json.loads((folder / words[0] / "manifest.json").read_text())
        assert all((folder / words[0] / name).is_file() for name in manifest["outputs"])


def test_bad_input_is_bad_input_though_nobody_reads_the_message(folder: Path) -> None:
    assert unheard(("run", "nowhere.yaml"), folder, both=True)[0] == 2


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_shell_may_close_any_stream(closed: str, folder: Path) -> None:
    for words, code in (("run good.yaml -q --no-report", 0), ("run nowhere.yaml", 2)):
        done = subprocess.run(
            ["sh", "-c", f"{sys.executable} {SCRIPT} {words} {closed}"], cwd=folder, capture_output=True, check=False
        )
        assert done.returncode == code
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "environment",
    [{"LC_ALL": "C", "PYTHONUTF8": "0"}, {"HOME": "/nonexistent", "LC_ALL": "tlh_KX.klingon", "COLUMNS": "x"}],
    ids=["none", "wrong"],
)
def test_neither_a_home_nor_a_known_language_is_needed(environment: dict[str, str], folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "run", "good.yaml", "--out", "out"],
        cwd=folder, env={"PATH": os.environ["PATH"], **environment}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert (folder / "out" / "report.html").is_file()
