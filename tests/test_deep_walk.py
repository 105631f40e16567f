"""The closed form of kernels that keep many tiles in flight, against the same launch transfer by transfer."""

from dataclasses import replace

import launch_recurrence
import pytest

from simulator.device import DeviceConfig, load_device
from simulator.kernel import PagedKernel
from simulator.kernels.deep_walk import DeepWalk
from simulator.kernels.kernel_agreement import random_launch
from simulator.kernels.tiles import AttentionShape, KernelOptions
from simulator.rng import stream

DEVICES = {name: load_device(DeviceConfig(preset=name)) for name in ("910B1", "910B2", "910B3", "910B4", "910C")}


@pytest.mark.parametrize(
    ("device", "options", "page", "heads", "dim", "contexts"),
    [
        # Look-ups of short tasks hold up the first core, loads of long ones the rest.
        ("910B2", KernelOptions(layout="head_major"), 16, 32, 64, [14, 15, 9222, 2732]),
        ("910B1", KernelOptions(layout="head_major", run_pages=2), 8, 32, 96, [1, 4, 6285]),
        (
            "910B3",
            KernelOptions(table="hbm", layout="head_major"),
            256,
            32,
            64,
            [1127, 6, 164, 3, 2525, 371, 5178, 12005],
        ),
        # Page ids of a core that waits for loads are looked up long before; when others end, it only loads.
        ("910B4", KernelOptions(run_pages=4, layout="head_major"), 8, 8, 96, [101, 92, 250, 7, 3, 2, 72, 2, 2446]),
        ("910B4", KernelOptions(), 8, 32, 64, [285, 6, 26]),
        # Only a core's first table row is waited for.
        ("910B1", KernelOptions(table="l1"), 32, 32, 128, [1] * 27),
        ("910B4", KernelOptions(table="l1", run_pages=8), 8, 16, 96, [69] * 20),
        # Work takes longest, three buffers, and more pages than any buffer holds.
        ("910C", KernelOptions(layout="head_major"), 128, 4, 170, [9000, 130, 2500]),
        ("910B2", KernelOptions(run_pages=3), 16, 8, 128, [20_000, 300, 2000, 17]),
    ],
)
def test_many_tile_buffers_match_transfer_by_transfer(
    device: str, options: KernelOptions, page: int, heads: int, dim: int, contexts: list[int]
) -> None:
    shape = AttentionShape(kv_heads=heads, query_heads=16 * heads, head_dim=dim, v_head_dim=dim)
    kernel = PagedKernel(DEVICES[device], shape, page_tokens=page, options=replace(options, prefetch="all"))
    assert isinstance(kernel.walk, DeepWalk) and kernel.plan.buffers > 2
    played = launch_recurrence.seconds(kernel, contexts, round(options.run_pages))
    assert kernel.known_seconds(contexts) == pytest.approx(played, rel=0.015)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_many_tile_buffers_match_over_a_large_sweep(seed: int) -> None:
    rng, count = stream(300 + seed, "launches"), 0
    while count < 200:
        kernel, contexts = random_launch(rng, list(DEVICES.values()), mixed=count % 4 != 0, most_pages=6000)
        if isinstance(kernel.walk, DeepWalk):
            count += 1
            floor_s = kernel.device.launch_s
            played = launch_recurrence.seconds(kernel, contexts, round(kernel.options.run_pages))
            assert floor_s + kernel.known_seconds(contexts) == pytest.approx(floor_s + played, rel=0.02)
