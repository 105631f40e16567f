"""Pictures of docs/allocators.md: why requests of one workload fail under each allocator, and where the free bytes are.

    python benchmarks/fragmentation_story.py llama70b_128k docs/img/allocators

writes ``causes.svg`` (losses by cause, same arrivals) and ``holes.svg`` (the pool of ``contiguous_exact`` at its first
failure by fragmentation, beside the pool of ``paged`` at its first failure).
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from simulator.planning.explain_oom import explain_oom
from simulator.scenario import Scenario, load_scenario
from simulator.serving.oom_state import Wanted
from simulator.showing.terminal import cause_shares
from simulator.simulation import simulate

_CAUSES = {
    "fragmentation": "#c44e52",
    "capacity": "#4c72b0",
    "too large for an empty pool": "#8c8c8c",
}


def draw_causes(axes: Axes, runs: list[dict[str, Any]]) -> None:
    """One bar an allocator: the share of requests lost, split by cause."""
    labels = [run["label"] for run in runs]
    left = [0.0] * len(runs)
    for cause, colour in _CAUSES.items():
        shares = [100 * cause_shares(run)[cause] for run in runs]
        axes.barh(labels, shares, left=left, color=colour, label=cause)
        left = [before + share for before, share in zip(left, shares, strict=True)]
    for row, total in enumerate(left):
        axes.text(total, row, f" {total:.1f} %", va="center", fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("requests lost, %")
    axes.legend(frameon=False, fontsize=8)


def draw_pool(axes: Axes, document: dict[str, Any]) -> None:
    """The address space at the moment of a failure: holders in blue, free in white, the largest hole outlined."""
    gib = 2**30
    event, pool = document["event"], document["pool"]
    for index, holder in enumerate(sorted(document["holders"], key=lambda one: one["start_byte"] or 0)):
        start, end = holder["start_byte"] / gib, holder["end_byte"] / gib
        axes.barh(0, end - start, left=start, color=("#4c72b0", "#8fb0d9")[index % 2])
        if end - start > 0.6:
            axes.text(
                (start + end) / 2, 0, f"{holder['request_id']}", ha="center", va="center", fontsize=7, color="white"
            )
    for hole in pool["free"]["largest_holes"]:
        start, size = hole["start_byte"] / gib, hole["size_bytes"] / gib
        axes.barh(0, size, left=start, color="white", edgecolor="#c44e52", hatch="///")
    axes.barh(-1, event["needed_bytes"] / gib, color="#c44e52")
    axes.set_yticks([0, -1], ["pool", "needed"])
    axes.set_xlim(0, pool["kv_capacity_bytes"] / gib)
    axes.set_xlabel("GiB")
    free, largest = event["free_bytes"] / gib, event["largest_free_bytes"] / gib
    axes.set_title(
        f"{document['allocator']}: request {event['request_id']} needs {event['needed_bytes'] / gib:.2f} GiB, "
        f"{free:.2f} GiB are free, the largest hole is {largest:.2f} GiB",
        fontsize=9,
    )


def save(figure: Any, path: Path) -> None:
    """As SVG without a date, so that the same pictures are the same bytes."""
    matplotlib.rcParams["svg.hashsalt"] = "ascend-kv-sim"
    matplotlib.rcParams["svg.fonttype"] = "none"
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def story(scenario: Scenario, folder: Path) -> None:
    """Run and draw."""
    runs = [run.summary for run in simulate(scenario).runs]
    figure, axes = plt.subplots(figsize=(7, 0.6 * len(runs) + 1.2))
    draw_causes(axes, runs)
    save(figure, folder / "causes.svg")
    document = explain_oom(scenario, Wanted(cause="fragmentation"), allocator="contiguous_exact")
    figure, axes = plt.subplots(figsize=(8, 1.9))
    draw_pool(axes, document)
    save(figure, folder / "holes.svg")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    story(load_scenario(options.scenario), options.folder)


if __name__ == "__main__":
    main()
