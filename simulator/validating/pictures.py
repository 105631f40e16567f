"""Small pictures of checks that belong to a curve: the source's figures as dots, the simulator's as a line."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulator.showing.plots.style import DASHES, GRID, LINES, figure, legend, panels, styled, svg_bytes
from simulator.validating.check import Check

_PARTS = ("tokens", "reserved", "internal", "external")


@dataclass(frozen=True, slots=True)
class Picture:
    """The curves whose name starts with ``curve`` in one picture."""

    family: str
    curve: str
    title: str
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    ticks: tuple[str, ...] = ()


PICTURES = {
    "orca": Picture("paper", "breakdown", "Where Orca's memory goes", "", "percent of the slots", ticks=_PARTS),
    "mooncake": Picture(
        "prefix", "mooncake", "Prefix-cache hits of the Mooncake trace", "blocks in the pool", "hits", log_x=True
    ),
    "one-core": Picture(
        "hardware", "one-core", "One core of a 910B3 reads from L2", "KiB a transfer", "GB/s", log_x=True
    ),
    "l2": Picture("hardware", "l2", "Bandwidth against L2 hits", "share of hits", "TB/s"),
    "fused": Picture("hardware", "fused", "A fused decode attention call", "MB of KV", "us", log_x=True, log_y=True),
    "decode": Picture("hardware", "decode", "Decode steps of vllm-ascend 0.7.3", "requests in the batch", "ms a step"),
    "vllm-mean": Picture("measured", "vllm-mean", "Mean use of a real vLLM", "arrivals sped up by", "blocks"),
    "vllm-peak": Picture("measured", "vllm-peak", "Peak use of a real vLLM", "arrivals sped up by", "blocks"),
    "watermark": Picture(
        "pressure", "watermark", "Preemptions against vLLM's watermark", "watermark, percent", "preemptions"
    ),
}


def family_of(name: str) -> str:
    """The family that a picture belongs to."""
    return PICTURES[name].family


def draw(checks: Sequence[Check]) -> dict[str, tuple[str, bytes]]:
    """Name to title and SVG of each picture that has points among ``checks``."""
    drawn = {}
    for name, picture in PICTURES.items():
        curves = _curves(picture, checks)
        if curves:
            with styled():
                drawn[name] = picture.title, _svg(picture, curves)
    return drawn


_Points = list[tuple[float, float, float]]


def _curves(picture: Picture, checks: Sequence[Check]) -> dict[str, _Points]:
    """Points ``(x, expected, got)`` of each curve of ``picture``."""
    curves: dict[str, _Points] = defaultdict(list)
    for check in checks:
        group, _, label = check.curve.partition(": ")
        if group != picture.curve or check.at is None:
            continue
        if isinstance(check.expected, int | float) and isinstance(check.got, int | float):
            curves[label].append((check.at, float(check.expected), float(check.got)))
    return {label: sorted(points) for label, points in curves.items()}


def _svg(picture: Picture, curves: dict[str, _Points]) -> bytes:
    from matplotlib.lines import Line2D

    drawn = figure(picture.title, height_in=3.0)
    rows = -(-(len(curves) + 1) // 3)
    (axes,) = panels(drawn, picture.title, 1, legend_rows=rows, left_in=0.78, heading_in=0.1)
    entries = []
    for index, (label, points) in enumerate(curves.items()):
        x, expected, got = zip(*points, strict=True)
        colour = LINES[index % len(LINES)]
        # Between the parts of a whole there is nothing to connect.
        style: dict[str, Any] = {"marker": "s", "fillstyle": "none", "markersize": 8} if picture.ticks else {}
        dashes: Any = "" if picture.ticks else DASHES[index % len(DASHES)]
        (line,) = axes.plot(x, got, color=colour, linestyle=dashes, linewidth=1.3, **style)
        axes.plot(x, expected, "o", color=colour, markersize=3.5)
        entries.append((label, line))
    entries.append(("source (dots)", Line2D([], [], color=GRID, marker="o", linestyle="")))
    legend(drawn, picture.title, entries, columns=3)
    axes.set_xlabel(picture.x_label)
    axes.set_ylabel(picture.y_label)
    if picture.ticks:
        axes.set_xticks(range(len(picture.ticks)), picture.ticks)
    if picture.log_x:
        axes.set_xscale("log")
    if picture.log_y:
        axes.set_yscale("log")
    return svg_bytes(drawn)
