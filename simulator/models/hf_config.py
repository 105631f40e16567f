"""A Hugging Face ``config.json`` to a ``Model``: the layers' weights and the KV they cache.

Supported are the architectures of ``hf_families``; an unknown one, or a key that is missing, is refused by name.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator.errors import nearest_name
from simulator.models.hf_families import FAMILIES, Family, Moe, Windowed, layer_window
from simulator.models.hf_layers import attention_heads, attention_mla, dense_mlp, expert_mlp
from simulator.models.hf_quant import Storage, read_storage
from simulator.models.hf_reader import Reader, listed, text_part
from simulator.models.model_shape import AttentionGroup, LayerShape, Model
from simulator.models.weights import Matrix, StoredMatrix


def model_from_config(config: Mapping[str, Any], *, name: str, place: str) -> Model:
    """The model a Hugging Face config describes; ``place`` (file name) starts the error messages.

    Raises ``ValueError`` for an unknown architecture or quantisation, and for a missing or senseless key.
    """
    keys, excluded = text_part(config)
    reader, family = _family(keys, place)
    return _Builder(reader=reader, family=family, storage=read_storage(reader)).build(name, excluded)


def _family(keys: Mapping[str, Any], place: str) -> tuple[Reader, Family]:
    kind = keys.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        nearest = nearest_name(kind, FAMILIES) if isinstance(kind, str) else None
        hint = f"; did you mean {nearest!r}?" if nearest else ""
        raise ValueError(f"{place}: model_type {kind!r} is unknown{hint}; known: {listed(list(FAMILIES))}")
    family = FAMILIES[kind]
    # A default that is the name of a given key means "the same as that one".
    defaults = {
        key: keys[value] if isinstance(value, str) and value in keys else value
        for key, value in family.defaults.items()
    }
    return Reader(place=place, keys=keys, defaults=defaults), family


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    """The pieces of one model."""

    reader: Reader
    family: Family
    storage: Storage

    def build(self, name: str, excluded: tuple[str, ...]) -> Model:
        reader = self.reader
        moe = self.family.moe(reader)
        self._check(moe)
        groups, shapes, kinds = self._layers(moe)
        return Model(
            name=name,
            source=str(reader.get("source") or reader.place),
            dtype=self.storage.plain.name,
            weight_dtype=self.storage.linear.name,
            hidden_size=reader.count("hidden_size"),
            num_layers=reader.layers(),
            num_attention_heads=reader.count("num_attention_heads"),
            vocab_size=reader.count("vocab_size"),
            max_position_embeddings=self._max_positions(),
            groups=groups,
            shapes=shapes,
            layer_kinds=kinds,
            embedding=self._embedding(),
            head=None if reader.flag("tie_word_embeddings") else self._plain("lm_head", self._vocabulary),
            final=tuple(self._stored(m, f"model.{m.name}") for m in self._norms(1, "norm")),
            query_head_dim=self._query_head_dim,
            value_head_dim=reader.count("v_head_dim") if self.family.mla else self._query_head_dim,
            mlp_width=self._dense_width(moe),
            mlp_matrices=3 if self.family.gated_mlp else 2,
            expert_width=moe.width if moe else 0,
            expert_count=moe.experts if moe else 0,
            experts_per_token=moe.per_token if moe else 0,
            shared_expert_width=moe.shared_width if moe else 0,
            query_latent_dims=reader.optional_count("q_lora_rank") if self.family.mla else 0,
            rotary_dims=self._rotary_dims,
            excluded=excluded,
        )

    def _check(self, moe: Moe | None) -> None:
        """Refuse shapes no such model can have."""
        if not self.family.mla and self._heads % self.reader.count("num_key_value_heads"):
            raise self.reader.error("num_key_value_heads", f"must divide the {self._heads} attention heads")
        if moe is not None and moe.per_token > moe.experts:
            raise self.reader.error("num_experts_per_tok", f"{moe.per_token} exceeds the {moe.experts} experts")

    @property
    def _hidden(self) -> int:
        return self.reader.count("hidden_size")

    @property
    def _heads(self) -> int:
        return self.reader.count("num_attention_heads")

    @property
    def _query_head_dim(self) -> int:
        if self.family.mla:
            return self.reader.count("qk_nope_head_dim") + self.reader.count("qk_rope_head_dim")
        if self.reader.get("head_dim") is not None:
            return self.reader.count("head_dim")
        if self._hidden % self._heads:
            raise self.reader.error("head_dim", "is missing and num_attention_heads does not divide hidden_size")
        return self._hidden // self._heads

    @property
    def _rotary_dims(self) -> int:
        if self.family.learned_positions >= 0:
            return 0
        return self.reader.count("qk_rope_head_dim") if self.family.mla else self._query_head_dim

    @property
    def _vocabulary(self) -> Matrix:
        rows = self.reader.count("vocab_size")
        return Matrix(name="vocabulary", rows=rows, columns=self._hidden, split="tp", linear=False)

    def _max_positions(self) -> int:
        """Longest sequence: YaRN stretches its original length by ``factor``, other scalings are in the key already."""
        limit = self.reader.count("max_position_embeddings")
        scaling = self.reader.get("rope_scaling")
        if not isinstance(scaling, Mapping) or scaling.get("rope_type", scaling.get("type")) != "yarn":
            return limit
        factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings", limit)
        if not isinstance(factor, int | float) or not isinstance(original, int):
            raise self.reader.error("rope_scaling", f"needs a factor and an original length, found {dict(scaling)!r}")
        return max(limit, int(factor * original))

    def _dense_width(self, moe: Moe | None) -> int:
        """Intermediate width of the dense layers; 0 when every layer has experts."""
        if moe is not None and len(moe.layers) == self.reader.layers():
            return 0
        return self.reader.count(self.family.mlp_width)

    def _embedding(self) -> tuple[StoredMatrix, ...]:
        if self.reader.get("word_embed_proj_dim") not in (None, self._hidden):
            raise self.reader.error("word_embed_proj_dim", "differs from hidden_size, which is not supported")
        tables = [self._plain("embed_tokens", self._vocabulary)]
        if self.family.learned_positions >= 0:
            rows = self.reader.count("max_position_embeddings") + self.family.learned_positions
            positions = Matrix(name="embed_positions", rows=rows, columns=self._hidden, linear=False)
            tables.append(self._plain("embed_positions", positions))
        return tuple(tables)

    def _plain(self, name: str, matrix: Matrix) -> StoredMatrix:
        return StoredMatrix(matrix=replace(matrix, name=name), storage=self.storage.plain)

    def _stored(self, matrix: Matrix, module: str) -> StoredMatrix:
        return StoredMatrix(matrix=matrix, storage=self.storage.of(matrix, module))

    def _layers(self, moe: Moe | None) -> tuple[tuple[AttentionGroup, ...], tuple[LayerShape, ...], tuple[int, ...]]:
        """Attention groups, distinct layer shapes, and the shape of every layer."""
        windows: dict[Windowed, int] = {}
        counts: Counter[Windowed] = Counter()
        shapes: dict[LayerShape, int] = {}
        kinds: list[int] = []
        matrices = {sparse: tuple(self._matrices(moe if sparse else None)) for sparse in self._sparsities(moe)}
        for layer in range(self.reader.layers()):
            window = layer_window(self.reader, self.family, layer)
            group = windows.setdefault(window, len(windows))
            counts[window] += 1
            sparse = moe is not None and layer in moe.layers
            stored = tuple(self._stored(m, f"model.layers.{layer}.{m.name}") for m in matrices[sparse])
            shape = LayerShape(group=group, weights=stored, is_moe=sparse)
            kinds.append(shapes.setdefault(shape, len(shapes)))
        return tuple(self._group(w, counts[w]) for w in windows), tuple(shapes), tuple(kinds)

    def _sparsities(self, moe: Moe | None) -> set[bool]:
        layers = range(self.reader.layers())
        return {moe is not None and layer in moe.layers for layer in layers}

    def _group(self, window: Windowed, layers: int) -> AttentionGroup:
        if self.family.mla:
            latent = self.reader.count("kv_lora_rank") + self.reader.count("qk_rope_head_dim")
            return AttentionGroup(
                kind="mla",
                layers=layers,
                kv_heads=1,
                head_dim=self._query_head_dim,
                v_head_dim=self.reader.count("v_head_dim"),
                latent_dims=latent,
            )
        return AttentionGroup(
            kind=window[0],
            layers=layers,
            kv_heads=self.reader.count("num_key_value_heads"),
            head_dim=self._query_head_dim,
            v_head_dim=self._query_head_dim,
            window=window[1],
        )

    def _matrices(self, moe: Moe | None) -> Iterator[Matrix]:
        attention = (
            attention_mla(self.reader)
            if self.family.mla
            else attention_heads(self.reader, self.family, self._query_head_dim)
        )
        yield from attention
        if moe is None:
            yield from dense_mlp(self.reader, self.family, self.reader.count(self.family.mlp_width))
        else:
            yield from expert_mlp(self._hidden, moe)
        yield from self._norms(self.family.norms, "layernorm")

    def _norms(self, count: int, name: str) -> Iterator[Matrix]:
        width = self._hidden * (2 if self.family.norm_bias else 1)
        for index in range(count):
            yield Matrix(name=f"{name}.{index}", rows=width, linear=False)
