"""Discrete-event simulation and planning of KV-cache memory for LLM serving on Ascend NPUs.

Where to start reading, and how a scenario becomes a report::

    scenario.py     a YAML file, checked -> Scenario
    device.py  model.py  memory.py    what is there: the device, the model's shape, the budget -> bytes for KV
    workload.py     what comes: arrivals, lengths, prefixes -> Requests (columns)
    pool.py         budget and settings -> an allocator with a pool
    allocators/     who decides about memory: base.py first (the protocol), then paged.py
    scheduler.py    who runs next (schedule / finish_step); pressure.py: what happens when memory is missing
    engine.py       what happens when: SimPy arrivals and decode loop; leap.py: many decode steps at once, exactly
    cost.py         how long a step takes; kernel.py: paged attention from its memory traffic
    ledger.py  recorder.py  metrics.py    facts written down during the run, figures computed after it
    simulation.py   all of it for one scenario -> Result

Start with ``allocators/base.py``, ``scheduler.py`` and ``engine.py``. ``docs/architecture.md`` has the picture.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simulator.compiled import use_core

if TYPE_CHECKING:
    from simulator.scenario import load_scenario
    from simulator.simulation import simulate

__all__ = ["core", "load_scenario", "simulate"]

#: whether the engine runs compiled or as Python, and why
core = use_core()

_HOMES = {"load_scenario": "simulator.scenario", "simulate": "simulator.simulation"}


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that ``import simulator`` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
