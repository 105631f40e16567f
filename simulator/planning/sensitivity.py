"""Which assumptions a size depends on most: each is made a tenth larger and smaller, all else as it is.

Two things follow from an assumption: how many pages are needed, and how many there are. What there is is the memory
budget, worked out again. What is needed is read off the demand curve, as the search's first guess is: the same
requests run in a pool without end, and the pages that are exceeded during the target's share of the time. The same
random numbers are behind every change, so that two runs differ by the change and not by luck; arrivals are moved
together or apart, and lengths stretched, in place. A changed size is not searched for: that would take a hundred times
as long, and its steps are as large as the changes that are looked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.planning.demand import demand
from simulator.planning.limits import changed_scenario, hbm_limit_pages
from simulator.planning.tasks import Runner, in_order
from simulator.planning.trial import Trial
from simulator.scenario import Scenario
from simulator.traffic.requests import Requests

#: by how much an assumption is changed
CHANGE = 0.1
#: part of the answer from which an effect is worth a word
FELT = 0.01
#: requests of one demand curve
MOST_REQUESTS = 1000
#: device figures that set how long sequences live, and so how many are there at once
SPEEDS = (
    "hbm_sustained_bandwidth",
    "cube_efficiency",
    "launch_s",
    "host_step_s",
    "host_sequence_s",
    "link_bandwidth",
)
#: what the memory budget is made of: name, and the settings that change together
ROOMS: Mapping[str, tuple[str, ...]] = {
    "hbm_usable_bytes": ("device.hbm_bytes", "device.hbm_usable_bytes", "device.hbm_free_bytes"),
    "activation_bytes": ("engine.activation_bytes",),
    "runtime_bytes": ("engine.runtime_bytes",),
}
ARRIVALS, PROMPTS, OUTPUTS = "arrival rate", "prompt tokens", "output tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What an assumption does to the answer. Ratios to the pages needed and there with nothing changed.

    ``confidence`` is that of a device figure: vendor, measured or assumed; empty for the others.
    """

    name: str
    confidence: str
    needed_up: float = 1.0
    needed_down: float = 1.0
    room_up: float = 1.0
    room_down: float = 1.0

    @property
    def size(self) -> float:
        """The larger change, up or down, of what is needed over what is there."""
        return max(abs(self.needed_up / self.room_up - 1.0), abs(self.needed_down / self.room_down - 1.0))


def sensitivity(
    scenario: Scenario, index: int, *, time_share: float, replications: int, runner: Runner
) -> tuple[Effect, ...]:
    """The effects of a tenth more and less of each assumption, the largest first.

    ``time_share`` is the part of the time that the pages needed may be exceeded. Raises ``InputError``.
    """
    pairs = [*_speeds(scenario), *_workload(scenario)]

    def needed(changes: Sequence[_Change]) -> list[float]:
        tasks = [
            _Task(scenario, index, number, change, time_share) for change in changes for number in range(replications)
        ]
        found = np.array(in_order(runner, _needed, tasks))
        means: list[float] = found.reshape(len(changes), replications).mean(axis=1).tolist()
        return means

    plain, *more = needed([_Change(), *(up for _, _, (up, _) in pairs)])
    base = max(plain, 1.0)
    ups = [pages / base for pages in more]
    # What does next to nothing one way is not tried the other way.
    felt = [place for place, ratio in enumerate(ups) if abs(ratio - 1.0) >= FELT]
    downs = dict(zip(felt, needed([pairs[place][2][1] for place in felt]), strict=True)) if felt else {}
    effects = [
        Effect(name=name, confidence=sure, needed_up=ups[place], needed_down=downs.get(place, base) / base)
        for place, (name, sure, _) in enumerate(pairs)
    ]
    return tuple(sorted([*effects, *_rooms(scenario, index)], key=lambda one: -one.size))


@dataclass(frozen=True, slots=True)
class _Change:
    """Other settings, or the same scenario's requests with times and lengths multiplied."""

    settings: tuple[tuple[str, float], ...] = ()
    times: float = 1.0
    prompts: float = 1.0
    outputs: float = 1.0


@dataclass(frozen=True, slots=True)
class _Task:
    scenario: Scenario
    index: int
    replication: int
    change: _Change
    time_share: float


