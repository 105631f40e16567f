"""The command line: words, exit codes, what goes to stdout and to stderr, start-up."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scenario_text import VALID, changed
from typer.testing import CliRunner

import cli
from simulator import units
from simulator.errors import InputError
from simulator.loading import catalogue
from simulator.scenario import load_scenario
from simulator.showing import output, terminal

ROOT = Path(cli.__file__).parent
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def simulate(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line in this process, in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(word) for word in words])
        captured = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), captured.out, captured.err

    return run


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(VALID)
    return path


def summary(label: str, **changes: Any) -> dict[str, Any]:
    """A run's summary with the figures that the table shows: 1,000 requests, 610 lost, 540 by fragmentation."""
    times = {"p50": 0.5, "p95": 2.0, "p99": 3.0, "mean": 0.7}
    return {
        "allocator": label,
        "label": label,
        "kv_capacity_bytes": 2**30,
        "requests": {
            "arrived": 1000,
            "completed": 390,
            "oom_admission": 500,
            "oom_decode": 100,
            "too_large": 10,
            "timed_out": 0,
            "unfinished": 0,
        },
        "oom_rate": 0.61,
        "oom_rate_ci": [0.58, 0.64],
        "oom_events": {"capacity": 60, "fragmentation": 540},
        "preemptions": 0,
        "kv": {
            "mean_utilization": 0.25,
            "peak_used_bytes": 2**29,
            "waste": {"reserved": 0.5, "internal": 0.1, "external": 0.02},
        },
        "latency": {"ttft_s": times, "tpot_s": {**times, "p50": 0.03}, "e2e_s": times, "queue_s": times},
        "throughput": {"requests_per_s": 1.5},
        "ended_because": "completed",
        **changes,
    }


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins are known to this process only."""
    monkeypatch.setattr("simulator.planning.tasks.usable_processes", lambda jobs: 1)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A simulation that answers at once with fixed figures and writes nothing; returns the calls it got."""
    monkeypatch.setattr(output, "write_run", lambda *_, **__: None)
    calls: list[dict[str, Any]] = []

    def simulate(loaded: Any, **options: Any) -> Any:
        calls.append({"scenario": loaded, **options})
        labels = options["allocators"] or loaded.labels
        runs = [SimpleNamespace(summary=summary(label), requests={}, timeline={}, oom_events={}) for label in labels]
        document = {"schema_version": 1, "scenario": loaded.resolved(), "runs": [run.summary for run in runs]}
        return SimpleNamespace(runs=runs, to_json=lambda: document)

    monkeypatch.setattr("simulator.simulation.simulate", simulate)
    return calls


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["x.yaml"], ["run", "x.yaml"]),
        (["folder/x"], ["run", "folder/x"]),
        (["--seed", "3", "x.yaml"], ["run", "--seed", "3", "x.yaml"]),
        (["memory", "x.yaml"], ["memory", "x.yaml"]),
        (["--help"], ["--help"]),
        (["--version"], ["--version"]),
        ([], []),
    ],
)
def test_a_scenario_in_the_place_of_a_command_is_run(words: list[str], expected: list[str]) -> None:
    assert cli.with_command(words, cli.command_names()) == expected


def test_a_shipped_name_is_run_and_a_misspelt_word_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "night_shift.yaml").write_text(VALID)
    monkeypatch.setattr(catalogue, "scenario_dir", lambda: tmp_path)
    assert cli.with_command(["night_shift"], ["run"]) == ["run", "night_shift"]
    with pytest.raises(InputError, match="did you mean 'night_shift'"):
        cli.with_command(["nightshift"], ["run", "memory"])
    with pytest.raises(InputError, match="did you mean 'memory'"):
        cli.with_command(["memroy"], ["run", "memory"])
    assert load_scenario("night_shift").name == "small"


def test_help_and_version_end_with_0(simulate: Run) -> None:
    code, out, err = simulate("--help")
    assert code == 0
    assert "memory" in out
    assert err == ""
    code, out, _ = simulate("--version")
    assert code == 0
    assert out.startswith("ascend-kv-sim ")


