"""Seconds of everything in a step but decode attention: weights, matrix products, collectives, KV writes, prefill.

Each is the slower of its bytes and its operations, on one of ``tp`` devices, and says it twice: ``seconds`` for the
engine, which asks in every step, and ``work`` with bytes and bound for people. Pipeline stages work one after the
other on a step, so a step's time sums over all layers of the model whatever ``pp`` is; that several steps may be
in flight in different stages is not modelled.
"""

from dataclasses import dataclass
from typing import Any, Final

from simulator.device import Device
from simulator.kernels.compute import SOFTMAX_PASSES, VECTOR_LANES
from simulator.kernels.step_load import Lengths
from simulator.models.model_shape import AttentionGroup, Model

ACTIVATION_BYTES: Final = 2
# Query rows of one tile of a prefill attention kernel: K and V pass through the cores once for each tile.
QUERY_TILE: Final = 128
# Collectives of a layer whose context is shared, and bytes of a log-sum-exp.
EXCHANGES: Final = 3
LSE_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One piece of work: bytes through its channel, operations, seconds, and which of the two decides."""

    seconds: float
    moved_bytes: float = 0.0
    flops: float = 0.0
    bound: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLayers:
    """The matrix products of all layers: weights streamed once a step, experts only if a token reaches them.

    The output head's weights are left to ``OutputHead``.
    """

    model: Model
    tp: int
    fixed_bytes: float
    head_bytes: int
    flops_per_token: int
    hbm_bandwidth: float
    cube_flops: float

    def seconds(self, tokens: int) -> float:
        """Seconds of ``tokens`` tokens: the weights' bytes or the operations, whichever takes longer."""
        if tokens == 0:
            return 0.0
        memory_s = self._weights(tokens) / self.hbm_bandwidth
        compute_s = tokens * self.flops_per_token / self.tp / self.cube_flops
        return memory_s if memory_s > compute_s else compute_s

    def work(self, tokens: int) -> Work:
        """``seconds`` with bytes, operations and bound."""
        if tokens == 0:
            return Work(seconds=0.0)
        moved, flops = self._weights(tokens), tokens * self.flops_per_token / self.tp
        bound = "bandwidth" if moved / self.hbm_bandwidth >= flops / self.cube_flops else "compute"
        return Work(seconds=self.seconds(tokens), moved_bytes=moved, flops=flops, bound=bound)

    def _weights(self, tokens: int) -> float:
        if not self.model.expert_count:
            return self.fixed_bytes
        return self.model.streamed_weight_bytes(tokens, self.tp) - self.head_bytes


def linear(device: Device, model: Model, *, tp: int) -> LinearLayers:
    """The linear layers of ``model`` on one of ``tp`` devices."""
    head = head_bytes(model, tp)
    return LinearLayers(
        model=model,
        tp=tp,
        fixed_bytes=model.streamed_weight_bytes(1, tp) - head,
        head_bytes=head,
        flops_per_token=model.linear_flops_per_token,
        hbm_bandwidth=device.hbm_sustained_bandwidth,
        cube_flops=device.cube_flops * device.cube_efficiency,
    )


