"""The model: attention groups, layers with their weights, and what follows from them.

``Model`` is what a Hugging Face ``config.json`` says about memory and work. Keys and values of one token take
(the KV rule, linear in tokens)

    2 * layers * max(1, ceil(kv_heads / tp)) * head_dim * bytes        (K and V heads; V may differ in width)
    layers * (kv_lora_rank + qk_rope_head_dim) * bytes                 (MLA: one latent, the same on every device)

and layers with a window stop growing at the window. Pipeline stages hold consecutive layers, spread as vLLM does
(``vllm/distributed/utils.py:get_pp_indices``): an uneven rest goes to the stages before the last one.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from simulator.models.weights import FORMATS, Matrix, StoredMatrix
from simulator.units import ceil_div

AttentionKind = Literal["full", "sliding", "chunked", "mla"]

_KV_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionGroup:
    """The layers that cache keys and values alike.

    ``window`` is the number of tokens a ``sliding`` or ``chunked`` layer can still see, ``latent_dims`` the width
    of the MLA latent (``kv_lora_rank + qk_rope_head_dim``), 0 for the others.
    """

    kind: AttentionKind
    layers: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None
    latent_dims: int = 0

    def elements_per_token_layer(self, tp: int = 1) -> int:
        """KV elements of one token in one layer on one of ``tp`` devices."""
        if self.kind == "mla":
            return self.latent_dims
        return max(1, ceil_div(self.kv_heads, tp)) * (self.head_dim + self.v_head_dim)

    def bytes_per_token(self, tp: int, kv_dtype_bytes: float, dcp: int = 1) -> int:
        """KV bytes of one token in all layers of the group on one of ``tp`` devices.

        ``dcp`` devices deal the tokens of a context among them: each has its share on average. Layers with a window
        keep theirs whole on every device.
        """
        shares = dcp if self.window is None else 1
        return math.ceil(self.layers * self.elements_per_token_layer(tp) * kv_dtype_bytes / shares)

    def held_tokens(self, tokens: int) -> int:
        """Tokens of a sequence of ``tokens`` whose keys and values are still needed."""
        return tokens if self.window is None else min(tokens, self.window)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """A kind of layer: its attention group (index into ``Model.groups``) and its weights."""

    group: int
    weights: tuple[StoredMatrix, ...]
    is_moe: bool = False

    def device_bytes(self, tp: int) -> int:
        """Weight bytes of one such layer on one of ``tp`` devices."""
        return sum(weight.device_bytes(tp) for weight in self.weights)


@dataclass(frozen=True, kw_only=True)
class Model:
    """One model. Sizes are of the whole model unless a method takes ``tp`` (and ``pp``).

    ``layer_kinds`` gives the index into ``shapes`` of each layer. ``head`` is ``None`` when the output projection
    shares the embedding's weights. ``mlp_width`` is the widest dense intermediate, ``expert_width`` that of one
    expert. ``dtype`` is what activations, and the KV cache by default, are kept in; ``weight_dtype`` says in one
    word what the linear layers are stored in. ``excluded`` names the parts of the config that are not modelled.
    """

    name: str
    source: str
    dtype: str
    weight_dtype: str
    hidden_size: int
    num_layers: int
    num_attention_heads: int
    vocab_size: int
    max_position_embeddings: int
    groups: tuple[AttentionGroup, ...]
    shapes: tuple[LayerShape, ...]
    layer_kinds: tuple[int, ...]
    embedding: tuple[StoredMatrix, ...]
    head: StoredMatrix | None
    final: tuple[StoredMatrix, ...]
    query_head_dim: int
    value_head_dim: int
    mlp_width: int
    mlp_matrices: int = 3
    expert_width: int = 0
    expert_count: int = 0
    experts_per_token: int = 0
    shared_expert_width: int = 0
    query_latent_dims: int = 0
    rotary_dims: int = 0
    excluded: tuple[str, ...] = ()

    @cached_property
    def parameters(self) -> int:
        """Parameters of the checkpoint, tied ones counted once."""
        return sum(weight.matrix.elements for weight in self._weights())

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that take part in one token: all but the experts it is not routed to."""
        idle = self.expert_count - self.experts_per_token
        return self.parameters - self.moe_layers * self.expert_parameters * idle

    @cached_property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return sum(self.shapes[kind].is_moe for kind in self.layer_kinds)

    @cached_property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert in one layer; 0 for a dense model."""
        shape = next((shape for shape in self.shapes if shape.is_moe), None)
        return sum(expert.matrix.elements // expert.matrix.copies for expert in _experts(shape))

    @cached_property
    def linear_flops_per_token(self) -> int:
        """Multiply-add operations (2 a weight) of one token in the layers; attention and output head apart."""
        outside = sum(weight.matrix.elements for weight in (*self.embedding, *self.final, *_optional(self.head)))
        return 2 * (self.active_parameters - outside)

    @property
    def head_flops_per_row(self) -> int:
        """Operations of the output projection for one sampled position."""
        return 2 * self.vocab_size * self.hidden_size

    def attention_flops(self, pairs: int) -> int:
        """Operations of QK^T and PV in all layers for ``pairs`` of (query, key) tokens, windows ignored."""
        return 2 * pairs * self.num_layers * self.num_attention_heads * (self.query_head_dim + self.value_head_dim)

    def check_parallelism(self, tp: int, pp: int = 1) -> None:
        """Refuse a split the model cannot have. Raises ``ValueError`` naming both numbers."""
        if self.num_attention_heads % tp:
            heads = f"{self.num_attention_heads} attention heads of {self.name}"
            raise ValueError(f"tensor_parallel_size {tp} does not divide the {heads}")
        if pp > self.num_layers:
            raise ValueError(f"pipeline_parallel_size {pp} exceeds the {self.num_layers} layers of {self.name}")

    def context_limit(self, tp: int) -> int:
        """Most devices of a tensor-parallel group that can share a context: as many as hold copies of one KV head.

        (vLLM, ``config/parallel.py``; its ``docs/serving/context_parallel_deployment.md``.) 1 with a window anywhere,
        as vLLM refuses to divide those.
        """
        if any(group.window is not None for group in self.groups):
            return 1
        return max(1, tp // max(1 if group.kind == "mla" else group.kv_heads for group in self.groups))

    def check_context_parallelism(self, tp: int, dcp: int) -> None:
        """Refuse a division of contexts that vLLM refuses. Raises ``ValueError`` naming the numbers."""
        limit = self.context_limit(tp)
        if dcp > limit or tp % dcp:
            raise ValueError(
                f"decode_context_parallel_size {dcp} must divide tensor_parallel_size {tp} and be at most {limit}, "
                f"the copies of a KV head of {self.name} (1 for models with windows)"
            )

    def stage_layers(self, pp: int) -> tuple[range, ...]:
        """The layers of each of ``pp`` pipeline stages."""
        base, rest = divmod(self.num_layers, pp)
        sizes = [base] * pp
        for index in range(rest):
            sizes[-2 - index] += 1
        ends = [sum(sizes[: index + 1]) for index in range(pp)]
        return tuple(range(end - size, end) for end, size in zip(ends, sizes, strict=True))

    def weight_bytes_per_device(self, tp: int = 1, pp: int = 1) -> int:
        """Weight bytes on the fullest device: the largest of the pipeline stages."""
        stages = self.stage_layers(pp)
        return max(self._stage_bytes(layers, tp, first=i == 0, last=i == pp - 1) for i, layers in enumerate(stages))

    def expert_bytes_per_device(self, tp: int = 1) -> int:
        """Bytes of one routed expert of one layer on one of ``tp`` devices; 0 for a dense model."""
        shape = next((shape for shape in self.shapes if shape.is_moe), None)
        return sum(expert.device_bytes(tp) // expert.matrix.copies for expert in _experts(shape))

    def streamed_weight_bytes(self, tokens: float, tp: int = 1) -> float:
        """Weight bytes one of ``tp`` devices reads in a step of ``tokens`` tokens, all pipeline stages together.

        Input embeddings are looked up, not streamed; of the experts those that some token is routed to count.
        """
        always, routed = self._streamed(tp)
        return always - routed * (self.expert_count - self.expected_experts(tokens))

    def _streamed(self, tp: int) -> tuple[int, int]:
        """Bytes streamed with every expert reached, and bytes of one expert in all layers; remembered, steps ask."""
        if tp not in self._streamed_by_tp:
            looked_up = sum(weight.device_bytes(tp) for weight in self.embedding) if self.head is not None else 0
            routed = self.moe_layers * self.expert_bytes_per_device(tp)
            self._streamed_by_tp[tp] = self._all_bytes(tp) - looked_up, routed
        return self._streamed_by_tp[tp]

    @cached_property
    def _streamed_by_tp(self) -> dict[int, tuple[int, int]]:
        return {}

    def expected_experts(self, tokens: float) -> float:
        """Mean distinct experts of a layer that ``tokens`` tokens reach when routing is uniform and independent."""
        if not self.expert_count:
            return 0.0
        missed: float = (1.0 - self.experts_per_token / self.expert_count) ** tokens
        return self.expert_count * (1.0 - missed)

    def kv_bytes_per_token(self, tp: int = 1, pp: int = 1, dtype: str = "auto", *, dcp: int = 1) -> int:
        """KV bytes of one token on one device while no window is full: the largest of the pipeline stages.

        With ``dcp`` devices to a context, the mean over the tokens of a context.
        """
        return self.kv_bytes(1, tp=tp, pp=pp, dtype=dtype, dcp=dcp)

    def kv_bytes(self, tokens: int, *, tp: int = 1, pp: int = 1, dtype: str = "auto", dcp: int = 1) -> int:
        """KV bytes of a sequence of ``tokens`` on one device, windows respected: the largest of the stages."""
        width = kv_dtype_bytes(self, dtype)
        return max(
            sum(group.bytes_per_token(tp, width, dcp) * group.held_tokens(tokens) for group in groups)
            for groups in self.stage_groups(pp)
        )

    def stage_groups(self, pp: int) -> tuple[tuple[AttentionGroup, ...], ...]:
        """The attention groups of each pipeline stage, with the layers of that stage only."""
        if pp == 1:
            return (self.groups,)
        return tuple(self._groups_of(layers) for layers in self.stage_layers(pp))

    def _groups_of(self, layers: range) -> tuple[AttentionGroup, ...]:
        counts = Counter(self.shapes[self.layer_kinds[layer]].group for layer in layers)
        return tuple(replace(self.groups[index], layers=counts[index]) for index in sorted(counts))

    def _stage_bytes(self, layers: range, tp: int, *, first: bool, last: bool) -> int:
        counts = Counter(self.layer_kinds[layer] for layer in layers)
        total = sum(count * self.shapes[kind].device_bytes(tp) for kind, count in counts.items())
        ends: list[StoredMatrix] = list(self.embedding) if first else []
        if last:
            # A tied head needs the embedding on the last stage too.
            ends += [*self.final, *(_optional(self.head) if self.head is not None or first else self.embedding[:1])]
        return total + sum(weight.device_bytes(tp) for weight in ends)

    def _all_bytes(self, tp: int) -> int:
        return self._stage_bytes(range(self.num_layers), tp, first=True, last=True)

    def _weights(self) -> Iterator[StoredMatrix]:
        yield from (*self.embedding, *self.final, *_optional(self.head))
        for kind in self.layer_kinds:
            yield from self.shapes[kind].weights


def kv_dtype_bytes(model: Model, kv_cache_dtype: str) -> float:
    """Bytes of one cached element: ``auto`` is the model's own precision, ``int4`` is 0.5. Raises ``ValueError``."""
    name = model.dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    if name not in _KV_BYTES:
        raise ValueError(f"kv_cache_dtype {kv_cache_dtype!r} is unknown: give auto, {', '.join(_KV_BYTES)}")
    return _KV_BYTES[name]


