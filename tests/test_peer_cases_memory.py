"""Numeric cases of real engines' own test suites: allocation, prefix cache, fork, copy-on-write, swap.

Each test names the public tree and test that the numbers come from. Inputs and results are facts; no code was taken.
"""

from dataclasses import replace
from itertools import chain

import pytest
from cow_world import Sequence

from simulator.allocators.hit_window import HitWindow
from simulator.allocators.host_pool import HostPool
from simulator.allocators.paged import PagedAllocator, PageGroup, PageLayout, plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.sharing import RULES, CowHolding, SharingRules
from simulator.units import ceil_div

NEWEST, STABLE, V0, SGLANG = RULES["vllm-0.33"], RULES["vllm-0.11"], RULES["vllm-0.6"], RULES["sglang"]


class Engine:
    """One allocator with pages of ``page_tokens`` and requests given by their very tokens."""

    def __init__(
        self,
        rules: SharingRules,
        *,
        pages: int,
        page_tokens: int,
        caching: bool = True,
        host_pages: int = 0,
        layout: PageLayout | None = None,
    ) -> None:
        self.allocator = PagedCowAllocator(
            layout or plain_layout(page_tokens=page_tokens, bytes_per_token=1),
            max_pages=pages,
            rules=rules,
            enable_prefix_caching=caching,
            host=HostPool(host_pages),
        )
        self.copies: list[tuple[int, int]] = []
        self.allocator.on_copy = lambda source, target, count: self.copies.append((source, target))
        self.page_tokens = page_tokens
        self._names: dict[tuple[object, ...], int] = {}
        self._requests = 0

    def demand(self, tokens: list[object], *, output_tokens: int = 1000, salt: object = None) -> Sequence:
        """A request for ``tokens``; ``salt`` stands for LoRA names, cache salts and the like."""
        ends = list(range(1, len(tokens) + 1))
        ids = [self._names.setdefault((salt, *tokens[:end]), len(self._names)) for end in ends]
        self._requests += 1
        return Sequence(self._requests - 1, len(tokens), output_tokens, prefix=(ids, ends), computed_tokens=len(tokens))

    def start(self, tokens: list[object], *, salt: object = None) -> CowHolding:
        holding = self.allocator.admit(self.demand(tokens, salt=salt), len(tokens))
        assert holding is not None
        return holding

    def extend(self, holding: CowHolding, new_tokens: int) -> bool:
        sequence = holding.demand
        assert isinstance(sequence, Sequence)
        length = sequence.computed_tokens + new_tokens
        sequence.tokens = [("known",)] * length
        if not self.allocator.grow(holding, length, new_tokens):
            return False
        sequence.computed_tokens = length
        return True

    def hit_tokens(self, tokens: list[object], *, salt: object = None) -> int:
        """The longest stored prefix of ``tokens``, the last of which may be hit too."""
        return self.allocator.hit_tokens(self.demand([*tokens, "next"], salt=salt), len(tokens) + 1)

    @property
    def free(self) -> int:
        return self.allocator.free_pages()

    @property
    def cached_pages(self) -> int:
        return self.allocator.occupancy().cached_bytes // self.page_tokens


def numbers(first: int, last: int) -> list[object]:
    return list(range(first, last))


COMMON = numbers(0, 48)


# ---- allocation, look-ahead, admission


@pytest.mark.parametrize(("tokens", "lookahead", "pages"), [(3, 2, 2), (3, 4, 2)])
def test_lookahead_slots_are_held_but_hold_nothing_to_find(tokens: int, lookahead: int, pages: int) -> None:
    """vLLM 0.33 tests/v1/core/test_kv_cache_utils.py::test_allocate_with_lookahead"""
    engine = Engine(NEWEST, pages=10, page_tokens=4)
    demand = engine.demand(numbers(0, tokens))
    holding = engine.allocator.admit(demand, tokens + lookahead)
    assert holding is not None
    assert len(holding.pages) == pages
    engine.allocator.release(holding)
    assert engine.cached_pages == 0


def test_decoding_fills_pages_and_registers_only_full_ones() -> None:
    """vLLM 0.33 tests/v1/core/test_prefix_caching.py::test_decode"""
    engine = Engine(NEWEST, pages=11, page_tokens=16)
    holding = engine.start([*COMMON, *numbers(100, 107)])
    assert engine.extend(holding, 4)
    assert len(holding.pages) == 4
    assert engine.extend(holding, 19)
    assert len(holding.pages) == 5
    assert [engine.allocator.pages.has_content(page) for page in holding.pages] == [True, True, True, True, False]


