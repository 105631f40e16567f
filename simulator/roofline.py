"""Seconds of everything in a step but decode attention: weights, matrix products, collectives, KV writes, prefill.

Each is the slower of its bytes and its operations, on one of ``tp`` devices. Pipeline stages work one after the
other on a step, so a step's time sums over all layers of the model whatever ``pp`` is; that several steps may be
in flight in different stages is not modelled.
"""

from dataclasses import dataclass

from simulator.compute import SOFTMAX_PASSES, VECTOR_LANES
from simulator.device import Device
from simulator.model_shape import AttentionGroup, Model

ACTIVATION_BYTES = 2
# Query rows of one tile of a prefill attention kernel: K and V pass through the cores once for each tile.
QUERY_TILE = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One piece of work: bytes through its channel, operations, seconds, and which of the two decides."""

    seconds: float
    moved_bytes: float = 0.0
    flops: float = 0.0
    bound: str = "none"


def linear(device: Device, model: Model, *, tokens: int, tp: int) -> Work:
    """The matrix products of all layers for ``tokens`` tokens: weights streamed once, experts only if reached.

    The output head's weights are left to ``logits``.
    """
    if tokens == 0:
        return Work(seconds=0.0)
    weights = model.streamed_weight_bytes(tokens, tp) - head_bytes(model, tp)
    flops = tokens * model.linear_flops_per_token / tp
    return _roofline(device, weights, flops)


def head_bytes(model: Model, tp: int) -> int:
    """Bytes of the output projection on one device; the embedding's when it is tied."""
    return sum(weight.device_bytes(tp) for weight in ((model.head,) if model.head else model.embedding[:1]))


def logits(device: Device, model: Model, *, rows: int, tp: int) -> Work:
    """The output projection of ``rows`` sampled positions."""
    if rows == 0:
        return Work(seconds=0.0)
    return _roofline(device, float(head_bytes(model, tp)), rows * model.head_flops_per_row / tp)


def all_reduce(device: Device, model: Model, *, tokens: int, tp: int) -> Work:
    """Two sums of the hidden states a layer over the HCCS links, ring traffic 2 (tp-1)/tp, and their latency."""
    if tp == 1 or tokens == 0:
        return Work(seconds=0.0)
    hidden = float(tokens * model.hidden_size * ACTIVATION_BYTES)
    moved = 2 * model.num_layers * 2.0 * (tp - 1) / tp * hidden
    latency = 2 * model.num_layers * device.link_latency_s
    wire = moved / device.link_bandwidth
    return Work(seconds=wire + latency, moved_bytes=moved, bound="latency" if latency > wire else "link")


def stage_transfers(device: Device, model: Model, *, tokens: int, pp: int) -> Work:
    """Hidden states handed from each pipeline stage to the next."""
    if pp == 1 or tokens == 0:
        return Work(seconds=0.0)
    moved = float((pp - 1) * tokens * model.hidden_size * ACTIVATION_BYTES)
    return Work(
        seconds=moved / device.link_bandwidth + (pp - 1) * device.link_latency_s, moved_bytes=moved, bound="link"
    )


def kv_write(device: Device, *, tokens: int, token_bytes: float) -> Work:
    """New keys and values of ``tokens`` tokens to HBM; ``token_bytes`` of all layers on one device."""
    moved = tokens * token_bytes
    return Work(
        seconds=moved / device.hbm_sustained_bandwidth, moved_bytes=moved, bound="bandwidth" if moved else "none"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillAttention:
    """Attention of prompt chunks in the layers of one group, on one device.

    Operations count (query, key) pairs; keys and values come from HBM once a chunk and from L2 once for each tile
    of 128 query rows; each pair passes the vector cores for the softmax.
    """

    layers: int
    window: int | None
    flops_per_pair: float
    vector_ops_per_pair: float
    token_bytes: float
    cube_flops: float
    vector_ops: float
    hbm_bandwidth: float
    l2_bandwidth: float

    def work(self, *, tokens: int, pairs: int, context_tokens: int, chunks: int) -> Work:
        """Work of all layers. With a window a query sees at most ``window`` keys, a chunk as many before it."""
        if tokens == 0:
            return Work(seconds=0.0)
        if self.window is not None:
            pairs = min(pairs, tokens * self.window)
            context_tokens = min(context_tokens, tokens + chunks * self.window)
        flops = pairs * self.flops_per_pair
        moved = context_tokens * self.token_bytes
        times = {
            "compute": flops / self.cube_flops,
            "vector": pairs * self.vector_ops_per_pair / self.vector_ops,
            "bandwidth": moved / self.hbm_bandwidth,
            "l2": pairs / QUERY_TILE * self.token_bytes / self.l2_bandwidth,
        }
        bound = max(times, key=lambda name: times[name])
        return Work(
            seconds=self.layers * times[bound], moved_bytes=self.layers * moved, flops=self.layers * flops, bound=bound
        )


def prefill_attention(
    device: Device, model: Model, group: AttentionGroup, *, tp: int, kv_bytes: float
) -> PrefillAttention:
    """The prefill work of one attention group. MLA prefill expands the latent to full heads."""
    heads = -(-model.num_attention_heads // tp)
    latent = group.kind == "mla"
    key_dim, value_dim = (model.query_head_dim, model.value_head_dim) if latent else (group.head_dim, group.v_head_dim)
    return PrefillAttention(
        layers=group.layers,
        window=group.window,
        flops_per_pair=2.0 * heads * (key_dim + value_dim),
        vector_ops_per_pair=float(heads * SOFTMAX_PASSES),
        token_bytes=group.elements_per_token_layer(tp) * kv_bytes,
        cube_flops=device.cube_flops * device.cube_efficiency,
        vector_ops=VECTOR_LANES * device.vector_cores * device.clock_hz,
        hbm_bandwidth=device.hbm_sustained_bandwidth,
        l2_bandwidth=device.l2_bandwidth,
    )


def _roofline(device: Device, moved: float, flops: float) -> Work:
    memory_s = moved / device.hbm_sustained_bandwidth
    compute_s = flops / (device.cube_flops * device.cube_efficiency)
    bound = "bandwidth" if memory_s >= compute_s else "compute"
    return Work(seconds=max(memory_s, compute_s), moved_bytes=moved, flops=flops, bound=bound)
