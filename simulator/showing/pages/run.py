"""The page of a run: its allocators side by side."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from simulator.showing.instances import READING, instance_rows, router_name
from simulator.showing.page import Figures, Formula, Line, Page, Picture, Translate
from simulator.showing.plots import PICTURES, style
from simulator.showing.report_data import ReportData, RunData
from simulator.showing.report_rows import NOBODY, ROWS, telling_rows, unserved
from simulator.showing.report_tables import tables
from simulator.showing.terminal import cause_shares
from simulator.showing.thinning import counts_remark, failures_remark, memory_remark
from simulator.units import format_percent as percent
from simulator.units import format_seconds

_SLIDER_INSTANTS = 100


def run_page(data: ReportData, translate: Translate) -> Page:
    """The page of one results folder, or of several side by side."""
    return Page(
        kind="KV-cache memory report",
        title=data.title,
        description=data.description,
        bases=data.bases,
        answer=answer(data, translate),
        warnings=warnings(data, translate),
        figures=[_figures(data, translate), *_fleets(data, translate)],
        pictures=run_pictures(data),
        assumptions=ASSUMPTIONS,
        slider=_slider(data),
    )


def run_pictures(data: ReportData) -> dict[str, Picture]:
    """The pictures of runs, in the order of the page."""
    return {
        name: Picture(
            partial(picture, data), CAPTIONS[name], partial(tables, name, data), remark=partial(remark, name, data)
        )
        for name, picture in PICTURES.items()
    }


def remark(picture: str, data: ReportData, translate: Translate) -> str:
    """What is said under a picture of just these runs: how their rows were thinned out."""
    found = data.thinnings
    if not found:
        return ""
    if picture == "memory_over_time":
        return memory_remark(found, translate)
    if picture == "oom_events":
        failed = [(sum(run.summary["oom_events"].values()), len(run.oom_events["time_s"])) for run in data.shown]
        total, kept = max(failed)
        return failures_remark(kept, total, translate)
    return counts_remark(found, translate) if picture == "queue_and_batch" else ""


def _figures(data: ReportData, translate: Translate) -> Figures:
    compared = data.pooled
    telling, idle = telling_rows(list(compared.values()))
    notes = []
    if idle:
        names = translate(", ").join(translate(row.name) for row in idle)
        notes.append(translate("Nothing under any of them") + translate(": ") + names)
    lonely = [name for name, summary in compared.items() if unserved(summary)]
    if lonely:
        notes.append(translate(NOBODY).format(names=translate(", ").join(lonely)))
    if len(data.shown) > style.MAX_SHOWN:
        text = "Pictures over time show the first {shown} of {all}."
        notes.append(translate(text).format(shown=style.MAX_SHOWN, all=len(data.shown)))
    return Figures(
        title="Allocators side by side",
        headings=("", *compared),
        lines=tuple(Line(row.name, tuple(map(row.cell, compared.values())), row.strong) for row in telling),
        formulas=tuple(Formula(row.name, row.formula, row.source) for row in ROWS),
        source="summary.json: runs[]",
        note=translate(" ").join(notes),
    )


def _fleets(data: ReportData, translate: Translate) -> list[Figures]:
    """The instances of each fleet side by side."""
    found = []
    for run in data.runs:
        rows = [tuple(row.values()) for row in instance_rows(run.summary)]
        if rows:
            lines = tuple(Line(row[0], row[1:]) for row in rows)
            names = tuple(instance_rows(run.summary)[0])[1:]
            headings = (f"{run.name}, {router_name(run.summary)}", *names)
            found.append(
                Figures(
                    title="Instances side by side",
                    headings=headings,
                    lines=lines,
                    note=translate(READING),
                    upright=True,
                )
            )
    return found


def answer(data: ReportData, translate: Translate = str) -> list[str]:
    """The answer: who loses least, if somebody does, then one sentence a run."""
    if not data.runs:
        return [translate("Nothing was simulated.")]
    pooled = data.pooled
    clauses = [_clause(name, summary, translate) for name, summary in pooled.items()]
    rates = [summary["oom_rate"] for summary in pooled.values()]
    if len(rates) == 1:
        return clauses
    if len(set(rates)) == 1:
        alike = [_all_alike(rates[0], translate), _first_tokens(pooled, translate)]
        return [translate(" ").join(filter(None, alike)), *clauses]
    best = [name for name, rate in zip(pooled, rates, strict=True) if rate == min(rates)]
    worst = [name for name, rate in zip(pooled, rates, strict=True) if rate == max(rates)]
    lead = translate("Fewest requests run out of memory under {best} ({low}), most under {worst} ({high}).")
    shown = {"best": translate(", ").join(best), "worst": translate(", ").join(worst)}
    return [lead.format(low=percent(min(rates)), high=percent(max(rates)), **shown), *clauses]


def _all_alike(rate: float, translate: Translate) -> str:
    if not rate:
        return translate("No request runs out of memory under any of them.")
    return translate("Under all of them {share} of the requests run out of memory.").format(share=percent(rate))


def _first_tokens(pooled: Mapping[str, Mapping[str, Any]], translate: Translate) -> str:
    """What tells allocators apart that lose the same: how long the first token takes. Nothing where that is alike."""
    waits = {name: summary["latency"]["ttft_s"]["p95"] for name, summary in pooled.items()}
    known = {name: wait for name, wait in waits.items() if wait is not None}
    if len(known) < len(waits) or format_seconds(min(known.values())) == format_seconds(max(known.values())):
        return ""
    best, worst = min(known, key=lambda name: known[name]), max(known, key=lambda name: known[name])
    text = "The first token comes soonest under {best} (TTFT p95 {low}), latest under {worst} ({high})."
    low, high = (format_seconds(known[name]) for name in (best, worst))
    return translate(text).format(best=best, low=low, worst=worst, high=high)


def _clause(name: str, summary: Mapping[str, Any], translate: Translate) -> str:
    lost = translate("{name}: {share} of {count} requests ran out of memory").format(
        name=name, share=percent(summary["oom_rate"]), count=f"{summary['requests']['arrived']:,}"
    )
    causes = [f"{translate(cause)} {percent(share)}" for cause, share in cause_shares(summary).items() if share > 0]
    if causes:
        lost += translate(" ({causes})").format(causes=translate(", ").join(causes))
    if summary["preemptions"]:
        lost += translate("; {count} preemptions").format(count=f"{summary['preemptions']:,}")
    return lost + translate(".")


def warnings(data: ReportData, translate: Translate = str) -> list[str]:
    """What a reader must know before trusting the answer."""
    found, colon = [], translate(": ")
    for run in data.runs:
        ended, counts = run.summary["ended_because"], run.summary["requests"]
        if ended in ("livelock", "interrupted"):
            detail = f"{colon}{run.summary['ended_detail']}" if run.summary.get("ended_detail") else ""
            found.append(f"{run.name}{colon}{translate('the run ended early')} ({translate(ended)}){detail}")
        if counts["unfinished"]:
            text = translate("{count} requests were unfinished at the end and count as not lost")
            found.append(f"{run.name}{colon}{text.format(count=format(counts['unfinished'], ','))}")
        if not counts["arrived"]:
            found.append(f"{run.name}{colon}{translate('no request arrived')}")
    return found


CAPTIONS = {
    "outcomes": "Losses first, from the left. The whisker is the 95 % interval of the OOM rate.",
    "memory_over_time": "Used: tokens with KV. Reserved: held for tokens that come later. Internal: held for tokens "
    "that never come. Cached: held by nobody, kept for a possible hit. Scattered free: free, but not in one piece. "
    "The line is the size of the pool. Each point is the mean of its interval.",
    "oom_events": "Failed allocations. Capacity: fewer bytes were free than needed. Fragmentation: enough bytes were "
    "free, but no placement exists. Too large: an empty pool could not hold the request. An engine that preempts makes "
    "room and goes on.",
    "pool_map": "One address in every few is looked at, so shares are right and single pages may be missing.",
    "pool_close_up": "Pages near the beginning of the pool, each of them: whole runs, holes, shared pages, and what "
    "moves make of them. A mark: pages were moved anywhere in the pool since the snapshot before.",
    "queue_and_batch": "Each point is the most in its interval.",
    "latency": "Only completed requests count: an allocator that turns many away serves the others sooner.",
    "hbm_budget": "What the KV pool is left with.",
}

ASSUMPTIONS = (
    "The time of a step comes from modelled traffic (weights, KV, page tables, compute, collectives, host work), not "
    "from measurement of this model on this device.",
    "All devices of an instance run in step; one device is shown for all.",
    "Lengths of requests are known to the workload, not to the allocators, except where a reservation is meant to know "
    "the future (reserve: exact).",
    "Requests that come after the end, or that never come, are not counted.",
)


def _slider(data: ReportData) -> list[dict[str, Any]]:
    """Snapshots for the slider, a run-length code over time for each address."""
    return [_slider_map(run) for run in data.shown[: style.MAX_SHOWN] if len(run.pool_map.get("time_s", ()))]


def _slider_map(run: RunData) -> dict[str, Any]:
    from simulator.serving.pool_map import grid

    times, owners = grid(run.pool_map)
    # Evenly, and never without the first and the last.
    kept = np.unique(np.linspace(0, len(times) - 1, min(len(times), _SLIDER_INSTANTS)).round().astype(int))
    times, owners = times[kept], owners[kept]
    return {
        "name": run.name,
        "end": run.summary["simulated_s"],
        # Rounded down, so that the end of the slider reaches the last.
        "times": [math.floor(1e3 * time) / 1e3 for time in times.tolist()],
        "addresses": owners.shape[1],
        "runs": _run_lengths(owners.T.ravel().tolist()),
    }


def _run_lengths(values: Sequence[int]) -> list[int]:
    """``[value, count, value, count, ...]``."""
    from itertools import groupby

    return [number for value, group in groupby(values) for number in (value, sum(1 for _ in group))]
