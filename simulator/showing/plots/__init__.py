"""Pictures of a run, one a function: figures in, a Matplotlib ``Figure`` out. ``style`` has what they share.

``PICTURES`` names them in the order of the report. Matplotlib is imported only when a picture is drawn, and never its
global state (``pyplot``).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulator.showing.plots.batch import queue_and_batch
from simulator.showing.plots.budget import hbm_budget
from simulator.showing.plots.latency import latency
from simulator.showing.plots.memory_time import memory_over_time
from simulator.showing.plots.oom import oom_events
from simulator.showing.plots.outcomes import outcomes
from simulator.showing.plots.pool_map import pool_close_up, pool_map

if TYPE_CHECKING:
    from simulator.showing.plots.style import Figure, Words
    from simulator.showing.report_data import ReportData

__all__ = ["PICTURES", "Picture"]

#: draws one picture with its words translated by the second argument; ``None`` when there is nothing to show
Picture = Callable[["ReportData", "Words"], "Figure | None"]

PICTURES: dict[str, Picture] = {
    "outcomes": outcomes,
    "memory_over_time": memory_over_time,
    "oom_events": oom_events,
    "pool_map": pool_map,
    "pool_close_up": pool_close_up,
    "queue_and_batch": queue_and_batch,
    "latency": latency,
    "hbm_budget": lambda data, words: hbm_budget(data.bases, words),
}
