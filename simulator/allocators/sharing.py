"""The rules engines follow when they share pages, and the values that sharing adds to a sequence."""

from dataclasses import dataclass
from typing import cast

from simulator.allocators.base import Demand
from simulator.allocators.bulk import Pages, page_array
from simulator.allocators.page_contents import PageContents
from simulator.allocators.page_keys import SharedDemand
from simulator.allocators.paged import PagedHolding
from simulator.config import FreeOrder, ProfileName


@dataclass(frozen=True, slots=True)
class SharingRules:
    """Where engines differ.

    ``free_order``: of pages without known content; ``fifo`` queues them with the cached ones. ``deduplicate``: a page
    that turns out equal to one already known is replaced by it. ``share_whole_prompt``: a hit may cover the whole
    prompt, of which the last page is then computed again but not stored again. ``charge_hits``: admission asks for room
    as if nothing had hit. ``computed_next_step``: what the running step computes is shared but saves no computing yet.
    ``names_outputs``: generated pages are found again while their sequence lives, so after a preemption too; if not,
    only from its end on. ``counts_refused``: the hit rate counts a waiting request at every step that refuses it.
    """

    free_order: FreeOrder = "lifo"
    null_page: bool = False
    reverse_release: bool = True
    deduplicate: bool = False
    share_whole_prompt: bool = False
    charge_hits: bool = False
    computed_next_step: bool = False
    names_outputs: bool = True
    counts_refused: bool = False


#: vLLM: ``v1/core/block_pool.py`` (0.11, 0.33), ``core/block/prefix_caching_block.py`` (0.6.3); SGLang:
#: ``mem_cache/radix_cache.py`` (its page 0 is extra, so all pages are usable); cann-recipes-infer shares nothing
RULES: dict[ProfileName, SharingRules] = {
    "generic": SharingRules(),
    "vllm-0.33": SharingRules(null_page=True),
    "vllm-0.11": SharingRules(free_order="fifo", null_page=True, counts_refused=True),
    "vllm-0.6": SharingRules(deduplicate=True, share_whole_prompt=True, charge_hits=True, computed_next_step=True),
    "sglang": SharingRules(deduplicate=True, names_outputs=False),
    "cann-recipes": SharingRules(free_order="fifo", null_page=True, reverse_release=False),
}


class CowHolding(PagedHolding):
    """``registered`` leading rows are findable by content; ``shared_tail`` is set while others share the partly filled
    last page; ``early_tokens`` lie in pages that were hit but will be computed again, and have not been so far;
    ``contents`` are those of its pages, once somebody has asked. Tables are arrays."""

    __slots__ = ("contents", "early_tokens", "registered", "shared_tail")

    def __init__(self, demand: Demand, groups: int) -> None:
        super().__init__(demand, groups)
        self.tables = [page_array(()) for _ in range(groups)]
        self.contents: PageContents | None = None
        self.registered = 0
        self.early_tokens = 0
        self.shared_tail: SharedTail | None = None


def table_of(holding: PagedHolding, index: int) -> Pages:
    """The page table of group ``index`` of a holding whose tables are arrays."""
    table: Pages = holding.tables[index]
    return table


def priority_of(holding: PagedHolding) -> int:
    """The priority of the request that ``holding`` belongs to."""
    return cast(SharedDemand, holding.demand).priority


class SharedTail:
    """A last page that several sequences share, filled up to their token ``length`` and ending before token ``end``."""

    __slots__ = ("end", "length", "sharers")

    def __init__(self, length: int, end: int, first: CowHolding) -> None:
        self.length = length
        self.end = end
        self.sharers = [first]

    def excess_tokens(self) -> int:
        """How often slots that no token will fill are counted too much when every sharer counts its own."""
        tails = [max(0, self.end - holding.demand.final_tokens) for holding in self.sharers]
        return sum(tails) - min(tails)

    def join(self, holding: CowHolding) -> None:
        """``holding`` shares the page too."""
        self.sharers.append(holding)
        holding.shared_tail = self

    def leave(self, holding: CowHolding) -> None:
        """``holding`` shares it no more; whoever is left alone writes in place."""
        self.sharers.remove(holding)
        holding.shared_tail = None
        if len(self.sharers) == 1:
            self.sharers[0].shared_tail = None
