"""The scenario: what a YAML file may say, and the way from the file to a checked ``Scenario``.

Every complaint about a file is collected and raised at once, sorted by line, as one ``InputError``.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, ValidationError, field_validator

from simulator.config import (
    AllocatorConfig,
    ContiguousConfig,
    EngineConfig,
    FaultConfig,
    PagedConfig,
    RoundRobinConfig,
    RouterConfig,
)
from simulator.device import Device, DeviceConfig, load_device
from simulator.errors import InputError, Problem, printable
from simulator.fields import Config
from simulator.loading import checks, explain
from simulator.loading.catalogue import find_scenario, scenario_dir, scenario_names
from simulator.loading.overrides import Origins, Override, apply_overrides
from simulator.loading.text_source import decoded, read_bytes
from simulator.loading.yaml_source import MAX_BYTES, KeyPath, YamlSource, parse_dotted, parse_yaml, read_yaml
from simulator.memory import MemoryBudget, memory_budget
from simulator.model import Model, ModelConfig, load_model
from simulator.workload import Requests, WorkloadConfig, generate

_DEFAULT_ALLOCATORS = (ContiguousConfig(kind="contiguous"), PagedConfig(kind="paged"))


__all__ = [
    "Scenario",
    "ScenarioText",
    "find_scenario",
    "load_scenario",
    "parse_scenario",
    "scenario_dir",
    "scenario_names",
    "scenario_text",
]


@dataclass(frozen=True, slots=True)
class ScenarioText:
    """A scenario as it was written, to be loaded any number of times; messages call it ``file``."""

    text: str
    base_dir: Path
    file: str


class Scenario(Config):
    """One question: this device, this model, this workload, under these allocators.

    The same scenario and seed give the same results, byte for byte.
    """

    name: str = Field("scenario", min_length=1, max_length=100)
    description: str = ""
    device: DeviceConfig
    model: ModelConfig
    workload: WorkloadConfig
    engine: EngineConfig = EngineConfig()
    router: RouterConfig | None = Field(None, description="who gets an arrival when device.replicas is above 1")
    allocators: Annotated[tuple[AllocatorConfig, ...], Field(min_length=1)] = _DEFAULT_ALLOCATORS
    faults: tuple[FaultConfig, ...] = ()
    seed: int = Field(0, ge=0, lt=2**63)
    _base_dir: Path = PrivateAttr(default=Path())
    _origins: Origins | None = PrivateAttr(default=None)

    def __eq__(self, other: object) -> bool:
        """Whether both ask the same question; where they were read from does not count."""
        return isinstance(other, Scenario) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]

    @field_validator("name")
    @classmethod
    def _fit_for_a_folder(cls, name: str) -> str:
        if not name.isprintable() or "/" in name or "\\" in name:
            raise ValueError("a name may not hold slashes or control characters: it names the results' folder")
        return name

    @property
    def base_dir(self) -> Path:
        """The folder that relative file names in the scenario start from: the scenario's own."""
        return self._base_dir

    @cached_property
    def loaded_device(self) -> Device:
        """The device with the preset's figures filled in. Raises ``ValueError``."""
        return load_device(self.device, self._base_dir)

    @cached_property
    def loaded_model(self) -> Model:
        """The model's shape. Raises ``ValueError``."""
        return load_model(self.model, self._base_dir)

    @cached_property
    def budget(self) -> MemoryBudget:
        """What one device's memory goes to, and what is left for the KV pool."""
        return memory_budget(self.loaded_device, self.loaded_model, self.engine)

    @property
    def router_config(self) -> RouterConfig:
        """The router; instances take turns where the scenario names none."""
        return self.router or RoundRobinConfig(policy="round_robin")

    @property
    def labels(self) -> tuple[str, ...]:
        """One distinct name an allocator: its ``label``, else its kind, numbered when a kind comes twice."""
        names: list[str] = []
        for allocator in self.allocators:
            base = name = allocator.label or allocator.kind
            count = 2
            while name in names:
                name, count = f"{base}-{count}", count + 1
            names.append(name)
        return tuple(names)

    def requests(self, *, seed: int | None = None, replication: int = 0) -> Requests:
        """The workload's requests, drawn or read. Raises ``InputError`` when a trace or length file is of no use."""
        try:
            return generate(
                self.workload,
                seed=self.seed if seed is None else seed,
                replication=replication,
                base_dir=self._base_dir,
            )
        except InputError:
            raise
        except ValueError as error:
            raise InputError([Problem(key="workload", message=str(error))]) from None

    @contextmanager
    def located(self) -> Iterator[None]:
        """Gives an ``InputError`` raised inside, whose problems name only a key, the file and line of that key."""
        try:
            yield
        except InputError as error:
            if self._origins is None:
                raise
            place = self._origins.place
            problems = [
                explain.placed(problem, place(parse_dotted(problem.key))) if problem.key else problem
                for problem in error.problems
            ]
            raise InputError(problems) from None

    def resolved(self) -> dict[str, Any]:
        """Everything with its defaults, as plain data: dumped as YAML and loaded again, it is this scenario.

        File names stay as they were written, relative to ``base_dir``.
        """
        plain = self.model_dump(mode="json")
        # Figures that come from the preset are not set here; listing thirty nulls would only hide the rest.
        plain["device"] = {key: value for key, value in plain["device"].items() if value is not None}
        if self.router is None:
            del plain["router"]
        return plain


