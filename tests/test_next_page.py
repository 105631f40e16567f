"""Growth that can be reckoned with: each sequence's next page at one price (``cycles_per_page``), enough for all
(``sure_to_grow``)."""

import pytest

from simulator.allocators.page_pool import HEAP_CYCLES_PER_LEVEL, LIST_CYCLES_PER_PAGE
from simulator.allocators.paged import PagedAllocator, PageGroup, PageLayout, plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.paged_defrag import PagedDefragAllocator
from simulator.allocators.sharing import RULES, SharingRules
from simulator.config import DefragTrigger, FreeOrder, GrowBy, ProfileName

PLAIN = plain_layout(page_tokens=4, bytes_per_token=10)
OTHERS = {
    "a padded page": PageLayout(4, 50, (PageGroup(10),)),
    "two tables in step": PageLayout(4, 20, (PageGroup(10, copies=2),)),
    "a window": PageLayout(4, 40, (PageGroup(10, window_tokens=6),)),
    "two groups": PageLayout(4, 40, (PageGroup(10), PageGroup(10))),
}


@pytest.mark.parametrize(
    ("order", "cycles"),
    [
        ("lifo", LIST_CYCLES_PER_PAGE),
        ("fifo", LIST_CYCLES_PER_PAGE),
        # a heap of up to eight pages has four levels
        ("address_ordered", 4 * HEAP_CYCLES_PER_LEVEL),
    ],
)
def test_lists_and_heaps_have_one_price(order: FreeOrder, cycles: int) -> None:
    assert PagedAllocator(PLAIN, max_pages=8, free_order=order).cycles_per_page == cycles


def test_a_scan_has_none() -> None:
    assert PagedAllocator(PLAIN, max_pages=8, free_order="first_fit_scan").cycles_per_page is None


@pytest.mark.parametrize("layout", OTHERS.values(), ids=OTHERS.keys())
def test_more_than_one_plain_table_has_none(layout: PageLayout) -> None:
    assert PagedAllocator(layout, max_pages=8).cycles_per_page is None
    assert PagedCowAllocator(layout, max_pages=8).cycles_per_page is None


def test_runs_have_none() -> None:
    allocator = PagedDefragAllocator(PLAIN, max_pages=8, run_length=2, trigger=DefragTrigger())
    assert allocator.cycles_per_page is None


@pytest.mark.parametrize(
    ("profile", "priced"),
    [
        ("generic", True),
        ("vllm-0.33", True),
        ("vllm-0.11", True),
        ("cann-recipes", True),
        # what becomes full may turn out to be there already, so a page may be given back
        ("vllm-0.6", False),
        ("sglang", False),
    ],
)
def test_shared_pages_have_a_price_unless_equal_ones_are_merged(profile: ProfileName, priced: bool) -> None:
    allocator = PagedCowAllocator(PLAIN, max_pages=8, rules=RULES[profile])
    assert allocator.cycles_per_page == (LIST_CYCLES_PER_PAGE if priced else None)


def test_a_hit_on_a_whole_prompt_is_computed_again_and_has_none() -> None:
    rules = SharingRules(share_whole_prompt=True)
    assert PagedCowAllocator(PLAIN, max_pages=8, rules=rules).cycles_per_page is None


def test_pages_of_one_token_are_full_in_the_step_that_begins_them_and_have_none_when_shared() -> None:
    single = plain_layout(page_tokens=1, bytes_per_token=10)
    assert PagedAllocator(single, max_pages=8).cycles_per_page == LIST_CYCLES_PER_PAGE
    assert PagedCowAllocator(single, max_pages=8).cycles_per_page is None


# ---- enough for all


@pytest.mark.parametrize(
    ("sequences", "tokens", "pages"),
    # 4 tokens a page: one token may need a page, five may need two
    [(1, 1, 1), (3, 1, 3), (1, 4, 1), (1, 5, 2), (2, 5, 4), (3, 9, 9)],
)
@pytest.mark.parametrize("copies", [1, 2])
def test_plain_pages_are_enough_for_all_exactly_if_all_can_begin_a_page_at_once(
    sequences: int, tokens: int, pages: int, copies: int
) -> None:
    layout = PageLayout(4, 40 // copies, (PageGroup(10, copies=copies),))
    for free in range(10 * copies):
        allocator = PagedAllocator(layout, max_pages=free)
        assert allocator.sure_to_grow(sequences, tokens) is (pages * copies <= free)
        assert allocator.free_rows() == free // copies


@pytest.mark.parametrize(
    ("sequences", "tokens", "pages"),
    # a token takes a new page or a copy of the last one; for more the bound is their pages, a copy and one more
    [(1, 1, 1), (3, 1, 3), (1, 2, 3), (1, 4, 3), (2, 5, 6), (1, 6, 4)],
)
def test_shared_pages_reckon_with_a_copy_of_the_last_one(sequences: int, tokens: int, pages: int) -> None:
    for free in range(9):
        allocator = PagedCowAllocator(PLAIN, max_pages=free)
        assert allocator.sure_to_grow(sequences, tokens) is (pages <= free)


@pytest.mark.parametrize(
    ("grow_by", "tokens", "sure"),
    # five tokens begin two pages, which are a run, and that may have to be made first
    [("page", 4, True), ("page", 5, False), ("page", 9, False), ("run", 1, False)],
)
def test_only_single_pages_are_sure_in_a_pool_of_runs(grow_by: GrowBy, tokens: int, sure: bool) -> None:
    allocator = PagedDefragAllocator(PLAIN, max_pages=8, run_length=2, trigger=DefragTrigger(), grow_by=grow_by)
    assert allocator.sure_to_grow(8, tokens) is sure
    assert allocator.sure_to_grow(9, tokens) is False
