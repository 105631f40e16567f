"""The figures of the report's main table: name, how it is written, and the formula it comes from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.showing.terminal import cause_shares
from simulator.units import format_bytes, format_seconds
from simulator.units import format_percent as percent

Summary = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of every run. ``source`` is its place in an entry of ``summary.json``; ``strong`` marks answers."""

    name: str
    cell: Callable[[Summary], str]
    formula: str
    source: str
    strong: bool = False


def telling_rows(runs: Sequence[Summary]) -> tuple[list[Row], list[Row]]:
    """Rows to show, and rows that are nothing for every run."""
    idle = [row for row in ROWS if not row.strong and all(row.cell(run) in _NOTHING for run in runs)]
    return [row for row in ROWS if row not in idle], idle


DASH = "–"
_NOTHING = ("0", "0 %", "0 B", DASH)
#: why there is a dash in place of a latency
NOBODY = "–: no request was completed after the warm-up under {names}, so there is no latency to speak of."


def unserved(run: Summary) -> bool:
    """Whether nobody was served who counts, so that latencies are missing."""
    return bool(run["latency"]["ttft_s"]["p50"] is None)


def _rate(run: Summary) -> str:
    low, high = run["oom_rate_ci"]
    return f"{percent(run['oom_rate'])} [{percent(low)}, {percent(high)}]"


def _count(group: str, name: str) -> Callable[[Summary], str]:
    return lambda run: f"{run[group][name]:,}"


def _cause(name: str) -> Callable[[Summary], str]:
    return lambda run: percent(cause_shares(run)[name])


def _waste(kind: str) -> Callable[[Summary], str]:
    # results of an earlier version know fewer kinds
    return lambda run: percent(run["kv"]["waste"].get(kind, 0.0))


def _time(group: str, rank: str) -> Callable[[Summary], str]:
    def cell(run: Summary) -> str:
        value = run["latency"][group][rank]
        return DASH if value is None else format_seconds(value)

    return cell


def _share_of_pool(name: str) -> Callable[[Summary], str]:
    def cell(run: Summary) -> str:
        capacity = run["kv_capacity_bytes"]
        return percent(min(1.0, run["kv"][name] / capacity)) if capacity else DASH

    return cell


def _first_oom(run: Summary) -> str:
    return DASH if run["first_oom_s"] is None else format_seconds(run["first_oom_s"])


def _in_pieces(when: str) -> Callable[[Summary], str]:
    return lambda run: percent(run["kv"]["fragmentation"][when])


def _break_even(run: Summary) -> str:
    found = run["kv"].get("compaction", {}).get("break_even_s")
    return DASH if found is None else format_seconds(found)


def _pages(run: Summary) -> str:
    return f"{run['max_pages']:,} x {run['page_size']}" if run["max_pages"] else DASH


