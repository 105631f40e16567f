"""On-chip work of paged attention: the cube's products, the vector cores' softmax, and how they exchange scores.

Cube and vector cores of the 910B share no on-chip memory: scores go out through L2 and come back as
probabilities (Huawei guide, architecture 2201), so that traffic is counted here and not with the KV reads.
"""

from dataclasses import dataclass

from simulator.device import Device
from simulator.kernels.tiles import AttentionShape, TileKind

# The cube works on 16 x 16 fractals; a shorter side is padded.
FRACTAL = 16
# L1 to L0B, measured by Huawei's load_data_perf test for architecture 2201.
L0_BYTES_PER_CYCLE = 128
# FP32 lanes of one vector instruction (256-byte registers).
VECTOR_LANES = 64
# Vector instructions on each score in online softmax: scale, row maximum, subtract, exponential, row sum, cast.
SOFTMAX_PASSES = 6
# One score leaves the cube as FP32 and is read; one probability leaves the vector core as FP16 and is read.
EXCHANGE_BYTES = 4 + 4 + 2 + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TileCompute:
    """Seconds of on-chip work for each 16-token slice of one step (K and V of one head, or of all heads)."""

    slice_s: float
    cube_slice_s: float
    vector_slice_s: float
    exchange_bytes_per_token: float

    def seconds(self, tokens: float) -> float:
        """Of one step over ``tokens`` tokens; whole slices."""
        return -(-tokens // FRACTAL) * self.slice_s


def tile_compute(device: Device, shape: AttentionShape, tile: TileKind) -> TileCompute:
    """The on-chip work of one step. Cube and vector cores work side by side, so the slower one counts."""
    heads = shape.kv_heads if tile == "whole_page" else 1
    rows = -(-shape.group_heads // FRACTAL) * FRACTAL
    dims = shape.head_dim + shape.v_head_dim
    core_flops = device.cube_flops / device.cores
    products_s = heads * 2.0 * rows * dims * FRACTAL / core_flops
    loads_s = heads * dims * FRACTAL * 2.0 / (L0_BYTES_PER_CYCLE * device.clock_hz)
    scores = float(heads * shape.group_heads * FRACTAL)
    lanes = VECTOR_LANES * device.vector_cores / device.cores
    softmax_s = scores * SOFTMAX_PASSES / lanes / device.clock_hz
    exchange_s = scores * EXCHANGE_BYTES * device.cores / device.l2_bandwidth
    cube_s, vector_s = max(products_s, loads_s), max(softmax_s, exchange_s)
    return TileCompute(
        slice_s=max(cube_s, vector_s),
        cube_slice_s=cube_s,
        vector_slice_s=vector_s,
        exchange_bytes_per_token=heads * shape.group_heads * float(EXCHANGE_BYTES),
    )
