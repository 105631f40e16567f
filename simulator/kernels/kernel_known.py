"""Seconds of a launch with every context known: each core's share, and who finishes when.

A core's share is look-ups, transfers and compute, in a pipeline or, with one tile buffer, one after the other. How fast
it goes through them depends on how many cores still stream, so the launch is a sequence of stretches, each ended by the
next core to finish; in a stretch every core goes on at the pace that this number of cores allows.
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
    if plan.buffers > 1 or plan.group_pages > 1 or not few.any():
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
        self.merges = plan.group_pages > 1
        self.bursts = (
            np.maximum(deal.pieces(plan.group_pages, from_table_start=False), 1) if self.merges else self.pages
        )
        if self.merges:
            self._merge()
        else:
            self.first, self.last = deal.first_tokens(), deal.last_tokens()
            self.compute = self._sum(self._work)
        self.drain = self._work(self.last) / plan.parts
        self.scalar = self._scalar()

    def _merge(self) -> None:
        """Bursts at the end of a task are short, the others are as long as what is left says on average.

        A share that has only a part of such a burst is taken as bursts of its mean size.
        """
        deal, size, tokens = self.deal, self.form.plan.group_pages, self._sum(_itself)
        before = (np.ceil(deal.seq_pages / size) - 1) * size
        missing = np.where((before == 0) & (deal.seq_pages > 1), deal.page - deal.head_tokens, 0)
        self.tails = deal.tail_tokens + (deal.seq_pages - 1 - before) * deal.page - missing
        left, longer = tokens - deal.over_tails(self.tails), self.bursts - (deal.pages - deal.whole_pages)
        self.has_tails = (left >= longer) & (longer >= 0)
        self.whole_bursts = np.where(self.has_tails, longer, self.bursts)
        self.burst_tokens = np.where(self.has_tails, left, tokens) / np.maximum(self.whole_bursts, 1)
        self.compute = self._over_bursts(self._work)
        self.first = self.last = np.where(self.whole_bursts > 0, self.burst_tokens, tokens / self.bursts)

    def _over_bursts(self, of_tokens: Any) -> Array:
        """Each core's sum over its bursts of a function of a burst's tokens."""
        whole, tails = of_tokens(self.burst_tokens), self.deal.over_tails(of_tokens(self.tails))
        bursts, has_tails = self.whole_bursts, self.has_tails
        if whole.ndim > bursts.ndim:
            bursts, has_tails = _wide(bursts), _wide(has_tails)
        found: Array = bursts * whole + np.where(has_tails, tails, 0.0)
        return found

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
        tiles = self._over_bursts(self._tile) if self.merges else self._sum(self._tile)
        streamed = tiles * plan.parts + _wide(self.tasks) * (query + row)
        scalar, compute = _wide(self.scalar), _wide(self.compute - self.drain)
        if plan.buffers == 1:
            total = scalar + streamed + compute
            return total, np.zeros_like(total)
        first = _wide((self.pages / self.bursts - 1) * form.lookup_s + form.first_lookup_s + form.dma.issue_s)
        opening = form.opening(query, row, first, np.maximum)
        loads = opening + streamed - query - row + self._buffer_waits()
        works = opening + self._tile(self.first) + compute
        reads = scalar + (query + row if form.table == "l1" else 0.0) + self._tile(self.last)
        return np.maximum(loads, works), reads

    def _buffer_waits(self) -> Any:
        """With two buffers, V of a short last burst waits until V of the one before is worked on and leaves its own."""
        plan, deal = self.form.plan, self.deal
        if plan.buffers > 2:
            return 0.0
        tails = self.tails if self.merges else deal.tail_tokens
        work_s = self._work(plan.page_tokens * plan.group_pages) / plan.parts
        waits = np.maximum(work_s - self._tile(tails), 0.0)
        return deal.over_tails(np.where(_wide(deal.seq_pages > plan.group_pages), waits, 0.0))

    def _scalar(self) -> Array:
        """Seconds of look-ups and issues."""
        form, plan = self.form, self.form.plan
        looks = self.pages * (plan.transfers * form.lookup_s)
        if form.table == "dcache":
            lines = self.deal.pieces(form.line_entries, from_table_start=True)
            looks = looks + lines * (form.miss_s - form.hit_s)
        copies = self.tasks if form.table == "l1" else 0
        found: Array = looks + (self.bursts * plan.parts + self.tasks + copies) * form.dma.issue_s
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


def _itself(tokens: Array) -> Array:
    return tokens
