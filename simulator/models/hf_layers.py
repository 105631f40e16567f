"""The weight matrices of one layer: attention by heads or by latent (MLA), a dense MLP, or routed experts."""

from collections.abc import Iterator

from simulator.models.hf_families import Family, Moe
from simulator.models.hf_reader import Reader
from simulator.models.weights import Matrix, Split


def _decided(reader: Reader, choice: bool | str) -> bool:
    return reader.flag(choice) if isinstance(choice, str) else choice


def _bias(name: str, rows: int, split: Split = "none", kv_heads: int = 1) -> Matrix:
    return Matrix(name=f"{name}.bias", rows=rows, split=split, kv_heads=kv_heads, linear=False)


def attention_heads(reader: Reader, family: Family, head_dim: int) -> Iterator[Matrix]:
    """Q, K, V and output projections of MHA, GQA and MQA, with the family's biases, norms and sinks."""
    hidden, heads = reader.count("hidden_size"), reader.count("num_attention_heads")
    kv_heads = reader.count("num_key_value_heads")
    bias = _decided(reader, family.qkv_bias)
    yield Matrix(name="self_attn.q_proj", rows=heads * head_dim, columns=hidden, split="tp")
    if bias:
        yield _bias("self_attn.q_proj", heads * head_dim, "tp")
    for name in ("self_attn.k_proj", "self_attn.v_proj"):
        yield Matrix(name=name, rows=kv_heads * head_dim, columns=hidden, split="kv", kv_heads=kv_heads)
        if bias:
            yield _bias(name, kv_heads * head_dim, "kv", kv_heads)
    yield Matrix(name="self_attn.o_proj", rows=hidden, columns=heads * head_dim, split="tp")
    if _decided(reader, family.output_bias):
        yield _bias("self_attn.o_proj", hidden)
    if _decided(reader, family.qk_norm):
        yield Matrix(name="self_attn.qk_norm", rows=2 * head_dim, linear=False)
    if family.sinks:
        yield Matrix(name="self_attn.sinks", rows=heads, split="tp", linear=False)


def attention_mla(reader: Reader) -> Iterator[Matrix]:
    """Multi-head latent attention: queries and the KV latent go down (replicated) and up again (split by heads)."""
    hidden, heads = reader.count("hidden_size"), reader.count("num_attention_heads")
    nope, rope, value = (reader.count(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    latent, query_latent = reader.count("kv_lora_rank"), reader.optional_count("q_lora_rank")
    query_rows = heads * (nope + rope)
    if query_latent:
        yield Matrix(name="self_attn.q_a_proj", rows=query_latent, columns=hidden)
        yield Matrix(name="self_attn.q_a_layernorm", rows=query_latent, linear=False)
        yield Matrix(name="self_attn.q_b_proj", rows=query_rows, columns=query_latent, split="tp")
    else:
        yield Matrix(name="self_attn.q_proj", rows=query_rows, columns=hidden, split="tp")
    yield Matrix(name="self_attn.kv_a_proj_with_mqa", rows=latent + rope, columns=hidden)
    yield Matrix(name="self_attn.kv_a_layernorm", rows=latent, linear=False)
    yield Matrix(name="self_attn.kv_b_proj", rows=heads * (nope + value), columns=latent, split="tp")
    yield Matrix(name="self_attn.o_proj", rows=hidden, columns=heads * value, split="tp")


def dense_mlp(reader: Reader, family: Family, width: int) -> Iterator[Matrix]:
    """Up (and gate) and down projections of ``width`` intermediate columns."""
    hidden, bias = reader.count("hidden_size"), _decided(reader, family.mlp_bias)
    for name in ("mlp.gate_proj", "mlp.up_proj") if family.gated_mlp else ("mlp.up_proj",):
        yield Matrix(name=name, rows=width, columns=hidden, split="tp")
        if bias:
            yield _bias(name, width, "tp")
    yield Matrix(name="mlp.down_proj", rows=hidden, columns=width, split="tp")
    if bias:
        yield _bias("mlp.down_proj", hidden)


def expert_mlp(hidden: int, moe: Moe) -> Iterator[Matrix]:
    """Router, routed experts (each split over the devices) and shared experts."""
    yield Matrix(name=f"{moe.prefix}.gate", rows=moe.experts, columns=hidden, linear=False)
    if moe.router_bias:
        yield _bias(f"{moe.prefix}.gate", moe.experts)
    for name, rows, columns in (("gate", moe.width, hidden), ("up", moe.width, hidden), ("down", hidden, moe.width)):
        full = f"{moe.prefix}.experts.{name}_proj"
        yield Matrix(name=full, rows=rows, columns=columns, copies=moe.experts, split="tp")
        if moe.expert_bias:
            split: Split = "none" if name == "down" else "tp"
            yield Matrix(name=f"{full}.bias", rows=rows, copies=moe.experts, split=split, linear=False)
    if moe.shared_width:
        shared = f"{moe.prefix}.shared_experts"
        for name in ("gate", "up"):
            yield Matrix(name=f"{shared}.{name}_proj", rows=moe.shared_width, columns=hidden, split="tp")
        yield Matrix(name=f"{shared}.down_proj", rows=hidden, columns=moe.shared_width, split="tp")
    if moe.shared_gate:
        yield Matrix(name=f"{moe.prefix}.shared_expert_gate", rows=hidden, linear=False)