def hit_pages(engine: Engine, tokens: list[object]) -> None:
    """Leave the full pages of ``tokens`` cached, without a reader."""
    engine.allocator.release(engine.start(tokens))


@pytest.mark.parametrize(("others", "fits"), [(0, True), (1, False)])
def test_cached_pages_that_are_hit_cost_one_free_page_each(others: int, fits: bool) -> None:
    """vLLM 0.33 tests/v1/core/test_single_type_kv_cache_manager.py::test_get_num_blocks_to_allocate

    10 new pages and 10 taken back from the cache: 20.
    """
    engine = Engine(NEWEST, pages=1 + 20 + others, page_tokens=2)
    hit_pages(engine, numbers(0, 20))
    held = [engine.start(numbers(1000 + i, 1001 + i)) for i in range(2 * others)]
    assert len(held) == 2 * others
    holding = engine.allocator.admit(engine.demand(numbers(0, 40)), 40)
    assert (holding is not None) == fits
    if holding is None:
        assert engine.allocator.shortfall is not None
        assert engine.allocator.shortfall.needed_bytes == 20 * 2


def test_a_hit_page_is_counted_for_capacity_but_not_taken_a_second_time() -> None:
    """vLLM 0.33 tests/v1/core, test_evictable_cached_blocks_not_double_allocated"""
    engine = Engine(NEWEST, pages=3, page_tokens=2)
    hit_pages(engine, numbers(0, 2))
    taken = engine.allocator.totals.pages_taken
    holding = engine.start(numbers(0, 4))
    assert (len(holding.pages), engine.allocator.totals.pages_taken - taken, engine.free) == (2, 1, 0)


def test_without_caching_pages_come_and_go() -> None:
    """vLLM 0.33 tests/v1/core/test_prefix_caching.py::test_basic_prefix_caching_disabled"""
    engine = Engine(NEWEST, pages=5, page_tokens=4, caching=False)
    first = engine.start(numbers(0, 10))
    assert len(first.pages) == 3
    engine.allocator.release(first)
    second = engine.start(numbers(0, 16))
    assert (len(second.pages), second.hit_tokens) == (4, 0)
    assert engine.allocator.admit(engine.demand(numbers(0, 4)), 4) is None
    assert (engine.allocator.totals.prefix_query_tokens, engine.allocator.totals.prefix_hit_tokens) == (0, 0)


def test_a_prompt_larger_than_the_pool_is_refused_though_its_first_chunk_fits() -> None:
    """vLLM 0.33 tests/v1/core, test_can_fit_full_sequence_full_attention_still_gates_oversized"""
    engine = Engine(NEWEST, pages=5, page_tokens=16)
    demand = engine.demand(numbers(0, 256), output_tokens=1)
    assert engine.allocator.admit(demand, 16, whole_tokens=256) is None
    assert not engine.allocator.can_ever_hold(demand)
    assert engine.allocator.admit(demand, 16) is not None


def test_a_window_leaves_its_pages_behind_as_it_moves() -> None:
    """vLLM 0.33 tests/v1/core/test_single_type_kv_cache_manager.py::test_sliding_window_remove_skipped_blocks"""
    engine = Engine(
        NEWEST, pages=20, page_tokens=2, caching=False, layout=PageLayout(2, 2, (PageGroup(1, window_tokens=4),))
    )
    holding = engine.allocator.admit(engine.demand(numbers(0, 22)), 22)
    assert holding is not None
    table = list(holding.pages)
    for computed, dropped in ((0, 0), (4, 0), (5, 1), (6, 1), (7, 2), (11, 4)):
        assert engine.allocator.grow(holding, 22, 22 - computed)
        assert holding.dropped == [dropped]
    assert engine.allocator.pages.free_ids()[:2] == [table[3], table[2]]


def test_hits_that_use_up_the_free_pages_leave_nothing_half_done() -> None:
    """inference-sim f90a1e3 TestAllocateKVBlocks_PreCheck_CatchesCachedBlockBudgetExhaustion"""
    engine = Engine(replace(NEWEST, null_page=False), pages=4, page_tokens=2)
    hit_pages(engine, numbers(0, 4))
    filler = engine.start(numbers(50, 52))
    free, references = engine.free, list(engine.allocator.pages.references)
    assert engine.allocator.admit(engine.demand(numbers(0, 8)), 8) is None
    assert (engine.free, list(engine.allocator.pages.references)) == (free, references)
    engine.allocator.check([filler])


