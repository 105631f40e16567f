"""Do a run again from its manifest, and compare every byte."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import InputError, Problem
from simulator.scenario import Scenario, parse_scenario
from simulator.showing.manifest import NAME, RunOptions, checked_manifest, input_path, options_of, read_json, sha256_of


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a manifest says."""

    scenario: Scenario
    options: RunOptions
    outputs: dict[str, str]
    environment: dict[str, str]
    version: str


def recorded(folder: Path) -> Recorded:
    """The run that ``folder`` holds.

    Raises ``InputError`` when the manifest is no manifest, or when a file that the scenario names is missing or has
    changed since.
    """
    content = checked_manifest(folder, ())
    try:
        base_dir = Path(content["base_dir"] or ".")
        options, inputs = options_of(content), [(one["name"], one["sha256"]) for one in content["inputs"]]
        text = json.dumps(content["scenario"])
        outputs, environment = dict(content["outputs"]), dict(content["environment"])
        version = str(content["version"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError([Problem(file=str(folder / NAME), message=f"is not a manifest of a run: {error}")]) from None
    _check_inputs(inputs, base_dir)
    scenario = parse_scenario(text, base_dir, file=str(folder / NAME))
    return Recorded(scenario, options, outputs, environment, version)


def differences(before: Recorded, folder: Path) -> list[str]:
    """What the manifest in ``folder`` has that ``before`` has not, by file; empty when every byte is the same."""
    after: dict[str, Any] = read_json(folder / NAME)
    names = sorted(before.outputs.keys() | after["outputs"].keys())
    changed = [name for name in names if before.outputs.get(name) != after["outputs"].get(name)]
    if not changed:
        return []
    reasons = [
        f"{name} {old} then, {after['environment'].get(name)} now"
        for name, old in before.environment.items()
        if old != after["environment"].get(name)
    ]
    if before.version != after["version"]:
        reasons.insert(0, f"ascend-kv-sim {before.version} then, {after['version']} now")
    return changed + [f"({reason})" for reason in reasons]


def _check_inputs(inputs: list[tuple[str, str]], base_dir: Path) -> None:
    problems = []
    for name, sha256 in inputs:
        path = input_path(name, base_dir)
        if not path.is_file():
            problems.append(Problem(file=str(path), message="the run read this file, and it is not there now"))
        elif sha256_of(path) != sha256:
            problems.append(Problem(file=str(path), message="has changed since the run read it"))
    if problems:
        raise InputError(problems)
