"""The live view of the pool, and progress: on a terminal only, and without a trace in the results."""

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answer_folders import TEXT
from rich.console import Console

from simulator.planning.tasks import one_by_one, watched
from simulator.planning.trial import Trial, observe
from simulator.scenario import Scenario, parse_scenario
from simulator.serving.pool_map import CACHED, FREE, SHARED
from simulator.serving.watching import together
from simulator.showing import progress
from simulator.showing.terminal import print_rows
from simulator.showing.watch import FRAMES_PER_S, PoolWatch, cells, live_view
from simulator.simulation import simulate

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return parse_scenario(TEXT, Path())


def shown(view: Any) -> str:
    """What a view looks like on a terminal of 80 columns, without colours."""
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def clock(step_s: float) -> Iterator[float]:
    now_s = 0.0
    while True:
        now_s += step_s
        yield now_s


def frames(scenario: Scenario, step_s: float) -> list[str]:
    """Every frame of a run in which ``step_s`` pass between two looks at the clock."""
    seen: list[str] = []
    ticking = clock(step_s)
    watch = PoolWatch(scenario.labels, lambda view: seen.append(shown(view)), clock=lambda: next(ticking))
    simulate(scenario, observe=watch)
    return seen


def test_frames_show_both_pools_with_their_figures(scenario: Scenario) -> None:
    seen = frames(scenario, 1.0)
    assert {re.findall(r"─ (\w+) ─", one)[0] for one in seen} == {"contiguous", "paged"}
    busiest = max(seen, key=lambda one: one.count("█"))
    assert busiest.count("█") > 20
    assert "GiB of 1 GiB held" in busiest or "MiB of 1 GiB held" in busiest
    assert re.search(r"\d+ of 50 requests, OOM [\d.]+ %, ETA ", seen[-1])
    assert max(len(line) for one in seen for line in one.splitlines()) <= 80
    # What is held never exceeds the pool, and everybody has gone at the last look at a pool of pages.
    assert "0 running, 0 waiting" in seen[-1]


def test_few_frames_are_made_however_many_steps_there_are(scenario: Scenario) -> None:
    many, few = len(frames(scenario, 1.0)), len(frames(scenario, 1e-3))
    assert many > 100
    assert few <= 2 + many * 1e-3 * FRAMES_PER_S


def test_a_cell_tells_who_holds_its_address() -> None:
    text = cells(np.array([FREE, CACHED, SHARED, 0, 9, *[FREE] * 60])).plain
    assert text == "·░▒██" + "·" * 59 + "\n·"


def test_who_looks_on_changes_nothing(scenario: Scenario) -> None:
    plain = simulate(scenario)
    watch = PoolWatch(scenario.labels, lambda view: None, clock=lambda: 1e9)
    watched_run = simulate(scenario, observe=together([watch, PoolWatch(scenario.labels, lambda view: None)]))
    for one, other in zip(plain.runs, watched_run.runs, strict=True):
        assert {**one.summary, "wall_s": 0} == {**other.summary, "wall_s": 0}


def test_the_view_is_gone_afterwards_and_leaves_stdout_alone(scenario: Scenario) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with live_view(scenario.labels, wanted=True, console=console) as watch:
        assert watch is not None
        simulate(scenario, observe=watch)
    assert isinstance(console.file, io.StringIO)
    written = console.file.getvalue()
    assert "█" in written
    # Each frame and at last the view itself is erased: the cursor goes up and lines are cleared.
    assert written.rstrip().endswith("\x1b[2K")


def test_a_pipe_stays_clean(tmp_path: Path) -> None:
    (tmp_path / "tight.yaml").write_text(TEXT)
    command = [sys.executable, str(ROOT / "cli.py"), "run", "tight.yaml", "--watch", "--no-report"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == "note: --watch needs a terminal on stderr; the run goes on without it\n"
    assert "\x1b" not in done.stdout
    quiet = subprocess.run([*command, "--quiet"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (quiet.stdout, quiet.stderr) == (done.stdout, "")


# ---- progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_shows_time_left_and_the_oom_rate_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress.reporting(enabled=True) as show:
        assert show is not None
        show("paged", 1, 10, 0.5)
    assert terminal.getvalue() == "", "too short to bother anybody"
    monkeypatch.setattr(progress, "_PATIENCE_S", -1.0)
    with progress.reporting(enabled=True) as show:
        assert show is not None
        show("paged", 4, 10, 0.125)
    written = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", terminal.getvalue())
    assert "4/10" in written and "OOM 12.5 %" in written and "ETA" in written
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.reporting(enabled=True) as nobody:
        assert nobody is None


@pytest.mark.parametrize("columns", [60, 100, 160])
def test_a_narrow_terminal_cuts_no_figure_off(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    row = {"": "OOM rate [95 % CI]", "contiguous": "61.8 % [59.6 %, 63.9 %]"}
    row |= {"contiguous_exact": "4.3 % [3.5 %, 5.3 %]"}
    print_rows("", [row | {f"paged_{place}": "3.8 % [3 %, 4.7 %]" for place in range(3)}])
    written = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", terminal.getvalue())
    assert "…" not in written
    assert max(map(len, written.splitlines())) <= columns
    for figure in ("61.8", "59.6", "63.9", "4.3", "3.5", "5.3"):
        assert figure in written


def test_progress_of_many_runs_tells_their_oom_rate_so_far(scenario: Scenario) -> None:
    told: list[tuple[str, int, int, float | None]] = []
    runner = watched(one_by_one, lambda *seen: told.append(seen), "compare")
    found = dict(runner(observe, [Trial(scenario, 0, number) for number in range(3)]))
    assert [one[:3] for one in told] == [("compare", done, 3) for done in range(4)]
    assert told[0][3] is None
    for done in (1, 2, 3):
        lost = sum(found[index].lost for index in range(done))
        assert told[done][3] == pytest.approx(lost / sum(found[index].arrived for index in range(done)))
    assert told[-1][3], "the scenario of this test should lose requests"


def test_progress_of_one_run_tells_the_rate_that_it_ends_with(scenario: Scenario) -> None:
    told: list[tuple[str, int, int, float | None]] = []
    long = parse_scenario(TEXT.replace("requests: 50", "requests: 3000"), Path())
    result = simulate(long, allocators=("contiguous",), progress=lambda *seen: told.append(seen))
    label, done, total, rate = told[-1]
    assert (label, total) == ("contiguous", 3000)
    assert 2000 < done <= 3000
    assert rate == pytest.approx(result.runs[0].summary["oom_rate"], rel=0.1)