def test_run_prints_the_answer_first(simulate: Run, scenario: Path, engine: list[dict[str, Any]]) -> None:
    code, out, err = simulate(scenario)
    assert code == 0
    assert out.splitlines()[0].startswith(
        "contiguous: 61 % of 1,000 requests ran out of memory (54 % fragmentation, 6 %"
    )
    assert err == "report: reports/small/report.html\n"
    assert engine[0]["seed"] == 7


def test_json_output_is_one_document_and_nothing_else(simulate: Run, scenario: Path, engine: object) -> None:
    code, out, _ = simulate("run", scenario, "--format", "json")
    assert code == 0
    assert [run["label"] for run in json.loads(out)["runs"]] == ["contiguous", "paged"]


def test_options_reach_the_simulation(simulate: Run, scenario: Path, engine: list[dict[str, Any]]) -> None:
    words = ["--seed", "3", "--replications", "5", "--verify", "--allocator", "paged", "--set", "engine.max_num_seqs=4"]
    assert simulate("run", scenario, *words)[0] == 0
    call = engine[0]
    assert (call["seed"], call["replications"], call["verify"], call["allocators"]) == (3, 5, True, ("paged",))
    assert call["scenario"].engine.max_num_seqs == 4


def test_an_unknown_allocator_is_refused_with_the_nearest_name(simulate: Run, scenario: Path, engine: object) -> None:
    code, out, err = simulate("run", scenario, "--allocator", "pagd")
    assert (code, out) == (2, "")
    assert "did you mean 'paged'" in err


