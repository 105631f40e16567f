"""Questions that the planner answers (`compare`, `size`, `sweep`, `kernel`), asked once and again from a manifest.

A question holds nothing but the scenario as it was written and the words of its options, so that it goes into a
manifest as it is and comes back the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from simulator.loading.overrides import Override
from simulator.planner import with_seed
from simulator.scenario import Scenario, ScenarioText, scenario_text
from simulator.serving.watching import Progress

Rows = Sequence[Mapping[str, Any]]
#: metadata of a field that says how the work is done or shown, not what is asked; it is in no manifest
HOW = {"how": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The scenario that a question is about, as it was written (``None``: none was named), and changes to it."""

    scenario: ScenarioText | None
    settings: tuple[str, ...] = ()
    seed: int | None = None

    @classmethod
    def read(cls, name: str | None, settings: Sequence[str] | None, seed: int | None = None) -> Self:
        """What the user named. Raises ``InputError``."""
        text = None if name is None else scenario_text(name)
        return cls(scenario=text, settings=tuple(settings or ()), seed=seed)

    @property
    def changes(self) -> list[str | Override]:
        """The settings and the seed."""
        return with_seed(self.settings, self.seed)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the manifest; the text's folder is the manifest's ``base_dir``."""
        text = self.scenario
        written = None if text is None else {"text": text.text, "file": text.file}
        return {"scenario": written, "settings": list(self.settings), "seed": self.seed}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], base_dir: Path) -> Self:
        """Back from a manifest. Raises ``KeyError`` or ``TypeError`` when it is none."""
        written = plain["scenario"]
        text = None if written is None else ScenarioText(written["text"], base_dir, written["file"])
        return cls(scenario=text, settings=tuple(plain["settings"]), seed=plain["seed"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An answer. ``holds`` is whether it is a yes; ``document`` is what ``--format json`` prints.

    ``summary`` goes into ``summary.json``: a mapping, the same whenever the same is asked. ``tables`` are Parquet files
    by name, ``not_hashed`` files of the folder that are no part of the answer. ``scenarios`` are all that were run, the
    first standing for all; ``interrupted``: the answer is about what was done until Ctrl-C; ``warnings`` go to stderr.
    """

    scenarios: Sequence[Scenario]
    document: Any
    summary: Mapping[str, Any]
    tables: Mapping[str, Rows]
    show: Callable[[], None]
    holds: bool = True
    not_hashed: tuple[str, ...] = ()
    interrupted: bool = False
    warnings: tuple[str, ...] = ()


class Question(Protocol):
    """A question of one ``kind``; its fields are the options, as they were typed."""

    kind: ClassVar[str]

    @property
    def asked(self) -> Asked: ...

    def check(self) -> None:
        """Raises ``InputError`` for what is wrong with the options by themselves, before anything is made or run."""
        ...

    def answered(self, *, folder: Path | None, jobs: int, progress: Progress | None) -> Answered:
        """The answer, from ``jobs`` processes; ``folder`` is where work may be kept. Raises ``InputError``."""
        ...


def options_of(question: Any) -> dict[str, Any]:
    """The options of a question as plain data."""
    return {name: getattr(question, name) for name in _option_names(question)}


def question_of(kind: str, options: Mapping[str, Any], asked: Asked) -> Question:
    """The question that a manifest holds. Raises ``KeyError`` or ``TypeError`` when it is none."""
    made = _classes()[kind]
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    if given.keys() != set(_option_names(made)):
        raise KeyError(f"options {sorted(given)} of {kind}")
    question: Question = made(asked=asked, **given)
    return question


def _option_names(question: Any) -> list[str]:
    return [one.name for one in fields(question) if one.name != "asked" and not one.metadata.get("how")]


def _classes() -> dict[str, Any]:
    from simulator.showing.compare_command import CompareQuestion
    from simulator.showing.kernel_command import KernelQuestion
    from simulator.showing.size_command import SizeQuestion
    from simulator.showing.sweep_command import SweepQuestion

    return {one.kind: one for one in (CompareQuestion, KernelQuestion, SizeQuestion, SweepQuestion)}
