"""What commands share: kinds of options, exit codes, and how results and notes leave the program."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from simulator.memory import MemoryBudget
    from simulator.scenario import Scenario
    from simulator.showing.asking import Question

NO = 3
INTERRUPTED = 130
#: replications of one command; more is a slip of the finger, and takes days
MOST_REPLICATIONS = 100_000


class Format(StrEnum):
    """How results are printed."""

    table = "table"
    json = "json"


class Cause(StrEnum):
    """Why an allocation fails."""

    capacity = "capacity"
    fragmentation = "fragmentation"


class Language(StrEnum):
    """Languages of the HTML report."""

    en = "en"
    zh = "zh"


class Catalogue(StrEnum):
    """What ``simulate list`` can list."""

    models = "models"
    devices = "devices"
    allocators = "allocators"
    scenarios = "scenarios"


def complete_scenario(incomplete: str) -> list[str]:
    """Shipped names and files that begin like ``incomplete``, for the shell."""
    from simulator.loading.catalogue import scenario_names

    beside = [str(path) for path in Path().glob(f"{incomplete}*.yaml")]
    return [name for name in (*scenario_names(), *sorted(beside)) if name.startswith(incomplete)]


ScenarioName = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO", help="A YAML file, or the name of a shipped scenario.", autocompletion=complete_scenario
    ),
]
MaybeScenario = Annotated[
    str | None,
    typer.Argument(metavar="[SCENARIO]", help="A YAML file or a shipped name.", autocompletion=complete_scenario),
]
ModelName = Annotated[str | None, typer.Option("--model", help="Preset, Hugging Face id or config.json.")]
DeviceName = Annotated[str | None, typer.Option("--device", help="Preset or device YAML.")]
DeviceCount = Annotated[int | None, typer.Option("--count", help="Devices; also the tensor parallel size.")]
Allocators = Annotated[
    list[str] | None, typer.Option("--allocator", metavar="NAME", help="Only this allocator. Repeatable.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one key, such as engine.max_num_seqs=64. Repeatable."),
]
OutputFormat = Annotated[Format, typer.Option("--format", help="A table for people or one JSON document.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no warnings on stderr.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed in place of the scenario's.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Processes; default: one for each usable core.")]
Confidence = Annotated[float, typer.Option(min=0.5, max=0.999999, help="Of the intervals, on both sides together.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder for the results.")]
NoReport = Annotated[bool, typer.Option("--no-report", help="Write no files.")]
ReportLanguage = Annotated[Language | None, typer.Option("--lang", help="Language of the report's words.")]


def _folder_of(path: Path) -> Path:
    """The folder of results; its manifest may be named instead."""
    return path.parent if path.name == "manifest.json" and path.is_file() else path


ResultsFolder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="A results folder, or its manifest.", callback=_folder_of)
]


def chosen_allocators(scenario: "Scenario", names: Sequence[str]) -> tuple[str, ...] | None:
    """Labels of the allocators that ``names`` (labels or kinds) mean; ``None`` for all."""
    from simulator.errors import InputError, Problem, nearest_name

    if not names:
        return None
    pairs = list(zip(scenario.labels, (one.kind for one in scenario.allocators), strict=True))
    known = tuple(dict.fromkeys(name for pair in pairs for name in pair))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(
            Problem(
                option=f"--allocator {name}",
                message="the scenario has no such allocator",
                nearest=nearest_name(name, known),
                allowed=known,
            )
            for name in unknown
        )
    return tuple(label for label, kind in pairs if label in names or kind in names)


def results_folder(name: str, out: Path | None, *, wanted: bool) -> Path | None:
    """Where a run's results go; ``None``: nowhere."""
    from simulator.errors import InputError, Problem
    from simulator.showing import output

    if not wanted and out is not None:
        raise InputError([Problem(option="--no-report", message="writes nothing, so --out has no use: drop one")])
    return (out or output.default_folder(name)) if wanted else None


def typed(command: str, scenario: str | None, options: Mapping[str, Any]) -> str:
    """What to type for the same results, whatever folder and format they were asked in.

    Options that are ``None``, false or empty are left out; ``True`` is a flag, a list an option given several times.
    """
    import shlex

    words = ["simulate", command, *([] if scenario is None else [scenario])]
    for name, value in options.items():
        if value is None or value is False or value == ():
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            words += [f"--{name}"] if one is True else [f"--{name}", str(one)]
    return shlex.join(words)


def reply(
    question: "Question",
    folder: Path | None,
    *,
    command: str,
    language: Language | None,
    jobs: int | None = None,
    output_format: Format,
    quiet: bool,
) -> None:
    """Answer a question of the planner on stdout, and write its folder (``None``: nothing).

    Exits with the answer *no*, or with what Ctrl-C left.
    """
    from simulator.planning.tasks import usable_processes
    from simulator.showing import output
    from simulator.showing.answer_folder import write_answer
    from simulator.showing.progress import reporting

    question.check()
    if folder is not None and question.kind != "sweep":  # a sweep opens its journal there, or says why it cannot
        output.prepare(folder)
    with reporting(enabled=not quiet) as progress:
        answered = question.answered(folder=folder, jobs=usable_processes(jobs), progress=progress)
    for warning in () if quiet else answered.warnings:
        say(f"warning: {warning}")
    try:
        if output_format is Format.json:
            print_json(answered.document)
        else:
            answered.show()
    except BrokenPipeError:
        drop_stdout()  # nobody reads on, but the folder is wanted
    if folder is not None:
        page = write_answer(answered, question, folder, command=command, language=(language or Language.en).value)
        if not quiet:
            say(f"report: {page}")
    if answered.interrupted:
        raise typer.Exit(INTERRUPTED)
    if not answered.holds:
        raise typer.Exit(NO)


def refuse(budget: "MemoryBudget") -> NoReturn:
    """Exit with the answer *no*: what is missing, and three ways out."""
    from simulator.units import format_bytes

    length = f"one request of {budget.max_model_len:,} tokens"
    say(f"does not fit: {format_bytes(budget.shortfall_bytes)} too little on each device for {length}. Ways out:")
    for way in budget.ways_out:
        say(f"  - {way}")
    raise typer.Exit(NO)


def print_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    """The one document on stdout."""
    import json

    typer.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def drop_stdout() -> None:
    """Let what is still in stdout's buffer go nowhere; the interpreter would try to write it at its end."""
    import os
    import sys

    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def say(text: str) -> None:
    """A note on stderr, for those who listen."""
    from contextlib import suppress

    with suppress(BrokenPipeError):
        typer.echo(text, err=True)
