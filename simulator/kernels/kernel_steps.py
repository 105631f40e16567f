"""Seconds of a launch with one tile buffer and a few pages on each core, transfer by transfer.

One after the other, a core looks up, issues, loads and computes. With few pages it matters which of these it is at
when another core finishes, so every transfer is followed: the seconds before it, which no other core changes, and
the transfer, whose pace follows from the number of streaming cores. Between two ends of cores all go on at once.
"""

from typing import Any

import numpy as np

from simulator.kernels.compute import FRACTAL
from simulator.kernels.kernel_deal import Array, Deal
from simulator.kernels.kernel_form import KernelForm
from simulator.kernels.tiles import TABLE_ENTRY_BYTES

#: pages on a core up to which it is worth it
MOST_PAGES = 6


def stepwise_seconds(form: KernelForm, deal: Deal) -> Array:
    """Seconds of each launch of ``deal``: pages are read one by one, into one buffer."""
    fixed, sizes, last = _transfers(form, deal)
    rest = np.where(sizes >= 0, 1.0, 0.0)
    streaming, now, ends = deal.pages > 0, np.zeros((len(fixed), 1)), np.zeros(deal.pages.shape)
    drain = np.where(streaming, last, 0.0)
    while True:
        active = streaming.sum(axis=1, keepdims=True)
        if not active.any():
            return np.asarray((ends + drain).max(axis=1))
        whole = _stream_s(form, sizes, np.maximum(active, 1)[:, :, None])
        needs = fixed + rest * whole
        behind = np.cumsum(needs, axis=2)
        left = np.where(streaming, behind[:, :, -1], np.inf)
        stretch = left.min(axis=1, keepdims=True)
        done = streaming & (left <= stretch * (1.0 + 1e-9))
        ends = np.where(done, now + left, ends)
        stretch = np.where(active > 0, stretch, 0.0)
        spent = np.clip(stretch[:, :, None] - (behind - needs), 0.0, needs)
        on_transfer = np.maximum(spent - fixed, 0.0)
        fixed = np.maximum(fixed - spent, 0.0)
        rest = np.maximum(rest - on_transfer / np.maximum(whole, 1e-12), 0.0)
        now, streaming = now + stretch, streaming & ~done


def _transfers(form: KernelForm, deal: Deal) -> tuple[Array, Array, Array]:
    """Every core's transfers in order (third axis): seconds before each, its bytes (-1: none), and work after the last.

    A page slot has room for a query, a table row, and the parts of K and V.
    """
    plan = form.plan
    most = int(deal.pages.max())
    rows, cores = deal.pages.shape
    slot = np.arange(most)
    number = (deal.edges[:, :-1, None] + slot).reshape(rows, -1)
    real = (slot < deal.pages[:, :, None]).reshape(rows, -1)
    page = deal.page_at(np.where(real, number, 0))
    first = np.broadcast_to(slot == 0, (rows, cores, most)).reshape(rows, -1)
    opens = first | (page.column_in_task == 0)
    work = -(-page.tokens // FRACTAL) * form.compute.slice_s / plan.parts
    fixed = np.zeros((rows, cores * most, 2 + plan.parts))
    sizes = np.full(fixed.shape, -1.0)
    sizes[:, :, 0] = np.where(opens, form.query_bytes, -1.0)
    fixed[:, :, 0] = np.where(opens, form.dma.issue_s, 0.0)
    if form.table == "l1":
        ends = (number - page.column_in_task + page.pages_of_task).reshape(rows, cores, most)
        here = np.minimum(ends, deal.edges[:, 1:, None]).reshape(rows, -1) - number
        sizes[:, :, 1] = np.where(opens, here * TABLE_ENTRY_BYTES, -1.0)
        fixed[:, :, 1] = np.where(opens, form.dma.issue_s, 0.0)
    cold = opens | (page.column % form.line_entries == 0) if form.table == "dcache" else np.zeros_like(opens)
    sizes[:, :, 2:] = (page.tokens * (form.step_token_bytes * plan.reload / plan.parts))[:, :, None]
    for part in range(plan.parts):
        looks = form.lookup_s if part % plan.passes == 0 else 0.0
        miss = np.where(cold, form.miss_s - form.hit_s, 0.0) if part == 0 else 0.0
        fixed[:, :, 2 + part] = form.dma.issue_s + looks + miss + (work if part else 0.0)
    sizes, fixed = (np.where(real[:, :, None], array, filler) for array, filler in ((sizes, -1.0), (fixed, 0.0)))
    return _after_work(fixed, sizes, np.where(real, work, 0.0), (rows, cores, most))


def _after_work(fixed: Array, sizes: Array, work: Array, shape: tuple[int, int, int]) -> tuple[Array, Array, Array]:
    """The work on a page's last part comes before the next page's first transfer, on a core's last one after all."""
    rows, cores, most = shape
    fixed, sizes = fixed.reshape(rows, cores, most, -1), sizes.reshape(rows, cores, most, -1)
    work = work.reshape(rows, cores, most)
    follows = np.zeros(shape, bool)
    follows[:, :, :-1] = sizes[:, :, 1:, -1] >= 0
    fixed[:, :, 1:, 0] += np.where(follows, work, 0.0)[:, :, :-1]
    last = np.where(follows, 0.0, work).max(axis=2)
    return fixed.reshape(rows, cores, -1), sizes.reshape(rows, cores, -1), last


def _stream_s(form: KernelForm, sizes: Array, active: Any) -> Array:
    """``Dma.seconds`` of many sizes; nothing for -1."""
    dma = form.dma
    alone = np.maximum(dma.issue_s, dma.latency_s / dma.depth + sizes / dma.port_bandwidth)
    shared = dma.startup_s / dma.depth + sizes * active / dma.shared_bandwidth
    return np.where(sizes >= 0, np.maximum(alone, shared), 0.0)
