"""Make the reference reports again: ``python reports/refresh.py [SCENARIO]...`` (all of the shipped ones by default).

Each goes to ``reports/reference/<scenario>``, without what ``simulate rerun`` puts back: Parquet tables and PNG files,
which are large and say nothing that the page does not. Takes a few minutes; the package must be installed, since its
version is written into every report.
"""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from simulator.loading.catalogue import scenario_names
from simulator.scenario import load_scenario
from simulator.showing.manifest import RunOptions
from simulator.showing.reporting import run_into
from simulator.version import version

REFERENCE = Path(__file__).parent / "reference"
LIMIT_BYTES = 2 * 2**20
_KEPT = ("report.html", "summary.json", "basis.json", "scenario.resolved.yaml", "manifest.json")


def kept(name: str) -> bool:
    """Whether a file of a results folder belongs to a reference report."""
    return name in _KEPT or name.endswith(".svg")


def refresh(scenario_name: str, folder: Path) -> int:
    """Run a shipped scenario and put its report into ``folder``; its size in bytes."""
    scenario = load_scenario(scenario_name)
    options = RunOptions(command=f"simulate run {scenario_name}", seed=scenario.seed)
    with tempfile.TemporaryDirectory() as scratch, scenario.located():
        run_into(Path(scratch), scenario, options)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for path in Path(scratch).iterdir():
            if kept(path.name):
                shutil.copyfile(path, folder / path.name)
    return sum(path.stat().st_size for path in folder.iterdir())


def main(names: Sequence[str]) -> None:
    """Refresh the named reports, or all; then those of scenarios that are no longer shipped go."""
    if version().startswith("0+"):
        sys.exit("install the package first (pip install -e .): its version is part of every report")
    for name in names or scenario_names():
        size_bytes = refresh(name, REFERENCE / name)
        print(f"{name}: {size_bytes / 2**20:.2f} MiB", flush=True)
        if size_bytes > LIMIT_BYTES:
            sys.exit(f"{name}: a report must not be larger than {LIMIT_BYTES / 2**20:g} MiB")
    for folder in REFERENCE.iterdir():
        if folder.name not in scenario_names():
            shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
