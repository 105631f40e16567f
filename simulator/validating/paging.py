"""Worked cases of block managers: page ids, free order, hits, copies, swaps."""

from collections.abc import Iterator

from simulator.allocators.paged import PagedAllocator, PageGroup, PageLayout
from simulator.serving.sequence import Sequence
from simulator.units import ceil_div
from simulator.validating.bench import paged, shared_pages
from simulator.validating.check import Check, Source
from simulator.validating.desk import Shelf, spelled_pages
from simulator.validating.parts import settings

FAMILY = "scheduler"
_PREFIX = "vLLM 0.33 and 0.11 tests/v1/core/test_prefix_caching.py"
#: ids of the common blocks of two prompts
_COMMON = [1, 2, 3]


def checks() -> Iterator[Check]:
    """Prefix caching, then fork and copy-on-write, then windows and free order."""
    for profile in ("vllm-0.33", "vllm-0.11"):
        yield from _shared_pair(profile)
        yield from _evicted(profile)
    yield from _last_block()
    yield from _copy_on_write()
    yield from _windows()
    yield from _oldest_first()


def _shared_pair(profile: str) -> Iterator[Check]:
    source = Source(FAMILY, f"prefix-{profile}", f"{_PREFIX}::test_prefill")
    shelf = Shelf(profile, 11)
    first, second = shelf.start(_COMMON, 55), shelf.start(_COMMON, 53)
    yield source.exact("first", "pages of a prompt of 55", expected="1 2 3 4", got=spelled_pages(first))
    yield source.exact(
        "second", "pages of a second one with 48 tokens in common", expected="1 2 3 5", got=spelled_pages(second)
    )
    yield source.exact("free", "free pages of 10", expected=5, got=shelf.allocator.free_pages())
    shelf.release(first, second)
    expected = "5 4 6 7 8 9 10 3 2 1" if profile == "vllm-0.33" else "6 7 8 9 10 4 5 3 2 1"
    yield source.exact("order", "free order after both have ended", expected=expected, got=shelf.free_order)
    if profile == "vllm-0.33":
        third = shelf.start(_COMMON, 54)
        yield source.exact("third", "pages of a third one", expected="1 2 3 5", got=spelled_pages(third))
        shelf.release(third)
        stranger = shelf.start(list(range(100, 110)), 160)
        yield source.exact(
            "stranger", "pages of a stranger of 160 tokens", expected=expected, got=spelled_pages(stranger)
        )


def _evicted(profile: str) -> Iterator[Check]:
    source = Source(FAMILY, f"evict-{profile}", f"{_PREFIX}::test_evict")
    shelf = Shelf(profile, 11)
    first, second = shelf.start([1, 2, 3, 4, 5], 87), shelf.start([11, 12, 13], 48)
    shelf.release(first, second)
    new = profile == "vllm-0.33"
    expected = "6 10 5 4 3 2 1 9 8 7" if new else "10 6 5 4 3 2 1 9 8 7"
    yield source.exact("order", "free order of prompts of 87 and 48", expected=expected, got=shelf.free_order)
    third = shelf.start([1, 2], 35)
    expected = "1 2 6" if new else "1 2 10"
    yield source.exact(
        "again", "pages of the first 35 tokens of the first", expected=expected, got=spelled_pages(third)
    )
    yield source.exact("free", "free pages then", expected=7, got=shelf.allocator.free_pages())


def _last_block() -> Iterator[Check]:
    source = Source(FAMILY, "last-block", f"{_PREFIX}::test_computed_blocks_not_evicted")
    shelf = Shelf("vllm-0.33", 3)
    shelf.release(shelf.start([1], 16))
    shelf.release(shelf.start([9], 16))
    holding = shelf.start([1, 2], 32)
    yield source.exact("hit", "tokens hit of 32, 16 of them cached", expected=16, got=holding.hit_tokens)
    yield source.exact("pages", "its pages", expected="1 2", got=spelled_pages(holding))


def _copy_on_write() -> Iterator[Check]:
    text = "vLLM 0.6.3 tests/core/block/test_block_table.py::test_cow: ceil((len + app) / B) - len // B blocks"
    source = Source(FAMILY, "copy-on-write", text)
    wrong = cases = 0
    for size in (1, 8, 16):
        for length in (1, 8, 9, 16, 129):
            for appended in (1, 2, 8, 16, 129):
                for writer in (0, 1):
                    cases += 1
                    wrong += _cow_cost(size, length, appended, writer) != (
                        ceil_div(length + appended, size) - length // size,
                        int(length % size > 0),
                    )
    yield source.exact("cost", f"wrong costs or copies in {cases} forks of two", expected=0, got=wrong)
    examples = (_cow_cost(8, 1, 1, 0)[0], _cow_cost(8, 129, 129, 0)[0])
    yield source.exact("small", "blocks to append 1 to 1, blocks of 8", expected=1, got=examples[0])
    yield source.exact("large", "blocks to append 129 to 129", expected=17, got=examples[1])


def _cow_cost(size: int, length: int, appended: int, writer: int) -> tuple[int, int]:
    """Blocks that the writer of two forks takes, and copies made."""
    pool = shared_pages(1024, size, settings(profile="vllm-0.6"), caching=False)
    demand = Sequence(0, prompt_tokens=length, output_tokens=1000, arrival_ns=0)
    first = pool.admit(demand, length)
    assert first is not None
    second = pool.fork(first, Sequence(0, prompt_tokens=length, output_tokens=1000, arrival_ns=0, sample=1), length)
    free = pool.free_pages()
    assert pool.grow((first, second)[writer], length + appended, appended)
    return free - pool.free_pages(), pool.totals.cow_copies


def _windows() -> Iterator[Check]:
    text = "vLLM 0.33 tests/v1/core/test_single_type_kv_cache_manager.py::test_sliding_window_remove_skipped_blocks"
    source = Source(FAMILY, "window", text)
    pool = PagedAllocator(PageLayout(2, 2, (PageGroup(1, window_tokens=4),)), max_pages=20)
    holding = pool.admit(Sequence(0, prompt_tokens=22, output_tokens=1, arrival_ns=0), 22)
    assert holding is not None
    dropped = []
    for computed in (0, 4, 5, 6, 7, 11):
        assert pool.grow(holding, 22, 22 - computed)
        dropped.append(holding.dropped[0])
    got = " ".join(map(str, dropped))
    yield source.exact("dropped", "blocks of 2 left behind by a window of 4", expected="0 0 1 1 2 4", got=got)


def _oldest_first() -> Iterator[Check]:
    source = Source(FAMILY, "free-order", "vLLM 0.6.3 tests/core/block/test_naive_block.py::test_free_prevents_oom")
    for blocks in (1, 1024):
        pool = paged(blocks, 4, settings(profile="vllm-0.6"))
        held = [pool.admit(_one(index), 1) for index in range(blocks)]
        full = pool.admit(_one(blocks), 1) is None
        last = held[-1]
        assert last is not None
        page, same = last.pages[0], True
        for _ in range(100):
            pool.release(last)
            last = pool.admit(_one(0), 1)
            assert last is not None
            same = same and last.pages == [page]
        what = f"{blocks} blocks: one more is refused, a freed one is the next one used"
        yield source.holds(f"{blocks}", what, full and same, grade="exact")


def _one(request_id: int) -> Sequence:
    return Sequence(request_id, prompt_tokens=1, output_tokens=1000, arrival_ns=0)
