"""Tables for people, from the same dictionaries that ``--format json`` prints.

A table leads with the answer in words.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from simulator import units
from simulator.showing.instances import fleets, instance_rows, router_name
from simulator.showing.outlet import Table, outlet
from simulator.showing.output import run_name
from simulator.showing.pooled import pooled, replications_of
from simulator.units import format_percent as percent

Summary = Mapping[str, Any]


def answer(runs: Sequence[Summary]) -> str:
    """One clause an allocator: what share of requests ran out of memory, and of what causes."""
    return "; ".join(f"{run_name(run)}: {_clause(run)}" for run in runs) + "."


def print_runs(runs: Sequence[Summary]) -> None:
    """The answer, then one column an allocator; its replications are one."""
    out = outlet()
    repeated = replications_of(runs)
    runs = pooled(runs)
    if repeated > 1:
        out.line(f"{repeated} replications: counts are added, shares and times averaged")
    for run in runs:
        out.line(f"{run_name(run)}: {_clause(run)}")
    rows = [(name, *(cell(run) for run in runs)) for name, cell in _ROWS]
    for name, figure, spelled in _MECHANISMS:
        values = [figure(run) for run in runs]
        if any(values):
            rows.append((name, *("-" if found is None else spelled(found) for found in values)))
    out.table(Table(("", *(run_name(run) for run in runs)), rows))
    for run in fleets(runs):
        print_rows(f"\n{run_name(run)}: {run['replicas']} instances, {router_name(run)}", instance_rows(run))
    for run in runs:
        for line in _found_mistakes(run):
            out.line(line)


def print_rows(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """A table with one row a mapping; the keys of the first are the headings."""
    out = outlet()
    if title:
        out.line(title)
    if not rows:
        out.line("none")
        return
    out.table(Table(tuple(rows[0]), [tuple(row.values()) for row in rows], right=False))


def print_budget(budget: Summary, title: str) -> None:
    """Where one device's memory goes, and what the rest holds."""
    rows = [{"memory of one device": name, "": text} for name, text in _budget_rows(budget)]
    print_rows(title, rows)


def _clause(run: Summary) -> str:
    counts = run["requests"]
    lost = f"{percent(run['oom_rate'])} of {counts['arrived']:,} requests ran out of memory"
    causes = [f"{percent(share)} {cause}" for cause, share in cause_shares(run).items() if share > 0]
    text = f"{lost} ({', '.join(causes)})" if len(causes) > 1 else lost + (f" (all {_only(run)})" if causes else "")
    if run["preemptions"]:
        text += f", {run['preemptions']:,} preemptions"
    if counts["timed_out"]:
        text += f", {percent(counts['timed_out'] / counts['arrived'])} timed out"
    return text + _early_end(run)


def _early_end(run: Summary) -> str:
    """What is to be said of a run that neither served everybody nor reached its horizon."""
    because, left = run["ended_because"], run["requests"]["unfinished"]
    if because == "livelock":
        return f", and {left:,} never end: nobody can go on (livelock)"
    return "" if because in ("completed", "horizon") else f" ({because})"


def _only(run: Summary) -> str:
    return next(cause for cause, share in cause_shares(run).items() if share > 0)


def cause_shares(run: Summary) -> dict[str, float]:
    """Share of the arrived requests lost to each cause; the shares add up to ``oom_rate``.

    Requests lost while running or waiting are split in the proportion of the failed allocations' causes, which is
    exact under ``on_oom: fail``, where each failure ends one request.
    """
    counts, events = run["requests"], run["oom_events"]
    arrived = counts["arrived"] or 1
    failed = (counts["oom_admission"] + counts["oom_decode"]) / arrived
    total = events["fragmentation"] + events["capacity"]
    fragmented = failed * events["fragmentation"] / total if total else 0.0
    return {
        "fragmentation": fragmented,
        "capacity": failed - fragmented,
        "too large for an empty pool": counts["too_large"] / arrived,
    }


def _rate(run: Summary) -> str:
    low, high = run["oom_rate_ci"]
    return f"{percent(run['oom_rate'])} [{percent(low)}, {percent(high)}]"


def _time(group: str, rank: str) -> Callable[[Summary], str]:
    def cell(run: Summary) -> str:
        value = run["latency"][group][rank]
        return "-" if value is None else units.format_seconds(value)

    return cell


