"""The closed form against the event-by-event launch, and the launch against hand counts."""

import itertools
from dataclasses import replace

import launch_recurrence
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.allocators.base import Life
from simulator.allocators.paged import PagedAllocator, plain_layout
from simulator.device import Device, DeviceConfig, load_device
from simulator.kernel import PagedKernel
from simulator.kernels.burst_walk import BurstWalk
from simulator.kernels.kernel_agreement import Agreement, agreement, random_launch, run_tables
from simulator.kernels.kernel_cycles import Launch, simulate_launch
from simulator.kernels.step_load import known_lengths
from simulator.kernels.tiles import AttentionShape, KernelOptions
from simulator.rng import stream

DEVICES = {name: load_device(DeviceConfig(preset=name)) for name in ("910B1", "910B2", "910B3", "910B4", "910C")}
B2 = DEVICES["910B2"]
GQA = AttentionShape(kv_heads=8, query_heads=32, head_dim=128, v_head_dim=128)


def play(kernel: PagedKernel, contexts: list[int], run: int = 1) -> Launch:
    return simulate_launch(kernel, contexts, run_tables(contexts, kernel.plan.page_tokens, run))


def launches(seed: int, count: int, *, mixed: bool, most_pages: int = 1000) -> list[Agreement]:
    return agreement(stream(seed, "launches"), list(DEVICES.values()), count=count, mixed=mixed, most_pages=most_pages)


def check_agreement(found: list[Agreement]) -> None:
    """Every launch within 2 %, one tile buffer or more, pages read one by one or merged."""
    assert sum(one.buffers > 1 for one in found) > len(found) / 5
    assert sum(one.buffers == 1 for one in found) > len(found) / 5
    assert sum(one.run_pages > 1 for one in found) > len(found) / 10
    for one in found:
        assert abs(one.error) <= 0.02, one


@pytest.mark.parametrize("mixed", [False, True])
def test_the_closed_form_matches_the_played_launch(mixed: bool) -> None:
    check_agreement(launches(7, 60, mixed=mixed))


@pytest.mark.long
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_closed_form_matches_over_a_large_sweep(seed: int, mixed: bool) -> None:
    check_agreement(launches(100 + seed, 250, mixed=mixed, most_pages=3000))


@pytest.mark.parametrize(
    ("device", "options", "page", "heads", "dim", "contexts"),
    [
        # Page ids from HBM, eight for each burst: the queue holds the scalar unit up, then that holds up the queue.
        ("910B1", KernelOptions(table="hbm", run_pages=8), 16, 16, 256, [139] * 25),
        ("910B4", KernelOptions(table="hbm", run_pages=8), 16, 4, 192, [1164, 540, 300, 150]),
        # Runs of eight where bursts have room for five: bursts of five and of three.
        ("910B3", KernelOptions(table="hbm", run_pages=8), 64, 2, 96, [552] * 40),
        # Some cores have short tasks only, some a long one only, which begins inside a run.
        ("910C", KernelOptions(table="l1", prefetch="none", run_pages=4), 64, 16, 64, [4079, 21]),
        ("910B1", KernelOptions(prefetch="none", run_pages=8), 32, 8, 64, [7639] + [500] * 12),
        ("910C", KernelOptions(run_pages=4), 16, 16, 64, [1527, 20, 15, 10, 13, 7]),
        ("910B2", KernelOptions(run_pages=3), 16, 8, 128, [5000, 300, 2000, 17]),
    ],
)
def test_bursts_of_one_or_two_buffers_match_one_by_one(
    device: str, options: KernelOptions, page: int, heads: int, dim: int, contexts: list[int]
) -> None:
    shape = AttentionShape(kv_heads=heads, query_heads=4 * heads, head_dim=dim, v_head_dim=dim)
    kernel = PagedKernel(DEVICES[device], shape, page_tokens=page, options=options)
    assert isinstance(kernel.walk, BurstWalk)
    played = launch_recurrence.seconds(kernel, contexts, round(options.run_pages))
    assert kernel.known_seconds(contexts) == pytest.approx(played, rel=0.015)


