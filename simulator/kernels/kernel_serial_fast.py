"""``kernel_serial`` once more, unrolled for the engine's inner loop: the same operations in the same order.

Written without objects, and a case leaves out what only multiplies by zero in it; a property test holds it to
``kernel_serial`` bit for bit.
"""

from collections.abc import Callable
from math import ceil, floor

from simulator.kernels.compute import FRACTAL
from simulator.kernels.kernel_form import KernelForm
from simulator.kernels.kernel_serial import TINY, equal_share
from simulator.kernels.kernel_share import Number
from simulator.kernels.tiles import TABLE_ENTRY_BYTES

# (sequences, tokens, pages, tokens of the longest sequence) -> seconds of one launch
SerialSeconds = Callable[[int, float, float, float], float]
# (pages, tails, tasks, tokens of a tail, streaming cores) -> seconds
_CoreSeconds = Callable[[Number, float, float, float, float], float]
# (most pages of a core, pages of all, sequences, pages of the longest, whether all are equal) -> tails, tasks, alike
_Within = Callable[[int, float, int, float, bool], tuple[float, float, float]]
# (most pages of a core, its tails, tasks, tokens of a tail, cores alike, streaming cores, its seconds, tokens)
_Fullest = tuple[int, float, float, float, float, float, float, float]


def serial_seconds(form: KernelForm, cores: int) -> SerialSeconds:
    """``kernel_serial.serial_timing(...).total_s`` of numbers."""
    heads, page = form.plan.steps_per_group, form.plan.page_tokens
    core_s = _core_seconds(form)
    total, fullest = _total(form), _fullest(form, cores, core_s)

    def seconds(sequences: int, tokens: float, pages: float, longest: float = 0.0) -> float:
        most, tails, tasks, tail, alike, used, whole_s, own = fullest(sequences, tokens, pages, longest)
        count = used - alike
        count = count if count > 1.0 else 1.0
        less = (pages * heads - alike * most) / count
        less = less if less > 0.0 else 0.0
        ends = (sequences * heads - alike * tails) / count
        ends = ends if ends > 0.0 else 0.0
        ends = less if less < ends else ends
        left = (tokens * heads - alike * own) / count
        left = left if left > 0.0 else 0.0
        unfilled = (less * page - left) / (ends if ends > TINY else TINY)
        less_tail = page - (0.0 if unfilled < 0.0 else unfilled if unfilled < page - 1 else page - 1)
        less_tasks = ends if ends > 1.0 else 1.0
        less_tasks = less if less < less_tasks else less_tasks
        less_s = core_s(less, ends, less_tasks if less_tasks > TINY else TINY, less_tail, used)
        part = less_s / whole_s if less_s < whole_s else 1.0
        return total(most, tails, tasks, tail, alike, used, part)

    return seconds


def _fullest(form: KernelForm, cores: int, core_s: _CoreSeconds) -> Callable[[int, float, float, float], _Fullest]:
    """``_Launch.fullest``."""
    heads, page, within = form.plan.steps_per_group, form.plan.page_tokens, _within(form, cores)

    def fullest(sequences: int, tokens: float, pages: float, longest: float) -> _Fullest:
        mean = tokens / sequences
        if not longest > mean:
            longest = mean
        dealt = pages * heads
        most = ceil(dealt / cores)
        used = cores if cores < dealt else dealt
        equal = sequences * longest < tokens + 0.5
        task_pages: float = pages / sequences
        if not equal:
            task_pages, fewest = ceil(longest / page), pages - sequences + 1
            task_pages = task_pages if task_pages < fewest else fewest
        unfilled = task_pages * page - longest
        tail = page - (0.0 if unfilled < 0.0 else unfilled if unfilled < page - 1 else page - 1)
        tails, tasks, alike = within(most, pages, sequences, task_pages, equal)
        own = most * page - tails * (page - tail)
        share = tokens * heads / own
        alike = used if used < alike else alike
        share = share if share > 1.0 else 1.0
        alike = alike if alike < share else share
        seconds = core_s(most, tails, tasks, tail, used)
        if equal or sequences == 1:
            return most, tails, tasks, tail, alike, used, seconds, own
        others, rest = sequences - 1, pages - task_pages
        ends = floor(most / (rest / others))
        ends = ends if ends < others * heads else others * heads
        unfilled = (rest * page - (tokens - longest)) / others
        other_tail = page - (0.0 if unfilled < 0.0 else unfilled if unfilled < page - 1 else page - 1)
        other_tails, other_tasks = (ends, ends + 1.0) if ends < most else (most, most)
        other_s = core_s(most, other_tails, other_tasks, other_tail, used)
        if other_s > seconds:
            own = most * page - other_tails * (page - other_tail)
            return most, other_tails, other_tasks, other_tail, 1.0, used, other_s, own
        return most, tails, tasks, tail, alike, used, seconds, own

    return fullest


def _within(form: KernelForm, cores: int) -> _Within:
    """Ends and tasks of ``_Launch._within``, and the cores alike before their bounds from above."""
    heads = form.plan.steps_per_group

    def within(most: int, pages: float, sequences: int, task_pages: float, equal: bool) -> tuple[float, float, float]:
        dealt = pages * heads
        full_cores = dealt - (most - 1) * cores
        if equal:
            tails, tasks, alike = equal_share(cores, sequences * heads, dealt)
        else:
            tails = floor(most / task_pages)
            tasks = tails + 1.0 if tails < most else most
            alike = full_cores * (1.0 - (most / task_pages - tails)) * (task_pages * heads / dealt)
        inside = full_cores * (1.0 - most * sequences / pages)
        alike = alike if alike > inside else inside
        return tails, tasks, alike if alike > 1.0 else 1.0

    return within


