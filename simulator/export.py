"""``simulate export``: a sized configuration in the words and units of a serving engine.

A setting that the engine does not accept is refused, not bent: all of them at once, with what is allowed.
"""

from collections.abc import Callable
from typing import Any

from simulator.errors import InputError, Problem, nearest_name
from simulator.scenario import Scenario
from simulator.showing.export_base import Export, Wanted, wanted
from simulator.showing.export_cann import cann_export
from simulator.showing.export_mindie import mindie_export
from simulator.showing.export_vllm import vllm_export

ENGINES: dict[str, Callable[[Wanted], Export]] = {
    "vllm-ascend": lambda want: vllm_export(want, "vllm-ascend"),
    "vllm": lambda want: vllm_export(want, "vllm"),
    "mindie": mindie_export,
    "cann-recipes": cann_export,
}


def export(scenario: Scenario, index: int, engine: str, *, max_pages: int | None = None) -> Export:
    """Settings of ``engine`` for allocator ``index``, with ``max_pages`` or the scenario's own pool.

    Raises ``InputError`` for an unknown engine, a contiguous allocator, a pool beyond the budget, and for whatever the
    engine does not accept.
    """
    if engine not in ENGINES:
        names = tuple(ENGINES)
        nearest = nearest_name(engine, names)
        message = f"{engine!r} is no engine that settings can be exported for"
        raise InputError([Problem(option="--for", message=message, nearest=nearest, allowed=names)])
    return ENGINES[engine](wanted(scenario, index, max_pages))


def export_document(found: Export) -> dict[str, Any]:
    """The document of ``simulate export --format json``."""
    settings = {one.name: one.value for one in found.settings}
    comments = {one.name: one.comment for one in found.settings if one.comment}
    return {
        "engine": found.engine,
        "settings": settings,
        "comments": comments,
        "notes": list(found.notes),
        "text": found.text,
    }
