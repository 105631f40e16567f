"""Page keys, the queue of released pages, and hits of a recorded trace against naive counts."""

import gzip
import json
from collections.abc import Callable
from collections.abc import Sequence as AnySequence
from itertools import chain
from pathlib import Path

import pytest
from cow_world import Sequence
from hypothesis import given
from hypothesis import strategies as st

from simulator.allocators.bulk import page_array
from simulator.allocators.page_keys import content_spans
from simulator.allocators.page_pool import PagePool
from simulator.allocators.paged import plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.prefix_cache import SharedPages
from simulator.config import FreeOrder

TRACE = Path(__file__).parents[1] / "simulator/presets/traces/mooncake_fast25_conversation.jsonl.gz"


def keys(sequence: Sequence, first: int, last: int, page_tokens: int) -> list[tuple[int, int]]:
    """Name and position of each page."""
    spans = content_spans(sequence, first, last, page_tokens)
    return [(name, position) for name, start, stop in spans for position in range(start, stop)]


def demand(request_id: int, prompt: int, segments: AnySequence[tuple[int, int]] = (), *, sample: int = 0) -> Sequence:
    prefix = ([i for i, _ in segments], [end for _, end in segments]) if segments else None
    return Sequence(request_id, prompt, 50, sample=sample, prefix=prefix)


# ---- keys


def test_pages_inside_the_same_segments_have_the_same_keys() -> None:
    first, second = demand(0, 100, [(7, 10), (9, 33)]), demand(1, 50, [(7, 10), (9, 33)])
    assert keys(first, 0, 8, 4) == keys(second, 0, 8, 4)


def test_a_page_that_reaches_past_the_shared_part_is_private_to_the_request() -> None:
    first, second = demand(0, 100, [(7, 10)]), demand(1, 100, [(7, 10)])
    assert keys(first, 0, 2, 4) == keys(second, 0, 2, 4)
    assert not set(keys(first, 2, 30, 4)) & set(keys(second, 2, 30, 4))


def test_samples_share_the_pages_of_the_prompt_and_nothing_they_generate() -> None:
    first, second = demand(0, 10), demand(0, 10, sample=1)
    assert keys(first, 0, 2, 4) == keys(second, 0, 2, 4)
    assert not set(keys(first, 2, 9, 4)) & set(keys(second, 2, 9, 4))


def test_a_segment_that_ends_past_the_prompt_covers_no_generated_token() -> None:
    first, second = demand(0, 10, [(7, 16)]), demand(1, 10, [(7, 16)])
    assert keys(first, 0, 2, 4) == keys(second, 0, 2, 4)
    assert not set(keys(first, 2, 4, 4)) & set(keys(second, 2, 4, 4))


