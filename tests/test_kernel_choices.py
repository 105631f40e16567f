"""Kernel variants, page-size tables and the articles' mechanisms, against hand calculations."""

from functools import cache

import pytest

from simulator.config import EngineConfig
from simulator.cost import StepCost
from simulator.device import Device, DeviceConfig, load_device
from simulator.kernel import PagedKernel
from simulator.kernels.kernel_table import KernelRow, kernel_table, recommend_page_size
from simulator.kernels.mechanisms import cu_seqlens_copy, extend_while_read, free_list, packing, qkv_read, table_row
from simulator.kernels.step_load import StepLoad, known_lengths
from simulator.kernels.tiles import AttentionShape, KernelOptions, plan_tiles
from simulator.model import Model, ModelConfig, load_model


@cache
def device(name: str = "910B2") -> Device:
    return load_device(DeviceConfig(preset=name))


@cache
def model(name: str = "llama-2-7b") -> Model:
    return load_model(ModelConfig(preset=name))


def rows(*sizes: int, name: str = "llama-2-7b", **options: str) -> list[KernelRow]:
    chosen = KernelOptions(**options)  # type: ignore[arg-type]
    return kernel_table(device(), model(name), EngineConfig(), sizes, context=2048, batch=16, options=chosen)


def test_a_page_of_128_tokens_is_a_32_kib_tile_a_head_and_2_mib_a_layer() -> None:
    row = rows(128)[0]
    assert (row.tile_bytes, row.page_bytes, row.tiles_fit) == (32768, 2 * 2**20, 4)
    assert row.kv_bytes == 16 * 2048 * 2 * 32 * 128 * 2
    assert row.lookups == 16 * 16 * 32 * 2
    assert row.engines == ("vllm-ascend", "FusedInferAttentionScore", "ATB")


def test_whole_pages_of_32_tokens_fill_512_kib_and_64_do_not_fit() -> None:
    fits, overflows = rows(32, 64, tile="whole_page")
    assert (fits.tile_bytes, fits.tiles_fit, fits.passes) == (524288, 1, 1)
    assert (overflows.tiles_fit, overflows.passes, overflows.bound) == (0, 2, "tile overflow")


def test_the_cliff_at_64_tokens_needs_whole_pages_that_are_read_again() -> None:
    read_again = rows(32, 64, tile="whole_page", overflow="reload")
    in_passes = rows(32, 64, tile="whole_page")
    per_head = rows(32, 64)
    assert read_again[1].bandwidth_utilization < 0.6 * read_again[0].bandwidth_utilization
    assert in_passes[1].bandwidth_utilization == pytest.approx(in_passes[0].bandwidth_utilization, rel=0.05)
    assert per_head[1].bandwidth_utilization > per_head[0].bandwidth_utilization


def test_one_buffer_waits_for_each_tile_and_two_do_not() -> None:
    none, following, everything = (rows(32, prefetch=how)[0] for how in ("none", "next", "all"))
    assert (none.buffers, following.buffers, everything.buffers) == (1, 2, 16)
    assert none.seconds > following.seconds > everything.seconds


def test_heads_outermost_spare_the_granules_that_two_heads_share() -> None:
    tokens_first, heads_first = (rows(128, layout=how)[0] for how in ("token_major", "head_major"))
    # 256-byte rows: two heads share a 512-byte granule, and the second reading comes out of L2 at 4.75 TB/s.
    ratio = (1 / 1.45 + 1 / 4.75) / (1 / 1.45)
    assert tokens_first.kernel_seconds / heads_first.kernel_seconds == pytest.approx(ratio, rel=0.02)


def test_pages_of_odd_bytes_are_flagged_and_slowed_by_the_unaligned_ratio() -> None:
    shape = AttentionShape(kv_heads=1, query_heads=1, head_dim=80, v_head_dim=80)
    odd = PagedKernel(device(), shape, page_tokens=9)
    assert not odd.plan.aligned
    assert odd.dma.shared_bandwidth == pytest.approx(device().unaligned_ratio * 1.45e12)


def test_a_page_of_no_tokens_is_refused() -> None:
    shape = AttentionShape(kv_heads=1, query_heads=1, head_dim=128, v_head_dim=128)
    with pytest.raises(ValueError, match="page_tokens must be at least 1, not 0"):
        plan_tiles(device(), shape, KernelOptions(), 0)


