"""A figure over two keys: one map of coloured cells for each allocator."""

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.showing.plots import style

#: cells beyond which numbers in them would run into each other
_LABELLED = 12


def heat_maps(
    title: str,
    grids: Mapping[str, Sequence[Sequence[float]]],
    down: Mapping[str, Any],
    across: Mapping[str, Any],
    label: str,
) -> "style.Figure":
    """``grids`` by allocator: a row a value of ``down``, a column a value of ``across`` (each with key and values)."""
    shown = dict(list(grids.items())[: style.MAX_SHOWN])
    rows = len(down["values"])
    each_in = min(2.6, 0.5 + 0.26 * rows)
    drawn = style.figure(title, height_in=style.top_in(title) + 0.7 + each_in * len(shown) + 0.1)
    axes = style.panels(drawn, title, len(shown), share_x=True, left_in=0.95)
    top = max((value for grid in shown.values() for row in grid for value in row), default=0.0)
    image = None
    for panel, (name, grid) in zip(axes, shown.items(), strict=True):
        # One hue from light to dark, told apart without colour vision.
        image = panel.imshow(grid, aspect="auto", cmap="cividis_r", vmin=0, vmax=top or 1.0, origin="lower")
        panel.grid(False)
        style.panel_title(panel, name)
        panel.set_yticks(range(rows), [style.plain(f"{value}") for value in down["values"]])
        if max(rows, len(across["values"])) <= _LABELLED:
            _label_cells(panel, grid, top)
    axes[len(axes) // 2].set_ylabel(style.plain(down["key"]))
    axes[-1].set_xticks(range(len(across["values"])), [style.plain(f"{value}") for value in across["values"]])
    axes[-1].set_xlabel(style.plain(across["key"]))
    drawn.subplots_adjust(right=0.85)
    if image is not None:
        lowest, highest = axes[-1].get_position(), axes[0].get_position()
        beside = drawn.add_axes((0.88, lowest.y0, 0.025, highest.y1 - lowest.y0))
        drawn.colorbar(image, cax=beside, label=label)
    return drawn


def _label_cells(panel: "style.Axes", grid: Sequence[Sequence[float]], top: float) -> None:
    for row, values in enumerate(grid):
        for column, value in enumerate(values):
            # On the ground of its own cell, whatever the theme of the page.
            colour = "#fefefe" if value > 0.5 * top else "#101010"
            panel.text(column, row, f"{value:.2g}", ha="center", va="center", fontsize=8, color=colour)
