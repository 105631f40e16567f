"""Public reports about memory that a planner must read rightly: shared contexts, fixed parts, room, odd figures."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from simulator.memory import memory_budget, plain_budget, request_pages
from simulator.model import AttentionGroup, Model
from simulator.models.ways_out import largest_model_len
from simulator.units import ceil_div
from simulator.validating.bench import at_once, paged, serve
from simulator.validating.check import Check, Source
from simulator.validating.parts import GIB, card, pool_of, preset_device, preset_model, settings, transformer
from simulator.validating.startup import BlockPool, Version

FAMILY = "engines"


def checks() -> Iterator[Check]:
    """One report after the other."""
    yield from _shared_contexts()
    yield from _fixed_parts()
    yield from _full_context_refused()
    yield from _activations()
    yield from _head_room()
    yield from _overheads()
    yield from _odd_figures()
    yield from _state_checkpoints()
    yield from _binding_limit()


def _shared_contexts() -> Iterator[Check]:
    """Decode context parallelism: history is dealt among the devices, the rest stays on each."""
    latent = preset_model("deepseek-v3")
    source = Source(FAMILY, "context", "tokenspeed pull request 1162: 100, 50, 25, 12.5 % of the history on a device")
    whole = latent.kv_bytes_per_token(8)
    for devices in (1, 2, 4, 8):
        share = 100 * latent.kv_bytes_per_token(8, dcp=devices) / whole
        yield source.exact(f"share-{devices}", f"percent of it, {devices} share it", expected=100 / devices, got=share)
    one, two = 1_574_012_160, 1_513_935_360
    text = "tokenspeed pull request 1162: DeepSeek-V4-Flash, windows, indexer and states stay whole on every device"
    source = Source(FAMILY, "context", text)
    # Half of the history went away, so all of it is twice the difference; a token of each kind stands for the layers.
    history = 2 * (one - two)
    groups = (_bytes_group(history // 100, None), _bytes_group((one - history) // 10, 10))
    arena = replace(transformer(2, 1), groups=groups)
    sizes = [arena.kv_bytes(100, dcp=devices) for devices in (1, 2)]
    yield source.exact("arena-1", "bytes of the arena, whole", expected=one, got=sizes[0], grade="decoded")
    yield source.exact("arena-2", "bytes with the history dealt among 2", expected=two, got=sizes[1], grade="decoded")
    saved = 100 * (sizes[0] - sizes[1]) / sizes[0]
    yield source.near("saved", "percent saved", expected=3.82, got=saved, within=0.005, grade="rounding")
    source = Source(FAMILY, "context", "ROCm/ATOM pull request 847: DeepSeek-V3 TP8, DCP8: eight times the tokens")
    tokens = [_pool_tokens(latent, 8, devices) for devices in (1, 8)]
    yield source.exact("tokens-8", "tokens of a pool dealt among 8 over those of copies", expected=8.0,
                       got=tokens[1] / tokens[0])  # fmt: skip
    text = "vLLM 0.33 v1/kv_cache_interface.py: ceil(ceil(T / dcp) / B) blocks a request"
    source = Source(FAMILY, "context", text)
    engine = settings(tensor_parallel_size=8, decode_context_parallel_size=8, max_model_len=100_001)
    budget = memory_budget(pool_of(8 * GIB), latent, engine, page_size=128)
    expected = ceil_div(ceil_div(100_001, 8), 128)
    got = round(budget.max_pages / budget.max_concurrency)
    yield source.exact("blocks", "blocks of 128 of a request of 100,001 tokens, DCP8", expected=expected, got=got)
    source = Source(FAMILY, "context", "vLLM docs/serving/context_parallel_deployment.md: at most tp / KV heads")
    for name, tp, limit in (("deepseek-v3", 16, 16), ("qwen3-235b-a22b", 8, 2), ("llama-3.1-8b", 8, 1)):
        what = f"devices that can share contexts, {name} TP{tp}"
        got = preset_model(name).context_limit(tp)
        yield source.exact(f"limit-{name}", what, expected=limit, got=got)


def _bytes_group(token_bytes: int, window: int | None) -> AttentionGroup:
    """One layer of as many bytes a token, in 16 bit."""
    return AttentionGroup(
        kind="mla", layers=1, kv_heads=1, head_dim=1, v_head_dim=1, window=window, latent_dims=token_bytes // 2
    )


def _pool_tokens(model: Model, tp: int, dcp: int) -> int:
    engine = settings(tensor_parallel_size=tp, decode_context_parallel_size=dcp)
    return memory_budget(pool_of(8 * GIB), model, engine, page_size=128).kv_tokens


def _fixed_parts() -> Iterator[Check]:
    """Two points of a report give bytes a token and bytes whatever the length; the search must find the second."""
    for name, text, long, asked, short, available, near in (
        ("sm89-54", "vllm-deepseek-v4-sm89 thread 54", 131_072, 1.34, 720, 0.30, 700),
        ("44376", "vllm issue 44376 (2 GH200, blocks of 256)", 30_000, 6.66, 13_528, 5.44, 300),
    ):
        source = Source(FAMILY, "fixed", f"{text}: {long:,} tokens need {asked} GiB, {available} hold {short:,}")
        token_bytes = round((asked - available) * GIB / (long - short))
        fixed = round(asked * GIB) - token_bytes * long
        pool, engine = pool_of(round(available * GIB)), settings(max_model_len=long)
        got = largest_model_len(pool, _with_fixed_part(token_bytes, fixed), engine, page_size=1)
        yield source.near(
            name, "longest length that fits, a fixed part a request", expected=short, got=got, within=near,
            grade="decoded", note="0.005 GiB are as many tokens; the fixed part was found from these figures",
        )  # fmt: skip
        linear = available / asked * long
        what = "in proportion to the length it would be far more"
        yield source.holds(f"{name}-linear", what, got < 0.75 * linear, seen=f"{got:,} < {linear:,.0f}")
    source = Source(FAMILY, "fixed", "vllm issue 51041: 4.05 to 92.62 KiB a token from one checkpoint")
    hybrid = preset_model("gemma-3-27b")
    costs = [_mean_token_bytes(hybrid, length) for length in (2048, 121_344)]
    what = "bytes a token of a request of 2,048 and of 121,344 tokens differ, windows in the model"
    yield source.holds("per-token", what, costs[0] > 2 * costs[1], seen=f"{costs[0]:,.0f} > 2 x {costs[1]:,.0f}")


def _with_fixed_part(token_bytes: int, fixed_bytes: int) -> Model:
    """Full attention of ``token_bytes``, and a window of 512 that takes ``fixed_bytes`` in 513 pages of one token."""
    groups = (_bytes_group(token_bytes, None), _bytes_group(fixed_bytes // 513, 512))
    return replace(transformer(2, 1), groups=groups)


def _mean_token_bytes(model: Model, length: int) -> float:
    budget = memory_budget(pool_of(40 * GIB), model, settings(max_model_len=length), page_size=16)
    return budget.request_bytes / length


def _full_context_refused() -> Iterator[Check]:
    text = "vllm issue 27508 (gpt-oss-120b, H100, 1,024 tokens a step: 1.71 GiB left at 0.95, full context refused)"
    source = Source(FAMILY, "full-context", text)
    model, card_gib = preset_model("gpt-oss-120b"), 79.11
    rest = round((card_gib * 0.95 - 1.71) * GIB) - model.weight_bytes_per_device()
    keys = {"activation_bytes": rest, "runtime_bytes": 0, "graph_bytes": 0, "max_num_batched_tokens": 1024}

    def at(share: float) -> bool:
        return plain_budget(card(card_gib), model, settings(gpu_memory_utilization=share, **keys), page_size=16).fits

    yield source.holds("refused", "131,072 tokens are refused at 0.95", not at(0.95))
    got = largest_model_len(card(card_gib), model, settings(gpu_memory_utilization=0.95, **keys), page_size=16)
    yield source.between("shorter", "a shorter length fits", low=1, high=131_071, got=got, grade="ordering")
    yield source.holds("more-memory", "or a larger share of the memory", at(0.99))


def _activations() -> Iterator[Check]:
    text = "Lvllm thread 35 (A40, 44.99 GiB at 0.95, 23,000 tokens a step: 11.55 weights, 12.57 KV, 18.6 for the rest)"
    source = Source(FAMILY, "activations", text)
    tokens = memory_budget(pool_of(int(12.57 * GIB)), transformer(62, 8), settings(), page_size=16).kv_tokens
    yield source.exact("tokens", "tokens in 12.57 GiB, 62 layers of 8 KV heads", expected=53_136, got=tokens,
                       grade="decoded")  # fmt: skip
    missing = 44.99 * 0.95 - 11.55 - 12.57
    model = transformer(62, 8, hidden=6144)
    few, many = (_activation_gib(model, budget) for budget in (2048, 23_000))
    what = "GiB of activations grow with the tokens of a step (and stay within the 18.6 that are missing)"
    yield source.holds("grow", what, 10 * few < many < missing, seen=f"{few:.2f} at 2,048, {many:.2f} at 23,000")


def _activation_gib(model: Model, batched_tokens: int) -> float:
    engine = settings(max_num_batched_tokens=batched_tokens, max_num_seqs=16, max_model_len=32_768)
    return plain_budget(card(80), model, engine).activation_bytes / GIB


def _head_room() -> Iterator[Check]:
    source = Source(FAMILY, "head-room", "sglang issue 9646: out of memory in the forward pass, not in the pool")
    model, engine = preset_model("qwen3-32b"), settings(tensor_parallel_size=2, gpu_memory_utilization=1.0)
    parts = plain_budget(preset_device(), model, engine)
    all_of_it = parts.usable_bytes - parts.weights_bytes_per_device
    refused = False
    try:
        memory_budget(preset_device(kv_capacity_bytes=all_of_it), model, engine)
    except ValueError:
        refused = True
    yield source.holds("pool", "a pool of all that the weights leave is refused", refused)
    left = all_of_it - parts.kv_bytes_available
    what = "bytes kept beside weights and the largest pool cover the activations of a step"
    yield source.holds("kept", what, left >= parts.activation_bytes > 0, seen=f"{left:,} >= {parts.activation_bytes:,}")


def _overheads() -> Iterator[Check]:
    text = "kaito pull request 2139: 2.3 GiB is too little for large models, 2.3 GiB + 5 % of the weights are enough"
    source = Source(FAMILY, "overhead", text)
    found = []
    for name, tp in (("qwen2.5-0.5b", 1), ("llama-3.1-8b", 1), ("llama-3.1-70b", 4), ("deepseek-v3", 16)):
        parts = plain_budget(preset_device(), preset_model(name), settings(tensor_parallel_size=tp))
        found.append((parts.activation_bytes + parts.runtime_bytes + parts.graph_bytes, parts.weights_bytes_per_device))
    overheads = [overhead for overhead, _ in found]
    seen = " ".join(f"{overhead / GIB:.2f}" for overhead in overheads)
    grows = overheads == sorted(overheads)
    yield source.holds("grows", "GiB beside weights and KV grow with the model", grows, seen=seen)
    within = all(overhead <= 2.3 * GIB + 0.05 * weights for overhead, weights in found)
    yield source.holds("bound", "and stay within that rule, made for GPUs", within, seen=seen)


def _odd_figures() -> Iterator[Check]:
    """Printed figures that are not what they seem."""
    source = Source(FAMILY, "odd", "vllm-ascend FAQ: 66,340 tokens, 4.05x at 16,384")
    yield source.near("faq", "concurrency of 66,340 tokens", expected=4.05, within=0.005, grade="rounding",
                      got=BlockPool(version="0.33", blocks=66_340, block_tokens=1).concurrency(16_384))  # fmt: skip
    versions: tuple[Version, ...] = ("0.6", "0.11", "0.33")
    pools = [
        BlockPool(version=version, blocks=blocks, block_tokens=128)
        for version in versions
        for blocks in range(66_340 // 128 - 2, 66_340 // 128 + 3)
    ]
    never = all(pool.tokens(16_384) != 66_340 for pool in pools)
    yield source.holds("faq-blocks", "no pool of blocks of 128 prints it, in any version", never, grade="exact")
    source = Source(FAMILY, "odd", "NVIDIA/TensorRT-LLM issue 224 (10,718 tokens, rounded up to 10,720)")
    got = 16 * request_pages(10_718, page_size=16)
    yield source.exact("trtllm-224", "tokens in blocks of 16 for 10,718", expected=10_720, got=got)
    source = Source(FAMILY, "odd", "Tandemn-Labs/tandemn-system thread 11 (4,818 blocks, 72 run, 1,070 tokens each)")
    at_once_ = BlockPool(version="0.11", blocks=4818, block_tokens=16).concurrency(1070)
    what = "requests of 1,070 tokens at once, in whole blocks"
    yield source.near("tandemn", what, expected=72.0, got=at_once_, within=1)
    source = Source(FAMILY, "odd", "vllm issue 13061: the fuller rank alone would give 94,912 tokens")
    pool = pool_of(int(8.69 * GIB))
    shape = transformer(48, 8, hidden=5120)
    got = memory_budget(pool, shape, settings(tensor_parallel_size=2), page_size=16).kv_tokens
    yield source.exact("one-rank", "tokens in 8.69 GiB at TP2", expected=94_912, got=got, grade="rounding")


def _state_checkpoints() -> Iterator[Check]:
    text = "club-3090 pull request 1170: a pool of 530,081 tokens in blocks of 1,616, two prompts of 200,000"
    source = Source(FAMILY, "checkpoints", text)
    blocks, attention = 530_081 // 1616, request_pages(200_000, page_size=1616)
    for size, expected in ((1616, 124), (8192, 25)):
        states = request_pages(200_000, page_size=size)
        what = f"state pages of a prompt, a checkpoint each {size:,} tokens"
        yield source.exact(f"{size}", what, expected=expected, got=states)
        needed = 2 * (attention + states)
        fits = needed <= blocks
        what = "both prompts fit" if size == 8192 else "two prompts are too many when every block has a checkpoint"
        yield source.holds(f"{size}-fits", what, fits == (size == 8192), seen=f"{needed} of {blocks} blocks")


def _binding_limit() -> Iterator[Check]:
    text = "vllm issue 9802 (52.89x at 40,000 tokens, but three requests run): the pool is not what limits them"
    source = Source(FAMILY, "binding", text)
    engine = settings(profile="vllm-0.6", max_num_batched_tokens=40_000)
    run = serve(at_once(np.full(3, 39_000), np.full(3, 1000)), paged(132_225, 16, engine), engine)
    yield source.exact("running", "running of three that come", expected=3, got=run.recorder.peak_sequences)
    refusals = sum(run.ledger.oom_events.values())
    share = run.recorder.allocated.peak / run.recorder.allocator.capacity_bytes
    what = "nobody waits for memory, and most of the pool is free"
    seen = f"{refusals} refusals, {100 * share:.1f} % used"
    yield source.holds("free", what, refusals == 0 and share < 0.1, seen=seen)