@pytest.mark.parametrize("pool", [8, 40, 80])
@pytest.mark.parametrize("watermark", [0.0, 0.5])
def test_admission_leaves_the_watermark_free(pool: int, watermark: float) -> None:
    """vLLM 0.6.3 tests/core/block/test_block_manager.py::test_can_allocate_seq_group"""
    keep = int(watermark * pool)
    for prompt_pages in range(1, 2 * pool):
        engine = Engine(V0, pages=pool, page_tokens=16)
        tokens = (prompt_pages + 1) * 16
        demand = Sequence(0, tokens, 1)
        holding = engine.allocator.admit(demand, tokens, keep_free_bytes=keep * 16)
        assert (holding is None) == (pool - (prompt_pages + 1) < keep)


@pytest.mark.parametrize("page_tokens", [8, 16])
@pytest.mark.parametrize("prompt", [10, 300, 1000])
@pytest.mark.parametrize("window", [20, 32, 200, 512])
def test_decoding_within_a_window_never_holds_more_than_the_window_and_its_edges(
    page_tokens: int, prompt: int, window: int
) -> None:
    """vLLM 0.6.3 tests/core/block/test_block_manager.py::test_sliding_window"""
    layout = PageLayout(page_tokens, page_tokens, (PageGroup(1, window_tokens=window),))
    engine = Engine(V0, pages=1024, page_tokens=page_tokens, caching=False, layout=layout)
    holding = engine.start(numbers(0, prompt))
    assert engine.allocator.owned_pages == ceil_div(prompt, page_tokens)
    for _ in range(50):
        assert engine.extend(holding, 1)
        assert engine.allocator.owned_pages <= window // page_tokens + 2 + 1 + 1


@pytest.mark.parametrize("pool", [1, 1024])
def test_a_full_pool_refuses_and_a_freed_page_is_the_next_one_used(pool: int) -> None:
    """vLLM 0.6.3 tests/core/block/test_naive_block.py::test_allocate_ooms, test_free_prevents_oom"""
    engine = Engine(V0, pages=pool, page_tokens=4, caching=False)
    held = [engine.start(numbers(i, i + 1)) for i in range(pool)]
    assert engine.allocator.admit(engine.demand(numbers(0, 1)), 1) is None
    page = held[-1].pages[0]
    for _ in range(100):
        engine.allocator.release(held.pop())
        held.append(engine.start(numbers(0, 1)))
        assert list(held[-1].pages) == [page]


def test_pages_are_conserved() -> None:
    """inference-sim f90a1e3 TestAllocateKVBlocks_BlockConservation"""
    engine = Engine(replace(NEWEST, null_page=False), pages=10, page_tokens=4)
    held = [engine.start(numbers(100 * i, 100 * i + 4)) for i in range(5)]
    for holding in held[:3]:
        engine.allocator.release(holding)
    assert (engine.allocator.owned_pages, engine.free) == (2, 8)
    engine.allocator.check(held[3:])


# ---- prefix cache


def shared_pair(rules: SharingRules) -> tuple[Engine, CowHolding, CowHolding]:
    engine = Engine(rules, pages=11, page_tokens=16)
    return engine, engine.start([*COMMON, *numbers(100, 107)]), engine.start([*COMMON, *numbers(200, 205)])


@pytest.mark.parametrize("rules", [NEWEST, STABLE])
def test_a_second_prompt_shares_the_full_pages_of_the_first(rules: SharingRules) -> None:
    """vLLM 0.33, 0.11 tests/v1/core/test_prefix_caching.py::test_prefill"""
    engine, first, second = shared_pair(rules)
    assert list(first.pages) == [1, 2, 3, 4]
    assert [engine.allocator.pages.has_content(page) for page in first.pages] == [True, True, True, False]
    assert (second.hit_tokens, list(second.pages)) == (48, [1, 2, 3, 5])
    assert [engine.allocator.pages.references[page] for page in (1, 2, 3)] == [2, 2, 2]
    assert engine.free == 5


