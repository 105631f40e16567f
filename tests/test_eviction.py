"""The index of contents and the order of eviction, against plain models; SGLang's policies by hand."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from cow_world import Sequence, World
from hypothesis import given, settings
from hypothesis import strategies as st
from test_paged_cow import play_randomly

from simulator.allocators import content_index, eviction
from simulator.allocators.bulk import page_array
from simulator.allocators.content_index import ContentIndex
from simulator.allocators.eviction import LeafOrder, ReleaseQueue
from simulator.allocators.paged import plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.prefix_cache import SharedPages
from simulator.allocators.sharing import RULES
from simulator.config import EvictionPolicy
from simulator.errors import InputError
from simulator.scenario import parse_scenario
from simulator.simulation import simulate

LEAF_POLICIES: tuple[EvictionPolicy, ...] = ("lfu", "fifo", "mru", "filo", "priority")

# ---- contents


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("name"), st.integers(0, 3), st.integers(0, 9), st.integers(0, 15), st.integers(1, 5)),
            st.tuples(st.just("forget"), st.integers(0, 15), st.integers(1, 5)),
            st.tuples(st.just("leading"), st.integers(0, 3), st.integers(0, 9), st.integers(0, 9)),
            st.tuples(st.just("make room")),
        ),
        max_size=60,
    )
)
def test_contents_are_found_as_in_a_dictionary_of_lists(moves: list[tuple[object, ...]]) -> None:
    index, model = ContentIndex(), dict[tuple[int, int], list[int]]()
    index.cover(20)
    for move in moves:
        kind, *rest = move
        numbers: list[int] = rest  # type: ignore[assignment]
        if kind == "name":
            name, first, page, count = numbers
            name_in_both(index, model, range(page, min(page + count, 20)), name, first)
        elif kind == "forget":
            forget_in_both(index, model, list(range(numbers[0], numbers[0] + numbers[1])))
        elif kind == "leading":
            name, first, count = numbers
            expected = []
            for position in range(first, first + count):
                if (name, position) not in model:
                    break
                expected.append(model[name, position][0])
            assert index.leading(index.numbers([(name, first, first + count)])) == page_array(expected)
        else:
            index._limit = 0
            index.make_room()
        index.check()
        assert {(name, position): pages for name, position, pages in index.contents()} == model


def name_in_both(
    index: ContentIndex, model: dict[tuple[int, int], list[int]], pages: range, name: int, first: int
) -> None:
    known = {page for pages in model.values() for page in pages}
    numbers = index.numbers([(name, first, first + len(pages))])
    index.name(page_array(pages), numbers)
    for position, page in enumerate(pages, first):
        if page not in known:
            model.setdefault((name, position), []).append(page)


def forget_in_both(index: ContentIndex, model: dict[tuple[int, int], list[int]], pages: list[int]) -> None:
    held = [(content, page) for content, holders in model.items() for page in holders if page in pages]
    forgotten = index.forget(page_array(pages))
    assert forgotten == len(held)
    for content, page in held:
        model[content].remove(page)
        if not model[content]:
            del model[content]


def test_numbers_of_contents_that_are_gone_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_index, "_SMALL", 8)
    index = ContentIndex()
    index._limit = 8
    index.cover(300)
    for round_number in range(50):
        index.make_room()
        # of every other round three pages stay known to the end
        kept = 3 * (round_number % 2)
        numbers = index.numbers([(7 * round_number + line, line, line + 100) for line in range(2)])
        pages = np.arange(200 + 2 * round_number)[-200:] % 300
        index.forget(pages)
        index.name(pages, numbers)
        index.forget(pages[kept:])
        index.check()
    assert len(index._page_of) < content_index._NUMBERS_PER_PAGE * 1.25 * len(index._content_of) + 600


def test_requests_that_come_and_go_do_not_pile_up_numbers_of_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 prompts of ten pages, all different, in a pool of twelve pages: 5,000 contents, twelve of them there."""
    monkeypatch.setattr(content_index, "_SMALL", 8)
    allocator = PagedCowAllocator(plain_layout(page_tokens=1, bytes_per_token=1), max_pages=12)
    for number in range(500):
        request = Sequence(number, 10, 1, computed_tokens=10)
        holding = allocator.admit(request, 10)
        assert holding is not None
        allocator.release(holding)
    index = allocator.pages.contents
    # five numbers a page, of the 64 pages that columns begin with, before it is worth making room
    assert len(index._page_of) < 2 * content_index._NUMBERS_PER_PAGE * 64
    assert len({name for name, *_ in index._space.runs()}) < 50


def test_a_content_keeps_its_name_when_it_gets_another_number() -> None:
    index = ContentIndex()
    index.cover(10)
    index.name(page_array([4, 5, 6]), index.numbers([(1, 0, 2), (2, 2, 3)]))
    index.name(page_array([7, 8]), index.numbers([(1, 1, 2), (3, 2, 3)]))
    index.forget(page_array([4]))
    before = list(index.contents())
    epoch, index._limit = index.epoch, 0
    index.make_room()
    assert index.epoch == epoch + 1
    assert sorted(index.contents()) == sorted(before) == [(1, 1, [5, 7]), (2, 2, [6]), (3, 2, [8])]
    assert list(index.numbers([(1, 1, 2)])) == [0], "the lowest number that anybody has"
    index.check()


