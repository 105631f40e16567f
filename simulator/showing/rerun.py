"""Do what a manifest says again, and compare every byte."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.errors import InputError, Problem
from simulator.scenario import parse_scenario
from simulator.showing.manifest import (
    NAME,
    RUN,
    checked_manifest,
    input_path,
    kind_of,
    options_of,
    read_json,
    sha256_of,
)

if TYPE_CHECKING:
    from simulator.serving.watching import Progress


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a manifest says: how to do it again (into a folder), what came out, and by which program.

    ``interrupted``: Ctrl-C had ended it before it was whole.
    """

    do: "Callable[[Path, Progress | None], None]"
    outputs: dict[str, str]
    program: dict[str, str]
    interrupted: bool


def recorded(folder: Path) -> Recorded:
    """What ``folder`` holds.

    Raises ``InputError`` when the manifest is no manifest, or when a file that the scenario names is missing or has
    changed since.
    """
    content = checked_manifest(folder, ())
    try:
        base_dir = Path(content["base_dir"] or ".")
        inputs = [(one["name"], one["sha256"]) for one in content["inputs"]]
        do = (_run if kind_of(content) == RUN else _answer)(content, base_dir, folder)
        outputs, program = dict(content["outputs"]), program_of(content)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError([Problem(file=str(folder / NAME), message=f"is not a manifest: {error}")]) from None
    _check_inputs(inputs, base_dir)
    return Recorded(do, outputs, program, bool(content.get("interrupted")))


def _run(content: Mapping[str, Any], base_dir: Path, folder: Path) -> "Callable[[Path, Progress | None], None]":
    from simulator.planning.tasks import usable_processes
    from simulator.showing.interrupt import asked_to_stop
    from simulator.showing.reporting import run_into

    options, text = options_of(content), json.dumps(content["scenario"])

    def do(into: Path, progress: "Progress | None") -> None:
        scenario = parse_scenario(text, base_dir, file=str(folder / NAME))
        with asked_to_stop() as interrupted:
            run_into(into, scenario, options, jobs=usable_processes(None), progress=progress, interrupted=interrupted)

    return do


def _answer(content: Mapping[str, Any], base_dir: Path, folder: Path) -> "Callable[[Path, Progress | None], None]":
    from simulator.planning.tasks import usable_processes
    from simulator.showing.answer_folder import write_answer
    from simulator.showing.asking import Asked, question_of

    del folder
    options = dict(content["options"])
    language, command = str(options.pop("language")), str(content["command"])
    question = question_of(kind_of(content), options, Asked.from_dict(content["asked"], base_dir))

    def do(into: Path, progress: "Progress | None") -> None:
        answered = question.answered(folder=into, jobs=usable_processes(None), progress=progress)
        write_answer(answered, question, into, command=command, language=language)

    return do


def program_of(content: Mapping[str, Any]) -> dict[str, str]:
    """What of a program and its surroundings may change a byte, by name."""
    code = content.get("code_sha256")
    named = {"ascend-kv-sim": str(content["version"]), "its code": str(code)[:12] if code else "not recorded"}
    return {**named, **content["environment"]}


def other_program(before: Recorded, folder: Path) -> list[str]:
    """In what the program that wrote ``folder`` is not the one of ``before``."""
    now = program_of(read_json(folder / NAME))
    return [f"{name} {old} then, {now.get(name)} now" for name, old in before.program.items() if old != now.get(name)]


def stopped(folder: Path) -> bool:
    """Whether Ctrl-C ended what was done into ``folder``."""
    return bool(read_json(folder / NAME).get("interrupted"))


def differences(before: Recorded, folder: Path) -> list[str]:
    """The files that the manifest in ``folder`` has otherwise than ``before``; empty when every byte is the same."""
    after: dict[str, Any] = read_json(folder / NAME)
    names = sorted(before.outputs.keys() | after["outputs"].keys())
    return [name for name in names if before.outputs.get(name) != after["outputs"].get(name)]


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