@pytest.mark.long
def test_bursts_match_over_a_large_sweep_of_long_launches() -> None:
    rng, count = stream(19, "launches"), 0
    while count < 60:
        kernel, contexts = random_launch(rng, list(DEVICES.values()), mixed=count % 2 == 1, most_pages=20_000)
        if type(kernel.walk) is BurstWalk:
            count += 1
            floor_s = kernel.device.launch_s
            played = launch_recurrence.seconds(kernel, contexts, round(kernel.options.run_pages))
            assert floor_s + kernel.known_seconds(contexts) == pytest.approx(floor_s + played, rel=0.02)


def test_bursts_on_one_core_take_what_its_transfers_take() -> None:
    shape = AttentionShape(kv_heads=1, query_heads=4, head_dim=128, v_head_dim=128)
    for table, prefetch in itertools.product(("hbm", "dcache", "l1"), ("none", "next", "all")):
        options = KernelOptions(table=table, prefetch=prefetch, run_pages=4)  # type: ignore[arg-type]
        kernel = PagedKernel(replace(B2, cores=1), shape, page_tokens=16, options=options)
        # One core, nothing to share: but for cache lines, which long stretches read evenly, every clock is the same.
        contexts = [1000, 16, 70, 4001]
        played = launch_recurrence.seconds(kernel, contexts, 4)
        assert kernel.known_seconds(contexts) == pytest.approx(played, rel=2e-3 if table == "dcache" else 1e-9)


def test_runs_of_a_fractional_mean_lie_between_those_of_the_next_whole_ones() -> None:
    def seconds(run: float) -> float:
        kernel = PagedKernel(B2, GQA, page_tokens=16, options=KernelOptions(prefetch="none", run_pages=run))
        return kernel.known_seconds([5000, 300, 2000, 17] * 3)

    two, middle, three = seconds(2), seconds(2.5), seconds(3)
    assert three < middle < two
    assert middle == pytest.approx((two + three) / 2, rel=0.05)


def test_a_walk_over_bursts_reads_what_a_window_leaves() -> None:
    shape = AttentionShape(kv_heads=1, query_heads=4, head_dim=128, v_head_dim=128)
    options = KernelOptions(table="hbm", run_pages=2)

    def kernel(window: int = 0) -> PagedKernel:
        return PagedKernel(replace(B2, cores=1), shape, page_tokens=64, options=options, window=window)

    # Whole runs behind the window: as a context of the window's length.
    assert kernel(256).known_seconds([512, 768]) == kernel().known_seconds([256, 256])
    assert kernel(256).known_seconds([100, 3]) == kernel().known_seconds([100, 3])
    # 100 of 512 tokens: a burst of 36 and 64 tokens, so of 100, as two pages of which the last is not full.
    assert kernel(100).known_seconds([512]) == pytest.approx(kernel().known_seconds([100]), rel=1e-12)


@pytest.mark.parametrize("mixed", [False, True])
def test_played_events_and_plain_recurrences_take_the_same_seconds(mixed: bool) -> None:
    rng = stream(11, "launches", index=int(mixed))
    for _ in range(40):
        kernel, contexts = random_launch(rng, list(DEVICES.values()), mixed=mixed, most_pages=300)
        run = round(kernel.options.run_pages)
        assert play(kernel, contexts, run).seconds == pytest.approx(
            launch_recurrence.seconds(kernel, contexts, run), rel=1e-12
        )


def test_a_launch_ends_with_its_last_core_even_when_a_transfer_went_faster_in_the_end() -> None:
    shape = AttentionShape(kv_heads=1, query_heads=1, head_dim=128, v_head_dim=128)
    kernel = PagedKernel(B2, shape, page_tokens=64, options=KernelOptions(run_pages=2))
    # 25 pages: the last core has two that lie side by side, one burst; the others have one each and are done before.
    assert kernel.plan.group_pages == 2
    contexts = [64] * 23 + [128]
    size, dma = 64 * 128 * 2, kernel.dma
    opening = 11e-9 + dma.issue_s + kernel.form.miss_s + kernel.form.hit_s
    burst = dma.seconds(2 * size, 24)
    slow_part = (2 * dma.seconds(size, 24) - kernel.form.hit_s) / burst
    alone = dma.seconds(2 * size, 1)
    # one burst and the part of the second before the others are done, at a 24th of the bandwidth; the rest alone
    by_hand = opening + slow_part * burst + (2 - slow_part) * alone + kernel.compute.seconds(128) / 2
    assert 1 < slow_part < 2
    assert play(kernel, contexts, 2).seconds == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize("run", [1, 4])
