"""The structure that docs/architecture.md draws: imports point one way, heavy libraries stay where they belong."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: from the bottom up; a module may import from its own layer and those below
LAYERS = (
    ("compiled", "quantiles", "units", "fields", "rng", "errors", "files", "version"),
    ("loading.text_source", "loading.yaml_source", "loading.shape", "loading.explain", "loading.catalogue"),
    ("config", "profiles", "device", "model", "models", "workload", "traffic"),
    ("memory", "models.ways_out", "models.activations", "kernels", "kernel", "cost", "allocators"),
    ("serving", "scheduler"),
    ("engine", "fleet", "fleet_summary", "serving.replay", "serving.compaction_worth", "metrics"),
    ("loading", "scenario", "calibrate"),
    ("simulation",),
    ("planning", "planner", "sweep", "claiming", "claims"),
    ("showing", "report", "trace", "export"),
    ("validating", "validation"),
    ("commands", "cli"),
)
#: the only modules that know of SimPy
SIMPY = {"simulator/engine.py", "simulator/kernels/kernel_cycles.py"}


def sources() -> list[Path]:
    return [*sorted((ROOT / "simulator").rglob("*.py")), ROOT / "cli.py"]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")


def imported(path: Path, *, top_only: bool) -> set[str]:
    """Modules that ``path`` imports; with ``top_only`` not those inside functions or under TYPE_CHECKING."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
            found.add(node.module)
    return found


def layer_of(module: str) -> int | None:
    inside = module.removeprefix("simulator.")
    best: tuple[int, int] | None = None
    for level, names in enumerate(LAYERS):
        for name in names:
            if inside == name or inside.startswith(name + "."):
                best = max(best or (0, 0), (len(name), level))
    return None if best is None else best[1]


def test_every_module_belongs_to_a_layer() -> None:
    homeless = [name_of(path) for path in sources() if layer_of(name_of(path)) is None]
    assert set(homeless) <= {"simulator"}


def test_imports_point_from_higher_layers_to_lower_ones() -> None:
    upward = []
    for path in sources():
        own = layer_of(name_of(path))
        if own is None:
            continue
        for target in imported(path, top_only=True):
            is_module = (ROOT / target.replace(".", "/")).with_suffix(".py").is_file()
            level = layer_of(target) if is_module else None
            if level is not None and level > own:
                upward.append(f"{name_of(path)} -> {target}")
    assert not upward, "\n".join(sorted(upward))


def test_only_the_engine_and_the_played_kernel_use_simpy() -> None:
    users = {path.relative_to(ROOT).as_posix() for path in sources() if "simpy" in imported(path, top_only=False)}
    assert users == SIMPY


def test_only_what_is_shown_uses_matplotlib() -> None:
    for path in sources():
        if any(module.split(".")[0] == "matplotlib" for module in imported(path, top_only=False)):
            assert path.relative_to(ROOT).parts[1] in ("showing", "validating"), path


def test_every_imported_library_is_declared() -> None:
    declared = (ROOT / "pyproject.toml").read_text()
    spelt = {"yaml": "pyyaml", "markupsafe": "jinja2"}
    for path in sources():
        for module in {name.split(".")[0] for name in imported(path, top_only=False)}:
            if module not in sys.stdlib_module_names and module not in ("simulator", "cli"):
                assert f'"{spelt.get(module, module)}>=' in declared, f"{path} imports {module}"
