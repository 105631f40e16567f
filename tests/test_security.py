"""What is read and written, and that nothing in an input is ever executed.

A run is watched by Python's audit hooks, which see every file opened, every program started and every class that
pickle looks up, also from inside libraries.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scenario_text import VALID

import cli

ROOT = Path(cli.__file__).resolve().parent
EVIL = "<script>alert(1)</script>"
#: run in a process of its own, as an audit hook cannot be taken out again
WATCH = """
import json, os, sys
seen = []
def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        seen.append(["write" if writes else "read", os.path.realpath(arguments[0])])
    elif event in ("os.rename", "os.remove", "os.mkdir", "os.link", "os.symlink", "os.rmdir", "shutil.rmtree"):
        seen.append(["write", *(os.path.realpath(one) for one in arguments if isinstance(one, str))])
    elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "pickle.find_class",
                   "socket.connect", "urllib.Request", "ctypes.dlopen"):
        seen.append([event, str(arguments[:1])])
import cli, simulator.report, simulator.simulation, simulator.scenario, matplotlib.font_manager
import pandas, pyarrow.parquet, simulator.showing.plots, simulator.sweep, simulator.planner
for command in json.loads(sys.argv[1])[:1]:  # once unwatched: caches of libraries are made then
    try:
        cli.main([*command[:-1], command[-1] + "-before"])
    except SystemExit:
        pass
sys.addaudithook(hook)
codes = []
for command in json.loads(sys.argv[1]):
    try:
        cli.main(command)
    except SystemExit as ended:
        codes.append(ended.code or 0)
print("\\n" + json.dumps({"codes": codes, "seen": seen}))
"""


def evil_scenario(folder: Path) -> Path:
    """A scenario whose model, trace and device are files, with everything in them that other programs would run."""
    config = json.loads((ROOT / "simulator/presets/models/llama-3.1-8b.json").read_text())
    config |= {
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
        "trust_remote_code": True,
        "custom_pipelines": {"text-generation": {"impl": "evil.Pipeline"}},
        "_name_or_path": "../../../../etc/passwd",
        "name": EVIL,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("open('/tmp/evil-was-here', 'w').close()\n")
    (folder / "t.csv").write_text("arrived_at,prompt_tokens,output_tokens\n" + "0,10,5\n1,20,6\n" * 1)
    text = VALID.replace("  preset: llama-3.1-8b\n", f"  config: config.json\n  name: '{EVIL}'\n")
    text = text.replace("name: small\n", f"name: small\ndescription: '{EVIL}'\n")
    text = text.replace("    process: poisson\n    rate: 2/s\n", "    process: trace\n    path: t.csv\n")
    text = text.replace("  prompt_tokens:\n    dist: uniform\n    min: 10\n    max: 200\n", "")
    path = folder / "s.yaml"
    path.write_text(text.replace("  output_tokens:\n    dist: fixed\n    value: 20\n", ""))
    return path


def watched(commands: list[list[str]], folder: Path) -> tuple[list[int], list[list[str]]]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLCONFIGDIR": str(folder.parent / "matplotlib"),
    }
    done = subprocess.run(
        [sys.executable, "-c", WATCH, json.dumps(commands)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return found["codes"], found["seen"]


def test_a_run_reads_what_its_scenario_names_writes_below_out_and_executes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    evil_scenario(folder)
    commands = [
        ["run", "s.yaml", "-q", "--perfetto", "--jobs", "1", "--out", "out"],
        ["report", "out", "--lang", "zh"],
        ["sweep", "s.yaml", "-q", "--jobs", "1", "--grid", "engine.max_num_seqs=4,8", "--out", "swept"],
        ["memory", "s.yaml"],
    ]
    codes, seen = watched(commands, folder)
    assert codes == [0, 0, 0, 0]
    outputs = (str(folder / "out") + os.sep, str(folder / "swept") + os.sep)
    wrote = {path for kind, *paths in seen if kind == "write" for path in paths}
    outside = {path for path in wrote if not (path + os.sep).startswith(outputs) and path != os.devnull}
    assert wrote and not outside
    inputs = {str(folder / name) for name in ("s.yaml", "config.json", "t.csv")}
    libraries = tuple(
        os.path.realpath(part) + os.sep for part in {sys.prefix, sys.base_prefix, str(ROOT), *sys.path} if part
    )
    read = {path for kind, *paths in seen if kind == "read" for path in paths}
    foreign = {
        path
        for path in read - inputs - wrote
        if not path.startswith(
            (*outputs, *libraries, "/proc/", "/sys/", "/usr/share", "/dev/", str(tmp_path / "matplotlib"))
        )
    }
    assert inputs <= read and not foreign, foreign
    assert not [entry for entry in seen if entry[0] not in ("read", "write")], "a program, a pickle or a connection"
    assert not Path("/tmp/evil-was-here").exists()


def test_every_text_of_the_user_is_text_on_the_page(tmp_path: Path) -> None:
    path = evil_scenario(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(path), "-q", "--out", str(tmp_path / EVIL.replace("/", "_"))])
    assert not ended.value.code
    (folder,) = [one for one in tmp_path.iterdir() if one.is_dir()]
    page = (folder / "report.html").read_text()
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    for picture in folder.glob("*.svg"):
        assert "<script" not in picture.read_text()


def test_a_manifest_cannot_make_rerun_write_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(VALID)
    out = tmp_path / "out"
    with pytest.raises(SystemExit):
        cli.main(["run", str(tmp_path / "s.yaml"), "-q", "--out", str(out)])
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["outputs"]["../stolen.txt"] = manifest["outputs"].pop("basis.json")
    (out / "manifest.json").write_text(json.dumps(manifest))
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main(["rerun", str(out), "-q"])
    assert ended.value.code == 3
    assert not (tmp_path / "stolen.txt").exists()


def test_a_later_run_removes_only_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(VALID)
    out = tmp_path / "out"
    words = ["run", str(tmp_path / "s.yaml"), "-q", "--out", str(out)]
    with pytest.raises(SystemExit):
        cli.main(words)
    (tmp_path / "precious.txt").write_text("kept")
    (out / "mine.txt").write_text("kept")
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["outputs"] |= {"../precious.txt": "0", str(tmp_path / "precious.txt"): "0"}
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(SystemExit):
        cli.main(words)
    assert (tmp_path / "precious.txt").read_text() == (out / "mine.txt").read_text() == "kept"


def test_no_module_can_unpickle_a_file_or_run_a_text() -> None:
    """Process pools pickle between processes of one run; nothing reads a pickle, evaluates or executes text."""
    for path in [*(ROOT / "simulator").rglob("*.py"), ROOT / "cli.py"]:
        text = path.read_text()
        for word in (
            "pickle.load",
            "read_pickle",
            "yaml.load(",
            "yaml.unsafe",
            " eval(",
            " exec(",
            "os.system",
            "allow_pickle=True",
        ):
            assert word not in text, f"{path}: {word}"