@pytest.mark.parametrize("longest", [1000, 4000, 16000, 60000])
def test_one_long_sequence_among_short_ones_matches_when_nothing_overlaps(longest: int, run: int) -> None:
    page = 1024 if run == 1 else 16
    kernel = PagedKernel(B2, GQA, page_tokens=page, options=KernelOptions(prefetch="none", run_pages=run))
    contexts = [300] * 7 + [longest // run]
    assert kernel.plan.buffers == 1 and kernel.plan.group_pages == run
    seconds = kernel.seconds_of(np.array([contexts]))[0]
    assert seconds == pytest.approx(play(kernel, contexts, run).seconds, rel=0.02)


def test_a_window_is_read_from_its_first_token_on() -> None:
    shape = AttentionShape(kv_heads=1, query_heads=1, head_dim=128, v_head_dim=128)
    window = PagedKernel(B2, shape, page_tokens=64, options=KernelOptions(prefetch="none"), window=100)
    one_page = PagedKernel(B2, shape, page_tokens=64, options=KernelOptions(prefetch="none"))
    # Tokens 200 to 299 lie in two pages: 56 of the fourth and 44 of the fifth; a core has one page each.
    alone = max(one_page.seconds_of(np.array([[tokens]]))[0] for tokens in (56, 44))
    assert window.seconds_of(np.array([[300]]))[0] == pytest.approx(alone, rel=1e-9)
    assert window.seconds_of(np.array([[90]]))[0] == one_page.seconds_of(np.array([[90]]))[0]


def test_a_walk_over_a_window_reads_what_is_left_of_its_first_page() -> None:
    shape = AttentionShape(kv_heads=1, query_heads=4, head_dim=128, v_head_dim=128)

    def kernel(window: int = 0) -> PagedKernel:
        kernel = PagedKernel(B2, shape, page_tokens=64, window=window)
        assert kernel.walk is not None
        return kernel

    # Whole pages behind the window: as a context of the window's length.
    assert kernel(128).known_seconds([256, 640, 128]) == kernel().known_seconds([128] * 3)
    assert kernel(128).known_seconds([100, 3]) == kernel().known_seconds([100, 3])
    # A window of 100 in 300 tokens reads 56 of the fourth page and 44 of the fifth; so do contexts of 44 after 56.
    cut, parts = kernel(100).known_seconds([300] * 96), kernel().known_seconds([56, 44] * 96)
    queries = 96 / 24 * kernel().dma.seconds(kernel().query_bytes, 24)  # a core has four sequences, each one task
    assert cut == pytest.approx(parts - queries, rel=1e-9)
    # Within one page: 60 tokens from the 258th on.
    assert kernel(60).known_seconds([318] * 5) == kernel().known_seconds([60] * 5)


def test_cores_of_equal_shares_and_one_buffer_take_the_sum_of_their_parts() -> None:
    shape = AttentionShape(kv_heads=24, query_heads=24, head_dim=128, v_head_dim=128)
    kernel = PagedKernel(B2, shape, page_tokens=128, options=KernelOptions(prefetch="none", table="hbm"))
    cycle = 1 / 1.8e9
    size = 128 * 128 * 2
    touches = 512 / 256
    bandwidth = 1 / (1 / B2.hbm_sustained_bandwidth + (touches - 1) / B2.l2_bandwidth)

    def transfer(size_bytes: int) -> float:
        alone = 300 * cycle + size_bytes / (166.4 * 1.8e9)
        return 11e-9 + max(alone, 60e-9 + 24 * size_bytes / bandwidth)

    pages = 5  # a task a core: one query row, then K and V of five pages, each looked up, issued, loaded, worked on
    work = 128 // 16 * kernel.compute.slice_s
    by_hand = transfer(128 * 2) + pages * (2 * 300 * cycle + 2 * transfer(size) + work)
    assert kernel.seconds(1, 640, pages) == pytest.approx(by_hand, rel=1e-9)
    assert play(kernel, [640]).seconds == pytest.approx(by_hand, rel=1e-9)


def test_one_page_takes_the_seconds_of_a_hand_calculation() -> None:
    shape = AttentionShape(kv_heads=1, query_heads=1, head_dim=128, v_head_dim=128)
    launch = play(PagedKernel(B2, shape, page_tokens=128), [128])
    cycle = 1 / 1.8e9
    latency = 300 * cycle / 2
    port = 166.4 * 1.8e9
    tile = latency + 128 * 128 * 2 / port
    look_up_and_issue = 11e-9 + 300 * cycle + 11e-9  # query, then page id, then the K tile
    work = 128 // 16 * max(2 * 16 * 16 * 256 / (354e12 / 24), 256 * 16 * 2 / (128 * 1.8e9)) / 2
    assert launch.seconds == pytest.approx(look_up_and_issue + 2 * tile + work, rel=1e-9)


def test_traffic_of_a_played_launch_is_what_the_pages_hold() -> None:
    contexts = [1000, 17, 4096]
    launch = play(PagedKernel(B2, GQA, page_tokens=128), contexts)
    assert launch.traffic.kv_bytes == sum(contexts) * 2 * 8 * 128 * 2
    assert launch.traffic.lookups == (8 + 1 + 32) * 8 * 2
    assert launch.traffic.exchange_bytes == sum(contexts) * 32 * 12


def test_adjacent_pages_merge_into_fewer_transfers_and_less_time() -> None:
    kernel = PagedKernel(B2, GQA, page_tokens=16)
    contexts = [2048] * 6
    apart = play(kernel, contexts)
    adjacent = [list(range(128 * i, 128 * (i + 1))) for i in range(6)]
    merged = simulate_launch(kernel, contexts, adjacent)
    assert merged.traffic.kv_bytes == apart.traffic.kv_bytes
    assert merged.mean_run_pages > 10
    assert merged.traffic.dma_transfers < apart.traffic.dma_transfers / 10
    assert merged.seconds < apart.seconds
    closed = PagedKernel(B2, GQA, page_tokens=16, options=KernelOptions(run_pages=merged.mean_run_pages))
    assert closed.seconds(6, 6 * 2048, 6 * 128) == pytest.approx(merged.seconds, rel=0.05)


def test_tables_of_an_allocator_merge_where_its_pages_lie_side_by_side() -> None:
    allocator = PagedAllocator(plain_layout(page_tokens=16, bytes_per_token=32), max_pages=512)

    def admitted(request: int) -> list[int]:
        holding = allocator.admit(Life(request, 1024, 1, 1024), 1024)
        assert holding is not None
        return holding.pages

    fresh = [admitted(request) for request in range(2)]
    kernel = PagedKernel(B2, GQA, page_tokens=16)
    together = simulate_launch(kernel, [1024, 1024], fresh)
    shuffled = [fresh[0][::2] + fresh[1][::2], fresh[0][1::2] + fresh[1][1::2]]
    apart = simulate_launch(kernel, [1024, 1024], shuffled)
    assert together.traffic.kv_bytes == apart.traffic.kv_bytes == 2 * 1024 * 8 * 2 * 128 * 2
    assert together.traffic.dma_transfers < apart.traffic.dma_transfers / 4
    assert together.seconds < apart.seconds


def test_table_modes_trade_bytes_for_waiting() -> None:
    def launch(mode: str) -> Launch:
        return play(PagedKernel(B2, GQA, page_tokens=16, options=KernelOptions(table=mode)), [4096] * 3)  # type: ignore[arg-type]

    hbm, cached, copied = launch("hbm"), launch("dcache"), launch("l1")
    assert hbm.traffic.table_bytes > 20 * cached.traffic.table_bytes > copied.traffic.table_bytes
    assert hbm.stalls.lookup_s > 10 * cached.stalls.lookup_s > copied.stalls.lookup_s
    assert hbm.seconds > cached.seconds


def test_a_table_that_is_too_short_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="1000 tokens need 8 pages of 128, the table has 7"):
        simulate_launch(PagedKernel(B2, GQA, page_tokens=128), [1000], [[0, 1, 2, 3, 4, 5, 6]])


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(DEVICES)),
    page=st.sampled_from([8, 16, 32, 64, 128, 256, 512, 1024]),
    heads=st.sampled_from([1, 2, 5, 8, 32]),
    group=st.integers(1, 16),
    dim=st.sampled_from([64, 80, 128, 256]),
    table=st.sampled_from(["hbm", "dcache", "l1"]),
    prefetch=st.sampled_from(["none", "next", "all"]),
    contexts=st.lists(st.integers(1, 140_000), min_size=1, max_size=40),
)
def test_array_and_unrolled_forms_equal_the_closed_form_bit_for_bit(
    name: str, page: int, heads: int, group: int, dim: int, table: str, prefetch: str, contexts: list[int]
) -> None:
    shape = AttentionShape(kv_heads=heads, query_heads=heads * group, head_dim=dim, v_head_dim=dim)
    options = KernelOptions(table=table, prefetch=prefetch)  # type: ignore[arg-type]
    kernel = PagedKernel(DEVICES[name], shape, page_tokens=page, options=options)
    count = len(contexts)
    grown = np.array(contexts) + 7 * np.arange(5)[:, None]
    tokens, pages = grown.sum(axis=1), (-(-grown // page)).sum(axis=1)
    rows = list(zip(tokens.tolist(), pages.tolist(), strict=True))
    plain = [kernel.timing(count, *row).total_s for row in rows]
    assert [kernel.sums_seconds(count, *row) for row in rows] == plain
    if not kernel.needs_lengths:
        assert kernel.seconds_array(count, tokens, pages).tolist() == plain
    # The same within a page of every sequence, where the number of pages stands still.
    first = sum(context - context % page + 1 for context in contexts)
    tokens, still = np.array([first + count * step for step in range(8)]), sum(c // page + 1 for c in contexts)
    plain = [kernel.timing(count, int(total), still).total_s for total in tokens]
    assert [kernel.sums_seconds(count, int(total), still) for total in tokens] == plain
    if not kernel.needs_lengths:
        assert kernel.seconds_array(count, tokens, np.full(8, still)).tolist() == plain
    # With every length known, a row does not depend on the rows beside it.
    together = kernel.seconds_array(count, tokens, np.full(8, still), lambda: grown).tolist()
    assert together == [kernel.seconds(count, 0, 0, known_lengths(row)) for row in grown.tolist()]


@settings(max_examples=60, deadline=None)
@given(
    page=st.sampled_from([16, 64, 128]),
    contexts=st.lists(st.integers(1, 20_000), min_size=1, max_size=60),
    more=st.integers(1, 5000),
)
def test_more_context_never_takes_less_time_by_more_than_rounding(page: int, contexts: list[int], more: int) -> None:
    kernel = PagedKernel(B2, GQA, page_tokens=page)
    before, after = kernel.seconds_of(np.array(contexts) + np.array([[0], [more]]))
    assert after >= before * 0.98


def test_a_faster_memory_and_a_smaller_latency_never_slow_a_launch() -> None:
    base = PagedKernel(B2, GQA, page_tokens=64).seconds(16, 16 * 3000, 16 * 47)
    for change in (
        {"hbm_sustained_bandwidth": 2e12},
        {"hbm_latency_cycles": 150.0},
        {"dma_startup_s": 0.0},
        {"cube_flops": 1e15},
    ):
        faster: Device = replace(B2, **change)  # type: ignore[arg-type]
        assert PagedKernel(faster, GQA, page_tokens=64).seconds(16, 16 * 3000, 16 * 47) <= base
