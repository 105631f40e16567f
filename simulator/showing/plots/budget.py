"""Where the memory of one device goes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulator.showing.plots import style
from simulator.showing.plots.style import BLUE, GREEN, GREY, GROUND, INK, ORANGE, PINK, RED, SKY
from simulator.units import format_bytes

if TYPE_CHECKING:
    from simulator.showing.report_data import Basis

_COLOURS = {
    "KV pool": BLUE,
    "weights": GREEN,
    "activations": ORANGE,
    "runtime": PINK,
    "captured graphs": SKY,
    "held back or unused": GREY,
    "outside the framework": RED,
}


def budget_parts(memory: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of one device by use; they add up to its memory unless the model does not fit."""
    parts = {
        "KV pool": memory["kv_capacity_bytes"],
        "weights": memory["weights_bytes_per_device"],
        "activations": memory["activation_bytes"],
        "runtime": memory["runtime_bytes"],
        "captured graphs": memory["graph_bytes"],
    }
    parts["held back or unused"] = max(0, memory["usable_bytes"] - sum(parts.values()))
    parts["outside the framework"] = memory["hbm_bytes"] - memory["usable_bytes"]
    return parts


def hbm_budget(
    every: "Sequence[Basis]", words: style.Words, *, needed_bytes: int | None = None
) -> "style.Figure | None":
    """One stacked bar a results folder; ``needed_bytes`` of the KV pool are marked."""
    bases = [basis for basis in every if basis.memory][: style.MAX_SHOWN]
    if not bases:
        return None
    title = words("Where does the memory of one device go?")
    legend_rows = 4
    height_in = style.top_in(title, legend_rows=legend_rows) + 0.5 + 0.45 * len(bases)
    drawn = style.figure(title, height_in=height_in)
    named = len(bases) > 1
    (axes,) = style.panels(drawn, title, 1, legend_rows=legend_rows, left_in=1.5 if named else 0.2, heading_in=0.04)
    for row, basis in enumerate(bases):
        start = 0.0
        for name, part in budget_parts(basis.memory).items():
            size = part / 2**30
            axes.barh(row, size, left=start, height=0.7, color=_COLOURS[name], edgecolor=GROUND, linewidth=0.8)
            start += size
    axes.set_ylim(len(bases) - 0.5, -0.5)
    axes.set_yticks(range(len(bases)), [style.plain(basis.folder) for basis in bases] if named else [""])
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.grid(True, axis="x")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"{words('bytes of one device')} [GiB]")
    first = budget_parts(bases[0].memory)
    entries = [
        (f"{words(name)}" if named else f"{words(name)} {format_bytes(first[name])}", style.patch(colour))
        for name, colour in _COLOURS.items()
        if named or first[name]
    ]
    if any(sum(budget_parts(basis.memory).values()) > basis.memory["hbm_bytes"] for basis in bases):
        for row, basis in enumerate(bases):
            ends = axes.vlines(basis.memory["hbm_bytes"] / 2**30, row - 0.45, row + 0.45, color=INK, linewidth=2)
        whole = "" if named else f" {format_bytes(bases[0].memory['hbm_bytes'])}"
        entries.append((f"{words('there is no more than')}{whole}", ends))
    if needed_bytes is not None:
        line = axes.axvline(needed_bytes / 2**30, color=INK, linewidth=1.6, linestyle="--")
        entries.append((f"{words('needed for KV')} {format_bytes(needed_bytes)}", line))
    style.legend(drawn, title, entries, columns=2)
    return drawn
