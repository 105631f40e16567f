"""Every invariant of shared pages, recomputed from the page tables alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from simulator.allocators.sharing import CowHolding

if TYPE_CHECKING:
    from simulator.allocators.shared_tables import SharedTables


def check_sharing(allocator: SharedTables, holdings: Sequence[CowHolding]) -> None:
    """Assert, given all holdings on the device, that each page has as many references as tables name it, that each is
    in exactly one state, and that all byte counts follow from the tables. Messages name the page and the requests.
    """
    for holding in holdings:
        _check_tables(allocator, holding)
    named = Counter(chain.from_iterable(chain.from_iterable(holding.tables for holding in holdings)))
    pages = allocator.pages
    pages.check()
    owned = {page: count for page, count in enumerate(pages.references) if count}
    if owned != named:
        page = min(page for page in owned.keys() | named.keys() if owned.get(page, 0) != named[page])
        requests = [h.demand.request_id for h in holdings if any(page in table for table in h.tables)]
        raise AssertionError(
            f"page {page} has {owned.get(page, 0)} references, but is in the tables of requests {requests}"
        )
    assert len(pages) + len(owned) == allocator.usable_pages, "a page was lost"
    assert allocator.owned_pages == len(owned) * allocator.unit, "owned pages drifted"
    assert allocator.allocated_bytes == len(owned) * allocator.layout.page_bytes, "allocated bytes drifted"
    _check_bytes(allocator, holdings)
    if allocator.host is not None:
        allocator.host.check()


def _check_tables(allocator: SharedTables, holding: CowHolding) -> None:
    request_id, page_tokens = holding.demand.request_id, allocator.layout.page_tokens
    assert holding.capacity_tokens <= holding.held_tokens, f"request {request_id}: capacity beyond what is held"
    rows = holding.held_tokens // page_tokens
    for group, table, dropped in zip(allocator.layout.groups, holding.tables, holding.dropped, strict=True):
        assert len(table) == (rows - dropped) * group.copies, f"request {request_id}: wrong table"
        assert len(set(table)) == len(table), f"request {request_id} has a page twice"


def _check_bytes(allocator: SharedTables, holdings: Sequence[CowHolding]) -> None:
    for tail in {holding.shared_tail for holding in holdings} - {None}:
        assert tail is not None
        assert len(tail.sharers) > 1, "a last page is called shared, but has one holder"
        assert all(holding.shared_tail is tail for holding in tail.sharers), "a shared last page was left unnoticed"
    discount_bytes, tail_bytes = sharing_bytes(allocator, holdings)
    assert allocator.discount_bytes == discount_bytes, f"discount {allocator.discount_bytes}, {discount_bytes} expected"
    assert allocator.tail_bytes == tail_bytes, f"tail {allocator.tail_bytes}, {tail_bytes} expected"


def sharing_bytes(allocator: SharedTables, holdings: Sequence[CowHolding]) -> tuple[int, int]:
    """``discount_bytes`` and ``tail_bytes`` as they follow from the tables of ``holdings`` alone: full pages by
    counting, partly filled shared ones by who of ``holdings`` shares them."""
    layout = allocator.layout
    sharers: dict[int, list[CowHolding]] = {}
    for holding in holdings:
        if holding.shared_tail is not None:
            sharers.setdefault(id(holding.shared_tail), []).append(holding)
    # tokens of full pages that no length contains, and slots that all but one of their sharers count in vain
    missing_tokens = sum(holding.early_tokens for holding in holdings)
    unfilled_tokens = sum(max(0, holding.held_tokens - holding.demand.final_tokens) for holding in holdings)
    for together in sharers.values():
        tail = together[0].shared_tail
        assert tail is not None
        missing_tokens += (len(together) - 1) * (tail.end - tail.length)
        unfilled = [max(0, tail.end - holding.demand.final_tokens) for holding in together]
        unfilled_tokens -= sum(unfilled) - min(unfilled)
    discount_bytes = -missing_tokens * layout.bytes_per_token
    tail_bytes = unfilled_tokens * layout.bytes_per_token
    for index, group in enumerate(layout.groups):
        row_bytes = layout.page_tokens * group.token_bytes
        pages = Counter(chain.from_iterable(holding.tables[index] for holding in holdings))
        discount_bytes += sum(holding.dropped[index] for holding in holdings) * row_bytes
        discount_bytes += (pages.total() - len(pages)) * row_bytes // group.copies
        tail_bytes += len(pages) * layout.page_bytes - len(pages) * row_bytes // group.copies
    return discount_bytes, tail_bytes