def test_the_recommended_page_weighs_transfers_against_unused_room() -> None:
    sizes = [8, 16, 32, 64, 128, 256, 512, 1024]

    def best(lengths: list[int]) -> int:
        choice, candidates = recommend_page_size(
            device(), model(), EngineConfig(), sizes, lengths=lengths, pool_tokens=60_000
        )
        assert [candidate.page_size for candidate in candidates] == sizes
        return choice.page_size

    assert best([100, 140, 180]) < best([3000, 8000, 20000])
    assert 64 <= best([3000, 8000, 20000]) <= 256


def test_internal_waste_is_the_unused_share_of_the_last_pages() -> None:
    _, (only,) = recommend_page_size(device(), model(), EngineConfig(), [128], lengths=[100, 300], pool_tokens=60_000)
    assert only.internal_waste == pytest.approx(1 - 400 / (4 * 128))
    assert only.sequences == 60_000 // 128 * 2 // 4


def test_a_page_size_is_weighed_by_whole_batches_and_not_by_one() -> None:
    engine, lengths = EngineConfig(), [60_000, 400, 400, 400, 400, 400]
    pages = sum(-(-length // 128) for length in lengths)
    # room for two sequences at a time, of six: three batches, one of which has the long sequence
    _, (only,) = recommend_page_size(
        device(), model(), engine, [128], lengths=lengths, pool_tokens=-(-2 * pages // 6) * 128
    )
    cost = StepCost(device(), model(), engine, page_tokens=128)

    def step(batch: list[int]) -> float:
        load = StepLoad(
            decode_sequences=2,
            decode_context_tokens=sum(batch),
            decode_pages=sum(-(-length // 128) for length in batch),
            decode_lengths=known_lengths(batch),
            sampled_sequences=2,
        )
        return cost.seconds(load)

    assert only.sequences == 2
    assert only.step_seconds == pytest.approx((step([60_000, 400]) + 2 * step([400, 400])) / 3)


def test_rows_of_2048_tokens_in_pages_of_16_are_128_entries_and_need_no_padding() -> None:
    row = table_row(device(), max_model_len=2048, page_tokens=16, align_bytes=128)
    assert (row.entries, row.stride_entries, row.padding_bytes, row.shares_line) == (128, 128, 0, False)
    short = table_row(device(), max_model_len=2048, page_tokens=16 * 50, align_bytes=4)
    assert (short.entries, short.shares_line) == (3, True)


def test_packing_drops_the_dummy_tokens_and_the_masked_pairs() -> None:
    three, four = packing(device(), model(), [128, 64, 256]), packing(device(), model(), [128, 64, 256, 32])
    assert (three.packed_tokens, three.padded_tokens, three.padding_tokens) == (448, 768, 320)
    assert (four.packed_tokens, four.padded_tokens, four.padding_tokens) == (480, 1024, 544)
    assert three.padded_pairs - three.packed_pairs == 3 * 256 * 257 // 2 - (128 * 129 + 64 * 65 + 256 * 257) // 2


def test_interleaving_saves_bursts_and_granules_but_no_cache_lines() -> None:
    together, apart = (qkv_read(device(), head_dim=128, interleaved=how) for how in (True, False))
    assert (together.bursts, together.burst_bytes, together.lines) == (1, 768, 6)
    assert (apart.bursts, apart.burst_bytes, apart.lines) == (3, 256, 6)
    assert (together.granule_bytes, apart.granule_bytes) == (1024, 1536)
    assert together.seconds < apart.seconds


def test_offsets_travel_slower_from_pageable_memory() -> None:
    pageable, pinned, prebuilt = (cu_seqlens_copy(device(), batch=8, how=h) for h in ("pageable", "pinned", "prebuilt"))
    assert pinned.moved_bytes == 36
    assert pageable.seconds > pinned.seconds > prebuilt.seconds
    assert prebuilt.seconds < 1e-6


def test_the_free_list_is_nothing_beside_a_step() -> None:
    cost = free_list(device(), batch=32, page_tokens=16, step_s=15e-3)
    assert cost.pages_per_step == 2
    assert cost.seconds == pytest.approx(4 * 300 / 1.8e9)
    assert cost.share < 1e-4


def test_copying_every_appended_page_costs_its_bytes_twice() -> None:
    hazard = extend_while_read(device(), sequences=16, page_tokens=16, page_bytes=16 * 512 * 1024, layers=32)
    assert hazard.appends == 15
    assert hazard.copy_bytes == 15 * 16 * 512 * 1024 * 2
    assert hazard.copy_seconds == pytest.approx(hazard.copy_bytes / 1.45e12)