def test_out_writes_the_summary_the_scenario_and_the_tables(simulate: Run, scenario: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    code, out, _ = simulate("run", scenario, "--format", "json", "--out", folder)
    assert code == 0
    written, printed = json.loads((folder / "summary.json").read_text()), json.loads(out)
    assert [run.pop("wall_s") > 0 for run in printed["runs"]] == [True, True]
    assert written == printed
    assert load_scenario(folder / "scenario.resolved.yaml").resolved() == json.loads(out)["scenario"]
    assert {path.name for path in folder.iterdir()} >= {"requests.parquet", "timeline.parquet", "report.html"}
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_an_unwritable_folder_is_refused_before_the_simulation_starts(
    simulate: Run, scenario: Path, engine: list[dict[str, Any]]
) -> None:
    code, _, err = simulate("run", scenario, "--out", scenario / "below_a_file")
    assert code == 2
    assert "cannot be written" in err
    assert engine == []


def test_an_interrupt_ends_with_130(simulate: Run, scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simulator.simulation.simulate", interrupted)
    code, out, err = simulate(scenario)
    assert (code, out) == (130, "")
    assert "interrupted" in err


def test_partial_results_of_an_interrupted_run_are_printed(
    simulate: Run, scenario: Path, engine: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = summary("paged", ended_because="interrupted")
    result = SimpleNamespace(runs=[], to_json=lambda: {"runs": [partial]})
    monkeypatch.setattr(sys.modules["simulator.simulation"], "simulate", lambda *_, **__: result)
    code, out, _ = simulate(scenario)
    assert code == 130
    assert "(interrupted)" in out


def test_a_bug_ends_with_1_and_says_so(simulate: Run, scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.simulation.simulate", lambda *_, **__: 1 / 0)
    code, _, err = simulate(scenario)
    assert code == 1
    assert "internal error" in err
    assert "ZeroDivisionError" in err


def test_memory_prints_the_budget_of_a_scenario(simulate: Run, scenario: Path) -> None:
    code, out, _ = simulate("memory", scenario, "--format", "json")
    budget = json.loads(out)
    assert code == 0
    # Llama-3.1-8B, 32 layers, 8 KV heads of 128 split over 2 devices, 2 bytes, K and V.
    assert budget["kv_bytes_per_token_per_device"] == 2 * 32 * 4 * 128 * 2
    assert budget["max_model_len"] == 4096
    assert simulate("memory", scenario)[1].startswith("llama-3.1-8b on 4 x 910B3")


def test_memory_needs_no_file(simulate: Run, scenario: Path) -> None:
    words = ["--model", "meta-llama/Llama-3.1-8B", "--device", "910b3", "--count", "2", "--max-model-len", "4096"]
    code, out, _ = simulate("memory", *words, "--format", "json")
    assert code == 0
    with_file = json.loads(simulate("memory", scenario, "--format", "json")[1])
    assert json.loads(out)["weights_bytes_per_device"] == with_file["weights_bytes_per_device"]
    assert simulate("memory", "--model", "llama-3.1-8b")[0] == 2


def test_memory_says_no_with_what_is_missing_and_three_ways_out(simulate: Run) -> None:
    code, out, err = simulate("memory", "--model", "llama-3.1-70b", "--device", "910B3", "--format", "json")
    assert code == 3
    assert json.loads(out)["fits"] is False
    assert "does not fit" in err
    assert len([line for line in err.splitlines() if line.startswith("  - ")]) == 3


def test_a_run_of_a_model_that_does_not_fit_says_no(simulate: Run, scenario: Path, engine: object) -> None:
    assert simulate("run", scenario, "--set", "model.preset=llama-3.1-405b")[0] == 3


@pytest.mark.parametrize("what", ["models", "devices", "allocators", "scenarios"])
def test_catalogues_are_listed_as_a_table_and_as_json(simulate: Run, what: str) -> None:
    code, out, _ = simulate("list", what, "--format", "json")
    rows = json.loads(out)
    assert code == 0
    text = simulate("list", what)[1]
    assert all(row["name"] in text for row in rows)
    expected = {"devices": "910B3", "models": "llama-2-70b", "allocators": "paged"}.get(what)
    assert expected is None or expected in {row["name"] for row in rows}


def test_init_writes_a_scenario_that_loads_and_never_overwrites(simulate: Run, tmp_path: Path) -> None:
    path = tmp_path / "first.yaml"
    assert simulate("init", path)[0] == 0
    assert load_scenario(path).name == "my_scenario"
    path.write_text("mine")
    code, _, err = simulate("init", path)
    assert code == 2
    assert "--force" in err
    assert path.read_text() == "mine"
    assert simulate("init", path, "--force")[0] == 0
    assert simulate("memory", path)[0] == 0


def test_schema_is_json(simulate: Run) -> None:
    code, out, _ = simulate("schema")
    assert code == 0
    assert json.loads(out)["title"] == "ascend-kv-sim scenario"


def test_ctrl_c_keeps_what_was_simulated(scenario: Path, tmp_path: Path) -> None:
    endless = ["--set", "workload.requests=2000000", "--set", "workload.arrivals.rate=1/s", "--format", "json"]
    command = [sys.executable, "-c", "import cli; cli.main()", str(scenario), *endless, "--allocator", "paged"]
    command += ["--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping with what there is" in err
    (run,) = json.loads(out)["runs"]
    assert run["ended_because"] == "interrupted"
    assert run["requests"]["completed"] > 0


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.61, "61 %"),
        (0.614, "61.4 %"),
        (0.074, "7.4 %"),
        (0.0003, "0.03 %"),
        (0.00001, "< 0.01 %"),
        (0.9999, "99.99 %"),
        (0.999999, "> 99.99 %"),
    ],
)
def test_percentages_never_hide_a_loss(ratio: float, text: str) -> None:
    assert units.format_percent(ratio) == text


def test_the_answer_names_a_single_cause_and_what_preemption_hides() -> None:
    lost = summary("a", oom_events={"capacity": 600, "fragmentation": 0}, requests=_counts(oom_decode=600))
    kept = summary("b", oom_rate=0.0, oom_events={"capacity": 9, "fragmentation": 0}, requests=_counts(), preemptions=9)
    lost["oom_rate"] = 0.6
    assert terminal.answer([lost, kept]) == (
        "a: 60 % of 1,000 requests ran out of memory (all capacity); "
        "b: 0 % of 1,000 requests ran out of memory, 9 preemptions."
    )


def test_cause_shares_add_up_to_the_oom_rate() -> None:
    shares = terminal.cause_shares(summary("a"))
    assert sum(shares.values()) == pytest.approx(0.61)
    assert shares["fragmentation"] == pytest.approx(0.54)


def _counts(**lost: int) -> dict[str, int]:
    zero = dict.fromkeys(("oom_admission", "oom_decode", "too_large", "timed_out", "unfinished"), 0)
    return {"arrived": 1000, "completed": 1000 - sum(lost.values()), **zero, **lost}


def _process(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import cli; cli.main()", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **options,
    )


HEAVY = {
    *("pandas", "matplotlib", "scipy", "pyarrow", "rich", "simulator.fleet", "simulator.showing.watch"),
    *("simulator.allocators.verify", "simulator.serving.pool_map"),
    *("simulator.traffic.trace_jsonl", "simulator.traffic.columns"),
}


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        (["--help"], {*HEAVY, "numpy", "simpy", "pydantic", "yaml"}),
        (["memory", "--model", "llama-3.1-8b", "--device", "910B3"], {*HEAVY, "simpy"}),
        (["run", "long_tail_mix", "--no-report", "--jobs", "1", "--set", "workload.requests=5"], HEAVY),
    ],
)
def test_a_command_loads_only_what_it_needs(words: list[str], unneeded: set[str]) -> None:
    probe = f"import sys, cli\ntry: cli.main({words})\nexcept SystemExit: pass\n"
    probe += f"print(sorted({unneeded} & set(sys.modules)), file=sys.stderr)\n"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_a_command_is_itself_without_the_others_beside_it(simulate: Run) -> None:
    """Only the command that is asked for is built; what it says of itself is what it says among all."""
    for name in cli.command_names():
        code, alone, _ = simulate(name, "--help")
        among = CliRunner().invoke(cli.app, [name, "--help"], prog_name="simulate")
        assert (code, alone.split()) == (0, among.output.split())
    code, _, err = simulate("memory", "--nonsense")
    assert code == 2
    assert err.startswith("Usage: simulate memory [OPTIONS]")


