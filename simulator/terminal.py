"""Tables for people, from the same dictionaries that ``--format json`` prints.

A table leads with the answer in words. Colour and box lines appear only on a terminal, and never when ``NO_COLOR``
is set; piped output is plain text of unlimited width.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from simulator import units
from simulator.output import run_name

Summary = Mapping[str, Any]
_PLAIN_WIDTH = 400


def console() -> Console:
    """A console on stdout: as wide as the terminal, or very wide when piped."""
    return Console(
        width=None if sys.stdout.isatty() else _PLAIN_WIDTH,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )


def percent(ratio: float) -> str:
    """``"0 %"``, ``"0.03 %"``, ``"7.4 %"``, ``"61 %"``; never rounds a real loss to zero or a partial one to 100."""
    value = 100 * ratio
    if value in (0, 100):
        return f"{value:.0f} %"
    if value < 0.01:
        return "< 0.01 %"
    if value > 99.99:
        return "> 99.99 %"
    return f"{value:.2g} %" if value < 10 else f"{value:.3g} %" if value < 99.95 else f"{value:.2f} %"


def answer(runs: Sequence[Summary]) -> str:
    """One clause an allocator: what share of requests ran out of memory, and of what causes."""
    return "; ".join(f"{run_name(run)}: {_clause(run)}" for run in runs) + "."


def print_runs(runs: Sequence[Summary]) -> None:
    """The answer, then one column an allocator."""
    out = console()
    out.print(answer(runs), soft_wrap=True)
    table = _table("", *(run_name(run) for run in runs))
    for name, cell in _ROWS:
        table.add_row(name, *(cell(run) for run in runs))
    for name, value, spelled in _MECHANISMS:
        values = [value(run) for run in runs]
        if any(values):
            table.add_row(name, *map(spelled, values))
    out.print(table)
    for run in runs:
        for line in _found_mistakes(run):
            out.print(line, soft_wrap=True)


def print_rows(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """A table with one row a mapping; the keys of the first are the headings."""
    out = console()
    if title:
        out.print(title, soft_wrap=True)
    if not rows:
        out.print("none", soft_wrap=True)
        return
    table = _table(*rows[0], right=False)
    for row in rows:
        table.add_row(*row.values())
    out.print(table)


def print_budget(budget: Summary, title: str) -> None:
    """Where one device's memory goes, and what the rest holds."""
    rows = [{"memory of one device": name, "": text} for name, text in _budget_rows(budget)]
    print_rows(title, rows)


def _table(first: str = "", *others: str, right: bool = True) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right" if right else "left", no_wrap=right)
    return table


def _clause(run: Summary) -> str:
    counts = run["requests"]
    lost = f"{percent(run['oom_rate'])} of {counts['arrived']:,} requests ran out of memory"
    causes = [f"{percent(share)} {cause}" for cause, share in cause_shares(run).items() if share > 0]
    text = f"{lost} ({', '.join(causes)})" if len(causes) > 1 else lost + (f" (all {_only(run)})" if causes else "")
    if run["preemptions"]:
        text += f", {run['preemptions']:,} preemptions"
    if counts["timed_out"]:
        text += f", {percent(counts['timed_out'] / counts['arrived'])} timed out"
    if run["ended_because"] not in ("completed", "horizon"):
        text += f" ({run['ended_because']})"
    return text


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


def _count(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f}"


def _size(number: float) -> str:
    return units.format_bytes(int(number))


def _when(seconds: float | None) -> str:
    return "-" if seconds is None else units.format_seconds(seconds)


#: rows that are shown only where some run has anything to tell: name, value, how to spell it
_MECHANISMS: tuple[tuple[str, Callable[[Summary], Any], Callable[[Any], str]], ...] = (
    ("first OOM at", lambda run: run["first_oom_s"], _when),
    ("free memory in pieces, mean", lambda run: run["kv"]["fragmentation"]["mean"], percent),
    ("free memory in pieces, at OOM", lambda run: run["kv"]["fragmentation"]["at_oom"], percent),
    ("pages saved by sharing", lambda run: run["kv"]["shared_saving"], percent),
    ("prompt tokens found in cache", lambda run: run["kv"]["prefix_hit_rate"], percent),
    ("pages copied on write", lambda run: run["kv"]["cow_copies"], _count),
    ("moved within the pool", lambda run: run["kv"]["moved_bytes"], _size),
    ("swapped over the host link", lambda run: run["swapped_bytes"], _size),
    ("tokens computed again", lambda run: run["recomputed_tokens"], _count),
    ("padding computed, tokens", lambda run: run["padding_tokens"], _count),
    ("stalls", lambda run: run["stalls"], _count),
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
