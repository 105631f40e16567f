"""When compaction pays: what the moves cost once against what longer transfers save in every step."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakEven:
    """``cost_s`` is paid once, ``gain_s_per_step`` comes back in each step that finds the pages still in place.

    ``steps`` is how many such steps repay the cost, ``period_s`` how long they take: compaction more often than
    that loses time. Both are infinite when adjacency gains nothing.
    """

    cost_s: float
    gain_s_per_step: float
    steps: float
    period_s: float

    def pays(self, *, lifetime_s: float) -> bool:
        """Whether a layout that stays good for ``lifetime_s`` repays the moves that made it."""
        return lifetime_s > self.period_s


def compaction_break_even(
    *,
    moved_pages: int,
    page_bytes: int,
    copy_bandwidth: float,
    read_pages_per_step: float,
    run_pages_before: float,
    run_pages_after: float,
    transfer_s: float,
    step_s: float,
) -> BreakEven:
    """Weigh ``moved_pages`` moves against longer transfers.

    A move reads and writes one page of ``page_bytes`` at ``copy_bandwidth`` bytes/s. A step reads
    ``read_pages_per_step`` pages in pieces of ``run_pages`` adjacent ones, so it issues ``read_pages / run_pages``
    transfers; each adds ``transfer_s`` (its issue time over the number of cores that issue side by side, and 0
    where transfers hide behind others). Nothing but transfers is assumed to change. Raises ``ValueError`` for a
    mean piece below one page or a bandwidth that is not positive.
    """
    if min(run_pages_before, run_pages_after) < 1.0:
        raise ValueError("run_pages_before and run_pages_after are mean lengths in pages and cannot be below 1")
    if copy_bandwidth <= 0:
        raise ValueError(f"copy_bandwidth must be positive, not {copy_bandwidth}")
    cost_s = 2 * moved_pages * page_bytes / copy_bandwidth
    saved_transfers = read_pages_per_step * (1.0 / run_pages_before - 1.0 / run_pages_after)
    gain_s = saved_transfers * transfer_s
    steps = cost_s / gain_s if gain_s > 0 else math.inf
    return BreakEven(cost_s, gain_s, steps, steps * step_s)