def test_a_reader_that_closes_the_pipe_causes_no_traceback() -> None:
    command = f"{sys.executable} -c 'import cli; cli.main()' schema | head -c 10"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == '{\n  "$sche'
    assert "Traceback" not in done.stderr


def test_piped_output_has_no_colour_codes_and_is_not_cut() -> None:
    done = _process("list", "allocators", env={**os.environ, "COLUMNS": "20"})
    assert "\x1b" not in done.stdout
    assert "Equal pages, one page table a sequence." in done.stdout


@contextmanager
def _terminal() -> Iterator[tuple[int, int]]:
    master, slave = pty.openpty()
    try:
        yield master, slave
    finally:
        os.close(master)
        os.close(slave)


@pytest.mark.parametrize(("no_colour", "coloured"), [("", True), ("1", False)])
def test_no_color_is_honoured_on_a_terminal(no_colour: str, coloured: bool) -> None:
    keep = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    environment = {**keep, "TERM": "xterm-256color", **({"NO_COLOR": no_colour} if no_colour else {})}
    with _terminal() as (master, slave):
        command = [sys.executable, "-c", "import cli; cli.main()", "list", "allocators"]
        subprocess.run(command, cwd=ROOT, env=environment, stdout=slave, stderr=subprocess.DEVNULL, check=True)
        text = os.read(master, 65536).decode()
    assert "contiguous" in text
    assert ("\x1b[3" in text or "\x1b[1m" in text) == coloured


def test_bad_input_never_shows_in_stdout(simulate: Run, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(changed("rate: 2/s", "rate: -2/s"))
    code, out, err = simulate(path, "--format", "json")
    assert (code, out) == (2, "")
    assert err.startswith(f"{path}:10: workload.arrivals.rate: ")


def test_rerun_takes_the_manifest_for_its_folder(simulate: Run, scenario: Path, tmp_path: Path) -> None:
    assert simulate("run", scenario, "--out", tmp_path / "done", "-q")[0] == 0
    code, out, _ = simulate("rerun", tmp_path / "done" / "manifest.json")
    assert code == 0
    assert "the same, byte for byte" in out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("words", [["list", "models"], ["run", "long_tail_mix", "--no-report", "-q"], ["schema"]])
def test_a_full_disk_is_no_bug_of_the_program(words: list[str]) -> None:
    words = [*words, "--set", "workload.requests=5"] if words[0] == "run" else words
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, ROOT / "cli.py", *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["the output: cannot be written: No space left on device"]


def test_a_standstill_is_not_hidden_behind_a_rate_of_zero() -> None:
    """Nobody is lost under ``wait``, but those that wait for each other never get their answer."""
    run = summary("paged", oom_rate=0.0, ended_because="livelock")
    run["requests"] |= {"completed": 600, "unfinished": 400, "oom_admission": 0, "oom_decode": 0, "too_large": 0}
    assert "400 never end" in terminal.answer([run])