# ---- the queue


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["extend", "remove", "take"]), st.integers(0, 99)), max_size=80))
def test_the_queue_gives_up_in_the_order_of_release(moves: list[tuple[str, int]]) -> None:
    small, eviction._SMALL = eviction._SMALL, 4
    try:
        queue, model = ReleaseQueue(), list[int]()
        queue.cover(40)
        for kind, number in moves:
            if kind == "extend":
                pages = [page for page in range(number % 40, min(40, number % 40 + 6)) if page not in model]
                queue.extend(page_array(pages))
                model += pages
                assert len(queue._entries) <= 2 * queue.count + 4 + 6, "entries that do not count pile up"
            elif kind == "remove" and model:
                first = number % len(model)
                queue.remove(page_array(model[first : first + 3]))
                del model[first : first + 3]
            elif kind == "take":
                count = number % (len(model) + 1)
                assert ([queue.take_one()] if count == 1 else list(queue.take(count))) == model[:count]
                del model[:count]
            assert (list(queue), queue.count) == (model, len(model))
            assert [page in queue for page in range(40)] == [page in model for page in range(40)]
    finally:
        eviction._SMALL = small


# ---- leaves


@dataclass
class Known:
    """What a plain model remembers of a page."""

    filled: int
    last_use: int
    priority: int
    parent: "Known | None"
    uses: int = 1
    users: list[int] = field(default_factory=list)


def model_rank(policy: EvictionPolicy, known: Known) -> tuple[int, int]:
    """The keys of SGLang's ``mem_cache/evict_policy.py``; its priorities grow with importance, ours fall."""
    if policy == "lfu":
        return known.uses, known.last_use
    if policy == "fifo":
        return known.filled, 0
    if policy == "mru":
        return -known.last_use, 0
    if policy == "filo":
        return -known.filled, 0
    return -known.priority, known.last_use


