"""``kernel_sums`` for many steps at once: arrays of tokens while the number of pages stands still.

The same operations in the same order; a property test holds them to ``kernel_form`` bit for bit.
"""

from collections.abc import Callable
from math import ceil, floor
from typing import Any

from simulator.kernels.compute import FRACTAL
from simulator.kernels.kernel_form import KernelForm
from simulator.kernels.kernel_share import Maximum, Number
from simulator.kernels.kernel_sums import bound_s, wait_s
from simulator.kernels.tiles import TilePlan

# (most pages of a core, tasks, bursts, tails, pages of a task, tokens of a burst, of a tail, sharers, last sharers)
_Share = tuple[int, float, float, int, float, Number, Number, Number, Number]
_Deal = Callable[[int, Number, float], _Share]
# (most pages, tasks, bursts, tails, tokens of a burst, of a tail) -> seconds of look-ups and issues, of compute
_Others = Callable[[int, float, float, int, Number, Number], tuple[float, Number]]


def fast_array(form: KernelForm, cores: int) -> Callable[[int, Any, float], Any]:
    """``KernelSums.seconds`` for an array of ``tokens`` (as floats) while ``pages`` stands still."""
    import numpy as np

    dma, parts, part_bytes = form.dma, form.plan.parts, form.step_token_bytes * form.plan.reload / form.plan.parts
    lone, shared = dma.latency_s / dma.depth, dma.startup_s / dma.depth
    deal, others, most_s, waits_s = _deal(form.plan, cores, np.maximum), _others(form), bound_s(form), wait_s(form)

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
            waits = tails * np.maximum(0.0, waits_s - tail_s) if tails < bursts else 0.0
        if last_active is not active:
            last_s = transfer(full * part_bytes, last_active)
            streamed = streamed + (last_s - full_s)
            queries = queries + (transfer(form.query_bytes, last_active) - query) / task_pages
        streamed = streamed * parts + queries + waits
        first = (most / bursts - 1) * form.lookup_s + form.miss_s + dma.issue_s
        opening = dma.issue_s + np.maximum(query, first)
        drain = -(-full // FRACTAL) * form.compute.slice_s / parts
        total = opening + streamed - query + drain
        if (most_s * bursts + (full_s + last_s + query) < streamed).all():
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
