"""A launch whose cores have one tile buffer, with every context known: each core's share, and who finishes when.

A core's share is a sum of transfers, look-ups and compute. How fast it goes through them depends on how many cores
still stream, so the launch is a sequence of stretches, each ended by the next core to finish.
"""

from collections.abc import Callable, Sequence
from typing import Any

from simulator.kernels.compute import FRACTAL
from simulator.kernels.kernel_form import KernelForm
from simulator.kernels.tiles import TABLE_ENTRY_BYTES

# Cores whose ends are nearer than this part of a stretch end together.
TOGETHER = 1e-9


def known_seconds(form: KernelForm, cores: int, contexts: Sequence[int]) -> float:
    """Seconds of a launch over ``contexts`` on ``cores`` cores."""
    import numpy as np

    page_tokens = form.plan.page_tokens
    lengths = np.repeat(np.asarray(contexts, np.int64), form.plan.steps_per_group)
    task_pages = -(-lengths // page_tokens)
    ends, tails = np.cumsum(task_pages), lengths - (task_pages - 1) * page_tokens
    used = min(cores, int(ends[-1]))
    edges = np.arange(used + 1) * ends[-1] // used
    pages, behind = np.diff(edges), edges[1:]
    opened, closed = (np.searchsorted(ends, places, side="right") for places in (edges[:-1], behind))
    full = pages - (closed - opened)
    tasks = np.searchsorted(ends, behind - 1, side="right") - opened + 1

    def over_pages(of_full: float, of_tails: Any) -> Any:
        """Each core's sum of a quantity of full pages and of one of every tail."""
        until = np.concatenate(([0.0], np.cumsum(of_tails)))
        return full * of_full + until[closed] - until[opened]

    compute = over_pages(_work_s(form, page_tokens), _work_s(form, tails))
    last_tokens = np.where(np.isin(behind, ends), tails[np.minimum(closed, len(tails)) - 1], page_tokens)
    last_s = _work_s(form, last_tokens) / form.plan.parts
    fixed_s = _scalar_s(form, pages, tasks) + compute - last_s

    def seconds(active: int) -> Any:
        """Each core's seconds until its last transfer if ``active`` cores streamed all the time."""
        part_bytes = form.step_token_bytes * form.plan.reload / form.plan.parts
        tiles = over_pages(
            form.dma.seconds(page_tokens * part_bytes, active), _transfers(form, tails * part_bytes, active)
        )
        streamed = tiles * form.plan.parts + tasks * form.dma.seconds(form.query_bytes, active)
        if form.table == "l1":
            streamed = streamed + tasks * _transfers(form, pages / tasks * TABLE_ENTRY_BYTES, active)
        return fixed_s + streamed

    return float((_ends(used, seconds) + last_s).max())


def _ends(count: int, seconds: Callable[[int], Any]) -> Any:
    """When each of ``count`` cores has streamed its last: in a stretch all go on at the pace of its number of cores."""
    import numpy as np

    left, ends, now = np.ones(count), np.zeros(count), 0.0
    streaming = np.ones(count, bool)
    while active := int(streaming.sum()):
        whole = seconds(active)
        remaining = np.where(streaming, left * whole, np.inf)
        stretch = remaining.min()
        now += stretch
        left = left - stretch / whole
        done = streaming & (remaining <= stretch * (1.0 + TOGETHER))
        ends[done] = now
        streaming &= ~done
    return ends


def _scalar_s(form: KernelForm, pages: Any, tasks: Any) -> Any:
    """Seconds of look-ups and issues."""
    import numpy as np

    looks = pages * form.plan.transfers * form.lookup_s
    if form.table == "dcache":
        looks = looks + form.lines(tasks, pages, np.maximum) * (form.miss_s - form.hit_s)
    copies = tasks if form.table == "l1" else 0
    return looks + (pages * form.plan.parts + tasks + copies) * form.dma.issue_s


def _work_s(form: KernelForm, tokens: Any) -> Any:
    return -(-tokens // FRACTAL) * form.compute.slice_s


def _transfers(form: KernelForm, sizes: Any, active: int) -> Any:
    """``Dma.seconds`` of many sizes."""
    import numpy as np

    dma = form.dma
    alone = np.maximum(dma.issue_s, dma.latency_s / dma.depth + sizes / dma.port_bandwidth)
    return np.maximum(alone, dma.startup_s / dma.depth + sizes * active / dma.shared_bandwidth)
