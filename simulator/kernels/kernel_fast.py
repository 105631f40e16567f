"""The closed form once more, unrolled for the engine's inner loop: the same operations in the same order.

A simulated second takes tens of thousands of steps, so these expressions are written without objects, a case leaves
out what only multiplies by zero in it, and stages that cannot be the longest are not worked out. They cover the usual
kernel (pages read one by one, ids through the cache or from HBM, at least two tile buffers); a property test holds
them to ``kernel_form`` bit for bit.
"""

from collections.abc import Callable
from math import ceil, floor
from typing import Any

from simulator.kernels.compute import FRACTAL
from simulator.kernels.kernel_form import KernelForm
from simulator.kernels.kernel_share import Maximum, Number
from simulator.kernels.tiles import TilePlan

# (sequences, tokens, pages) -> seconds
Seconds = Callable[[int, float, float], float]
# (most pages of a core, tasks, bursts, tails, pages of a task, tokens of a burst, of a tail, sharers, last sharers)
_Share = tuple[int, float, float, int, float, Number, Number, Number, Number]
_Deal = Callable[[int, Number, float], _Share]
# (most pages, tasks, bursts, tails, tokens of a burst, of a tail) -> seconds of look-ups and issues, of compute
_Others = Callable[[int, float, float, int, Number, Number], tuple[float, Number]]


def fast_seconds(form: KernelForm, cores: int) -> Seconds | None:
    """``(sequences, tokens, pages) -> seconds``, or ``None`` when the kernel is not of the usual kind."""
    plan, dma = form.plan, form.dma
    if plan.group_pages > 1 or form.table == "l1" or plan.buffers == 1 or dma.latency_s / dma.depth < dma.issue_s:
        return None
    return _timing(form, _deal(plan, cores), _others(form))