@pytest.mark.parametrize(
    ("rules", "order"),
    [(NEWEST, [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]), (STABLE, [6, 7, 8, 9, 10, 4, 5, 3, 2, 1])],
    ids=["0.33", "0.11"],
)
def test_released_pages_are_reused_in_the_order_of_the_version(rules: SharingRules, order: list[int]) -> None:
    """vLLM 0.33, 0.11 tests/v1/core/test_prefix_caching.py::test_prefill"""
    engine, first, second = shared_pair(rules)
    engine.allocator.release(first)
    engine.allocator.release(second)
    assert (engine.free, engine.allocator.pages.free_ids()) == (10, order)


def test_a_third_prompt_hits_after_both_have_gone_and_a_stranger_takes_everything() -> None:
    """vLLM 0.33 tests/v1/core/test_prefix_caching.py::test_prefill"""
    engine, first, second = shared_pair(NEWEST)
    engine.allocator.release(first)
    engine.allocator.release(second)
    third = engine.start([*COMMON, *numbers(300, 306)])
    assert (third.hit_tokens, list(third.pages[3:]), engine.free) == (48, [5], 6)
    engine.allocator.release(third)
    stranger = engine.start(numbers(1000, 1160))
    assert (list(stranger.pages), engine.free) == ([5, 4, 6, 7, 8, 9, 10, 3, 2, 1], 0)


@pytest.mark.parametrize(
    ("rules", "order", "new_page"),
    [(NEWEST, [6, 10, 5, 4, 3, 2, 1, 9, 8, 7], 6), (STABLE, [10, 6, 5, 4, 3, 2, 1, 9, 8, 7], 10)],
    ids=["0.33", "0.11"],
)
def test_a_prefix_is_found_among_pages_waiting_for_reuse(rules: SharingRules, order: list[int], new_page: int) -> None:
    """vLLM 0.33, 0.11 tests/v1/core/test_prefix_caching.py::test_evict"""
    engine = Engine(rules, pages=11, page_tokens=16)
    first = engine.start(numbers(0, 87))
    second = engine.start(numbers(500, 548))
    engine.allocator.release(first)
    engine.allocator.release(second)
    assert engine.allocator.pages.free_ids() == order
    third = engine.start(numbers(0, 35))
    assert (third.hit_tokens, list(third.pages), engine.free) == (32, [1, 2, new_page], 7)


def test_the_last_page_of_a_prompt_is_never_hit() -> None:
    """vLLM 0.33 tests/v1/core/test_prefix_caching.py::test_computed_blocks_not_evicted"""
    engine = Engine(NEWEST, pages=3, page_tokens=16)
    hit_pages(engine, numbers(0, 16))
    hit_pages(engine, numbers(16, 32))
    holding = engine.start(numbers(0, 32))
    assert (holding.hit_tokens, list(holding.pages)) == (16, [1, 2])


def test_a_resumed_request_is_not_counted_a_second_time() -> None:
    """vLLM 0.33 tests/v1/core, test_preemption_re_records_prefix_cache_query"""
    engine = Engine(NEWEST, pages=11, page_tokens=16)
    demand = engine.demand(numbers(0, 40))
    for _ in range(2):
        holding = engine.allocator.admit(demand, 40)
        assert holding is not None
        assert engine.allocator.totals.prefix_query_tokens == 40
        engine.allocator.release(holding)
    totals = engine.allocator.totals
    assert (totals.prefix_hit_tokens, totals.look_ups, totals.resumed_look_ups) == (0, 1, 1)


def test_the_deepest_page_of_the_oldest_chain_is_evicted_first() -> None:
    """vLLM 0.6.3 tests/core/block/test_prefix_caching_block.py::test_eviction_order"""
    engine = Engine(V0, pages=1024, page_tokens=4)
    first, second = engine.start(numbers(0, 8)), engine.start(numbers(10_000, 10_000 + 4 * 1022))
    victim = first.pages[1]
    engine.allocator.release(first)
    engine.allocator.release(second)
    assert list(engine.start(numbers(50_000, 50_001)).pages) == [victim]


def test_an_evicted_page_without_content_is_reused_first() -> None:
    """vLLM 0.6.3 tests/core/block/test_prefix_caching_block.py::test_eviction_alloc_mixed"""
    engine = Engine(V0, pages=3, page_tokens=16)
    held = [engine.start(numbers(100 * i, 100 * i + 16)) for i in range(3)]
    for holding in held:
        engine.allocator.release(holding)
    assert (engine.cached_pages, engine.free) == (3, 3)
    mutable = engine.start(numbers(900, 901))
    assert list(mutable.pages) == [0]
    engine.allocator.release(mutable)
    assert engine.allocator.pages.free_ids() == [0, 1, 2]