class Tree:
    """Chains of pages, inserted, used again and released, beside the same in a ``LeafOrder``."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self.order = LeafOrder(policy)
        self.now = 0
        self.live: list[list[int]] = []
        self.known: dict[int, Known] = {}
        self.references = dict.fromkeys(range(64), 0)

    def insert(self, onto: list[int], count: int, priority: int) -> None:
        """A request that shares the chain ``onto`` and adds ``count`` pages to it."""
        free = [page for page in range(64) if page not in self.known]
        cached = [page for page in onto if not self.references[page]]
        self.order.remove(page_array(cached))
        self.order.used(page_array(onto), priority=priority)
        for page in onto:
            self.known[page].uses += 1
            self.known[page].priority = min(self.known[page].priority, priority)
        below = onto[-1] if onto else -1
        chain = list(onto)
        self.order.cover(max([*free[:count], *self.known], default=0) + 1)
        for page in free[:count]:
            self.now += 1
            self.order.built(page, on=below, priority=priority)
            parent = None if below < 0 else self.known[below]
            self.known[page] = Known(self.now, self.now, priority, parent)
            chain.append(page)
            below = page
        for page in chain:
            self.references[page] += 1
        if chain:
            self.live.append(chain)

    def release(self, chain: list[int]) -> None:
        self.live.remove(chain)
        self.now += 1
        gone = []
        for page in reversed(chain):
            self.references[page] -= 1
            if not self.references[page]:
                self.known[page].last_use = self.now
                gone.append(page)
        self.order.extend(page_array(gone))

    def cached(self) -> list[int]:
        return [page for page in self.known if not self.references[page]]

    def give_up(self) -> None:
        """The next page that both give up, if any is cached."""
        cached = self.cached()
        parents = [id(self.known[page].parent) for page in cached]
        leaves = [page for page in cached if id(self.known[page]) not in parents]
        if not cached:
            return
        assert leaves, "every tree has a leaf"
        ranks = {page: model_rank(self.policy, self.known[page]) for page in leaves}
        (taken,) = self.order.take(1)
        assert taken == min(leaves, key=lambda page: (ranks[page], page)), "of equal ones the lowest page"
        del self.known[taken]


@pytest.mark.parametrize("policy", LEAF_POLICIES)
@pytest.mark.parametrize("seed", range(8))
def test_a_policy_gives_up_the_leaf_of_least_rank(policy: EvictionPolicy, seed: int) -> None:
    draw, tree = random.Random(seed), Tree(policy)
    for _ in range(400):
        choice = draw.random()
        if choice < 0.45:
            # go on from some leading part of a chain that is still known as a whole
            chains = [[], *tree.live]
            chain = draw.choice(chains)
            tree.insert(chain[: draw.randint(0, len(chain))], draw.randint(0, 4), draw.randint(0, 2))
        elif choice < 0.75 and tree.live:
            tree.release(draw.choice(tree.live))
        else:
            tree.give_up()
        assert sorted(tree.order._cached) == sorted(tree.cached())
    expected = list(tree.order)
    assert sorted(expected) == sorted(tree.cached())


def radix(policy: EvictionPolicy, pages: int = 12) -> PagedCowAllocator:
    return PagedCowAllocator(
        plain_layout(page_tokens=1, bytes_per_token=1),
        max_pages=pages,
        rules=RULES["sglang"],
        eviction_policy=policy,
    )


def serve(allocator: PagedCowAllocator, text: str, *, priority: int = 0) -> int:
    """One request for ``text``, released at once; tokens that were there already."""
    ids = [int.from_bytes(text[: end + 1].encode(), "big") for end in range(len(text))]
    ends = list(range(1, len(text) + 1))
    request = Sequence(next(NUMBERS), len(text), 1, prefix=(ids, ends), computed_tokens=len(text), priority=priority)
    holding = allocator.admit(request, len(text))
    assert holding is not None
    hit = holding.hit_tokens
    allocator.release(holding)
    allocator.check([])
    return hit


NUMBERS = iter(range(1_000_000))


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        # abcd was used twice, long ago; efgh once, after it; ijkl last. One of them has to go for mnop.
        ("lru", {"efgh", "ijkl"}),
        ("lfu", {"abcd", "ijkl"}),
        ("fifo", {"efgh", "ijkl"}),
        ("mru", {"abcd", "efgh"}),
        ("filo", {"abcd", "efgh"}),
        ("priority", {"abcd", "ijkl"}),
    ],
)
def test_of_three_prompts_each_policy_gives_up_another(policy: EvictionPolicy, kept: set[str]) -> None:
    allocator = radix(policy)
    for text, priority in (("abcd", 0), ("abcd", 0), ("efgh", 2), ("ijkl", 1)):
        serve(allocator, text, priority=priority)
    assert serve(allocator, "mnop", priority=0) == 0
    spans = {text: allocator.hit_tokens(_asking(text), 5) for text in ("abcd", "efgh", "ijkl")}
    assert {text for text, hit in spans.items() if hit == 4} == kept
    assert sorted(spans.values()) == [0, 4, 4], "four pages were needed, and no more given up"


def _asking(text: str) -> Sequence:
    ids = [int.from_bytes(text[: end + 1].encode(), "big") for end in range(len(text))]
    return Sequence(next(NUMBERS), len(text) + 1, 1, prefix=(ids, list(range(1, len(text) + 1))))


def test_a_trunk_outlives_its_branches_under_every_policy() -> None:
    for policy in LEAF_POLICIES:
        allocator = radix(policy, pages=8)
        serve(allocator, "abXY")
        serve(allocator, "abUV")
        assert serve(allocator, "opqrst") == 0, policy
        assert allocator.hit_tokens(_asking("ab"), 3) == 2, policy


@pytest.mark.parametrize("policy", LEAF_POLICIES)
@pytest.mark.parametrize("profile", ["sglang", "generic", "vllm-0.6"])
def test_random_use_keeps_every_law_under_every_policy(policy: EvictionPolicy, profile: str) -> None:
    world = World(RULES[profile], max_pages=20, eviction_policy=policy)  # type: ignore[index]
    play_randomly(world, 500, seed=1, check_every=5)


def test_a_queue_of_free_and_cached_pages_has_no_leaves_to_choose_from() -> None:
    with pytest.raises(AssertionError, match="one queue"):
        SharedPages(4, "fifo", eviction_policy="lfu")


CACHING = """
device: {preset: 910B3}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: poisson, rate: 20}
  prompt_tokens: 400
  output_tokens: 4
  shared_prefix: {groups: 60, tokens: 384, popularity: zipf, s: 1.1}
  requests: 600
engine: {max_model_len: 1024, max_num_seqs: 8, profile: sglang, step_time: 2ms}
allocators: [{kind: paged_cow, page_size: 16, max_pages: 600, radix_eviction_policy: lfu}]
"""


@pytest.mark.parametrize("where", ["engine.profile=vllm-0.11", "allocators.0.free_order=fifo"])
def test_a_scenario_that_asks_for_one_queue_and_for_leaves_is_refused(where: str) -> None:
    with pytest.raises(InputError, match=r"allocators\.0\.eviction_policy: found lfu; .* is lru: use lru"):
        parse_scenario(CACHING, Path(), [where])


def test_a_scenario_can_choose_and_under_few_popular_prompts_frequency_beats_recency_beats_its_opposite() -> None:
    scenario = parse_scenario(CACHING, Path())
    rates = {}
    for policy in ("lfu", "lru", "mru"):
        asked = parse_scenario(CACHING, Path(), [f"allocators.0.eviction_policy={policy}"])
        rates[policy] = simulate(asked, verify=policy == "lfu").runs[0].summary["kv"]["prefix_hit_rate"]
    assert simulate(scenario).runs[0].summary["kv"]["prefix_hit_rate"] == rates["lfu"]
    # Zipf popularity does not change with time, so how often a prompt was asked for says most about it
    assert rates["lfu"] > rates["lru"] > rates["mru"] > 0
