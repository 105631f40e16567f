"""Comparisons as tables for people."""

from collections.abc import Sequence
from typing import Any

from simulator.planning.compare import Comparison, Standing
from simulator.planning.statistics import Estimate
from simulator.showing.terminal import print_rows
from simulator.units import format_percent as percent
from simulator.units import format_seconds


def print_comparison(comparison: Comparison) -> None:
    """The verdict, then the allocators, then the differences."""
    print_rows(comparison.verdict, [_row(one) for one in comparison.standings])
    if comparison.differences:
        rows = [
            {
                "difference": f"{one.label} - {one.than}",
                "OOM rate": _points(one.difference.value),
                "interval": f"[{_points(one.difference.low)}, {_points(one.difference.high)}]",
                "settled": "yes" if one.settled else "no",
            }
            for one in comparison.differences
        ]
        print_rows("", rows)


def print_series(key: str, values: Sequence[Any], comparisons: Sequence[Comparison]) -> None:
    """OOM rate against one key, a column an allocator."""
    rows = []
    for value, comparison in zip(values, comparisons, strict=True):
        cells = {one.label: _share(one.oom_rate) for one in comparison.standings}
        rows.append({key: str(value)} | cells)
    print_rows(f"OOM rate [interval] against {key}:", rows)


def _row(one: Standing) -> dict[str, str]:
    return {
        "allocator": one.label,
        "OOM rate": _share(one.oom_rate),
        "preemptions a request": f"{one.preemption_rate:.3g}",
        "timed out": percent(one.timed_out_rate),
        "TTFT p50": _time(one.latency["ttft_p50"]),
        "TTFT p95": _time(one.latency["ttft_p95"]),
        "TTFT p99": _time(one.latency["ttft_p99"]),
        "": "thrashing" if one.thrashing else "",
    }


def _share(estimate: Estimate) -> str:
    return f"{percent(estimate.value)} [{percent(estimate.low)}, {percent(estimate.high)}]"


def _time(estimate: Estimate) -> str:
    return format_seconds(estimate.value)


def _points(value: float) -> str:
    return f"{100 * value:+.3g} points"
