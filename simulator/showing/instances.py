"""The instances of a fleet as rows: what each was given, how it fared, how full it was."""

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.units import format_percent as percent
from simulator.units import format_seconds

Summary = Mapping[str, Any]

#: how to read the figures of a fleet, for people
READING = (
    "Counts are added up over the instances; shares are over all their memory and time; pages, peaks, the timeline and "
    "the pool map are of one instance: the mean one, the fullest, the first."
)


def instance_rows(run: Summary) -> list[dict[str, str]]:
    """A row an instance; none for a run that is not of a fleet, or of several replications together."""
    return [_row(one) for one in run.get("instances") or ()]


def router_name(run: Summary) -> str:
    """The policy that chose among the instances."""
    return str(run["router"]["policy"])


def fleets(runs: Sequence[Summary]) -> list[Summary]:
    """Those of ``runs`` that are of a fleet."""
    return [run for run in runs if run.get("instances")]


def _row(one: Summary) -> dict[str, str]:
    kv, ttft_s = one["kv"], one["latency"]["ttft_s"]["p95"]
    return {
        "instance": str(one["instance"]),
        "requests": f"{one['requests']['arrived']:,}",
        "OOM rate": percent(one["oom_rate"]),
        "preemptions": f"{one['preemptions']:,}",
        "KV used, mean": percent(kv["mean_utilization"]),
        "KV used, peak": _share(kv["peak_used_bytes"], one["kv_capacity_bytes"]),
        "found in cache": percent(kv["prefix_hit_rate"]),
        "TTFT p95": "-" if ttft_s is None else format_seconds(ttft_s),
        "ended": one["ended_because"],
    }


def _share(part: int, whole: int) -> str:
    return percent(min(1.0, part / whole)) if whole else "-"
