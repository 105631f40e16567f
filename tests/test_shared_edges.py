"""Edges of sharing and of swapping that random use reaches seldom."""

from typing import Any

import pytest
from cow_world import Sequence

from simulator.allocators.base import Life, Shortfall
from simulator.allocators.bulk import page_array
from simulator.allocators.eviction import LeafOrder
from simulator.allocators.host_pool import HostPool
from simulator.allocators.paged import PagedAllocator, PageGroup, PageLayout, plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.sharing import RULES

PLAIN = plain_layout(page_tokens=4, bytes_per_token=10)
WINDOW = PageLayout(4, 40, (PageGroup(10, window_tokens=2),))


def test_where_outputs_have_no_names_they_have_them_from_the_last_token_on() -> None:
    """SGLang puts a request into its tree when it is over: a prompt of four tokens and four of five outputs."""
    allocator = PagedCowAllocator(PLAIN, max_pages=8, rules=RULES["sglang"])
    request = Sequence(1, 4, 5)
    holding = allocator.admit(request, 4)
    assert holding is not None and request.final_tokens == 8
    for length in range(5, 9):
        request.computed_tokens = length
        assert length <= holding.capacity_tokens or allocator.grow(holding, length)
    prompt_page, output_page = holding.tables[0]
    assert allocator.pages.has_content(prompt_page) and not allocator.pages.has_content(output_page)
    allocator.release(holding)
    assert allocator.pages.has_content(output_page) and allocator.pages.cached_pages == 2


def test_who_ends_before_the_last_token_leaves_its_prompt_only() -> None:
    allocator = PagedCowAllocator(PLAIN, max_pages=8, rules=RULES["sglang"])
    request = Sequence(1, 4, 6)
    holding = allocator.admit(request, 4)
    assert holding is not None and allocator.grow(holding, 5)
    request.computed_tokens = 8
    allocator.release(holding)
    assert allocator.pages.cached_pages == 1


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("layout", [PLAIN, WINDOW], ids=["plain", "window"])
def test_who_comes_back_with_room_for_the_next_token_asks_for_nothing(
    sharing: bool, layout: PageLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = PagedCowAllocator if sharing else PagedAllocator
    allocator = kind(layout, max_pages=8, host=HostPool(8))
    demand = Sequence(1, 4, 9, computed_tokens=4) if sharing else Life(1, 4, 9, 12)
    holding = allocator.admit(demand, 4)
    assert holding is not None and allocator.grow(holding, 5)
    before = holding.capacity_tokens
    assert allocator.swap_out([holding]) == 80 and holding.capacity_tokens == 0
    taken = allocator.totals.pages_taken
    with monkeypatch.context() as patch:
        patch.setattr(kind, "grow", None)
        assert allocator.swap_in([(holding, 5)]) == 80
    # the window of two tokens sees the first page until its last token is two back
    assert holding.capacity_tokens == before == (8 if layout is PLAIN else 5)
    assert allocator.totals.pages_taken == taken + 2


def test_a_page_given_to_somebody_else_is_no_parent_of_what_was_built_on_it_before() -> None:
    """A window lets go of page 0 while page 1, which follows it, is still read; page 0 is then filled anew."""
    order = LeafOrder("filo")
    order.cover(2)
    order.built(0, on=-1, priority=0)
    order.built(1, on=0, priority=0)
    order.extend(page_array([0]))
    assert list(order.take(1)) == [0]
    order.built(0, on=-1, priority=0)
    order.extend(page_array([1]))
    order.extend(page_array([0]))
    # the page filled last goes first, and nothing of its content lies on it
    assert list(order.take(2)) == [0, 1]


def test_the_end_of_a_step_moves_nothing_and_is_due_only_while_hits_wait_to_be_computed() -> None:
    for profile, waits in (("generic", False), ("vllm-0.6", True)):
        allocator = PagedCowAllocator(PLAIN, max_pages=8, rules=RULES[profile])  # type: ignore[index]
        assert allocator.admit(Sequence(1, 9, 2), 9) is not None
        assert allocator.maintenance_due_ns(7) == (7 if waits else None)
        assert allocator.maintain(7, []) is False
        assert allocator.maintenance_due_ns(8) is None


@pytest.mark.parametrize(("pages", "admitted"), [(7, True), (6, False)])
def test_room_for_the_whole_prompt_is_reckoned_behind_the_hit(pages: int, admitted: bool) -> None:
    """Of forty tokens twenty are hit. The window sees one page of these; the other twenty take at most
    ceil((1 + 20) / 4) + 1 = 7 rows at once, of which that page is one, and it is taken out of the cache."""
    allocator = PagedCowAllocator(WINDOW, max_pages=pages)
    first = allocator.admit(Sequence(1, 20, 1, prefix=([3], [20]), computed_tokens=20), 20)
    assert first is not None
    allocator.release(first)
    second = allocator.admit(Sequence(2, 40, 1, prefix=([3], [20])), 24, whole_tokens=40)
    assert (second is not None) == admitted
    if second is not None:
        assert second.hit_tokens == 20
    else:
        assert allocator.shortfall == Shortfall("capacity", 7 * 40, 6 * 40, 6 * 40)