def _core_seconds(form: KernelForm) -> _CoreSeconds:
    """``_Launch.seconds``."""
    plan, dma, query_bytes, lookup, issue = form.plan, form.dma, form.query_bytes, form.lookup_s, form.dma.issue_s
    page, parts, transfers, slice_s, is_l1 = (
        plan.page_tokens,
        plan.parts,
        plan.transfers,
        form.compute.slice_s,
        form.table == "l1",
    )
    part_bytes = form.step_token_bytes * plan.reload / parts
    start, lone, port, bandwidth = (
        dma.startup_s / dma.depth,
        dma.latency_s / dma.depth,
        dma.port_bandwidth,
        dma.shared_bandwidth,
    )
    entries, cold = form.line_entries, form.miss_s - form.hit_s if form.table == "dcache" else 0.0
    partial, page_slices = (entries - 1) / (2 * entries), -(-page // FRACTAL)
    full_bytes = page * part_bytes
    full_alone, query_alone = max(issue, lone + full_bytes / port), max(issue, lone + query_bytes / port)

    def seconds(pages: Number, tails: float, tasks: float, tail_tokens: float, used: float) -> float:
        looks = pages * transfers * lookup
        if cold:
            lines = pages / entries + tasks * partial
            looks = looks + (tasks if tasks > lines else lines) * cold
        scalar = looks + (pages * parts + tasks + (tasks if is_l1 else 0.0)) * issue
        shared = start + full_bytes * used / bandwidth
        full = (pages - tails) * (shared if shared > full_alone else full_alone)
        slices = (pages - tails) * page_slices
        if tails:
            slices += tails * -(-tail_tokens // FRACTAL)
            size = tail_tokens * part_bytes
            tail, shared = lone + size / port, start + size * used / bandwidth
            tail = tail if tail > issue else issue
            full += tails * (tail if tail > shared else shared)
        query = start + query_bytes * used / bandwidth
        total: float = (
            scalar + slices * slice_s + full * parts + tasks * (query if query > query_alone else query_alone)
        )
        if is_l1:
            size = pages / tasks * TABLE_ENTRY_BYTES
            row, shared = lone + size / port, start + size * used / bandwidth
            row = row if row > issue else issue
            total += tasks * (row if row > shared else shared)
        return total

    return seconds


def _total(form: KernelForm) -> Callable[[int, float, float, float, float, float, float], float]:
    """``serial_timing`` once the fullest core and the part of its share at which others finish are known."""
    plan, dma, query_bytes, lookup, issue = form.plan, form.dma, form.query_bytes, form.lookup_s, form.dma.issue_s
    page, parts, transfers, slice_s, is_l1 = (
        plan.page_tokens,
        plan.parts,
        plan.transfers,
        form.compute.slice_s,
        form.table == "l1",
    )
    part_bytes = form.step_token_bytes * plan.reload / parts
    start, lone, port, bandwidth = (
        dma.startup_s / dma.depth,
        dma.latency_s / dma.depth,
        dma.port_bandwidth,
        dma.shared_bandwidth,
    )
    entries, cold = form.line_entries, form.miss_s - form.hit_s if form.table == "dcache" else 0.0
    partial, page_slices = (entries - 1) / (2 * entries), -(-page // FRACTAL)

    def transfer(size: float, alike: float, used: float, part: float) -> float:
        alone, slope = lone + size / port, size / bandwidth
        alone = alone if alone > issue else issue
        turn = (alone - start) / slope
        turn = turn if turn > alike else alike
        turn = used if used < turn else turn
        gap = used - alike
        above = (used - turn) * (start + slope * (used + turn) / 2.0)
        fading = (alone * (turn - alike) + above) / (gap if gap > TINY else TINY)
        if part > 0.5:
            early, busy = 2.0 * part - 1.0, start + size * used / bandwidth
            return early * (busy if busy > alone else alone) + (1.0 - early) * fading
        late, quiet = 2.0 * part, start + size * alike / bandwidth
        return late * fading + (1.0 - late) * (quiet if quiet > alone else alone)

    def total(
        most: int, tails: float, tasks: float, tail_tokens: float, alike: float, used: float, part: float
    ) -> float:
        looks = most * transfers * lookup
        if cold:
            lines = most / entries + tasks * partial
            looks = looks + (tasks if tasks > lines else lines) * cold
        scalar = looks + (most * parts + tasks + (tasks if is_l1 else 0.0)) * issue
        slices, tiles = (most - tails) * page_slices, 0.0
        if tails < most:
            tiles = (most - tails) * transfer(page * part_bytes, alike, used, part)
        if tails:
            slices += tails * -(-tail_tokens // FRACTAL)
            tiles += tails * transfer(tail_tokens * part_bytes, alike, used, part)
        streamed = tiles * parts + tasks * transfer(query_bytes, alike, used, part)
        if is_l1:
            streamed += tasks * transfer(most / tasks * TABLE_ENTRY_BYTES, alike, used, part)
        return scalar + streamed + slices * slice_s

    return total