_Pair = tuple[str, str, tuple[_Change, _Change]]


def _needed(task: _Task) -> float:
    """Pages exceeded during the task's share of the time."""
    change = task.change
    scenario = changed_scenario(task.scenario, dict(change.settings)) if change.settings else task.scenario
    assert scenario is not None, f"{change.settings} were tried before"
    drawn = scenario.requests(replication=task.replication)
    if drawn.closed is None:
        drawn = drawn.keep(np.arange(len(drawn)) < MOST_REQUESTS)
    requests = _stretched(drawn, change, scenario.budget.max_model_len)
    run = Trial(scenario, task.index, task.replication, requests=requests)
    return float(demand(run).exceeded(task.time_share))


def _stretched(requests: Requests, change: _Change, longest: int) -> Requests:
    """``requests`` with a change; none becomes longer than ``longest`` by it."""
    prompts, outputs = requests.prompt_tokens, requests.output_tokens

    def times(column: Any, factor: float, others: Any) -> Any:
        stretched = np.rint(column * factor).astype(column.dtype)
        return np.maximum(1, np.minimum(stretched, np.maximum(column, longest - others)) if factor > 1 else stretched)

    return replace(
        requests,
        arrival_ns=np.rint(requests.arrival_ns * change.times).astype(requests.arrival_ns.dtype),
        prompt_tokens=times(prompts, change.prompts, outputs),
        output_tokens=times(outputs, change.outputs, prompts),
    )


def _workload(scenario: Scenario) -> list[_Pair]:
    """Arrival rate (a closed loop has none of its own), and lengths (a shared prompt is as long as what it shares)."""
    up, down = 1.0 + CHANGE, 1.0 - CHANGE
    pairs = [(OUTPUTS, "", (_Change(outputs=up), _Change(outputs=down)))]
    if scenario.requests().prefix is None:
        pairs.insert(0, (PROMPTS, "", (_Change(prompts=up), _Change(prompts=down))))
    if scenario.workload.arrivals.process != "closed":
        pairs.insert(0, (ARRIVALS, "", (_Change(times=1.0 / up), _Change(times=1.0 / down))))
    return pairs


def _speeds(scenario: Scenario) -> list[_Pair]:
    """Device figures that matter to this scenario's steps."""
    if scenario.engine.step_time is not None:
        return []
    found = []
    for figure in SPEEDS:
        if figure == "link_bandwidth" and scenario.engine.tensor_parallel_size == 1:
            continue
        value = getattr(scenario.loaded_device, figure)
        both = [((f"device.{figure}", _times(value, 1.0 + sign * CHANGE)),) for sign in (1, -1)]
        if all(changed_scenario(scenario, dict(settings)) is not None for settings in both):
            confidence = scenario.loaded_device.sources[figure][1]
            found.append((figure, confidence or "", (_Change(both[0]), _Change(both[1]))))
    return found


def _rooms(scenario: Scenario, index: int) -> list[Effect]:
    """What the memory budget leaves when one of its parts is another; nothing when the pool's bytes are given."""
    base, effects = hbm_limit_pages(scenario, index), []
    values = {
        "hbm_usable_bytes": None,
        "activation_bytes": scenario.budget.activation_bytes,
        "runtime_bytes": scenario.budget.runtime_bytes,
    }
    for name, keys in ROOMS.items():
        ratios = []
        for sign in (1, -1):
            settings = {key: _times(_figure(scenario, key, values[name]), 1.0 + sign * CHANGE) for key in keys}
            changed = changed_scenario(scenario, settings)
            ratios.append(1.0 if changed is None or not base else hbm_limit_pages(changed, index) / base)
        if min(ratios) > 0 and ratios != [1.0, 1.0]:
            sources = scenario.loaded_device.sources
            confidence = sources[name][1] or "" if name in sources else ""
            effects.append(Effect(name=name, confidence=confidence, room_up=ratios[0], room_down=ratios[1]))
    return effects


def _figure(scenario: Scenario, key: str, value: int | None) -> int:
    figure: int = getattr(scenario.loaded_device, key.partition(".")[2]) if value is None else value
    return figure


def _times(value: float, factor: float) -> float:
    return round(value * factor) if isinstance(value, int) else value * factor
