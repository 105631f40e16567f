"""The page pool as a map: addresses against time, coloured by the request that holds them."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simulator.serving.pool_map import CACHED, FREE, SHARED, grid
from simulator.showing.plots import style
from simulator.showing.plots.style import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, YELLOW

if TYPE_CHECKING:
    from simulator.showing.report_data import ReportData, RunData

#: neighbours in arrival get different colours
REQUEST_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, "#8c510a", "#5ab4ac")
CACHED_COLOUR, SHARED_COLOUR = "#9aa4af", "#7a3ff2"


def cell_colours(owners: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """RGBA of each cell; free ones are transparent."""
    palette = np.array([_rgba(colour) for colour in (*REQUEST_COLOURS, CACHED_COLOUR, SHARED_COLOUR)], np.uint8)
    index = owners % len(REQUEST_COLOURS)
    index = np.where(owners == CACHED, len(REQUEST_COLOURS), index)
    cells = palette[np.where(owners == SHARED, len(REQUEST_COLOURS) + 1, index)]
    cells[owners == FREE] = 0
    return cells


def _rgba(colour: str) -> tuple[int, int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16), 255


def pool_map(data: "ReportData", words: style.Words) -> "style.Figure | None":
    """One panel an allocator."""
    runs = [run for run in data.shown if len(run.pool_map.get("time_s", ()))][: style.MAX_SHOWN]
    if not runs:
        return None
    title = words("Who holds which addresses of the pool?")
    drawn = style.figure(title, height_in=style.top_in(title, legend_rows=2) + 0.66 + 1.5 * len(runs))
    axes = style.panels(drawn, title, len(runs), legend_rows=2, share_x=data.shares_time)
    for panel, run in zip(axes, runs, strict=True):
        _draw(panel, run, data.end_s)
        style.panel_title(panel, run.name)
        panel.set_ylabel(f"{words('address')} [GiB]")
    style.time_axes(axes, [data.axis_end_s(run) for run in runs], words)
    entries = [
        (words("held (a colour a request, nine in turn)"), style.patch(BLUE)),
        (words("shared by several sequences"), style.patch(SHARED_COLOUR)),
        (words("cached, held by nobody"), style.patch(CACHED_COLOUR)),
        (words("free: empty"), style.patch("none", edge=GREY)),
    ]
    style.legend(drawn, title, entries, columns=2)
    return drawn


def _draw(panel: "style.Axes", run: "RunData", axis_end_s: float) -> None:
    scale, _ = style.time_scale(axis_end_s)
    end_s = run.summary["simulated_s"]
    times, owners = grid(run.pool_map)
    capacity = run.summary["kv_capacity_bytes"] / 2**30
    # Snapshots are not exactly equidistant: each one is shown until the next.
    edges = np.append(times, max(end_s, times[-1]))
    columns = np.clip(np.searchsorted(edges, np.linspace(0, edges[-1], 400), side="right") - 1, 0, len(times) - 1)
    cells = cell_colours(owners[columns].T)
    panel.imshow(
        cells, aspect="auto", origin="lower", interpolation="nearest", extent=(0, edges[-1] / scale, 0, capacity)
    )
    panel.grid(False)
    panel.locator_params(axis="y", nbins=4)
