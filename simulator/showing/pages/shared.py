"""What pages of the planner's answers have in common."""

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.showing.answer_folder import AnswerData
from simulator.showing.page import Picture, Translate
from simulator.showing.plots.budget import hbm_budget
from simulator.showing.report_rows import DASH
from simulator.showing.report_tables import Table, budget_tables
from simulator.units import format_bytes, format_seconds
from simulator.units import format_percent as percent

#: what every answer from simulated runs rests on
ASSUMPTIONS = (
    "The time of a step comes from modelled traffic (weights, KV, page tables, compute, collectives, host work), not "
    "from measurement of this model on this device.",
    "All devices of an instance run in step; one device is shown for all.",
    "All allocators and all sizes meet the same requests in each replication (common random numbers), so that none has "
    "more luck than another.",
)


def share(value: float | None, interval: Sequence[float | None] | None = None) -> str:
    """A share in percent, with its interval where it has one."""
    if value is None:
        return DASH
    return percent(value) + bracketed([percent(end) for end in interval or () if end is not None])


def count(value: float | None, interval: Sequence[float | None] | None = None) -> str:
    """A count a request."""
    if value is None:
        return DASH
    return f"{value:.3g}" + bracketed([f"{end:.3g}" for end in interval or () if end is not None])


def seconds(value: float | None, interval: Sequence[float | None] | None = None) -> str:
    """A time; a dash for one that nobody has."""
    if value is None:
        return DASH
    return format_seconds(value) + bracketed([format_seconds(end) for end in interval or () if end is not None])


def bracketed(ends: Sequence[str]) -> str:
    """An interval behind a figure; nothing unless both ends are known."""
    return f" [{ends[0]}, {ends[1]}]" if len(ends) == 2 else ""


def number(value: Any) -> str:
    """A value of a key as a reader would write it."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


#: units of keys by the end of their names
_UNITS = {
    "arrivals.rate": "1/s",
    "bytes": "bytes",
    "_tokens": "tokens",
    "max_model_len": "tokens",
    "page_size": "tokens",
    "max_num_seqs": "sequences",
    "max_pages": "pages",
    "replicas": "instances",
    "queue_timeout": "s",
    "step_time": "s",
}


def key_label(key: str, values: Sequence[Any], words: Translate) -> str:
    """A key as the name of an axis, with the unit of its values where they are numbers that have one."""
    unit = next((unit for ending, unit in _UNITS.items() if key.endswith(ending)), "")
    if not unit or places(values)[1]:
        return key
    # Symbols are the same in every language.
    return f"{key} [{words(unit) if unit.isalpha() and len(unit) > 1 else unit}]"


def places(values: Sequence[Any]) -> tuple[list[float], list[str]]:
    """Where values of a key stand on an axis, and their names if they are no numbers."""
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return [float(value) for value in values], []
    return [float(place) for place in range(len(values))], [str(value) for value in values]


def budget_picture(data: AnswerData, *, needed_bytes: int | None = None) -> Picture:
    """Where the memory of one device goes; with what is needed of it for KV."""
    caption = "What the KV pool is left with."
    if needed_bytes is not None:
        caption = "What the KV pool is left with; the line is what the recommended size takes of it."
    return Picture(
        lambda words: hbm_budget([data.basis], words, needed_bytes=needed_bytes),
        caption,
        lambda: budget_tables([data.basis]),
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> Table:
    """The data of a picture."""
    return Table(title, tuple(headings), tuple(tuple(row) for row in rows))


def size_of(data: AnswerData) -> str:
    """Bytes of the KV pool on one device."""
    return format_bytes(data.basis.memory["kv_capacity_bytes"])


def interrupted(document: Mapping[str, Any], words: Translate) -> list[str]:
    """What to say of an answer that Ctrl-C cut short."""
    text = "Interrupted: the answer stands on fewer runs than were asked for."
    return [words(text)] if document.get("interrupted") else []
