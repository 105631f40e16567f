"""What exports for all engines share: the question, the settings, and the collection of refusals."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from simulator.config import PagedBase
from simulator.errors import InputError, Problem
from simulator.scenario import Scenario
from simulator.serving.pool import page_layout
from simulator.serving.pool_parts import PoolParts

Value = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A sized configuration: ``max_pages`` pages of ``page_tokens`` tokens, each of ``page_bytes`` on a device.

    ``longest_prompt`` and ``longest_output`` are those of the scenario's own requests, in tokens.
    """

    scenario: Scenario
    index: int
    max_pages: int
    page_tokens: int
    page_bytes: int
    longest_prompt: int
    longest_output: int

    @property
    def prefix_caching(self) -> bool:
        """Whether the allocator shares prefixes."""
        return bool(getattr(self.scenario.allocators[self.index], "enable_prefix_caching", False))

    @property
    def max_model_len(self) -> int:
        """The longest sequence served."""
        return self.scenario.budget.max_model_len

    @property
    def head_dim(self) -> int:
        """The widest head of the model; of a latent cache its width."""
        groups = self.scenario.loaded_model.groups
        return max(group.latent_dims or group.head_dim for group in groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One option by the engine's own name, in its own unit, and why it has this value."""

    name: str
    value: Value
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Settings for one engine. ``text`` is what its user pastes; ``notes`` are what the text cannot hold."""

    engine: str
    settings: tuple[Setting, ...]
    text: str
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Refusals:
    """Collects what an engine cannot accept, so that all of it is said at once."""

    engine: str
    index: int
    problems: list[Problem] = field(default_factory=list)

    def unless(self, accepted: bool, key: str, message: str, allowed: Iterable[object] = ()) -> None:
        """Refuse ``key`` unless ``accepted``; a key that starts with a dot is one of the allocator's."""
        if not accepted:
            where = f"allocators.{self.index}{key}" if key.startswith(".") else key
            names = tuple(str(one) for one in allowed)
            self.problems.append(Problem(key=where, message=f"{self.engine}: {message}", allowed=names))

    def check(self) -> None:
        """Raises ``InputError`` when anything was refused."""
        if self.problems:
            raise InputError(self.problems)


def wanted(scenario: Scenario, index: int, max_pages: int | None) -> Wanted:
    """The configuration to export: ``max_pages``, or what the scenario's own pool has. Raises ``InputError``."""
    from simulator.serving.pool import build_allocator
    from simulator.simulation import pool_parts

    config, key = scenario.allocators[index], f"allocators.{index}"
    if not isinstance(config, PagedBase):
        message = "no engine reserves contiguous memory by request: choose a paged allocator with --allocator"
        raise InputError([Problem(key=key, message=message)])
    requests = scenario.requests()
    parts: PoolParts = pool_parts(scenario, requests)
    layout = page_layout(config, parts, key=key)
    if max_pages is not None:
        config = config.model_copy(update={"max_pages": max_pages, "safety_factor": None})
    pool = build_allocator(config, parts, key=key)
    return Wanted(
        scenario=scenario,
        index=index,
        max_pages=pool.max_pages,
        page_tokens=layout.page_tokens,
        page_bytes=pool.capacity_bytes // pool.max_pages if pool.max_pages else layout.page_bytes,
        longest_prompt=int(requests.prompt_tokens.max(initial=1)),
        longest_output=int(requests.output_tokens.max(initial=1)),
    )
