"""Peak of the activations of one step, from shapes.

A step of ``T`` tokens runs the layers one after the other, then the output head on at most ``max_num_seqs`` rows;
memory of one phase is free again in the next, so the peak is the larger phase. While an MLP runs, what is alive is

    T * (3 * hidden + 3 * intermediate / tp) elements

residual, MLP input and MLP output (hidden wide, on every device), the fused gate-up output (two widths) and its
product (one). For Llama-3.1-8B that is 110,592 bytes a token; vLLM's profiler logged 17.06 and 17.98 GiB of peak
(weights and rotary table included) at 20,000 and 29,000 tokens (vllm issue 10517), this formula gives 17.05 and
17.98. Routed experts keep, for each of ``top_k`` copies of a token, the larger of the gate-up output and the expert
output (they share a buffer in vLLM's ``fused_moe``) and the product. While attention runs, Q, K, V and the
attention output are alive instead.

The head phase holds, for each row, logits in the model's precision and a FP32 copy, full vocabulary wide on every
device whatever the tensor parallelism (vllm pull request 10511 logs the same peak for TP 1 and TP 2). Six bytes a
logit is what vllm-ascend shows (0.22 GiB for a model of 1.14 GiB weights: pull request 8289); CUDA's sorting
sampler of vLLM v0 took about 37. Set ``engine.activation_bytes`` when it has been measured.
"""

from simulator.config import EngineConfig
from simulator.model import Model, kv_dtype_bytes
from simulator.units import ceil_div

_FP32_BYTES = 4


def activation_bytes(model: Model, engine: EngineConfig, max_model_len: int) -> int:
    """Bytes of activations on one device at the engine's token budget, the rotary table included.

    Without chunked prefill a step must hold a whole prompt, as the v0 engines profile it.
    """
    tokens = engine.max_num_batched_tokens
    if not engine.enable_chunked_prefill:
        tokens = max(tokens, max_model_len)
    element_bytes = int(kv_dtype_bytes(model, "auto"))
    layers = tokens * layer_elements(model, engine.tensor_parallel_size) * element_bytes
    rows = min(engine.max_num_seqs, tokens)
    head = rows * (model.vocab_size * (element_bytes + _FP32_BYTES) + model.hidden_size * element_bytes)
    rotary_table = max_model_len * model.rotary_dims * element_bytes
    return max(layers, head) + rotary_table


def layer_elements(model: Model, tp: int) -> int:
    """Elements alive for one token at the widest point of a layer on one of ``tp`` devices."""
    return 3 * model.hidden_size + max(_attention(model, tp), _mlp(model, tp), _experts(model, tp))


def _attention(model: Model, tp: int) -> int:
    heads = ceil_div(model.num_attention_heads, tp)
    group = max(model.groups, key=lambda group: group.elements_per_token_layer(tp))
    keys = heads * (group.head_dim + group.v_head_dim) if group.kind == "mla" else group.elements_per_token_layer(tp)
    latents = model.query_latent_dims + group.latent_dims
    return heads * (model.query_head_dim + model.value_head_dim) + keys + latents


def _mlp(model: Model, tp: int) -> int:
    return model.mlp_matrices * ceil_div(model.mlp_width, tp)


def _experts(model: Model, tp: int) -> int:
    width = ceil_div(model.expert_width, tp)
    routed = model.experts_per_token * (max(2 * width, model.hidden_size) + width)
    return routed + 3 * ceil_div(model.shared_expert_width, tp) + model.expert_count
