"""The closed form against the launch played event by event."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.showing.plots import style
from simulator.showing.plots.style import BLUE, GREY, ORANGE

if TYPE_CHECKING:
    from simulator.kernels.kernel_agreement import Agreement


def agreement_errors(equal: "Sequence[Agreement]", mixed: "Sequence[Agreement]") -> "style.Figure":
    """Relative error of the form that knows every context, over the launch's time; a panel for each kind of batch."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    title = "How far is the closed form from the played launch?"
    drawn = style.figure(title, height_in=style.top_in(title, legend_rows=2) + 4.4)
    panels = style.panels(drawn, title, 2, legend_rows=2, share_x=True)
    entries = []
    for axes, found, heading in zip(panels, (equal, mixed), ("equal contexts", "mixed contexts"), strict=True):
        axes.axhspan(-2, 2, color=GREY, alpha=0.25, linewidth=0)
        for overlapped, colour, name in ((True, BLUE, "two tile buffers or more"), (False, ORANGE, "one tile buffer")):
            chosen = [one for one in found if (one.buffers > 1) == overlapped]
            (dots,) = axes.plot(
                [1e6 * one.played_s for one in chosen],
                [100 * one.error for one in chosen],
                color=colour,
                marker="o" if overlapped else "x",
                linestyle="none",
                markersize=3,
            )
            if found is equal:
                entries.append((name, dots))
        worst = max(abs(one.error) for one in found)
        style.panel_title(axes, heading, f"{len(found)} launches, worst {100 * worst:.2g} %")
        axes.set_ylabel("error [%]")
        axes.set_xscale("log")
    panels[-1].xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    panels[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panels[-1].xaxis.set_minor_formatter(NullFormatter())
    panels[-1].set_xlabel("time of one launch beyond its floor [us]; errors are of both; grey: within 2 %")
    style.legend(drawn, title, entries, columns=2)
    return drawn