def test_a_page_that_fills_up_with_known_content_is_replaced_by_the_known_page() -> None:
    """vLLM 0.6.3 tests/core/block/test_prefix_caching_block.py::test_alloc_promotion"""
    engine = Engine(V0, pages=4, page_tokens=16)
    first = engine.start(numbers(0, 16))
    demand = engine.demand(numbers(0, 16))
    second = engine.allocator.admit(demand, 1)
    assert second is not None
    assert second.pages == first.pages
    assert engine.allocator.pages.references[first.pages[0]] == 2
    # one page filled token by token, while another request caches the same content meanwhile
    slow, fast = engine.demand(numbers(50, 66)), engine.demand(numbers(50, 66))
    filling = engine.allocator.admit(slow, 8)
    known = engine.allocator.admit(fast, 16)
    assert filling is not None
    assert known is not None
    own = filling.pages[0]
    assert own != known.pages[0]
    assert engine.allocator.grow(filling, 16, 8)
    assert filling.pages == known.pages
    assert engine.allocator.pages.references[known.pages[0]] == 2
    assert engine.allocator.pages.free_ids()[0] == own
    engine.allocator.check([first, second, filling, known])


def test_what_the_running_step_computes_is_shared_but_saves_no_computing_yet() -> None:
    """vLLM 0.6.3 core/block/prefix_caching_block.py: blocks are computed only after the batch was scheduled"""
    engine = Engine(V0, pages=8, page_tokens=4)
    first, second = engine.start(numbers(0, 10)), engine.start(numbers(0, 10))
    assert (second.hit_tokens, second.pages[:2]) == (0, first.pages[:2])
    engine.allocator.maintain(0)
    assert engine.start(numbers(0, 10)).hit_tokens == 8
    # a prompt that is known to its last token computes its last page again, in place
    fourth = engine.start(numbers(0, 8))
    assert (fourth.hit_tokens, fourth.pages) == (4, first.pages[:2])


def test_admission_by_v0_rules_asks_for_room_as_if_nothing_hit() -> None:
    """vLLM 0.6.3 core/block_manager.py::can_allocate"""
    engine = Engine(V0, pages=4, page_tokens=4)
    first = engine.start(numbers(0, 12))
    assert engine.allocator.admit(engine.demand(numbers(0, 12)), 12) is None
    assert engine.free == 1
    engine.allocator.check([first])


def test_a_tree_of_single_tokens_matches_what_was_inserted() -> None:
    """SGLang test/registered/radix_cache, test_insert_and_match_basic"""
    engine = Engine(SGLANG, pages=16, page_tokens=1)
    hit_pages(engine, numbers(1, 4))
    assert (engine.cached_pages, engine.hit_tokens(numbers(1, 4)), engine.hit_tokens(numbers(1, 3))) == (3, 3, 2)


@pytest.mark.parametrize("page_tokens", [1, 2])
def test_branches_share_their_trunk(page_tokens: int) -> None:
    """SGLang test/registered/radix_cache, test_advanced_prefix_match_with_node_splits"""
    engine = Engine(SGLANG, pages=16, page_tokens=page_tokens)
    hit_pages(engine, numbers(1, 9))
    hit_pages(engine, [1, 2, 9, 10])
    assert engine.cached_pages * page_tokens == 10


def test_the_same_tokens_under_another_key_are_something_else() -> None:
    """SGLang test/registered/radix_cache, test_extra_key_isolation"""
    engine = Engine(SGLANG, pages=16, page_tokens=1)
    for salt in ("key1", "key2", None):
        assert engine.hit_tokens(numbers(1, 4), salt=salt) == 0
        engine.allocator.release(engine.start(numbers(1, 4), salt=salt))
    assert engine.cached_pages == 9
    assert engine.hit_tokens(numbers(1, 4), salt="key1") == 3
    assert engine.hit_tokens(numbers(1, 4), salt="key3") == 0


@pytest.mark.parametrize(("page_tokens", "length", "match"), [(1, 5, 5), (2, 5, 4), (4, 6, 4)])
def test_matches_end_at_page_boundaries(page_tokens: int, length: int, match: int) -> None:
    """SGLang test/registered/radix_cache, test_page_alignment_boundary"""
    engine = Engine(SGLANG, pages=16, page_tokens=page_tokens)
    hit_pages(engine, numbers(0, length))
    assert engine.hit_tokens(numbers(0, length)) == match


# ---- fork and copy-on-write


