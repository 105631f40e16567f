"""The demand curve: what a workload would hold if the pool had no end.

One run with a pool that is never full gives the pages in use over time. Its quantiles are the first guess of a size:
a pool of the pages that are exceeded during a share ``p`` of the time turns away about that share of the arrivals
(arrivals see time averages; what they would still need is left out, so the guess is low).
"""

from dataclasses import dataclass

from simulator.planning.trial import Trial, given_warmup_s, run_trial, warmup_of
from simulator.quantiles import quantiles
from simulator.traffic.requests import FloatArray

#: more pages than any run asks for
ENDLESS_PAGES = 1 << 32


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Demand:
    """One run without a limit. ``pages`` are those in use at evenly spaced instants while requests kept coming."""

    pages: FloatArray
    peak_pages: int
    page_bytes: int
    page_tokens: int
    warmup_s: float

    def exceeded(self, time_share: float) -> int:
        """The number of pages that is exceeded during this share of the time."""
        if not len(self.pages):
            return self.peak_pages
        return int(quantiles(self.pages, (1 - min(1.0, time_share),))[0])


def demand(trial: Trial) -> Demand:
    """Run ``trial`` with endless pages; ``max_pages`` and ``warmup_s`` of the trial do not matter."""
    endless = Trial(trial.scenario, trial.index, trial.replication, ENDLESS_PAGES, requests=trial.requests)
    result = run_trial(endless)
    given = given_warmup_s(trial.scenario)
    warmup_s = warmup_of(result) if given is None else given
    page_bytes = result.summary["kv_capacity_bytes"] // ENDLESS_PAGES
    times, arrivals = result.timeline["time_s"], result.requests["arrival_s"]
    counted = (times >= warmup_s) & (times <= arrivals[-1:].sum())
    return Demand(
        pages=result.timeline["allocated_bytes"][counted] / page_bytes,
        peak_pages=-(-result.summary["kv"]["peak_allocated_bytes"] // page_bytes),
        page_bytes=page_bytes,
        page_tokens=result.summary["page_size"] or 1,
        warmup_s=warmup_s,
    )