def _waste(kind: str) -> Callable[[Summary], str]:
    return lambda run: percent(run["kv"]["waste"][kind])


def _peak(run: Summary) -> str:
    capacity = run["kv_capacity_bytes"]
    return percent(run["kv"]["peak_used_bytes"] / capacity) if capacity else "-"


_ROWS: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("OOM rate [95 % CI]", _rate),
    ("  by fragmentation", lambda run: percent(cause_shares(run)["fragmentation"])),
    ("  by capacity", lambda run: percent(cause_shares(run)["capacity"])),
    ("  too large", lambda run: percent(cause_shares(run)["too large for an empty pool"])),
    ("preemptions", lambda run: f"{run['preemptions']:,}"),
    ("KV pool", lambda run: units.format_bytes(run["kv_capacity_bytes"])),
    ("KV used, mean", lambda run: percent(run["kv"]["mean_utilization"])),
    ("KV used, peak", _peak),
    ("waste, reserved", _waste("reserved")),
    ("waste, internal", _waste("internal")),
    ("waste, external", _waste("external")),
    ("TTFT p50", _time("ttft_s", "p50")),
    ("TTFT p95", _time("ttft_s", "p95")),
    ("TPOT p50", _time("tpot_s", "p50")),
    ("requests/s", lambda run: f"{run['throughput']['requests_per_s']:.4g}"),
)


def _figure(*keys: str) -> Callable[[Summary], Any]:
    """The figure under ``keys``; ``None`` in a summary without it (results of an earlier version have fewer)."""

    def figure(run: Summary) -> Any:
        value: Any = run
        for key in keys:
            value = value.get(key) if value is not None else None
        return value

    return figure


#: rows that are shown only where some run has anything to tell: name, figure, how to spell it
_MECHANISMS: tuple[tuple[str, Callable[[Summary], Any], Callable[[Any], str]], ...] = (
    ("waste, leaked", _figure("kv", "waste", "leaked"), percent),
    ("first OOM at", _figure("first_oom_s"), units.format_seconds),
    ("free memory in pieces, mean", _figure("kv", "fragmentation", "mean"), percent),
    ("free memory in pieces, at OOM", _figure("kv", "fragmentation", "at_oom"), percent),
    ("pages saved by sharing", _figure("kv", "shared_saving"), percent),
    ("prompt tokens found in cache", _figure("kv", "prefix_hit_rate"), percent),
    ("pages copied on write", _figure("kv", "cow_copies"), "{:,}".format),
    ("moved within the pool", _figure("kv", "moved_bytes"), units.format_bytes),
    ("a run's move pays after", _figure("kv", "compaction", "break_even_s"), units.format_seconds),
    ("swapped over the host link", _figure("swapped_bytes"), units.format_bytes),
    ("tokens computed again", _figure("recomputed_tokens"), "{:,}".format),
    ("padding computed, tokens", _figure("padding_tokens"), "{:,}".format),
    ("stalls", _figure("stalls"), "{:,}".format),
)


def _found_mistakes(run: Summary) -> Iterator[str]:
    """What became of mistakes planted by ``faults``."""
    faults = run.get("faults")
    if faults:
        yield f"{run_name(run)}: {faults['planted']:,} mistakes planted, {faults['noticed']:,} findings"
        for message in faults["messages"][:3]:
            yield f"  {message}"


def _budget_rows(budget: Summary) -> list[tuple[str, str]]:
    size = units.format_bytes
    return [
        ("HBM", size(budget["hbm_bytes"])),
        ("usable by the engine", size(budget["usable_bytes"])),
        ("weights", size(budget["weights_bytes_per_device"])),
        ("activations", size(budget["activation_bytes"])),
        ("runtime", size(budget["runtime_bytes"])),
        ("left for the KV pool", size(max(0, budget["kv_bytes_available"]))),
        ("KV per token", size(budget["kv_bytes_per_token_per_device"])),
        ("KV tokens in the pool", f"{budget['kv_tokens']:,}"),
        ("pages", f"{budget['max_pages']:,}"),
        ("longest request (max_model_len)", f"{budget['max_model_len']:,} tokens"),
        ("requests of that length at once", f"{budget['max_concurrency']:.2f}"),
    ]
