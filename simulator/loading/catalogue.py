"""Where scenarios are found: by path, or by the name of a shipped one. Imports nothing heavy."""

from pathlib import Path

from simulator.errors import InputError, Problem, nearest_name, printable

_PACKAGE = Path(__file__).parents[1]
_SUFFIXES = (".yaml", ".yml")


def scenario_dir() -> Path:
    """The folder of the shipped scenarios: inside the installed package, or beside it in a checkout."""
    installed = _PACKAGE / "_scenarios"
    return installed if installed.is_dir() else _PACKAGE.parent / "scenarios"


def scenario_names() -> tuple[str, ...]:
    """Names of the shipped scenarios, sorted."""
    return tuple(sorted(path.stem for path in scenario_dir().glob("*.yaml")))


def find_scenario(path_or_name: str | Path) -> Path:
    """The file of a path or a shipped name. Raises ``InputError`` with the nearest name."""
    path, name = Path(path_or_name), str(path_or_name)
    if name and _exists(path):
        return path
    if name in scenario_names():
        return scenario_dir() / f"{name}.yaml"
    beside = [str(path.parent / near.name) for near in _yaml_files(path.parent)]
    nearest = nearest_name(name, [*scenario_names(), *beside])
    message = "no such file, and no shipped scenario of that name"
    raise InputError([Problem(file=printable(name), message=message, nearest=nearest, allowed=scenario_names())])


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _yaml_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES)
    except (OSError, ValueError):
        return []


def is_scenario(word: str) -> bool:
    """Whether ``word`` is an existing path or the name of a shipped scenario."""
    return _exists(Path(word)) or word in scenario_names()


def starter_text() -> str:
    """The commented scenario that ``simulate init`` writes."""
    return (_PACKAGE / "templates" / "starter.yaml").read_text(encoding="utf-8")
