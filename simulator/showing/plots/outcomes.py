"""How the requests ended, by allocator."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator.showing.plots import style
from simulator.showing.plots.style import GREEN, GREY, GROUND, INK, ORANGE, PINK, RED, YELLOW
from simulator.showing.terminal import cause_shares
from simulator.units import format_percent as percent

if TYPE_CHECKING:
    from simulator.showing.report_data import ReportData

COLOURS = {
    "out of memory: capacity": RED,
    "out of memory: fragmentation": PINK,
    "too large for an empty pool": GREY,
    "timed out": ORANGE,
    "unfinished": YELLOW,
    "completed": GREEN,
}
_ALWAYS = ("out of memory: capacity", "out of memory: fragmentation", "completed")


def outcome_shares(summary: Mapping[str, Any]) -> dict[str, float]:
    """Shares of the arrived requests by how they ended; they add up to 1."""
    counts, causes = summary["requests"], cause_shares(summary)
    arrived = counts["arrived"] or 1
    return {
        "out of memory: capacity": causes["capacity"],
        "out of memory: fragmentation": causes["fragmentation"],
        "too large for an empty pool": causes["too large for an empty pool"],
        **{name.replace("_", " "): counts[name] / arrived for name in ("timed_out", "unfinished", "completed")},
    }


def outcomes(data: "ReportData", words: style.Words) -> "style.Figure | None":
    """One bar a run, losses first; the whisker is the 95 % interval of the OOM rate."""
    runs = data.runs[: 2 * style.MAX_SHOWN]
    if not runs:
        return None
    shares = [outcome_shares(run.summary) for run in runs]
    # Losses are always named, so that it can be seen that there are none.
    named = [name for name in COLOURS if name in _ALWAYS or any(share[name] for share in shares)]
    legend_rows = -(-len(named) // 2)
    title = words("What share of the requests runs out of memory?")
    height_in = style.top_in(title, legend_rows=legend_rows) + 0.46 + 0.46 * len(runs)
    drawn = style.figure(title, height_in=height_in)
    (axes,) = style.panels(drawn, title, 1, legend_rows=legend_rows, left_in=0.2, heading_in=0.0)
    for row, run in enumerate(runs):
        start = 0.0
        for name, share in shares[row].items():
            axes.barh(row, 100 * share, left=start, height=0.4, color=COLOURS[name], edgecolor=GROUND, linewidth=0.5)
            start += 100 * share
        low, high = (100 * bound for bound in run.summary["oom_rate_ci"])
        axes.plot([low, high], [row, row], color=INK, linewidth=1.6, marker="|", markersize=7)
        axes.text(0, row - 0.27, style.plain(run.name), fontsize=9, va="bottom", fontweight="bold")
        axes.text(100, row - 0.27, _rate(run.summary), fontsize=9, va="bottom", ha="right")
    axes.set_xlim(0, 100)
    axes.set_ylim(len(runs) - 0.6, -0.75)
    axes.set_yticks([])
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"{words('arrived requests')} [%]")
    style.legend(drawn, title, [(words(name), style.patch(COLOURS[name])) for name in named], columns=2)
    return drawn


def _rate(summary: Mapping[str, Any]) -> str:
    low, high = summary["oom_rate_ci"]
    return f"OOM {percent(summary['oom_rate'])}  [{percent(low)}, {percent(high)}]"
