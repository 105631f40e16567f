"""The closed form by sums for the engine's inner loop: the operations of ``kernel_form`` in the same order.

A simulated second takes tens of thousands of steps, so these expressions make no objects, a case leaves out what only
multiplies by zero in it, and stages that cannot be the longest are not worked out. They cover the usual kernel (pages
read one by one, ids through the cache or from HBM, at least two tile buffers); a property test holds them to
``kernel_form`` bit for bit. ``kernel_fast`` is the same for arrays.
"""

from math import ceil, floor

from simulator.kernels.compute import FRACTAL
from simulator.kernels.kernel_form import KernelForm


class KernelSums:
    """A usual kernel on ``cores`` cores."""

    def __init__(self, form: KernelForm, cores: int) -> None:
        plan, dma, entries = form.plan, form.dma, form.line_entries
        self.cores: int = cores
        self.heads: int = plan.steps_per_group
        self.page: int = plan.page_tokens
        self.parts: int = plan.parts
        self.fractal: int = FRACTAL
        self.lone_s: float = dma.latency_s / dma.depth
        self.shared_s: float = dma.startup_s / dma.depth
        self.issue_s: float = dma.issue_s
        self.port: float = dma.port_bandwidth
        self.bandwidth: float = dma.shared_bandwidth
        self.slice_s: float = form.compute.slice_s
        self.part_bytes: float = form.step_token_bytes * plan.reload / plan.parts
        self.query_bytes: int = form.query_bytes
        self.lookup_s: float = form.lookup_s
        self.miss_s: float = form.miss_s
        self.transfers: int = plan.transfers
        self.entries: int = entries
        self.partial: float = (entries - 1) / (2 * entries)
        self.cold_s: float = form.miss_s - form.hit_s if form.table == "dcache" else 0.0
        self.wait_s: float = wait_s(form)
        self.bound_s: float = bound_s(form)
        # The share at hand: pages, tasks, bursts, tails, tokens of a burst and of a tail, and who shares the bandwidth.
        self.most: int = 0
        self.tasks: float = 0.0
        self.bursts: float = 0.0
        self.tails: int = 0
        self.full: float = 0.0
        self.tail: float = 0.0
        self.active: float = 0.0
        self.last_active: float = 0.0

    def seconds(self, sequences: int, tokens: float, pages: float) -> float:
        """Seconds of a launch over at least one sequence."""
        task_pages = pages / sequences
        self._deal(sequences, tokens, pages, task_pages)
        bursts, tails, active = self.bursts, self.tails, self.active
        full_s = self._transfer(self.full * self.part_bytes, active)
        last_s, query_s, waits_s = full_s, self._transfer(float(self.query_bytes), active), 0.0
        queries_s = self.tasks * query_s
        if 0 < tails < bursts:
            tail_s = self._transfer(self.tail * self.part_bytes, active)
            streamed_s = (bursts - tails) * full_s + tails * tail_s
            waits_s = tails * (self.wait_s - tail_s) if self.wait_s > tail_s else 0.0
        else:
            streamed_s = bursts * full_s
        if self.last_active != active:
            last_s = self._transfer(self.full * self.part_bytes, self.last_active)
            streamed_s += last_s - full_s
            queries_s += (self._transfer(float(self.query_bytes), self.last_active) - query_s) / task_pages
        streamed_s = streamed_s * self.parts + queries_s + waits_s
        first_s = (self.most / bursts - 1) * self.lookup_s + self.miss_s + self.issue_s
        opening_s = self.issue_s + (query_s if query_s > first_s else first_s)
        drain_s = -(-self.full // self.fractal) * self.slice_s / self.parts
        total_s = opening_s + streamed_s - query_s + drain_s
        if bursts * self.bound_s + full_s + last_s < streamed_s - query_s:
            return total_s
        return max(self._scalar_s() + last_s + drain_s, total_s, opening_s + full_s + self._compute_s())

    def _deal(self, sequences: int, tokens: float, pages: float, task_pages: float) -> None:
        """``kernel_share.mean_share``."""
        cores, heads, page = self.cores, self.heads, self.page
        dealt = pages * heads
        self.most = most = ceil(dealt / cores)
        every = sequences * heads
        if cores % every == 0:
            self.tasks = 1.0
        elif every % cores == 0:
            self.tasks = float(every // cores)
        else:
            self.tasks = float(min(ceil((most - 1) / task_pages) + 1, most))
        self.bursts = bursts = max(float(most), self.tasks)
        self.tails = tails = floor(most / task_pages)
        unfilled = (pages * page - tokens) / sequences
        core_tokens = most * page - tails * unfilled
        self.tail = page - unfilled
        self.full = self.tail if tails == bursts else float(page)
        self.active = self.last_active = tokens * heads / core_tokens
        if most > 1 and (tails == 0 or tails == bursts):
            last = dealt - (most - 1) * cores
            rest = core_tokens - self.full
            before = (tokens * heads - last * self.full) / (self.full if self.full > rest else rest)
            self.active, self.last_active = before if before > 1.0 else 1.0, float(last)

    def _transfer(self, size: float, active: float) -> float:
        alone_s = self.lone_s + size / self.port
        shared_s = self.shared_s + size * active / self.bandwidth
        return shared_s if shared_s > alone_s else alone_s

    def _scalar_s(self) -> float:
        """Look-ups and issues."""
        most, tasks = self.most, self.tasks
        lines = max(tasks, most / self.entries + tasks * self.partial)
        looks_s = most * self.transfers * self.lookup_s + lines * self.cold_s
        return looks_s + (self.bursts * self.parts + tasks) * self.issue_s

    def _compute_s(self) -> float:
        work_s = -(-self.full // self.fractal) * self.slice_s
        if 0 < self.tails < self.bursts:
            tail_work_s = -(-self.tail // self.fractal) * self.slice_s
            return (self.bursts - self.tails) * work_s + self.tails * tail_work_s
        return self.bursts * work_s


def is_usual(form: KernelForm) -> bool:
    """Whether these expressions cover the kernel."""
    plan, dma = form.plan, form.dma
    return not (
        plan.group_pages > 1 or form.table == "l1" or plan.buffers == 1 or dma.latency_s / dma.depth < dma.issue_s
    )


def wait_s(form: KernelForm) -> float:
    """What V of a last page waits for: its buffer's work, when there are two buffers."""
    return form.page_work_s / form.plan.parts if form.plan.buffers == 2 else 0.0


def bound_s(form: KernelForm) -> float:
    """What a burst takes at most in either stage beside the transfers: a cold line and its issues, or whole slices."""
    plan = form.plan
    cold = form.miss_s - form.hit_s if form.table == "dcache" else 0.0
    scalar = plan.transfers * form.lookup_s + cold + (plan.parts + 1) * form.dma.issue_s
    return max(scalar, -(-plan.page_tokens // FRACTAL) * form.compute.slice_s) * (1.0 + 1e-9)
