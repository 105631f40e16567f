"""How the pages of a launch are dealt to the cores, and what the busiest core gets.

Pages of all tasks (one head of one sequence) are dealt in equal contiguous shares, sequence by sequence and head
by head. ``mean_share`` needs only sums over the batch; ``kernel_deal`` takes every context and gives all shares.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulator.kernels.tiles import TilePlan

# Scalars or arrays of them, with the builtins or numpy's functions: one body serves both.
Number = Any
Maximum = Callable[[Any, Any], Any]
Ceil = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Share:
    """A core's share: pages, tasks it touches, bursts (``tails`` of them at a task's end), tokens of a burst.

    ``active`` is how many cores share the bandwidth on average, ``last_active`` during the core's last burst.
    """

    pages: Number
    tasks: Number
    bursts: Number
    tails: Number
    task_pages: Number
    full_tokens: Number
    tail_tokens: Number
    last_tokens: Number
    active: Number
    last_active: Number


def mean_share(
    plan: TilePlan,
    cores: int,
    sums: tuple[int, Number, Number],
    *,
    maximum: Maximum = max,
    ceil: Ceil = math.ceil,
) -> Share:
    """The busiest core's share, from ``(sequences, tokens, pages)`` of the batch.

    It has ceil(pages * heads / cores) pages; one in every pages / sequences of them is the last, partly filled
    page of its task. Cores that finish early leave their bandwidth to the others, so the mean number of sharers
    follows from the bytes of all. When the share's pages are alike, its last one is shared by the cores that have
    as many pages.
    """
    sequences, tokens, pages = sums
    dealt = pages * plan.steps_per_group
    most = ceil(dealt / cores)
    task_pages = pages / sequences
    tasks = _tasks(cores, sequences * plan.steps_per_group, task_pages, most, maximum, ceil)
    # A burst of g pages that ends with its task is on average cut short by half of g - 1 pages.
    bursts = maximum(tasks, most / plan.group_pages + tasks * (plan.group_pages - 1.0) / (2.0 * plan.group_pages))
    tails = -ceil(-most / task_pages)
    unfilled = (pages * plan.page_tokens - tokens) / sequences
    core_tokens = most * plan.page_tokens - tails * unfilled
    everything = tokens * plan.steps_per_group
    mean = everything / core_tokens
    if plan.group_pages > 1:
        burst = core_tokens / bursts
        return Share(most, tasks, bursts, 0.0, task_pages, burst, burst, burst, mean, mean)
    only_tails = (tails == bursts) * 1.0
    full = plan.page_tokens - only_tails * unfilled
    last = dealt - (most - 1) * cores
    alike = ((tails == 0) + only_tails) * (most > 1)
    before = (everything - last * full) / maximum(full, core_tokens - full)
    active = (1.0 - alike) * mean + alike * maximum(1.0, before)
    last_active = (1.0 - alike) * mean + alike * last
    tail = plan.page_tokens - unfilled
    return Share(most, tasks, bursts, tails, task_pages, full, tail, full, active, last_active)


def _tasks(cores: int, tasks: int, task_pages: Number, pages: Number, maximum: Maximum, ceil: Ceil) -> Number:
    """Tasks that ``pages`` pages in a row touch: ceil((pages - 1) / task_pages) + 1 at worst.

    When cores and tasks divide each other, shares and tasks begin together.
    """
    if cores % tasks == 0:
        return 1.0
    if tasks % cores == 0:
        return float(tasks // cores)
    return -maximum(-pages, -(ceil((pages - 1) / task_pages) + 1))