def forked(page_tokens: int, length: int, *, samples: int = 2) -> tuple[Engine, list[CowHolding]]:
    engine = Engine(V0, pages=1024, page_tokens=page_tokens, caching=False)
    first = engine.start(numbers(0, length))
    parent = first.demand
    assert isinstance(parent, Sequence)
    children = [
        engine.allocator.fork(first, replace(parent, sample=sample, holding=None), length)
        for sample in range(1, samples)
    ]
    return engine, [first, *children]


@pytest.mark.parametrize("page_tokens", [1, 8])
@pytest.mark.parametrize("length", [1, 9, 129])
def test_a_fork_takes_nothing_and_the_last_holder_gives_everything_back(page_tokens: int, length: int) -> None:
    """vLLM 0.6.3 tests/core/block/test_block_table.py::test_fork"""
    engine, (first, child) = forked(page_tokens, length)
    used = ceil_div(length, page_tokens)
    assert engine.free == 1024 - used
    engine.allocator.release(first)
    assert engine.free == 1024 - used
    engine.allocator.check([child])
    engine.allocator.release(child)
    assert engine.free == 1024


@pytest.mark.parametrize("page_tokens", [1, 8, 16])
@pytest.mark.parametrize("length", [1, 8, 9, 16, 129])
@pytest.mark.parametrize("appended", [1, 2, 8, 16, 129])
@pytest.mark.parametrize("writer", [0, 1])
def test_the_first_writer_copies_the_shared_last_page(
    page_tokens: int, length: int, appended: int, writer: int
) -> None:
    """vLLM 0.6.3 tests/core/block/test_block_table.py::test_cow: cost = ceil((len + app) / B) - len // B"""
    engine, holdings = forked(page_tokens, length)
    before = list(holdings[0].pages)
    free = engine.free
    assert engine.extend(holdings[writer], appended)
    assert free - engine.free == ceil_div(length + appended, page_tokens) - length // page_tokens
    assert list(holdings[1 - writer].pages) == before
    filled = length % page_tokens
    assert [source for source, _ in engine.copies] == ([before[-1]] if filled else [])
    assert engine.allocator.work.copied_bytes == 2 * filled
    assert engine.allocator.totals.cow_copies == (1 if filled else 0)
    # the other one is alone now and writes in place
    taken = engine.allocator.totals.pages_taken
    assert engine.extend(holdings[1 - writer], 1)
    assert engine.allocator.totals.pages_taken - taken == (0 if filled else 1)
    engine.allocator.check(holdings)


def test_the_examples_of_the_copy_on_write_cost() -> None:
    """vLLM 0.6.3 tests/core/block/test_block_table.py::test_cow with B 8"""
    engine, (first, _) = forked(8, 1)
    assert engine.extend(first, 1)
    assert (engine.free, len(engine.copies)) == (1022, 1)
    engine, (first, _) = forked(8, 129)
    assert len(first.pages) == 17
    shared = first.pages[16]
    assert engine.extend(first, 129)
    assert 1024 - engine.free - 17 == 17
    assert engine.copies == [(shared, first.pages[16])]


@pytest.mark.parametrize("lookahead", [0, 3, 9])
def test_appends_touch_no_more_pages_than_predicted(lookahead: int) -> None:
    """vLLM 0.6.3 test_block_table.py::test_num_blocks_touched_by_append_slots: all shared, last page open"""
    engine, holdings = forked(8, 13, samples=3)
    touched = ceil_div(13 + 5 + lookahead, 8) - 13 // 8
    for holding in holdings[:2]:
        free = engine.free
        assert engine.allocator.grow(holding, 18 + lookahead, 5 + lookahead)
        assert free - engine.free == touched
    free = engine.free
    assert engine.allocator.grow(holdings[2], 18 + lookahead, 5 + lookahead)
    assert free - engine.free == touched - 1


# ---- swap


def swapped(*, page_tokens: int, pages: int, prompt: int) -> tuple[Engine, CowHolding]:
    engine = Engine(V0, pages=pages, page_tokens=page_tokens, caching=False, host_pages=pages)
    return engine, engine.start(numbers(0, prompt))


