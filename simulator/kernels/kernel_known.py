"""Seconds of a launch with every context known: each core's share, and who finishes when.

A core's share is look-ups, transfers and compute, in a pipeline or, with one tile buffer, one after the other. How fast
it goes through them depends on how many cores still stream, so the launch is a sequence of stretches, each ended by the
next core to finish; in a stretch every core goes on at the pace that this number of cores allows. Pages are read one
by one, with one tile buffer or two: merged pages and more buffers have their own walks (``burst_walk``, ``deep_walk``).
"""

from typing import Any

import numpy as np

from simulator.kernels.compute import FRACTAL
from simulator.kernels.kernel_deal import Array, Deal
from simulator.kernels.kernel_form import KernelForm
from simulator.kernels.kernel_steps import MOST_PAGES, stepwise_seconds
from simulator.kernels.tiles import TABLE_ENTRY_BYTES

#: cores whose ends are nearer than this part of the time before count as streaming until the same moment
TOGETHER = 0.01
#: numbers of streaming cores for which shares are worked out; between them a transfer's time is all but linear
NODES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 128)
#: elements of the largest array; bounds memory
MOST_ELEMENTS = 1 << 18


def known_seconds(form: KernelForm, cores: int, contexts: Array, window: int = 0) -> Array:
    """Seconds of a launch for each row of ``contexts`` (at least one sequence, of which ``window`` tokens are read)."""
    chunk = max(1, MOST_ELEMENTS // ((contexts.shape[1] + cores) * len(NODES)))
    parts = [contexts[start : start + chunk] for start in range(0, len(contexts), chunk)]
    return np.concatenate([_seconds(form, cores, part, window) for part in parts])


def _seconds(form: KernelForm, cores: int, contexts: Array, window: int) -> Array:
    """Transfer by transfer where that matters and is quick, else core by core."""
    plan = form.plan

    def dealt(rows: Array) -> Deal:
        return Deal(rows, page_tokens=plan.page_tokens, heads=plan.steps_per_group, cores=cores, window=window)

    deal = dealt(contexts)
    few = deal.pages.max(axis=1) <= MOST_PAGES
    if plan.buffers > 1 or not few.any():
        return _Cores(form, deal).seconds()
    if few.all():
        return stepwise_seconds(form, deal)
    seconds = np.zeros(len(contexts))
    seconds[few] = stepwise_seconds(form, dealt(contexts[few]))
    seconds[~few] = _Cores(form, dealt(contexts[~few])).seconds()
    return seconds


class _Cores:
    """The cores of some launches: arrays with a row a launch, a column a core, and sometimes a node a third."""

    def __init__(self, form: KernelForm, deal: Deal) -> None:
        self.form, self.deal, plan = form, deal, form.plan
        self.cores = cores = deal.pages.shape[1]
        self.part_bytes = form.step_token_bytes * plan.reload / plan.parts
        self.nodes = np.array([node for node in NODES if node < cores] + [cores])
        self.busy = deal.pages > 0
        self.pages, self.tasks = np.maximum(deal.pages, 1), np.maximum(deal.tasks, 1)
        self.first, self.last = deal.first_tokens(), deal.last_tokens()
        self.compute = self._sum(self._work)
        self.drain = self._work(self.last) / plan.parts
        self.scalar = self._scalar()

    def seconds(self) -> Array:
        """When the last core is done, for each launch."""
        by_pace, by_look_ups = self._until_streamed()
        rows, places = np.arange(len(self.busy))[:, None], np.arange(self.cores)
        left, ends, now = np.ones(self.busy.shape), np.zeros(self.busy.shape), np.zeros((len(self.busy), 1))
        streaming = self.busy.copy()
        while True:
            active = streaming.sum(axis=1, keepdims=True)
            if not active.any():
                return np.asarray((ends + np.where(self.busy, self.drain, 0.0)).max(axis=1))
            node = np.maximum(np.searchsorted(self.nodes, active), 1)
            low, high = self.nodes[node - 1], self.nodes[node]
            weight = (high - np.maximum(active, 1)) / (high - low)

            def between(table: Array, node: Array = node, weight: Array = weight) -> Array:
                found: Array = weight * table[rows, places, node - 1] + (1.0 - weight) * table[rows, places, node]
                return found

            whole = between(by_pace)
            remaining = np.maximum(left * whole, between(by_look_ups) - now)
            remaining = np.where(streaming, remaining, np.inf)
            stretch = remaining.min(axis=1, keepdims=True)
            done = streaming & (remaining <= stretch + TOGETHER * (now + stretch))
            ends = np.where(done, now + remaining, ends)
            stretch = np.where(active > 0, stretch, 0.0)
            now = now + stretch
            left = np.maximum(left - stretch / whole, 0.0)
            streaming = streaming & ~done

    def _until_streamed(self) -> tuple[Array, Array]:
        """Each core's seconds until its last transfer is in, if ``nodes`` cores (third axis) streamed all the time.

        The second is the same as far as look-ups decide it: only the last transfer depends on the others then.
        """
        form, plan = self.form, self.form.plan
        query = self._transfer(np.full((1, 1), float(form.query_bytes)))
        row = self._transfer(self.pages / self.tasks * TABLE_ENTRY_BYTES) if form.table == "l1" else 0.0
        streamed = self._sum(self._tile) * plan.parts + _wide(self.tasks) * (query + row)
        scalar, compute = _wide(self.scalar), _wide(self.compute - self.drain)
        if plan.buffers == 1:
            total = scalar + streamed + compute
            return total, np.zeros_like(total)
        opening = form.opening(query, row, form.first_lookup_s + form.dma.issue_s, np.maximum)
        loads = opening + streamed - query - row + self._buffer_waits()
        works = opening + self._tile(self.first) + compute
        reads = scalar + (query + row if form.table == "l1" else 0.0) + self._tile(self.last)
        return np.maximum(loads, works), reads

    def _buffer_waits(self) -> Any:
        """With two buffers, V of a short last page waits until V of the one before is worked on and leaves its own."""
        plan, deal = self.form.plan, self.deal
        work_s = self._work(plan.page_tokens) / plan.parts
        waits = np.maximum(work_s - self._tile(deal.tail_tokens), 0.0)
        return deal.over_tails(np.where(_wide(deal.seq_pages > 1), waits, 0.0))

    def _scalar(self) -> Array:
        """Seconds of look-ups and issues."""
        form, plan = self.form, self.form.plan
        looks = self.pages * (plan.transfers * form.lookup_s)
        if form.table == "dcache":
            lines = self.deal.lines(form.line_entries)
            looks = looks + lines * (form.miss_s - form.hit_s)
        copies = self.tasks if form.table == "l1" else 0
        found: Array = looks + (self.pages * plan.parts + self.tasks + copies) * form.dma.issue_s
        return found

    def _sum(self, of_tokens: Any) -> Array:
        """Each core's sum over its pages of a function of a page's tokens."""
        deal = self.deal
        whole, tails = of_tokens(np.full((1, 1), deal.page)), deal.over_tails(of_tokens(deal.tail_tokens))
        pages = _wide(deal.whole_pages) if tails.ndim > deal.whole_pages.ndim else deal.whole_pages
        found: Array = pages * whole + tails
        return found + deal.over_heads(of_tokens(deal.head_tokens) - whole) if deal.windowed else found

    def _work(self, tokens: Any) -> Any:
        return -(-tokens // FRACTAL) * self.form.compute.slice_s

    def _tile(self, tokens: Array) -> Array:
        """Seconds of one transfer of a page of ``tokens`` at every node."""
        return self._transfer(tokens * self.part_bytes)

    def _transfer(self, size: Array) -> Array:
        """``Dma.seconds`` of many sizes at every node."""
        dma = self.form.dma
        alone = np.maximum(dma.issue_s, dma.latency_s / dma.depth + size / dma.port_bandwidth)
        shared = dma.startup_s / dma.depth + _wide(size) * (self.nodes / dma.shared_bandwidth)
        return np.asarray(np.maximum(_wide(alone), shared))


def _wide(values: Array) -> Array:
    """``values`` with a third axis of one."""
    return values[:, :, None]
