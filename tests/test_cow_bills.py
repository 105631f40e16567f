"""Shared pages under random use: costs, counts, refusals and the order in which pages are given up."""

import pytest
from cow_bills import BilledWorld
from test_paged_cow import play_randomly

from simulator.allocators.sharing import RULES


@pytest.mark.parametrize("profile", ["generic", "vllm-0.33", "vllm-0.11", "cann-recipes"])
@pytest.mark.parametrize("caching", [True, False], ids=["cached", "plain"])
@pytest.mark.parametrize("page_tokens", [4, 2, 1])
def test_every_operation_costs_counts_and_leaves_what_its_tables_say(
    profile: str, caching: bool, page_tokens: int
) -> None:
    world = BilledWorld(
        RULES[profile],  # type: ignore[index]
        max_pages=26 - 3 * page_tokens,
        page_tokens=page_tokens,
        enable_prefix_caching=caching,
        page_cycles=8,
    )
    play_randomly(world, 250, seed=page_tokens, check_every=25)