def head_bytes(model: Model, tp: int) -> int:
    """Bytes of the output projection on one device; the embedding's when it is tied."""
    return sum(weight.device_bytes(tp) for weight in ((model.head,) if model.head else model.embedding[:1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputHead:
    """The output projection: its weights once a step, its operations for each sampled row."""

    moved_bytes: float
    flops_per_row: int
    tp: int
    memory_s: float
    cube_flops: float

    def seconds(self, rows: int) -> float:
        """Seconds of ``rows`` sampled positions."""
        if rows == 0:
            return 0.0
        compute_s = rows * self.flops_per_row / self.tp / self.cube_flops
        return self.memory_s if self.memory_s > compute_s else compute_s

    def work(self, rows: int) -> Work:
        """``seconds`` with bytes, operations and bound."""
        if rows == 0:
            return Work(seconds=0.0)
        flops = rows * self.flops_per_row / self.tp
        bound = "bandwidth" if self.memory_s >= flops / self.cube_flops else "compute"
        return Work(seconds=self.seconds(rows), moved_bytes=self.moved_bytes, flops=flops, bound=bound)


def output_head(device: Device, model: Model, *, tp: int) -> OutputHead:
    """The output projection of ``model`` on one of ``tp`` devices."""
    moved = float(head_bytes(model, tp))
    return OutputHead(
        moved_bytes=moved,
        flops_per_row=model.head_flops_per_row,
        tp=tp,
        memory_s=moved / device.hbm_sustained_bandwidth,
        cube_flops=device.cube_flops * device.cube_efficiency,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Bytes in proportion to the tokens through one channel, and a latency; nothing at all without a channel."""

    token_bytes: float
    factor: float
    bandwidth: float
    latency_s: float
    bound: str

    def seconds(self, tokens: int) -> float:
        """Seconds of ``tokens`` tokens."""
        if tokens == 0 or self.factor == 0.0:
            return 0.0
        return self.factor * (tokens * self.token_bytes) / self.bandwidth + self.latency_s

    def work(self, tokens: int) -> Work:
        """``seconds`` with bytes and bound."""
        if tokens == 0 or self.factor == 0.0:
            return Work(seconds=0.0)
        moved = self.factor * (tokens * self.token_bytes)
        bound = "latency" if self.latency_s > moved / self.bandwidth else self.bound
        return Work(seconds=self.seconds(tokens), moved_bytes=moved, bound=bound)


def all_reduce(device: Device, model: Model, *, tp: int) -> Transfer:
    """Two sums of the hidden states a layer over the HCCS links, ring traffic 2 (tp-1)/tp, and their latency."""
    return Transfer(
        token_bytes=model.hidden_size * ACTIVATION_BYTES,
        factor=2 * model.num_layers * 2.0 * (tp - 1) / tp,
        bandwidth=device.link_bandwidth,
        latency_s=2 * model.num_layers * device.link_latency_s,
        bound="link",
    )


def stage_transfers(device: Device, model: Model, *, pp: int) -> Transfer:
    """Hidden states handed from each pipeline stage to the next."""
    return Transfer(
        token_bytes=model.hidden_size * ACTIVATION_BYTES,
        factor=float(pp - 1),
        bandwidth=device.link_bandwidth,
        latency_s=(pp - 1) * device.link_latency_s,
        bound="link",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShares:
    """``devices`` of a tensor-parallel group that deal the tokens of a context, ``run`` adjacent ones at a time.

    Each reads its share for the query heads of all of them. In a layer the queries are gathered first, then outputs and
    their log-sum-exps are merged (vLLM: two gathers and a reduce-scatter).
    """

    devices: int
    run: int
    exchange: Transfer

    def longest_share(self, sequences: int, tokens: float) -> float:
        """Tokens of all sequences together on the device with the most: of a cut-off round it has up to a run more.

        With R tokens left over of a round of d runs, min(R, run) - R / d more than the mean; run (d - 1) / (2 d) on
        average over R.
        """
        return max(float(sequences), (tokens + sequences * self.run * (self.devices - 1) / 2) / self.devices)

    def longest_shares(self, sequences: int, tokens: Any) -> Any:
        """``longest_share`` of an array."""
        import numpy as np

        most = (tokens + sequences * self.run * (self.devices - 1) / 2) / self.devices
        return np.maximum(float(sequences), most)

    def longest_of(self, lengths: Lengths | None) -> Lengths | None:
        """The tokens of each sequence on the device with the most, when lengths are known."""
        return None if lengths is None else _Dealt(lengths, self).lengths

    def longest_row(self, lengths: list[int]) -> list[int]:
        """``longest_of`` for the lengths of one step."""
        return [self._longest(length) for length in lengths]

    def _longest(self, length: int) -> int:
        rounds, over = divmod(length, self.run * self.devices)
        return rounds * self.run + min(over, self.run)


class _Dealt:
    """Lengths on the device that was dealt the most tokens of each sequence."""

    def __init__(self, lengths: Lengths, shares: ContextShares) -> None:
        self._whole, self._shares = lengths, shares

    def lengths(self) -> Any:
        import numpy as np

        run = self._shares.run
        rounds, over = np.divmod(self._whole(), run * self._shares.devices)
        return rounds * run + np.minimum(over, run)


def context_shares(
    device: Device, model: Model, group: AttentionGroup, *, tp: int, devices: int, run: int
) -> ContextShares:
    """How ``devices`` of ``tp`` share contexts in one layer of ``group``."""
    heads = -(-model.num_attention_heads // tp)
    values = group.latent_dims - model.rotary_dims if group.kind == "mla" else group.v_head_dim
    keys = group.latent_dims if group.kind == "mla" else group.head_dim
    # what one device receives of the others' queries, log-sum-exps (FP32) and partial outputs, for one sequence
    received = heads * ((keys + values) * ACTIVATION_BYTES + LSE_BYTES)
    exchange = Transfer(
        token_bytes=float(received),
        factor=float(devices - 1),
        bandwidth=device.link_bandwidth,
        latency_s=EXCHANGES * device.link_latency_s,
        bound="link",
    )
    return ContextShares(devices=devices, run=run, exchange=exchange)


def kv_write(device: Device, *, token_bytes: float) -> Transfer:
    """New keys and values to HBM; ``token_bytes`` of all layers on one device."""
    return Transfer(
        token_bytes=token_bytes,
        factor=1.0,
        bandwidth=device.hbm_sustained_bandwidth,
        latency_s=0.0,
        bound="bandwidth",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillAttention:
    """Attention of prompt chunks in the layers of one group, on one device.

    Operations count (query, key) pairs; keys and values come from HBM once a chunk and from L2 once for each tile
    of 128 query rows; each pair passes the vector cores for the softmax. What earlier chunks left on other devices is
    gathered over the links first: ``gathered_bytes`` of each such token.
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
    gathered_bytes: float
    link_bandwidth: float

    def seconds(self, tokens: int, pairs: int, context_tokens: int, chunks: int) -> float:
        """Seconds of all layers. With a window a query sees at most ``window`` keys, a chunk as many before it."""
        if tokens == 0:
            return 0.0
        if self.window is not None:
            pairs, context_tokens = self._seen(tokens, pairs, context_tokens, chunks)
        return self.layers * (max(self._times(pairs, context_tokens)) + self._gather_s(context_tokens - tokens))

    def work(self, tokens: int, pairs: int, context_tokens: int, chunks: int) -> Work:
        """``seconds`` with bytes, operations and bound."""
        if tokens == 0:
            return Work(seconds=0.0)
        pairs, context_tokens = self._seen(tokens, pairs, context_tokens, chunks)
        times = self._times(pairs, context_tokens)
        return Work(
            seconds=self.layers * (max(times) + self._gather_s(context_tokens - tokens)),
            moved_bytes=self.layers * (context_tokens * self.token_bytes),
            flops=self.layers * (pairs * self.flops_per_pair),
            bound=("compute", "vector", "bandwidth", "l2")[times.index(max(times))],
        )

    def _times(self, pairs: int, context_tokens: int) -> tuple[float, float, float, float]:
        """Seconds in one layer: cube, vector cores, HBM, L2."""
        return (
            pairs * self.flops_per_pair / self.cube_flops,
            pairs * self.vector_ops_per_pair / self.vector_ops,
            context_tokens * self.token_bytes / self.hbm_bandwidth,
            pairs / QUERY_TILE * self.token_bytes / self.l2_bandwidth,
        )

    def _gather_s(self, earlier_tokens: int) -> float:
        return earlier_tokens * self.gathered_bytes / self.link_bandwidth

    def _seen(self, tokens: int, pairs: int, context_tokens: int, chunks: int) -> tuple[int, int]:
        if self.window is None:
            return pairs, context_tokens
        return min(pairs, tokens * self.window), min(context_tokens, tokens + chunks * self.window)


def prefill_attention(
    device: Device, model: Model, group: AttentionGroup, *, tp: int, kv_bytes: float, dcp: int = 1
) -> PrefillAttention:
    """The prefill work of one attention group. MLA prefill expands the latent to full heads.

    ``dcp`` devices share a context: each has a part of what a chunk looks back on."""
    heads = -(-model.num_attention_heads // tp)
    latent = group.kind == "mla"
    key_dim, value_dim = (model.query_head_dim, model.value_head_dim) if latent else (group.head_dim, group.v_head_dim)
    return PrefillAttention(
        layers=group.layers,
        window=group.window,
        flops_per_pair=2.0 * heads * (key_dim + value_dim),
        vector_ops_per_pair=float(heads * SOFTMAX_PASSES),
        token_bytes=group.elements_per_token_layer(tp) * kv_bytes,
        gathered_bytes=group.elements_per_token_layer(tp) * kv_bytes * (dcp - 1) / dcp,
        link_bandwidth=device.link_bandwidth,
        cube_flops=device.cube_flops * device.cube_efficiency,
        vector_ops=VECTOR_LANES * device.vector_cores * device.clock_hz,
        hbm_bandwidth=device.hbm_sustained_bandwidth,
        l2_bandwidth=device.l2_bandwidth,
    )
