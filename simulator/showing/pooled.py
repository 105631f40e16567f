"""Replications of one allocator as one entry, for people: the JSON keeps every run.

Counts are added, peaks are the highest, shares and times are averaged over replications. The OOM rate is the ratio of
the sums; its interval that of ``statistics.share``, which heeds how far replications differ.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Summary = Mapping[str, Any]

#: what is added up: groups of counts, and single counts
_ADDED = (
    "arrived completed oom_admission oom_decode too_large timed_out unfinished capacity fragmentation preemptions "
    "recomputed_tokens swapped_bytes swap_refusals stalls padding_tokens cow_copies evictions moved_bytes moved_pages "
    "runs_gained cost_s planted noticed steps wall_s first resumed"
)
_COUNTS = frozenset(_ADDED.split())
#: what has no meaning over replications: instance 3 of one is not instance 3 of another
_OF_ONE_RUN = ("replication", "instances", "spread")
_PEAKS = frozenset({"peak_used_bytes", "peak_allocated_bytes", "peak_pages", "max"})


def pooled(runs: Sequence[Summary]) -> list[Summary]:
    """One entry for each label, in the order of their first runs; runs that are alone stay as they are."""
    groups: dict[str, list[Summary]] = {}
    for run in runs:
        groups.setdefault(run["label"], []).append(run)
    return [_one(group) for group in groups.values()]


def replications_of(runs: Sequence[Summary]) -> int:
    """How many repetitions the first allocator has."""
    return sum(run["label"] == runs[0]["label"] for run in runs) if runs else 0


def pooled_entry(runs: Sequence[Summary]) -> Summary:
    """Several replications of one allocator as one entry."""
    found = {key: _folded(key, [run.get(key) for run in runs]) for key in runs[0] if key not in _OF_ONE_RUN}
    early = [run for run in runs if run["ended_because"] not in ("completed", "horizon")]
    last = (early or runs)[0]
    return {**found, **_oom(runs), "ended_because": last["ended_because"], "ended_detail": last["ended_detail"]}


def _one(runs: Sequence[Summary]) -> Summary:
    return runs[0] if len(runs) == 1 else pooled_entry(runs)


def _oom(runs: Sequence[Summary]) -> dict[str, Any]:
    from simulator.planning.statistics import share

    lost = [sum(run["requests"][name] for name in ("oom_admission", "oom_decode", "too_large")) for run in runs]
    found = share(lost, [run["requests"]["arrived"] for run in runs])
    return {"oom_rate": found.value, "oom_rate_ci": found.interval}


def _folded(key: str, values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if not known:
        return None
    first = known[0]
    if isinstance(first, Mapping):
        # "fragmentation" is a count of failures in one place and a group of shares in another.
        return {name: _folded(name, [value.get(name) for value in known]) for name in first}
    if isinstance(first, (list, str, bool)):
        return first
    if key in _COUNTS:
        return sum(known)
    if key in _PEAKS:
        return max(known)
    if key == "first_oom_s":
        return min(known)
    return first if len(set(known)) == 1 else sum(known) / len(known)
