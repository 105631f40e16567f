"""The kernel model against published measurements. Sources are named at each table."""

from dataclasses import replace

import pytest

from simulator.device import Device, DeviceConfig, load_device
from simulator.kernel import PagedKernel
from simulator.kernels.dma import make_dma, read_bandwidth
from simulator.kernels.tiles import AttentionShape
from simulator.validating.fused import Loop, host_issue_us

MATRIX_BYTES = 12288 * 12288 * 2


def device(name: str) -> Device:
    return load_device(DeviceConfig(preset=name))


# Huawei asc-devkit, data_copy and add_high_performance samples on Atlas A2/A3: a matrix of 302 MB, larger than
# L2, read once by all cores. Path, cores, transfer bytes, transfers in flight, MTE2 microseconds. The plain copy
# kernel waits for nothing, so its queue is deep; ND2NZ and the vector add without double buffer take one at a time.
ALL_CORES = [
    ("ub", 48, 128, 16, 548.161),
    ("ub", 48, 8192, 2, 220.772),
    ("ub", 48, 131072, 2, 202.657),
    ("l1", 24, 8192, 1, 283.508),
    ("l1", 24, 32768, 1, 214.519),
]


@pytest.mark.parametrize(("path", "cores", "size", "depth", "measured_us"), ALL_CORES)
def test_all_cores_read_a_large_matrix_in_the_published_time(
    path: str, cores: int, size: int, depth: int, measured_us: float
) -> None:
    dma = make_dma(device("910B2"), path=path, depth=depth)  # type: ignore[arg-type]
    computed_us = MATRIX_BYTES / size / cores * dma.seconds(size, cores) * 1e6
    assert computed_us == pytest.approx(measured_us, rel=0.10)


# The same source's vector add reads two operands and writes one; bandwidths from its table.
@pytest.mark.parametrize(("size", "cores", "measured_tb_s"), [(8192, 48, 1.246), (32768, 48, 1.456), (8192, 1, 0.043)])
def test_the_serial_vector_add_reaches_the_published_bandwidth(size: int, cores: int, measured_tb_s: float) -> None:
    seconds = make_dma(device("910B2"), path="ub").seconds(size, cores)
    assert cores * size / seconds / 1e12 == pytest.approx(measured_tb_s, rel=0.10)


# Ascend msKPP, resource910b.cpp: GM->L1 of one core with the data in L2, GB/s by KiB of one transfer.
ONE_CORE_L1 = {1: 10.7, 2: 19.2, 4: 31.5, 8: 62.3, 16: 100.1, 32: 158.2, 64: 189.3, 128: 249.7, 256: 280.6, 512: 281.2}
ONE_CORE_UB = {1: 8.5, 2: 17.1, 4: 31.0, 8: 61.6, 16: 98.4, 32: 121.7, 64: 158.0, 128: 192.0}


@pytest.mark.parametrize(("path", "table"), [("l1", ONE_CORE_L1), ("ub", ONE_CORE_UB)])
def test_one_isolated_core_follows_the_published_table(path: str, table: dict[int, float]) -> None:
    dma = make_dma(device("910B3"), path=path, l2_hit_ratio=1.0)  # type: ignore[arg-type]
    for kib, measured in table.items():
        size = kib * 1024
        assert size / dma.seconds(size, 1) / 1e9 == pytest.approx(measured, rel=0.12), f"{path} {kib} KiB"


# MindIE bandwidth guide: MTE2 bandwidth of a matmul by L2 hit ratio. The two ends were fitted to these points.
HIT_RATIOS = [(0.9377, 3.87), (0.9371, 3.73), (0.8927, 3.52), (0.5757, 2.13), (0.3231, 1.62)]


@pytest.mark.parametrize(("ratio", "measured_tb_s"), HIT_RATIOS)
def test_bandwidth_by_l2_hit_ratio_follows_the_harmonic_mix(ratio: float, measured_tb_s: float) -> None:
    card = replace(device("910B2"), l2_bandwidth=4.45e12, hbm_sustained_bandwidth=1.24e12)
    assert read_bandwidth(card, l2_hit_ratio=ratio) / 1e12 == pytest.approx(measured_tb_s, rel=0.05)