def test_a_swap_moves_the_pages_out_and_back() -> None:
    """vLLM 0.6.3 tests/core/block/test_block_manager.py::test_swap"""
    engine, holding = swapped(page_tokens=8, pages=4, prompt=7)
    assert engine.extend(holding, 1)
    assert (engine.free, engine.allocator.swap_out([holding])) == (3, 8)
    assert (engine.free, engine.allocator.host and engine.allocator.host.free_pages) == (4, 3)
    assert engine.allocator.swap_in([(holding, 8)]) == 8
    assert (engine.free, engine.allocator.host and engine.allocator.host.free_pages) == (3, 4)
    assert len(engine.copies) == 2
    engine.allocator.check([holding])


@pytest.mark.parametrize(
    ("pages", "prompt", "lookahead", "ever"),
    [(4, 23, 3, True), (4, 23, 8, True), (4, 23, 10, False), (1, 5, 0, True), (1, 5, 2, True), (1, 5, 10, False)],
)
def test_a_swap_in_asks_for_room_for_the_slots_to_come(pages: int, prompt: int, lookahead: int, ever: bool) -> None:
    """vLLM 0.6.3 test_block_manager.py::test_can_swap, test_swap_in_infeasible"""
    engine, holding = swapped(page_tokens=8, pages=pages, prompt=prompt)
    assert engine.allocator.swap_out([holding]) is not None
    wanted = prompt + 1 + lookahead
    assert (engine.allocator.swap_in_pages([(holding, wanted)]) <= pages) == ever
    assert (engine.allocator.swap_in([(holding, wanted)]) is not None) == ever


def test_samples_move_together_and_shared_pages_once() -> None:
    engine = Engine(V0, pages=16, page_tokens=8, caching=False, host_pages=5)
    first = engine.start(numbers(0, 20))
    demand = first.demand
    assert isinstance(demand, Sequence)
    second, third = (engine.allocator.fork(first, replace(demand, sample=s), 20) for s in (1, 2))
    assert engine.extend(third, 1)
    # two shared pages, the shared last one of the first two, and the copy of the third
    assert engine.allocator.swap_out([first, second, third]) == 4 * 8
    assert (engine.free, engine.allocator.host and engine.allocator.host.free_pages) == (16, 1)
    assert engine.allocator.discount_bytes == engine.allocator.allocated_bytes == 0
    wanted = [(first, 21), (second, 21), (third, 22)]
    # 4 pages come back, and one of the two that share their last page must copy it
    assert engine.allocator.swap_in_pages(wanted) == 5
    assert engine.allocator.swap_in(wanted) == 4 * 8
    assert engine.free == 11
    engine.allocator.check([first, second, third])
    assert len(set(chain(first.pages, second.pages, third.pages))) == 5


def test_a_full_host_refuses_and_an_aborted_request_empties_it() -> None:
    engine = Engine(V0, pages=8, page_tokens=8, caching=False, host_pages=2)
    first, second = engine.start(numbers(0, 16)), engine.start(numbers(100, 108))
    assert engine.allocator.swap_out([first]) == 16
    assert engine.allocator.swap_out([second]) is None
    engine.allocator.release(first)
    assert engine.allocator.host is not None
    assert engine.allocator.host.free_pages == 2
    with pytest.raises(AssertionError, match="request 0 released twice"):
        engine.allocator.release(first)
    engine.allocator.check([second])


def test_pages_without_sharing_swap_too() -> None:
    allocator = PagedAllocator(plain_layout(page_tokens=8, bytes_per_token=2), max_pages=4, host=HostPool(4))
    holding = allocator.admit(Sequence(0, 20, 4), 20)
    assert holding is not None
    assert allocator.swap_out([holding]) == 3 * 16
    assert (allocator.free_pages(), allocator.tail_bytes) == (4, 0)
    assert allocator.swap_in([(holding, 25)]) == 3 * 16
    assert (len(holding.pages), allocator.free_pages()) == (4, 0)
    allocator.check([holding])


# ---- hit rate of recent requests


def test_the_recent_hit_rate_leaves_out_the_oldest_steps() -> None:
    """vLLM 0.33 tests/v1/core/test_kv_cache_utils.py::test_metrics: a window of 5 requests"""
    window = HitWindow(5)
    rates = []
    for batch in ((1, 20, 9), (4, 80, 16), (1, 10, 2)):
        window.observe(*batch)
        rates.append(window.hit_rate)
    assert rates == [0.45, 0.25, 0.20]
    assert (window.requests, window.query_tokens, window.hit_tokens) == (5, 90, 18)


def test_one_step_with_more_requests_than_the_window_counts_as_a_whole() -> None:
    window = HitWindow(3)
    assert window.hit_rate == 0.0
    window.observe(2, 10, 10)
    for _ in range(5):
        window.count(10, 1)
    window.close_batch()
    assert (window.requests, window.hit_rate) == (5, 0.1)


