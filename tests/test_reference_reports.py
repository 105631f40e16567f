"""The reports in reports/reference: one for each shipped scenario, small, whole, and what the program says today.

Simulating all of them takes a minute or two, so only three quick ones are run, and the others with ``-m long``;
scenario, basis, style and script are compared for every one.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from reports.refresh import LIMIT_BYTES, REFERENCE, kept
from simulator.loading.catalogue import scenario_names
from simulator.scenario import load_scenario
from simulator.showing.manifest import input_files, options_of, sha256_of
from simulator.showing.output import basis, scenario_yaml, without_wall_times
from simulator.simulation import simulate

TEMPLATES = Path(__file__).parents[1] / "simulator" / "templates"
QUICK = ("azure_code", "deepseek_mla", "llama70b_128k_preempt")
STALE = "is out of date: python reports/refresh.py"


def read(name: str, file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((REFERENCE / name / file).read_text(encoding="utf-8"))
    return content


def same(one: Any, other: Any) -> bool:
    """Equal but for the last digits of floats, which depend on the machine's mathematics library."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


def test_every_shipped_scenario_has_a_report_and_a_line_in_the_index() -> None:
    assert sorted(path.name for path in REFERENCE.iterdir()) == sorted(scenario_names())
    index = (REFERENCE.parent / "README.md").read_text(encoding="utf-8")
    for name in scenario_names():
        assert f"[{name}](reference/{name}/report.html)" in index


@pytest.mark.parametrize("name", scenario_names())
def test_a_report_is_small_and_whole(name: str) -> None:
    files = {path.name: path for path in (REFERENCE / name).iterdir() if kept(path.name)}
    assert sum(path.stat().st_size for path in files.values()) <= LIMIT_BYTES
    recorded = {file: sha256 for file, sha256 in read(name, "manifest.json")["outputs"].items() if kept(file)}
    assert {file: sha256_of(path) for file, path in files.items() if file != "manifest.json"} == recorded
    assert {"report.html", "memory_over_time.svg", "pool_map.svg"} <= files.keys()


@pytest.mark.parametrize("name", scenario_names())
def test_a_report_is_of_the_scenario_as_it_is_now(name: str) -> None:
    scenario = load_scenario(name)
    manifest = read(name, "manifest.json")
    assert same(manifest["scenario"], json.loads(json.dumps(scenario.resolved()))), STALE
    text = (REFERENCE / name / "scenario.resolved.yaml").read_text(encoding="utf-8")
    assert text == scenario_yaml(manifest["scenario"])
    assert same(read(name, "basis.json"), json.loads(json.dumps(basis(scenario)))), STALE
    inputs = {one.name: one.sha256 for one in input_files(scenario.resolved(), scenario.base_dir)}
    assert {one["name"]: one["sha256"] for one in manifest["inputs"]} == inputs, STALE
    options = options_of(manifest)
    assert (options.seed, options.allocators, options.replications) == (scenario.seed, None, 1)


@pytest.mark.parametrize("name", scenario_names())
def test_the_page_is_made_with_the_present_style_and_script(name: str) -> None:
    page = (REFERENCE / name / "report.html").read_text(encoding="utf-8")
    for file in ("report.css", "report.js"):
        assert (TEMPLATES / file).read_text(encoding="utf-8").strip() in page, STALE


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in scenario_names()]
)
def test_the_numbers_are_what_the_program_says_now(name: str) -> None:
    result = simulate(load_scenario(name))
    now, _ = without_wall_times(result.to_json())
    before = read(name, "summary.json")
    # Not the program's version: a checkout that was never installed has none.
    assert same(json.loads(json.dumps(now["runs"])), before["runs"]), STALE
    assert (now["seed"], now["schema_version"]) == (before["seed"], before["schema_version"])
