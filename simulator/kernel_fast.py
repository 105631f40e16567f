"""The closed form once more, unrolled for the engine's inner loop: the same operations in the same order.

A simulated second takes tens of thousands of steps, so this one expression is written without calls and objects.
It covers the usual kernel (pages read one by one, ids through the cache or from HBM, at least two tile buffers);
a property test holds it to ``kernel_form`` bit for bit.
"""

from collections.abc import Callable
from math import ceil

from simulator.compute import FRACTAL
from simulator.kernel_form import KernelForm

Seconds = Callable[[int, float, float], float]


def fast_seconds(form: KernelForm, cores: int) -> Seconds | None:
    """``(sequences, tokens, pages) -> seconds``, or ``None`` when the kernel is not of the usual kind."""
    plan, dma = form.plan, form.dma
    lone, shared = dma.latency_s / dma.depth, dma.startup_s / dma.depth
    if plan.group_pages > 1 or form.table == "l1" or plan.buffers == 1 or lone < dma.issue_s:
        return None
    heads, page, parts, transfers = plan.steps_per_group, plan.page_tokens, plan.parts, plan.transfers
    lookup, miss, cold = form.lookup_s, form.miss_s, form.miss_s - form.hit_s if form.table == "dcache" else 0.0
    entries = form.line_entries
    partial = (entries - 1) / (2 * entries)
    issue, port, bandwidth = dma.issue_s, dma.port_bandwidth, dma.shared_bandwidth
    part_bytes = form.step_token_bytes * plan.reload / plan.parts
    query_bytes, slice_s = form.query_bytes, form.compute.slice_s
    query_lone = lone + query_bytes / port

    def tasks_of(tasks: int, most: int, task_pages: float) -> float:
        if cores % tasks == 0:
            return 1.0
        if tasks % cores == 0:
            return float(tasks // cores)
        worst = ceil((most - 1) / task_pages) + 1
        return worst if worst < most else most

    def seconds(sequences: int, tokens: float, pages: float) -> float:
        dealt = pages * heads
        most = ceil(dealt / cores)
        task_pages = pages / sequences
        tasks = tasks_of(sequences * heads, most, task_pages)
        tails = -ceil(-most / task_pages)
        unfilled = (pages * page - tokens) / sequences
        core_tokens = most * page - tails * unfilled
        everything = tokens * heads
        tail = page - unfilled
        bursts = most if most > tasks else tasks
        full = page if tails != bursts else tail
        if most > 1 and (tails == 0 or tails == bursts):
            last_active = dealt - (most - 1) * cores
            rest = core_tokens - full
            active = (everything - last_active * full) / (full if full > rest else rest)
            active = active if active > 1.0 else 1.0
        else:
            active = last_active = everything / core_tokens
        lines = most / entries + tasks * partial
        lines = lines if lines > tasks else tasks
        scalar = most * transfers * lookup + lines * cold + (bursts * parts + tasks) * issue
        size = full * part_bytes
        alone = lone + size / port
        full_s = shared + size * active / bandwidth
        full_s = full_s if full_s > alone else alone
        last_s = shared + size * last_active / bandwidth
        last_s = last_s if last_s > alone else alone
        size = tail * part_bytes
        alone = lone + size / port
        tail_s = shared + size * active / bandwidth
        tail_s = tail_s if tail_s > alone else alone
        query = shared + query_bytes * active / bandwidth
        query = query if query > query_lone else query_lone
        last_query = shared + query_bytes * last_active / bandwidth
        last_query = last_query if last_query > query_lone else query_lone
        queries = tasks * query + (last_query - query) / task_pages
        streamed = ((bursts - tails) * full_s + tails * tail_s + (last_s - full_s)) * parts + queries
        work = -(-full // FRACTAL) * slice_s
        compute = (bursts - tails) * work + tails * (-(-tail // FRACTAL) * slice_s)
        first = (most / bursts - 1) * lookup + miss + issue
        opening = issue + (query if query > first else first)
        drain = work / parts
        reads = scalar + last_s + drain
        total = opening + streamed - query + drain
        total = total if total > reads else reads
        slowest = opening + full_s + compute
        return slowest if slowest > total else total

    return seconds