def kernel_seconds(name: str, *, kv_heads: int, batch: int, context: int) -> tuple[float, int]:
    """Seconds of one launch with 128-token pages, and its KV bytes."""
    shape = AttentionShape(kv_heads=kv_heads, query_heads=kv_heads * 4, head_dim=128, v_head_dim=128)
    kernel = PagedKernel(device(name), shape, page_tokens=128)
    tokens, pages = batch * context, batch * -(-context // 128)
    return kernel.seconds(batch, tokens, pages), kernel.traffic(batch, tokens, pages).kv_bytes


# FusedInferAttentionScore decode on a 910B, pages of 128, sequential tables (1,216 points of the public
# aiconfigurator-npu fork): t = 41 us + bytes / 1.0 TB/s with 8 KV heads; 1.2 to 1.37 TB/s with one.
@pytest.mark.parametrize("name", ["910B2", "910B3"])
@pytest.mark.parametrize("batch", [8, 32, 64])
@pytest.mark.parametrize("context", [2048, 8192])
def test_eight_kv_heads_land_on_the_fused_attention_line(name: str, batch: int, context: int) -> None:
    seconds, moved = kernel_seconds(name, kv_heads=8, batch=batch, context=context)
    assert 41e-6 + seconds == pytest.approx(41e-6 + moved / 1.0e12, rel=0.15)


@pytest.mark.parametrize("name", ["910B2", "910B3"])
def test_one_kv_head_reads_contiguous_rows_and_is_faster(name: str) -> None:
    seconds, moved = kernel_seconds(name, kv_heads=1, batch=64, context=8192)
    assert 1.2 * 0.85 <= moved / seconds / 1e12 <= 1.37 * 1.15
    eight, eight_moved = kernel_seconds(name, kv_heads=8, batch=8, context=8192)
    assert moved / seconds > 1.1 * eight_moved / eight


# Single points of the same benchmark, which calls the kernel on the same KV again and again. Query heads, KV heads,
# batch, context, microseconds: what L2 holds (34 to 168 MB), and what it does not.
IN_L2 = [(8, 8, 1, 16_384, 78.26), (64, 64, 1, 4096, 101.64), (8, 8, 8, 4096, 103.69), (40, 40, 4, 2048, 116.53)]
BEYOND_L2 = [(8, 1, 64, 8192, 238.91), (8, 1, 128, 16_384, 834.40), (32, 8, 64, 8192, 2170.46)]


@pytest.mark.parametrize(("query_heads", "kv_heads", "batch", "context", "measured_us"), IN_L2 + BEYOND_L2)
def test_a_loop_over_the_same_kv_takes_what_was_measured(
    query_heads: int, kv_heads: int, batch: int, context: int, measured_us: float
) -> None:
    got, moved = Loop(device=device("910B2")).call((query_heads, kv_heads), batch, context)
    assert moved == batch * context * kv_heads * 2 * 128 * 2
    assert got == pytest.approx(measured_us, rel=0.10)


def test_a_host_that_issues_slowly_holds_up_short_calls_only() -> None:
    # Where next to nothing is read, twenty shapes took 57 to 63 us; what the same host issued next is no shorter.
    assert 57 < host_issue_us() < 63
    slow, fast = Loop(device=device("910B2"), issue_us=host_issue_us()), Loop(device=device("910B2"))
    assert slow.call((8, 1), 1, 1024)[0] == slow.call((64, 8), 1, 512)[0] == host_issue_us()
    assert fast.call((8, 1), 1, 1024)[0] < 43
    assert slow.call((8, 8), 1, 16_384) == fast.call((8, 8), 1, 16_384)


def test_a_loop_reads_from_l2_what_has_room_there_and_nothing_of_what_has_not() -> None:
    loop = Loop(device=device("910B2"))
    # 4 KiB a token at 8 KV heads: 192 MiB are 49,152 tokens.
    held, moved = loop.call((8, 8), 1, 49_152)
    assert moved == 192 * 2**20
    more = loop.call((8, 8), 1, 49_153)[0]
    # A byte of a row that two heads share takes L2 twice, or HBM once and L2 once.
    of_l2, of_hbm = 1 / 4.752e12, 1 / device("910B2").hbm_sustained_bandwidth
    assert (more - 41) / (held - 41) == pytest.approx((of_hbm + of_l2) / (2 * of_l2), rel=0.08)


def test_latent_attention_on_910c_stays_below_the_published_share_of_peak() -> None:
    card = device("910C")
    shape = AttentionShape(kv_heads=1, query_heads=128, head_dim=576, v_head_dim=512, latent=True)
    kernel = PagedKernel(card, shape, page_tokens=128)
    tokens, pages = 96 * 8192, 96 * 64
    share = kernel.traffic(96, tokens, pages).kv_bytes / kernel.seconds(96, tokens, pages) / card.hbm_bandwidth
    assert 0.75 <= share <= 0.841  # CloudMatrix384 (arXiv 2506.12708), table 8


@pytest.mark.parametrize("name", ["910B1", "910B2", "910B3", "910B4", "910C"])
def test_bandwidth_use_rises_with_page_size_while_two_tiles_fit(name: str) -> None:
    card = device(name)
    shape = AttentionShape(kv_heads=8, query_heads=32, head_dim=128, v_head_dim=128)
    used = []
    for page in (8, 16, 32, 64, 128, 256):
        kernel = PagedKernel(card, shape, page_tokens=page)
        moved, seconds = 24 * 8192 * shape.token_bytes, kernel.seconds(24, 24 * 8192, 24 * 8192 // page)
        used.append(moved / seconds / card.hbm_bandwidth)
    assert used == sorted(used)
    assert used[-1] < 0.93