def fast_array(form: KernelForm, cores: int) -> Callable[[int, Any, float], Any]:
    """``fast_seconds`` of a usual kernel for an array of ``tokens`` (as floats) while ``pages`` stands still."""
    import numpy as np

    dma, parts, part_bytes = form.dma, form.plan.parts, form.step_token_bytes * form.plan.reload / form.plan.parts
    lone, shared = dma.latency_s / dma.depth, dma.startup_s / dma.depth
    deal, others, bound_s = _deal(form.plan, cores, np.maximum), _others(form), _bound_s(form)
    wait_s = _wait_s(form)

    def transfer(size: Number, active: Number) -> Any:
        return np.maximum(shared + size * active / dma.shared_bandwidth, lone + size / dma.port_bandwidth)

    def seconds(sequences: int, tokens: Any, pages: float) -> Any:
        most, tasks, bursts, tails, task_pages, full, tail, active, last_active = deal(sequences, tokens, pages)
        last_s = full_s = transfer(full * part_bytes, active)
        query = transfer(form.query_bytes, active)
        queries, streamed, waits = tasks * query, (bursts - tails) * full_s, 0.0
        if tails:
            tail_s = full_s if tails == bursts else transfer(tail * part_bytes, active)
            streamed = streamed + tails * tail_s
            waits = tails * np.maximum(0.0, wait_s - tail_s) if tails < bursts else 0.0
        if last_active is not active:
            last_s = transfer(full * part_bytes, last_active)
            streamed = streamed + (last_s - full_s)
            queries = queries + (transfer(form.query_bytes, last_active) - query) / task_pages
        streamed = streamed * parts + queries + waits
        first = (most / bursts - 1) * form.lookup_s + form.miss_s + dma.issue_s
        opening = dma.issue_s + np.maximum(query, first)
        drain = -(-full // FRACTAL) * form.compute.slice_s / parts
        total = opening + streamed - query + drain
        if (bound_s * bursts + (full_s + last_s + query) < streamed).all():
            return total
        scalar, compute = others(most, tasks, bursts, tails, full, tail)
        return np.maximum(np.maximum(scalar + last_s + drain, total), opening + full_s + compute)

    return seconds


def _deal(plan: TilePlan, cores: int, maximum: Maximum = max) -> _Deal:
    """``kernel_share.mean_share`` for numbers, or for an array of tokens with numpy's ``maximum``."""
    heads, page = plan.steps_per_group, plan.page_tokens

    def deal(sequences: int, tokens: Number, pages: float) -> _Share:
        dealt = pages * heads
        most = ceil(dealt / cores)
        task_pages = pages / sequences
        tasks: float = sequences * heads
        if cores % tasks == 0:
            tasks = 1.0
        elif tasks % cores == 0:
            tasks = float(tasks // cores)
        else:
            tasks = ceil((most - 1) / task_pages) + 1
            if tasks > most:
                tasks = most
        bursts = most if most > tasks else tasks
        tails = floor(most / task_pages)
        unfilled = (pages * page - tokens) / sequences
        core_tokens = most * page - tails * unfilled
        tail = page - unfilled
        if most == 1 or 0 < tails != bursts:
            active = tokens * heads / core_tokens
            return most, tasks, bursts, tails, task_pages, page if tails != bursts else tail, tail, active, active
        full = page if tails == 0 else tail
        last = dealt - (most - 1) * cores
        active = maximum((tokens * heads - last * full) / maximum(full, core_tokens - full), 1.0)
        return most, tasks, bursts, tails, task_pages, full, tail, active, last

    return deal


def _timing(form: KernelForm, deal: _Deal, others: _Others) -> Seconds:
    """``KernelForm.timing`` of what ``deal`` gives."""
    dma, parts, lookup = form.dma, form.plan.parts, form.lookup_s
    lone, shared = dma.latency_s / dma.depth, dma.startup_s / dma.depth
    issue, port, bandwidth, slice_s = dma.issue_s, dma.port_bandwidth, dma.shared_bandwidth, form.compute.slice_s
    part_bytes = form.step_token_bytes * form.plan.reload / parts
    query_bytes, query_lone, opened = form.query_bytes, lone + form.query_bytes / port, form.miss_s + issue
    bound_s, wait_s = _bound_s(form), _wait_s(form)

    def seconds(sequences: int, tokens: float, pages: float) -> float:
        most, tasks, bursts, tails, task_pages, full, tail, active, last_active = deal(sequences, tokens, pages)
        size = full * part_bytes
        alone = lone + size / port
        full_s = shared + size * active / bandwidth
        last_s = full_s = full_s if full_s > alone else alone
        query = shared + query_bytes * active / bandwidth
        query = query if query > query_lone else query_lone
        queries, waits = tasks * query, 0.0
        if 0 < tails < bursts:
            size = tail * part_bytes
            tail_lone = lone + size / port
            tail_s = shared + size * active / bandwidth
            tail_s = tail_s if tail_s > tail_lone else tail_lone
            streamed = (bursts - tails) * full_s + tails * tail_s
            waits = tails * (wait_s - tail_s) if wait_s > tail_s else 0.0
        else:
            streamed = bursts * full_s
        if last_active != active:
            last_s = shared + size * last_active / bandwidth
            last_s = last_s if last_s > alone else alone
            last_query = shared + query_bytes * last_active / bandwidth
            streamed += last_s - full_s
            queries += ((last_query if last_query > query_lone else query_lone) - query) / task_pages
        streamed = streamed * parts + queries + waits
        first = opened if bursts == most else (most / bursts - 1) * lookup + form.miss_s + issue
        opening = issue + (query if query > first else first)
        drain = -(-full // FRACTAL) * slice_s / parts
        total: float = opening + streamed - query + drain
        if bursts * bound_s + full_s + last_s < streamed - query:
            return total
        scalar, compute = others(most, tasks, bursts, tails, full, tail)
        longest: float = max(scalar + last_s + drain, total, opening + full_s + compute)
        return longest

    return seconds


def _others(form: KernelForm) -> _Others:
    """The two stages beside the transfers."""
    plan, entries, lookup, issue = form.plan, form.line_entries, form.lookup_s, form.dma.issue_s
    partial, cold = (entries - 1) / (2 * entries), form.miss_s - form.hit_s if form.table == "dcache" else 0.0
    slice_s = form.compute.slice_s

    def others(most: int, tasks: float, bursts: float, tails: int, full: Number, tail: Number) -> tuple[float, Number]:
        lines = max(tasks, most / entries + tasks * partial)
        scalar = most * plan.transfers * lookup + lines * cold + (bursts * plan.parts + tasks) * issue
        work = -(-full // FRACTAL) * slice_s
        if 0 < tails < bursts:
            return scalar, (bursts - tails) * work + tails * (-(-tail // FRACTAL) * slice_s)
        return scalar, bursts * work

    return others


def _wait_s(form: KernelForm) -> float:
    """What V of a last page waits for: its buffer's work, when there are two buffers."""
    return form.page_work_s / form.plan.parts if form.plan.buffers == 2 else 0.0


def _bound_s(form: KernelForm) -> float:
    """What a burst takes at most in either stage beside the transfers: a cold line and its issues, or whole slices."""
    plan = form.plan
    cold = form.miss_s - form.hit_s if form.table == "dcache" else 0.0
    scalar = plan.transfers * form.lookup_s + cold + (plan.parts + 1) * form.dma.issue_s
    return max(scalar, -(-plan.page_tokens // FRACTAL) * form.compute.slice_s) * (1.0 + 1e-9)
