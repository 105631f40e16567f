"""The data table under each picture: the same numbers, few enough to read; the Parquet files have all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simulator.serving.pool_map import CACHED, FREE, SHARED, grid
from simulator.showing import thinning
from simulator.showing.plots import style
from simulator.showing.plots.batch import PANELS as COUNTS
from simulator.showing.plots.budget import budget_parts
from simulator.showing.plots.latency import PANELS as LATENCIES
from simulator.showing.plots.memory_time import layers
from simulator.showing.plots.oom import event_counts
from simulator.showing.plots.outcomes import outcome_shares
from simulator.showing.plots.pool_map import moves
from simulator.units import format_bytes, format_seconds
from simulator.units import format_percent as percent

if TYPE_CHECKING:
    import numpy.typing as npt

    from simulator.showing.report_data import Basis, ReportData, RunData

_INSTANTS = 24
_QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)


@dataclass(frozen=True, slots=True)
class Table:
    """Texts of a table; the first column names the row."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(picture: str, data: "ReportData") -> list[Table]:
    """The tables under ``picture``."""
    make = _TABLES.get(picture)
    return [] if make is None else make(data)


def _outcomes(data: "ReportData") -> list[Table]:
    shares = [outcome_shares(run.summary) for run in data.runs]
    names = tuple(shares[0]) if shares else ()
    rows = tuple((run.name, *map(percent, share.values())) for run, share in zip(data.runs, shares, strict=True))
    return [Table("", ("", *names), rows)]


def _memory(data: "ReportData") -> list[Table]:
    found = []
    for run in data.shown:
        if not len(run.timeline.get("time_s", ())):
            continue
        stack = layers(run)
        columns = [style.thinned(run.timeline["time_s"], "first", _INSTANTS)]
        columns += [style.thinned(values, "mean", _INSTANTS) for values in stack.values()]
        columns.append(style.thinned(run.timeline["peak_allocated_bytes"], "max", _INSTANTS))
        rows = [(format_seconds(time), *map(format_bytes, sizes)) for time, *sizes in np.array(columns).T.tolist()]
        found.append(Table(run.name, ("from", *stack, "most held"), tuple(rows)))
    return [*found, *_left_out(data)]


def _left_out(data: "ReportData") -> list[Table]:
    """How the timelines were thinned."""
    rows = tuple(thinning.table_rows(data.thinnings))
    return [Table("What the timeline leaves out", thinning.HEADINGS, rows)] if rows else []


def _events(data: "ReportData") -> list[Table]:
    found = []
    for run in data.shown:
        if "time_s" not in run.oom_events:
            continue
        edges, counts = event_counts(run, data.end_s, bins=_INSTANTS)
        rows = [
            (format_seconds(start), *(f"{count:,}" for count in each))
            for start, *each in zip(edges[:-1].tolist(), *(count.tolist() for count in counts.values()), strict=True)
            if any(each)
        ]
        if rows:
            found.append(Table(run.name, ("from", *counts), tuple(rows)))
    return found


def _queue(data: "ReportData") -> list[Table]:
    counts = [_counts_of(run) for run in data.shown if len(run.timeline.get("time_s", ()))]
    return [*counts, *_left_out(data)]


def _counts_of(run: "RunData") -> Table:
    columns = [style.thinned(run.timeline["time_s"], "first", _INSTANTS)]
    columns += [style.thinned(run.timeline[name], "max", _INSTANTS) for name in COUNTS]
    rows = tuple((format_seconds(time), *(f"{n:,.0f}" for n in most)) for time, *most in np.array(columns).T.tolist())
    return Table(run.name, ("from", *COUNTS), rows)


def _latency(data: "ReportData") -> list[Table]:
    found = []
    for name, values_of in LATENCIES.items():
        rows = []
        for run in data.shown:
            values = values_of(run) if "outcome" in run.requests else np.zeros(0)
            cells = np.quantile(values, _QUANTILES).tolist() if len(values) else []
            rows.append((run.name, *(map(format_seconds, cells) if cells else ["-"] * len(_QUANTILES))))
        found.append(Table(name, ("", *(f"p{100 * share:g}" for share in _QUANTILES)), tuple(rows)))
    return found


def budget_tables(bases: "Sequence[Basis]") -> list[Table]:
    """Where the memory of one device goes, for each of several results folders."""
    found = []
    for basis in bases:
        whole = basis.memory["hbm_bytes"]
        rows = [
            (name, format_bytes(part), f"{part:,}", percent(part / whole))
            for name, part in budget_parts(basis.memory).items()
        ]
        title = basis.folder if len(bases) > 1 else ""
        found.append(Table(title, ("", "size", "bytes", "share"), tuple(rows)))
    return found


def _budget(data: "ReportData") -> list[Table]:
    return budget_tables(data.bases)


def _close_up(data: "ReportData") -> list[Table]:
    """At some instants: who holds the neighbouring pages, in how many pieces the free ones lie, what was moved."""
    found = []
    for run in data.shown:
        if not len(run.pool_map.get("time_s", ())) or not run.pool_map["close_up"].any():
            continue
        times, owners = grid(run.pool_map, "close_up")
        moved = np.cumsum(moves(run)[1])
        kept = np.unique(np.linspace(0, len(times) - 1, min(len(times), _INSTANTS)).round().astype(int))
        rows = [(format_seconds(times[at]), *_pages_told(owners[at]), format_bytes(int(moved[at]))) for at in kept]
        found.append(Table(run.name, ("at", *_PAGES, "moved until then"), tuple(rows)))
    return found


_PAGES = ("pages held by one", "shared", "cached", "free", "free pieces")


def _pages_told(owners: "npt.NDArray[np.int64]") -> tuple[str, ...]:
    free = owners == FREE
    pieces = int(np.count_nonzero(free[1:] & ~free[:-1])) + int(free[0])
    counts = (owners >= 0, owners == SHARED, owners == CACHED, free)
    return (*(f"{np.count_nonzero(count):,}" for count in counts), f"{pieces:,}")


_TABLES: dict[str, Callable[["ReportData"], list[Table]]] = {
    "outcomes": _outcomes,
    "memory_over_time": _memory,
    "oom_events": _events,
    "pool_close_up": _close_up,
    "queue_and_batch": _queue,
    "latency": _latency,
    "hbm_budget": _budget,
}
