"""The page pool as a map: addresses against time, coloured by the request that holds them."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simulator.serving.pool_map import CACHED, FREE, SHARED, grid
from simulator.showing.plots import style
from simulator.showing.plots.style import BLUE, GREEN, GREY, INK, ORANGE, PINK, RED, SKY, YELLOW

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
    runs = [run for run in data.shown if _is_mapped(run)][: style.MAX_SHOWN]
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
    style.legend(drawn, title, _entries(words), columns=2)
    return drawn


def pool_close_up(data: "ReportData", words: style.Words) -> "style.Figure | None":
    """Neighbouring pages, one panel an allocator, where pages are shared or moved; moves are marked."""
    runs = [run for run in data.shown if _is_mapped(run) and run.pool_map["close_up"].any()][: style.MAX_SHOWN]
    if not any(moves(run)[1].any() or (grid(run.pool_map, "close_up")[1] == SHARED).any() for run in runs):
        return None
    title = words("How do neighbouring pages change hands?")
    drawn = style.figure(title, height_in=style.top_in(title, legend_rows=3) + 0.66 + 1.7 * len(runs))
    axes = style.panels(drawn, title, len(runs), legend_rows=3, left_in=0.8, share_x=data.shares_time)
    for panel, run in zip(axes, runs, strict=True):
        times, owners = grid(run.pool_map, "close_up")
        first = _first_page(run)
        _cells(panel, run, data.end_s, times, owners, bottom=first, top=first + owners.shape[1])
        _mark_moves(panel, run, data.end_s, top=first + 1.03 * owners.shape[1])
        style.panel_title(panel, run.name)
        panel.set_ylabel(words("page"))
    style.time_axes(axes, [data.axis_end_s(run) for run in runs], words)
    moved = [(words("pages were moved"), _triangle())] if any(moves(run)[1].any() for run in runs) else []
    style.legend(drawn, title, [*_entries(words), *moved], columns=2)
    return drawn


def moves(run: "RunData") -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The instants of the snapshots, and the bytes moved within the pool since the one before."""
    times, owners = grid(run.pool_map, "close_up")
    until = run.pool_map["moved_bytes"][np.asarray(run.pool_map["close_up"], bool)][:: owners.shape[1]]
    return times, np.diff(until, prepend=0)


def _mark_moves(panel: "style.Axes", run: "RunData", axis_end_s: float, *, top: float) -> None:
    times, moved = moves(run)
    at = times[moved > 0] / style.time_scale(axis_end_s)[0]
    panel.plot(at, np.full(len(at), top), color=INK, marker="v", markersize=3, linestyle="", clip_on=False)


def _first_page(run: "RunData") -> int:
    first = run.pool_map["address_bytes"][np.asarray(run.pool_map["close_up"], bool)][0]
    return int(first) * int(run.summary["max_pages"]) // int(run.summary["kv_capacity_bytes"])


def _triangle() -> object:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=INK, marker="v", markersize=4, linestyle="")


def _is_mapped(run: "RunData") -> bool:
    return bool(len(run.pool_map.get("time_s", ())))


def _entries(words: style.Words) -> list[tuple[str, Any]]:
    return [
        (words("held (a colour a request, nine in turn)"), style.patch(BLUE)),
        (words("shared by several sequences"), style.patch(SHARED_COLOUR)),
        (words("cached, held by nobody"), style.patch(CACHED_COLOUR)),
        (words("free: empty"), style.patch("none", edge=GREY)),
    ]


def _draw(panel: "style.Axes", run: "RunData", axis_end_s: float) -> None:
    times, owners = grid(run.pool_map)
    _cells(panel, run, axis_end_s, times, owners, top=run.summary["kv_capacity_bytes"] / 2**30)


def _cells(
    panel: "style.Axes",
    run: "RunData",
    axis_end_s: float,
    times: npt.NDArray[np.float64],
    owners: npt.NDArray[Any],
    *,
    bottom: float = 0.0,
    top: float,
) -> None:
    """Owners [T, addresses] as coloured cells; addresses go from ``bottom`` to ``top``."""
    scale, _ = style.time_scale(axis_end_s)
    # Snapshots are not exactly equidistant: each one is shown until the next.
    edges = np.append(times, max(run.summary["simulated_s"], times[-1]))
    columns = np.clip(np.searchsorted(edges, np.linspace(0, edges[-1], 400), side="right") - 1, 0, len(times) - 1)
    cells = cell_colours(owners[columns].T)
    extent = (0, edges[-1] / scale, bottom, top)
    panel.imshow(cells, aspect="auto", origin="lower", interpolation="nearest", extent=extent)
    panel.grid(False)
    panel.locator_params(axis="y", nbins=4)