def with_weight_dtype(model: Model, dtype: str) -> Model:
    """The model with its linear layers stored as ``dtype``; embeddings, head, norms and routers keep theirs.

    A wider type than 8 bits replaces the storage of everything. Raises ``ValueError`` for an unknown type.
    """
    if dtype not in FORMATS:
        raise ValueError(f"weight_dtype {dtype!r} is unknown: give {', '.join(FORMATS)}")
    storage = FORMATS[dtype]

    def stored(weight: StoredMatrix) -> StoredMatrix:
        return replace(weight, storage=storage) if weight.matrix.linear or storage.bits >= 16 else weight

    return replace(
        model,
        weight_dtype=dtype,
        shapes=tuple(replace(s, weights=tuple(map(stored, s.weights))) for s in model.shapes),
        embedding=tuple(map(stored, model.embedding)),
        final=tuple(map(stored, model.final)),
        head=None if model.head is None else stored(model.head),
    )


def _experts(shape: LayerShape | None) -> list[StoredMatrix]:
    return [] if shape is None else [weight for weight in shape.weights if is_expert(weight.matrix)]


def is_expert(matrix: Matrix) -> bool:
    """Whether the matrix belongs to the routed experts."""
    return ".experts." in matrix.name


def _optional(weight: StoredMatrix | None) -> Iterable[StoredMatrix]:
    return () if weight is None else (weight,)