ROWS = (
    Row(
        "OOM rate [95 % interval]",
        _rate,
        "(oom_admission + oom_decode + too_large) / arrived; Wilson's interval, Student's t over replications",
        "oom_rate, oom_rate_ci",
        strong=True,
    ),
    Row(
        "by fragmentation",
        _cause("fragmentation"),
        "(oom_admission + oom_decode) / arrived, times the share of failed allocations that found enough free bytes "
        "but no placement",
        "oom_events.fragmentation",
    ),
    Row(
        "by capacity",
        _cause("capacity"),
        "the rest of (oom_admission + oom_decode) / arrived: fewer bytes were free than needed",
        "oom_events.capacity",
    ),
    Row("too large", _cause("too large for an empty pool"), "too_large / arrived", "requests.too_large"),
    Row(
        "first failed allocation",
        _first_oom,
        "simulated time of the first failed allocation (–: none failed)",
        "first_oom_s",
    ),
    Row("requests arrived", _count("requests", "arrived"), "requests that came before the end", "requests.arrived"),
    Row("requests completed", _count("requests", "completed"), "got all their output tokens", "requests.completed"),
    Row("timed out", _count("requests", "timed_out"), "waited longer than queue_timeout", "requests.timed_out"),
    Row("unfinished", _count("requests", "unfinished"), "still there at the end", "requests.unfinished"),
    Row(
        "preemptions",
        lambda run: f"{run['preemptions']:,}",
        "sequences that lost their memory while running",
        "preemptions",
        strong=True,
    ),
    Row(
        "tokens computed again",
        lambda run: f"{run['recomputed_tokens']:,}",
        "tokens lost by preemptions and not found in a cache",
        "recomputed_tokens",
    ),
    Row("swapped", lambda run: format_bytes(run["swapped_bytes"]), "bytes over the host link", "swapped_bytes"),
    Row(
        "KV pool of a device",
        lambda run: format_bytes(run["kv_capacity_bytes"]),
        "the memory budget's rest, less page tables",
        "kv_capacity_bytes",
    ),
    Row("pages x tokens", _pages, "max_pages x page_size (–: there are no pages)", "max_pages, page_size"),
    Row(
        "pool used, mean",
        lambda run: percent(run["kv"]["mean_utilization"]),
        "integral of (tokens with KV x bytes per token - bytes saved by sharing) over time / (pool x time)",
        "kv.mean_utilization",
    ),
    Row("pool used, peak", _share_of_pool("peak_used_bytes"), "most bytes used at once / pool", "kv.peak_used_bytes"),
    Row(
        "pool allocated, peak",
        _share_of_pool("peak_allocated_bytes"),
        "most bytes held by sequences at once / pool",
        "kv.peak_allocated_bytes",
    ),
    Row(
        "waste: reserved",
        _waste("reserved"),
        "held for tokens that come later; integral over time / (pool x time)",
        "kv.waste.reserved",
    ),
    Row(
        "waste: internal",
        _waste("internal"),
        "held for tokens that never come; integral over time / (pool x time)",
        "kv.waste.internal",
    ),
    Row(
        "waste: external",
        _waste("external"),
        "free while somebody waits for memory and cannot be placed; integral over time / (pool x time)",
        "kv.waste.external",
    ),
    Row(
        "waste: leaked",
        _waste("leaked"),
        "lost by mistakes planted on purpose: held, though by nobody who lives; integral over time / (pool x time)",
        "kv.waste.leaked",
    ),
    Row(
        "free memory in pieces, mean",
        _in_pieces("mean"),
        "1 - longest free piece / free bytes; mean over time, weighted by the free bytes",
        "kv.fragmentation.mean",
    ),
    Row(
        "free memory in pieces, at OOM",
        _in_pieces("at_oom"),
        "1 - longest free piece / free bytes; mean over failed allocations that found free bytes",
        "kv.fragmentation.at_oom",
    ),
    Row(
        "prefix hit rate",
        lambda run: percent(run["kv"]["prefix_hit_rate"]),
        "prompt tokens found in the cache at first admission / prompt tokens asked for",
        "kv.prefix_hit_rate",
    ),
    Row(
        "pages saved by sharing",
        lambda run: percent(run["kv"]["shared_saving"]),
        "1 - pages held / entries of all page tables; means over time",
        "kv.shared_saving",
    ),
    Row("copy-on-write copies", lambda run: f"{run['kv']['cow_copies']:,}", "pages copied", "kv.cow_copies"),
    Row("moved", lambda run: format_bytes(run["kv"]["moved_bytes"]), "bytes copied by moves", "kv.moved_bytes"),
    Row(
        "a run's move pays after",
        _break_even,
        "time of the moves for one run made whole / what a step saves with it x mean time of a step (–: nothing moved)",
        "kv.compaction.break_even_s",
    ),
    Row("TTFT p50", _time("ttft_s", "p50"), "first token - arrival, completed requests", "latency.ttft_s.p50"),
    Row("TTFT p95", _time("ttft_s", "p95"), "first token - arrival, completed requests", "latency.ttft_s.p95"),
    Row(
        "TPOT p50",
        _time("tpot_s", "p50"),
        "(finish - first token) / (output tokens - 1), completed requests",
        "latency.tpot_s.p50",
    ),
    Row(
        "TPOT p95",
        _time("tpot_s", "p95"),
        "(finish - first token) / (output tokens - 1), completed requests",
        "latency.tpot_s.p95",
    ),
    Row(
        "output tokens/s",
        lambda run: f"{run['throughput']['output_tokens_per_s']:,.4g}",
        "output tokens / simulated time",
        "throughput.output_tokens_per_s",
    ),
    Row(
        "batch, mean",
        lambda run: f"{run['batch']['mean']:.4g}",
        "sequences in a step, mean over steps",
        "batch.mean",
    ),
)
