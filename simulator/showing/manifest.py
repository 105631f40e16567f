"""The manifest of a results folder: what was asked, of which program, from which inputs, and the SHA-256 of each file.

From it the work can be repeated, and whoever gets the folder can check that nothing was changed. It holds no date, no
machine name and no wall time, so equal runs of one program have equal manifests (``code_sha256`` tells programs of one
version apart); how long a run took is in ``timing.json``, which is not hashed.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.errors import InputError, Problem
from simulator.version import code_sha256, version

if TYPE_CHECKING:
    from simulator.scenario import Scenario

SCHEMA_VERSION = 2
#: the kind of a folder that `simulate run` wrote
RUN = "run"
NAME = "manifest.json"
#: libraries whose versions may change a byte of the results
_LIBRARIES = ("numpy", "pandas", "pyarrow", "matplotlib", "jinja2", "simpy", "scipy")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run was told beside the scenario, enough to do it again.

    ``command`` is what to type; ``allocators`` are labels (``None``: all); ``language`` is that of the report's words.
    """

    command: str
    seed: int
    allocators: tuple[str, ...] | None = None
    replications: int = 1
    verify: bool = False
    perfetto: bool = False
    language: str = "en"


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that the scenario names: as it is written there, and what was in it."""

    name: str
    sha256: str


@dataclass(slots=True)
class Outputs:
    """Writes files of a folder, whole or not at all, and remembers their SHA-256."""

    folder: Path
    sha256: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, content: bytes) -> None:
        """Write ``content`` to the file ``name`` in the folder. Raises ``InputError``."""
        from simulator.files import write_with

        write_with(self.folder / name, lambda stream: stream.write(content))
        self.sha256[name] = hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What was done, enough to do it again: a ``kind`` of question, the command to type, and what it was told.

    ``asked`` is the scenario as it was written and the changes to it, for questions that load it more than once;
    ``scenarios`` are all that were run (the files they name are the inputs), the first one stands for all.
    ``interrupted``: Ctrl-C came before all of it was done, so doing it again gives more.
    """

    kind: str
    command: str
    options: Mapping[str, Any]
    scenarios: "Sequence[Scenario]"
    asked: Mapping[str, Any] | None = None
    interrupted: bool = False


def run_deed(scenario: "Scenario", options: RunOptions, *, interrupted: bool = False) -> Deed:
    """A ``run`` as a deed."""
    given = asdict(options)
    command = given.pop("command")
    return Deed(kind=RUN, command=command, options=given, scenarios=[scenario], interrupted=interrupted)


def manifest(deed: Deed, outputs: Mapping[str, str], *, not_hashed: Sequence[str]) -> dict[str, Any]:
    """The content of ``manifest.json``. File names in the scenario start from ``base_dir``."""
    import platform

    first = deed.scenarios[0]
    inputs = input_files([each.resolved() for each in deed.scenarios], first.base_dir)
    return {
        "schema_version": SCHEMA_VERSION,
        "program": "ascend-kv-sim",
        "version": version(),
        "code_sha256": code_sha256(),
        "kind": deed.kind,
        "command": deed.command,
        **({"interrupted": True} if deed.interrupted else {}),
        "options": dict(deed.options),
        "scenario": first.resolved(),
        "asked": deed.asked,
        "base_dir": _base_dir(first, [one.name for one in inputs]),
        "inputs": [asdict(one) for one in inputs],
        "outputs": dict(sorted(outputs.items())),
        "not_hashed": [*not_hashed, NAME],
        "environment": {"python": platform.python_version(), **library_versions()},
    }


def _base_dir(scenario: "Scenario", files: Sequence[str]) -> str | None:
    """The scenario's folder, as seen from the current one, if files in it are named at all."""
    from simulator.traffic.traces import trace_names

    return None if all(one in trace_names() for one in files) else scenario.base_dir.as_posix()


def kind_of(content: Mapping[str, Any]) -> str:
    """Which command wrote a manifest."""
    return str(content.get("kind", RUN))


def options_of(content: Mapping[str, Any]) -> RunOptions:
    """The options in a manifest. Raises ``KeyError`` or ``TypeError`` when it is none."""
    given = dict(content["options"])
    chosen = given.pop("allocators")
    return RunOptions(command=content["command"], allocators=None if chosen is None else tuple(chosen), **given)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a results folder. Raises ``InputError``."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"cannot be read: {error.strerror}; a results folder is needed"
        raise InputError([Problem(file=str(path), message=message)]) from None
    except ValueError as error:
        raise InputError([Problem(file=str(path), message=f"is not JSON: {error}")]) from None
    if not isinstance(content, dict):
        raise InputError([Problem(file=str(path), message="is not the mapping of a results folder")])
    return content


def checked_manifest(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """The manifest of ``folder``, whose files ``names`` are as it says. Raises ``InputError``."""
    content = read_json(folder / NAME)
    recorded = content.get("outputs")
    if content.get("schema_version") != SCHEMA_VERSION or not isinstance(recorded, dict):
        message = "was not written by this version of the program; run the scenario again"
        raise InputError([Problem(file=str(folder / NAME), message=message)])
    problems = []
    for name in names:
        path = folder / name
        if not path.is_file() or sha256_of(path) != recorded.get(name):
            message = "is missing or was changed after the run; `simulate rerun` puts it back"
            problems.append(Problem(file=str(path), message=message))
    if problems:
        raise InputError(problems)
    return content


def library_versions() -> dict[str, str]:
    """Versions of the libraries that take part in the results."""
    from importlib import metadata

    return {name: metadata.version(name) for name in _LIBRARIES}


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def input_files(resolved: "Mapping[str, Any] | Sequence[Mapping[str, Any]]", base_dir: Path) -> list[InputFile]:
    """The files that a scenario or several name (their devices, models, traces and lengths), each once."""
    found = dict.fromkeys(_named_files(resolved))
    return [InputFile(name, sha256_of(path)) for name in found if (path := input_path(name, base_dir)).is_file()]


def input_path(name: str, base_dir: Path) -> Path:
    """Where the file that a scenario calls ``name`` is: below ``base_dir``, or shipped with the program."""
    from simulator.traffic.traces import trace_names, trace_path

    return trace_path(name) if name in trace_names() else base_dir / name


def _named_files(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        for key, value in part.items():
            if key in ("file", "path", "config") and isinstance(value, str):
                yield value
            else:
                yield from _named_files(value)
    elif isinstance(part, Sequence) and not isinstance(part, str):
        for item in part:
            yield from _named_files(item)
