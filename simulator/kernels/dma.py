"""One DMA queue of a core: how long a transfer from global memory into the core takes.

A transfer is held up by whichever is slowest of three things: the queue's issue rate, the round trip of a
lone request (latency, then the core's own port), or the core's share of the common bandwidth. The share is
``bandwidth / active cores``: the cores of one launch run in step, so a start-up gap of one is not filled by
another, and the time is a sum, ``startup + bytes * active / bandwidth``. Published copy kernels behave so
(Huawei asc-devkit, data_copy and add_high_performance samples, Atlas A2/A3, 302 MB matrix).
"""

from dataclasses import dataclass
from typing import Literal

from simulator.device import Device

Path = Literal["l1", "ub"]

# Plateaus of the one-core tables in Ascend msKPP (resource910b.cpp), GM->L1 and GM->UB: 307.8 GB/s at
# 1.85 GHz and 227 GB/s at 1.8 GHz after a least-squares fit of start-up and slope.
PORT_BYTES_PER_CYCLE: dict[Path, float] = {"l1": 166.4, "ub": 126.1}

# Requests to global memory are tracked in pieces of this size (Huawei guide, architecture 2201).
GRANULE_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Dma:
    """Timing of one core's queue. ``depth`` transfers are kept in flight, so each pays its share of a start-up."""

    issue_s: float
    startup_s: float
    latency_s: float
    port_bandwidth: float
    shared_bandwidth: float
    depth: int = 1

    def seconds(self, size_bytes: float, active_cores: float) -> float:
        """Seconds one transfer keeps the queue busy while ``active_cores`` cores stream."""
        lone = self.latency_s / self.depth + size_bytes / self.port_bandwidth
        shared = self.startup_s / self.depth + size_bytes * active_cores / self.shared_bandwidth
        return max(self.issue_s, lone, shared)

    def bound(self, size_bytes: float, active_cores: float) -> str:
        """What decides ``seconds``: ``issue``, ``latency`` or ``bandwidth``.

        A start-up that takes longer than the bytes counts as latency: larger transfers would cure it.
        """
        stream = size_bytes * active_cores / self.shared_bandwidth
        if self.seconds(size_bytes, active_cores) <= self.issue_s:
            return "issue"
        lone = self.latency_s / self.depth + size_bytes / self.port_bandwidth
        waits = lone > self.startup_s / self.depth + stream or self.startup_s / self.depth > stream
        return "latency" if waits else "bandwidth"


def make_dma(
    device: Device,
    *,
    path: Path = "l1",
    depth: int = 1,
    l2_hit_ratio: float = 0.0,
    touches: float = 1.0,
    aligned: bool = True,
) -> Dma:
    """The queue of one core of ``device``.

    ``touches`` is how many cores ask for the same granule: the first is served from where the data is, each
    further one moves the whole granule again out of L2.
    """
    cycle = 1.0 / device.clock_hz
    latency = l2_hit_ratio * device.l2_latency_cycles + (1.0 - l2_hit_ratio) * device.hbm_latency_cycles
    return Dma(
        issue_s=device.dma_issue_s,
        startup_s=device.dma_startup_s,
        latency_s=latency * cycle,
        port_bandwidth=PORT_BYTES_PER_CYCLE[path] * device.clock_hz,
        shared_bandwidth=read_bandwidth(device, l2_hit_ratio=l2_hit_ratio, touches=touches, aligned=aligned),
        depth=depth,
    )


def read_bandwidth(device: Device, *, l2_hit_ratio: float = 0.0, touches: float = 1.0, aligned: bool = True) -> float:
    """Useful bytes per second all cores together read: ``1/B = hit/L2 + miss/HBM + (touches-1)/L2``.

    The harmonic mix is the one Huawei's matmul figures follow (MindIE bandwidth guide, five hit ratios).
    """
    hbm = device.hbm_sustained_bandwidth
    per_byte = l2_hit_ratio / device.l2_bandwidth + (1.0 - l2_hit_ratio) / hbm + (touches - 1.0) / device.l2_bandwidth
    return (1.0 if aligned else device.unaligned_ratio) / per_byte
