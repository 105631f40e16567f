"""The compiled core and the Python it was made from: the same bytes, and never one of other sources."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import simulator

ROOT = Path(simulator.__file__).parent.parent

WORLDS = {
    "chat_burst": ("workload.requests=400",),
    "llama70b_128k": ("workload.requests=120",),
    "llama70b_128k_preempt": ("workload.requests=120",),
    "azure_conv": ("workload.requests=150",),
    "deepseek_mla": ("workload.requests=150", "engine.decode_context_parallel_size=8"),
    "fleet_64_cards": ("workload.requests=300", "device.replicas=3"),
}


def run_process(*command: str | Path, pure: bool, cwd: Path = ROOT) -> str:
    environment = os.environ | {"PYTHONPATH": str(cwd), "ASCEND_KV_SIM_PURE": str(int(pure))}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, check=True
    ).stdout


def which_core(*, pure: bool = False, cwd: Path = ROOT) -> str:
    return run_process("-c", "import simulator; print(simulator.core)", pure=pure, cwd=cwd).strip()


CORE = which_core()
needs_core = pytest.mark.skipif(CORE != "compiled", reason=f"the core is {CORE}")


@needs_core
@pytest.mark.parametrize("world", WORLDS)
def test_the_compiled_core_gives_the_same_figures_as_python(world: str) -> None:
    settings = [word for setting in WORLDS[world] for word in ("--set", setting)]
    command = ("cli.py", "run", f"scenarios/{world}.yaml", *settings, "--no-report", "--quiet", "--format", "json")
    compiled, python = (json.loads(run_process(*command, pure=pure)) for pure in (False, True))
    for answer in (compiled, python):
        for run in answer["runs"]:
            run.pop("wall_s", None)
    assert compiled == python


def same_worlds(count: int, folder: Path) -> None:
    script, drawn = ROOT / "tests" / "world_digests.py", folder / "worlds.pickle"
    run_process(script, "draw", str(count), drawn, pure=True)
    compiled, python = (run_process(script, "run", drawn, pure=pure).splitlines() for pure in (False, True))
    assert compiled == python
    assert len(compiled) >= count


@needs_core
def test_random_worlds_end_alike_in_both(tmp_path: Path) -> None:
    same_worlds(100, tmp_path)


@needs_core
@pytest.mark.long
def test_very_many_random_worlds_end_alike_in_both(tmp_path: Path) -> None:
    same_worlds(3000, tmp_path)


def test_python_runs_where_it_is_asked_for() -> None:
    assert which_core(pure=True) == "python (asked for)"


def test_a_folder_without_a_core_runs_as_python(tmp_path: Path) -> None:
    copy_package(tmp_path)
    assert which_core(cwd=tmp_path) == "python (no compiled core)"


@needs_core
def test_a_core_is_used_with_its_own_sources_only(tmp_path: Path) -> None:
    copy_package(tmp_path)
    shutil.copytree(ROOT / "simulator" / "_core", tmp_path / "simulator" / "_core")
    assert which_core(cwd=tmp_path) == "compiled"
    with (tmp_path / "simulator" / "engine.py").open("a") as source:
        source.write("\n")
    assert which_core(cwd=tmp_path) == "python (sources have changed since the core was compiled)"


@needs_core
def test_a_core_made_for_another_python_is_left_alone(tmp_path: Path) -> None:
    copy_package(tmp_path)
    core = tmp_path / "simulator" / "_core"
    core.mkdir()
    for path in (ROOT / "simulator" / "_core").iterdir():
        name = path.name.replace(f"cpython-3{sys.version_info.minor}", "cpython-399")
        shutil.copyfile(path, core / name)
    assert which_core(cwd=tmp_path) == "python (the core was compiled for another Python)"


def copy_package(target: Path) -> None:
    shutil.copytree(ROOT / "simulator", target / "simulator", ignore=shutil.ignore_patterns("_core", "__pycache__"))