@given(
    ends=st.lists(st.integers(1, 60), min_size=1, max_size=6, unique=True).map(sorted),
    prompt=st.integers(1, 60),
    page_tokens=st.integers(1, 9),
    data=st.data(),
)
def test_keys_name_what_the_token_by_token_definition_names(
    ends: list[int], prompt: int, page_tokens: int, data: st.DataObject
) -> None:
    """The segment of a page is that of its last token; asking for part of the keys gives that part."""
    sequence = demand(3, prompt, [(100 + end, end) for end in ends], sample=2)
    names: dict[tuple[int, int], object] = {}
    for page in range(80 // page_tokens):
        end = (page + 1) * page_tokens
        inside = [e for e in ends if e >= end]
        name = ("segment", inside[0]) if inside and end <= prompt else ("prompt" if end <= prompt else "output")
        (key,) = keys(sequence, page, page + 1, page_tokens)
        names.setdefault(key, (name, page))
        assert names[key] == (name, page)
    first = data.draw(st.integers(0, 80 // page_tokens))
    last = data.draw(st.integers(first, 80 // page_tokens))
    assert keys(sequence, first, last, page_tokens) == keys(sequence, 0, 80 // page_tokens, page_tokens)[first:last]


@given(ids=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=40, unique=True))
def test_different_contents_never_have_the_same_key(ids: list[int]) -> None:
    named = [keys(demand(0, 40, [(i, 40)]), 0, 10, 4) for i in ids]
    named += [
        keys(demand(request, 40, sample=sample), 0, 20, 4)[sample * 10 :] for request in (0, 9) for sample in (0, 1)
    ]
    flat = list(chain.from_iterable(named))
    # sample 0 repeats nothing: its list holds 20 keys, that of sample 1 only the generated half
    assert len(set(flat)) == len(flat)


# ---- the queue


def name(pages: SharedPages, taken: AnySequence[int], spans: list[tuple[int, int, int]]) -> None:
    pages.name(page_array(taken), pages.contents.numbers(spans))


def drop(pages: SharedPages, *dropped: int, request_id: int = 0) -> None:
    pages.drop(page_array(dropped), request_id)


def found(pages: SharedPages, content: int, position: int) -> int | None:
    return pages.contents.find(pages.contents.numbers([(content, position, position + 1)])[0])


def test_an_owned_page_cannot_be_dropped_more_often_than_it_was_taken() -> None:
    pages = SharedPages(4, "lifo")
    assert pages.take(1) == [0]
    drop(pages, 0, request_id=17)
    with pytest.raises(AssertionError, match="request 17 releases page 0, which nobody holds"):
        drop(pages, 0, request_id=17)


def test_cached_pages_are_taken_only_after_all_others_and_the_longest_released_goes_first() -> None:
    pages = SharedPages(4, "lifo")
    assert pages.take(3) == [0, 1, 2]
    name(pages, [0, 1], [(100, 0, 2)])
    for page in (1, 0, 2):
        drop(pages, page)
    assert (len(pages), pages.cached_pages) == (4, 2)
    assert pages.free_ids() == [2, 3, 1, 0]
    assert pages.take(3) == [2, 3, 1]
    assert (found(pages, 100, 0), found(pages, 100, 1), pages.evictions) == (0, None, 1)
    pages.check()


def test_a_cached_page_taken_back_leaves_the_queue_from_the_middle() -> None:
    pages = SharedPages(3, "fifo")
    name(pages, pages.take(3), [(0, 0, 3)])
    drop(pages, 0, 1, 2)
    assert pages.share(page_array([1])) == 1
    assert pages.free_ids() == [0, 2]
    drop(pages, 1)
    assert pages.free_ids() == [0, 2, 1]


def test_when_the_first_of_equal_pages_is_evicted_the_next_one_is_found() -> None:
    pages = SharedPages(2, "lifo")
    for page in pages.take(2):
        name(pages, [page], [(5, 3, 4)])
    assert found(pages, 5, 3) == 0
    drop(pages, 0)
    pages.take(1)
    assert found(pages, 5, 3) == 1
    pages.check()


@pytest.mark.parametrize("order", ["lifo", "fifo"])
@given(data=st.data())
def test_taking_many_pages_is_taking_one_after_the_other(order: FreeOrder, data: st.DataObject) -> None:
    """Two pools with the same history, in which some pages are free, some known, some never used."""
    many, one_by_one = SharedPages(40, order), SharedPages(40, order)
    held: list[int] = []
    for round_number in range(data.draw(st.integers(1, 8))):
        count = data.draw(st.integers(0, len(many)))
        taken = list(many.take_many(count))
        assert [one_by_one.take(1)[0] for _ in range(count)] == taken
        known = data.draw(st.integers(0, count))
        held += taken
        gone = [held.pop(data.draw(st.integers(0, len(held) - 1))) for _ in range(len(held) // 2)]
        for pages in (many, one_by_one):
            name(pages, taken[:known], [(round_number, 0, known)])
            drop(pages, *gone)
            pages.check()
        assert many.free_ids() == one_by_one.free_ids()
        assert many.evictions == one_by_one.evictions


# ---- a recorded trace


def trace(limit: int | None = None) -> list[Sequence]:
    with gzip.open(TRACE, "rt") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(limit or 1 << 30), strict=False)]
    found = []
    for number, row in enumerate(rows):
        ids, length = row["hash_ids"], row["input_length"]
        ends = [min((index + 1) * 512, length) for index in range(len(ids))]
        found.append(Sequence(number, length, row["output_length"], prefix=(ids, ends), computed_tokens=length))
    return found


def replay(allocator: PagedCowAllocator, requests: list[Sequence]) -> list[int]:
    """Hits, in pages, when each request is admitted whole and released at once."""
    hits = []
    for request in requests:
        holding = allocator.admit(request, request.prompt_tokens)
        assert holding is not None
        hits.append(holding.hit_tokens // allocator.tile_tokens)
        allocator.release(holding)
    return hits


def test_without_limit_the_mooncake_trace_hits_every_leading_block_seen_before() -> None:
    requests = trace()
    allocator = PagedCowAllocator(plain_layout(page_tokens=512, bytes_per_token=1), max_pages=1 << 40)
    seen: set[int] = set()
    expected = []
    for request in requests:
        assert request.prefix is not None
        full = request.prefix[0][: request.prompt_tokens // 512]
        new = next((row for row, block in enumerate(full) if block not in seen), len(full))
        expected.append(min(new, (request.prompt_tokens - 1) // 512))
        seen.update(full)
    assert replay(allocator, requests) == expected
    assert allocator.totals.prefix_query_tokens == sum(request.prompt_tokens for request in requests)
    assert allocator.totals.prefix_hit_tokens == 512 * sum(expected)


@pytest.mark.parametrize(("page_tokens", "max_pages"), [(512, 300), (512, 1000), (128, 1500)])
def test_with_a_small_pool_the_trace_hits_as_in_a_list_of_released_pages(page_tokens: int, max_pages: int) -> None:
    """Naive model: one list, the longest released first; a chain is released from its end."""
    requests = trace(250)
    released: list[tuple[int, int]] = []
    expected = []
    for request in requests:
        names = full_pages(request, page_tokens)
        resident = set(released)
        hits = next((page for page, name in enumerate(names) if name not in resident), len(names))
        hits = min(hits, (request.prompt_tokens - 1) // page_tokens)
        expected.append(hits)
        used = set(names)
        kept = [name for name in released if name not in used]
        surplus = len(kept) + -(-request.prompt_tokens // page_tokens) - max_pages
        released = kept[max(0, surplus) :] + names[::-1]
    allocator = PagedCowAllocator(plain_layout(page_tokens=page_tokens, bytes_per_token=1), max_pages=max_pages)
    assert replay(allocator, requests) == expected
    assert sum(expected) > 100
    assert allocator.totals.evictions > 1000


def full_pages(request: Sequence, page_tokens: int) -> list[tuple[int, int]]:
    """``(segment, page)`` of each full page of the prompt."""
    assert request.prefix is not None
    ids, ends = request.prefix
    return [
        (next(i for i, end in zip(ids, ends, strict=True) if end >= (page + 1) * page_tokens), page)
        for page in range(request.prompt_tokens // page_tokens)
    ]


# ---- laws, broken by hand


def held_cached_free() -> SharedPages:
    """Page 0 is held, page 1 cached, page 2 free, page 3 was never used."""
    pages = SharedPages(4, "lifo")
    assert pages.take(3) == [0, 1, 2]
    name(pages, [0, 1], [(100, 0, 2)])
    drop(pages, 1, 2)
    pages.check()
    return pages


def miscount_references(pages: SharedPages) -> None:
    pages.total_references += 1


def go_below_nothing(pages: SharedPages) -> None:
    pages.references[1] -= 1
    pages.total_references -= 1


def give_back_twice(pages: SharedPages) -> None:
    PagePool.give(pages, [2])


def hold_what_is_free(pages: SharedPages) -> None:
    pages.references[2] += 1
    pages.total_references += 1


def miscount_cached(pages: SharedPages) -> None:
    pages.cached_pages += 1


def name_what_is_free(pages: SharedPages) -> None:
    name(pages, [2], [(7, 0, 1)])


@pytest.mark.parametrize(
    ("spoil", "law"),
    [
        (miscount_references, "the sum of references drifted"),
        (go_below_nothing, "a page has a negative reference count"),
        (give_back_twice, "a page is free twice"),
        (hold_what_is_free, "an owned page is free"),
        (miscount_cached, "the number of cached pages drifted"),
        (name_what_is_free, "a free page has a content"),
    ],
)
def test_each_law_of_shared_pages_is_asserted(spoil: Callable[[SharedPages], None], law: str) -> None:
    pages = held_cached_free()
    spoil(pages)
    with pytest.raises(AssertionError, match=law):
        pages.check()


def test_pages_released_before_one_that_nobody_holds_have_lost_a_reference() -> None:
    """As when they are released one after the other: the damage of a double release is done up to where it shows."""
    pages = SharedPages(4, "lifo")
    assert pages.take(3) == [0, 1, 2]
    pages.share(page_array([0, 2]))
    drop(pages, 1)
    with pytest.raises(AssertionError, match="request 5 releases page 1, which nobody holds"):
        drop(pages, 0, 1, 2, request_id=5)
    assert list(pages.references[:3]) == [1, 0, 2]