def scenario_text(path_or_name: str | Path) -> ScenarioText:
    """What the file says that ``load_scenario`` would read. Raises ``InputError``."""
    path = find_scenario(path_or_name)
    text = decoded(read_bytes(path, str(path), limit_bytes=MAX_BYTES), str(path))
    return ScenarioText(text, path.parent, str(path))


def load_scenario(scenario: str | Path | ScenarioText, overrides: Sequence[str | Override] = ()) -> Scenario:
    """The scenario of a YAML file, of a shipped name such as ``llama70b_128k``, or of a text read before.

    ``overrides`` are ``dotted.key=value`` texts. Raises ``InputError`` with everything that is wrong.
    """
    if isinstance(scenario, ScenarioText):
        return parse_scenario(scenario.text, scenario.base_dir, overrides, file=scenario.file)
    path = find_scenario(scenario)
    return _build(read_yaml(path), path.parent, path.stem, overrides)


def parse_scenario(
    text: str | bytes, base_dir: Path, overrides: Sequence[str | Override] = (), *, file: str = "scenario"
) -> Scenario:
    """The scenario of a YAML text; messages call it ``file``. Raises ``InputError``."""
    return _build(parse_yaml(text, file), base_dir, Path(file).stem, overrides)


def _build(source: YamlSource, base_dir: Path, name: str, overrides: Sequence[str | Override]) -> Scenario:
    origins = Origins(source)
    source.data.setdefault("name", printable(name).replace("\\", "_"))
    if "allocators" not in source.data:
        source.data["allocators"] = [{"kind": allocator.kind} for allocator in _DEFAULT_ALLOCATORS]
    apply_overrides(origins, overrides, Scenario)
    scenario = _validated(origins, base_dir)
    for found in (_load_problems(scenario, origins), _cross_problems(scenario, origins)):
        problems = list(found)
        if problems:
            raise InputError(sorted(problems, key=origins.sort_key))
    return scenario


def _validated(origins: Origins, base_dir: Path) -> Scenario:
    data = origins.source.data
    found = list(explain.misplaced_booleans(Scenario, data))
    scenario = None
    try:
        scenario = Scenario.model_validate(data)
    except ValidationError as error:
        known = {complaint.path for complaint in found}
        found += [other for other in explain.complaints(error, Scenario, data) if other.path not in known]
    if scenario is None or found:
        problems = [problem for complaint in found for problem in explain.to_problems(complaint, origins.place)]
        raise InputError(sorted(problems, key=origins.sort_key))
    scenario._base_dir, scenario._origins = base_dir, origins
    return scenario


def _load_problems(scenario: Scenario, origins: Origins) -> Iterator[Problem]:
    """What is wrong with the device and model that the scenario names; loading them fills the caches."""
    for part, attribute in (("device", "loaded_device"), ("model", "loaded_model")):
        try:
            getattr(scenario, attribute)
        except InputError as error:
            for problem in error.problems:
                yield explain.placed(problem, origins.place(_blamed_key(origins, part, problem.message)))
        except (ValueError, OSError) as error:
            yield explain.placed(Problem(message=str(error)), origins.place(_blamed_key(origins, part, str(error))))


def _blamed_key(origins: Origins, part: str, message: str) -> KeyPath:
    """The key of ``part`` that ``message`` is about: one that it names, else the one that says what to load."""
    mapping = origins.source.data.get(part)
    given = [key for key, value in mapping.items() if value is not None] if isinstance(mapping, dict) else []
    base = [key for key in given if key in ("preset", "file", "config")]
    named = [key for key in given if key not in base and re.search(rf"\b{re.escape(str(key))}\b", message)]
    return (part, *(named or base)[:1])


def _cross_problems(scenario: Scenario, origins: Origins) -> Iterator[Problem]:
    device, model = scenario.loaded_device, scenario.loaded_model
    found = [
        *checks.cross_checks(
            scenario.engine,
            scenario.allocators,
            device=device,
            model=model,
            workload=scenario.workload,
            faulty=bool(scenario.faults),
        ),
        *checks.missing_files(origins.source.data["workload"], scenario.base_dir),
    ]
    if not found:
        try:
            # Only now: a budget presumes that the parts agree with one another.
            _ = scenario.budget
        except ValueError as error:
            found.append(explain.Complaint(("device", "kv_capacity_bytes"), str(error)))
    for complaint in found:
        yield from explain.to_problems(complaint, origins.place)
