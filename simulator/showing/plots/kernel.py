"""The attention kernel by page size: how much of the bandwidth it uses, and what the page table costs."""

from typing import TYPE_CHECKING

from simulator.showing.plots import style
from simulator.showing.plots.style import BLUE, DASHES, GREEN, GREY, RED

if TYPE_CHECKING:
    from simulator.planning.kernel_answer import KernelAnswer

_MODES = (
    ("hbm", "page ids from HBM each time", RED),
    ("dcache", "through the data cache", BLUE),
    ("l1", "rows copied to L1", GREEN),
)


def kernel_costs(answer: "KernelAnswer") -> "style.Figure":
    """Two panels over page size: share of peak HBM bandwidth, and time for the page table by how it is read."""
    title = f"What does the page size cost? {answer.model} on {answer.device}, one launch"
    height_in = style.top_in(title, legend_rows=2) + 4.6
    drawn = style.figure(title, height_in=height_in)
    used, looked_up = style.panels(drawn, title, 2, legend_rows=2, share_x=True)
    sizes = [row.page_size for row in answer.rows]
    used.plot(sizes, [100 * row.bandwidth_utilization for row in answer.rows], color=BLUE, marker="o", markersize=4)
    used.axvline(answer.best.page_size, color=GREY, linewidth=1, linestyle="--")
    used.set_ylim(0, 100)
    used.set_ylabel("share of peak [%]")
    style.panel_title(used, "HBM bandwidth used", f"{answer.batch} x {answer.context:,} tokens")
    entries = []
    for index, (mode, name, colour) in enumerate(_MODES):
        micros = [1e6 * row.lookup_seconds[mode] for row in answer.rows]
        (line,) = looked_up.plot(
            sizes,
            micros,
            color=colour,
            linestyle=DASHES[index],
            marker="o",
            markersize=3,
        )
        entries.append((name, line))
    looked_up.set_yscale("log")
    looked_up.set_ylabel("on the busiest core [us]")
    style.panel_title(looked_up, "Time for page ids")
    looked_up.set_xscale("log", base=2)
    looked_up.set_xticks(sizes, [f"{size}" for size in sizes])
    looked_up.set_xlabel("page size [tokens]; dashed: recommended")
    style.legend(drawn, title, entries, columns=2)
    return drawn
