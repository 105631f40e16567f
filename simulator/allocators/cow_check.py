"""Every invariant of shared pages, recomputed from the page tables alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.allocators.sharing import CowHolding
from simulator.units import ceil_div

if TYPE_CHECKING:
    from simulator.allocators.shared_tables import SharedTables


def check_sharing(allocator: SharedTables, holdings: Sequence[CowHolding]) -> None:
    """Assert, given all holdings on the device, that each page has as many references as tables name it, that each is
    in exactly one state, and that all byte counts follow from the tables. Messages name the page and the requests.
    """
    owners = _owners(allocator, holdings)
    pages = allocator.pages
    pages.check()
    for page, count in enumerate(pages.references):
        requests = [holding.demand.request_id for holding in owners.get(page, ())]
        assert count == len(requests), (
            f"page {page} has {count} references, but is in the tables of requests {requests}"
        )
    free = set(pages.free_ids())
    assert not owners.keys() & free, f"pages {sorted(owners.keys() & free)[:5]} are owned and free"
    assert len(free) + len(owners) == allocator.usable_pages, "a page was lost"
    assert allocator.owned_pages == len(owners) * allocator.unit, "owned pages drifted"
    assert allocator.allocated_bytes == len(owners) * allocator.layout.page_bytes, "allocated bytes drifted"
    _check_bytes(allocator, holdings, owners)
    if allocator.host is not None:
        allocator.host.check()


def _owners(allocator: SharedTables, holdings: Sequence[CowHolding]) -> dict[int, list[CowHolding]]:
    owners: dict[int, list[CowHolding]] = defaultdict(list)
    page_tokens = allocator.layout.page_tokens
    for holding in holdings:
        assert holding.capacity_tokens <= holding.held_tokens, "capacity beyond what is held"
        rows = ceil_div(holding.held_tokens, page_tokens)
        for group, table, dropped in zip(allocator.layout.groups, holding.tables, holding.dropped, strict=True):
            assert len(table) == (rows - dropped) * group.copies, f"request {holding.demand.request_id}: wrong table"
            assert len(set(table)) == len(table), f"request {holding.demand.request_id} has a page twice"
            for page in table:
                owners[page].append(holding)
    return owners


def _check_bytes(allocator: SharedTables, holdings: Sequence[CowHolding], owners: dict[int, list[CowHolding]]) -> None:
    """``discount_bytes`` and ``tail_bytes``, from each page's sharers."""
    layout = allocator.layout
    discount_bytes = -sum(holding.early_tokens for holding in holdings) * layout.bytes_per_token
    tail_bytes = 0
    for index, group in enumerate(layout.groups):
        # page -> the position at which it ends
        ends: dict[int, int] = {}
        for holding in holdings:
            discount_bytes += holding.dropped[index] * layout.page_tokens * group.token_bytes
            for entry, page in enumerate(holding.tables[index]):
                ends[page] = (entry // group.copies + holding.dropped[index] + 1) * layout.page_tokens
        further = unfilled = 0
        for page, end in ends.items():
            filled, empty = _filled(owners[page], end, layout.page_tokens)
            further += (len(owners[page]) - 1) * filled
            unfilled += empty
        discount_bytes += further * group.token_bytes // group.copies
        tail_bytes += unfilled * group.token_bytes // group.copies
        tail_bytes += len(ends) * layout.page_bytes - len(ends) * layout.page_tokens * group.token_bytes // group.copies
    assert allocator.discount_bytes == discount_bytes, f"discount {allocator.discount_bytes}, {discount_bytes} expected"
    assert allocator.tail_bytes == tail_bytes, f"tail {allocator.tail_bytes}, {tail_bytes} expected"


def _filled(sharers: list[CowHolding], end: int, page_tokens: int) -> tuple[int, int]:
    """Tokens stored in the page that ends before token ``end``, as far as sharing is concerned, and slots of it that
    no sharer will ever fill."""
    tails = {holding.shared_tail for holding in sharers}
    unfilled = max(0, end - max(holding.demand.final_tokens for holding in sharers))
    unfilled = min(unfilled, page_tokens)
    tail = tails.pop() if len(tails) == 1 else None
    if tail is None or tail.end != end or len(sharers) == 1:
        return page_tokens, unfilled
    assert set(tail.sharers) == set(sharers), "a shared last page has other sharers than it knows of"
    return page_tokens - (end - tail.length), unfilled