def test_recent_and_whole_run_hit_rates_differ_while_the_cache_warms_up() -> None:
    """Known case 55 (1CatAI/1Cat-vLLM #90): 5 users, 3 rounds, the same prompt; the last block is computed again."""
    engine = Engine(NEWEST, pages=200, page_tokens=16)
    engine.allocator._look_ups.recent.limit = 10
    for _ in range(3):
        for holding in [engine.start(numbers(0, 320)) for _ in range(5)]:
            engine.allocator.release(holding)
        engine.allocator.maintain(0)
    totals = engine.allocator.totals
    # of 15 requests the first finds nothing, the others 19 of 20 blocks; the last ten are among the others
    assert totals.prefix_hit_tokens / totals.prefix_query_tokens == 14 * 19 / (15 * 20)
    assert totals.recent_hit_tokens / totals.recent_query_tokens == 19 / 20


def test_a_request_refused_in_many_steps_fills_the_window_of_0_11() -> None:
    engine = Engine(STABLE, pages=11, page_tokens=16)
    engine.start(numbers(0, 100))
    demand = engine.demand(numbers(500, 600))
    assert engine.allocator.admit(demand, 100) is None
    engine.allocator.refused_again(demand, 10**9)
    engine.allocator.maintain(0)
    assert engine.allocator._look_ups.recent.requests == engine.allocator._look_ups.recent.limit
    assert engine.allocator.totals.recent_hit_tokens == 0
    assert engine.allocator.totals.prefix_query_tokens == 100 + 100 * (10**9 + 1)


# ---- concurrency of pools with window layers


WINDOW_ONLY = (PageGroup(1, window_tokens=1024),)
FULL_AND_WINDOW = (PageGroup(1), PageGroup(1, window_tokens=1024))


def served(groups: tuple[PageGroup, ...], *, pages: int, sequences: int, tokens: int = 16_384) -> bool:
    """Whether ``sequences`` requests of ``tokens`` can be computed side by side, 1,024 tokens of each at a time, from a
    first piece of one token on, so that windows begin and end inside pages."""
    allocator = PagedAllocator(PageLayout(16, 16, groups), max_pages=pages, chunk_tokens=1024)
    holdings = [allocator.admit(Sequence(number, tokens, 1), 1) for number in range(sequences)]
    for start in range(1, tokens, 1024):
        end = min(start + 1024, tokens)
        for holding in holdings:
            if holding is None or not allocator.grow(holding, end, end - start):
                return False
    return True


@pytest.mark.parametrize(("groups", "pages_each"), [(WINDOW_ONLY, 129), (FULL_AND_WINDOW, 1024 + 129)])
def test_a_pool_with_window_layers_serves_as_many_as_the_planner_says(
    groups: tuple[PageGroup, ...], pages_each: int
) -> None:
    """vLLM 0.33 tests/v1/core, S13 and S14: cdiv(1023 + 1024, 16) + 1 = 129 pages a window; 387 and 3,459 are three's.

    S16: one that divides 3,459 by an aggregate of 1,057 pages gets 3.27.
    """
    pages = 3 * pages_each
    allocator = PagedAllocator(PageLayout(16, 16, groups), max_pages=pages, chunk_tokens=1024)
    assert allocator.peak_pages(16_384, 16_384) == pages_each
    assert pages / allocator.peak_pages(16_384, 16_384) == 3.0
    assert allocator.can_ever_hold(Sequence(0, 16_384, 1))
    assert served(groups, pages=pages, sequences=3)
    assert int(pages / allocator.peak_pages(16_384, 16_384) * 16_384) == 49_152
    assert not served(groups, pages=pages + pages_each // 2, sequences=4)


@pytest.mark.parametrize("groups", [WINDOW_ONLY, FULL_AND_WINDOW])
def test_no_more_than_a_page_a_request_of_the_planners_number_is_slack(groups: tuple[PageGroup, ...]) -> None:
    each = PagedAllocator(PageLayout(16, 16, groups), max_pages=1, chunk_tokens=1024).peak_pages(16_384, 16_384)
    # full attention peaks only at the end, when windows may be a page shorter: a page less each may do there
    tight = next(pages for pages in range(3 * each, 0, -1) if not served(groups, pages=pages - 1, sequences=3))
    assert 3 * each - 3 <= tight <= 3 * each
