"""Memory budgets of public reports: bytes a token, blocks in what is left, and what must be refused."""

from collections.abc import Iterator

from simulator.memory import memory_budget, plain_budget
from simulator.model import Model
from simulator.models.ways_out import largest_model_len
from simulator.validating.check import Check, Source
from simulator.validating.parts import (
    GIB,
    MIB,
    SWAP_SPACE_BYTES,
    card,
    pool_of,
    preset_device,
    preset_model,
    settings,
    transformer,
)

FAMILY = "engines"


def checks() -> Iterator[Check]:
    """Figures of public logs that hold by model shapes and the memory budget."""
    yield from _block_bytes()
    yield from _budgets()
    yield from _pools()
    yield from _lengths()


def _block_bytes() -> Iterator[Check]:
    """Bytes of a block, and the CPU blocks that 4 GiB of swap space make of them."""
    for text, model, tp, size, expected, cpu in (
        ("vllm issue 10517 (Llama-3.1-8B)", preset_model("llama-3.1-8b"), 1, 16, 2 * MIB, 2048),
        ("vllm-ascend issue 145 (Qwen2.5-VL-7B)", preset_model("qwen2.5-vl-7b"), 1, 16, 917_504, 4681),
        ("open-r1 report on a 910B2 (Qwen2.5-3B)", preset_model("qwen2.5-3b"), 1, 128, 4_718_592, 910),
        ("vllm-ascend log of 2025-02-18 (Qwen2.5-0.5B, TP2)", preset_model("qwen2.5-0.5b"), 2, 16, 98_304, 43_690),
        ("vllm issue 787 and others (Llama-2-7B)", preset_model("llama-2-7b"), 1, 16, 8 * MIB, 512),
    ):
        page_bytes = size * model.kv_bytes_per_token(tp)
        source = Source(FAMILY, "block", text)
        yield source.exact(f"{model.name}", f"bytes of a block of {size}", expected=expected, got=page_bytes)
        got = SWAP_SPACE_BYTES // page_bytes
        yield source.exact(f"{model.name}-cpu", "CPU blocks in 4 GiB of swap space", expected=cpu, got=got)
    yield from _ascend_logs()
    yield from _token_bytes()


def _ascend_logs() -> Iterator[Check]:
    """Blocks that vllm-ascend logged, with the bytes a token of the model named there, or of one of that shape."""
    rows: tuple[tuple[str, str, Model, int, int, int, float, int], ...] = (
        ("issue 145", "145", preset_model("qwen2.5-vl-7b"), 1, 16, 35_511, 30.3, 0),
        ("open-r1 report, 910B2", "open-r1", preset_model("qwen2.5-3b"), 1, 128, 3915, 17.2, 0),
        ("log of 2025-02-18", "2025-02-18", preset_model("qwen2.5-0.5b"), 2, 16, 572_252, 52.4, 0),
        ("log of 2025-06-23, 18,432 bytes a token", "2025-06-23", transformer(36, 1), 1, 128, 466, 1.02, 1820),
        ("log of 2025-03-12, 30,720 bytes a token", "2025-03-12", transformer(60, 1), 1, 16, 103_766, 47.5, 8738),
    )
    for text, name, model, tp, size, blocks, gib, cpu in rows:
        page_bytes = size * model.kv_bytes_per_token(tp)
        source = Source(FAMILY, "ascend-log", f"vllm-ascend {text}")
        within = 0.0051 if gib < 10 else 0.051
        yield source.near(name, f"GiB of {blocks:,} blocks of {size}", expected=gib, got=blocks * page_bytes / GIB,
                          within=within, grade="rounding")  # fmt: skip
        if cpu:
            got = SWAP_SPACE_BYTES // page_bytes
            yield source.exact(f"{name}-cpu", "CPU blocks in 4 GiB of swap space", expected=cpu, got=got)


def _token_bytes() -> Iterator[Check]:
    llama, wide = preset_model("llama-3.1-8b"), transformer(2, 4, head_dim=4, hidden=32)
    rows: tuple[tuple[str, str, Model, int, int], ...] = (
        ("inference-sim TestKVBytesPerToken_Llama8B_TP1", "8b", llama, 1, 131_072),
        ("inference-sim, TP4", "8b-tp4", llama, 4, 32_768),
        ("inference-sim, explicit head dim 256", "head-256", transformer(32, 8, head_dim=256, hidden=8192), 1, 262_144),
        ("inference-sim, 4 KV heads over TP8: no head is split (its own 16 is not held)", "tp8-4-heads", wide, 8, 32),
        ("vllm issue 21348 (Qwen3-235B-A22B, TP4)", "235b-tp4", preset_model("qwen3-235b-a22b"), 4, 48_128),
        ("vllm issue 13061 (R1-Distill-Qwen-14B, TP2)", "14b-tp2", transformer(48, 8, hidden=5120), 2, 98_304),
        ("Lvllm thread 35 (62 layers, 8 KV heads)", "62-layers", transformer(62, 8), 1, 253_952),
        ("vllm-fit thread 2: heads are KV heads (7B)", "7b", preset_model("llama-2-7b"), 1, 524_288),
    )  # fmt: skip
    for text, name, model, tp, expected in rows:
        what = f"KV bytes a token and device, TP{tp}"
        yield Source(FAMILY, "token", text).exact(name, what, expected=expected, got=model.kv_bytes_per_token(tp))
    one_head, latent = transformer(4, 1), preset_model("deepseek-v3")
    source = Source(FAMILY, "token", "vllm pull request 26877 (one KV head, TP8)")
    copies = 8 * one_head.kv_bytes_per_token(8) // one_head.kv_bytes_per_token(1)
    yield source.exact("copies", "copies of the cache over all devices", expected=8, got=copies)
    source = Source(FAMILY, "token", "kaito pull request 2139: MLA is not divided by TP")
    shares = latent.kv_bytes_per_token(1), latent.kv_bytes_per_token(8)
    yield source.exact("mla", "bytes a token at TP8, DeepSeek-V3", expected=shares[0], got=shares[1])
    source = Source(FAMILY, "token", "vLLM tests/v1/core test_kv_tp_replicas, TP4")
    for name, model, copies in (("mla", latent, 4), ("gqa", llama, 1)):
        got = 4 * model.kv_bytes_per_token(4) // model.kv_bytes_per_token(1)
        yield source.exact(f"replicas-{name}", f"copies of the cache, {model.name}", expected=copies, got=got)


def _with_weights(model: Model, weights_gib: float, **keys: float) -> dict[str, int]:
    """Overrides that make weights, activations and the rest add up to a log's figures, whatever the shape weighs."""
    given = sum(round(value * GIB) for value in keys.values()) + round(weights_gib * GIB)
    return {"activation_bytes": given - model.weight_bytes_per_device(), "runtime_bytes": 0, "graph_bytes": 0}


def _budgets() -> Iterator[Check]:
    """KV memory of profiled parts, as the log line says it, to 0.01 GiB."""
    small = transformer(2, 2, hidden=256)
    for text, name, total, share, weights, rest, left in (
        ("vllm pull request 14447", "pr-14447", 23.58, 0.99, 21.21, 0.20 + 0.37, 1.57),
        ("vllm issue 13061", "issue-13061", 23.55, 0.98, 13.9476, 0.25 + 0.19, 8.69),
        ("vllm issue 10517 (20k)", "issue-10517-20k", 23.58, 0.90, 17.06, 0.35, 3.81),
        ("vllm issue 10517 (29k)", "issue-10517-29k", 23.58, 0.90, 17.98, 0.35, 2.89),
        ("vllm-ascend pull request 8289", "pr-8289", 61.27, 0.90, 1.14, 0.22 + 0.13 + 0.04, 53.61),
    ):
        engine = settings(gpu_memory_utilization=share, **_with_weights(small, weights, rest=rest))
        got = plain_budget(card(total), small, engine, page_size=16).kv_bytes_available / GIB
        what = f"GiB left of {total} at {share}"
        # Every term of the log's sum is rounded to 0.01.
        yield Source(FAMILY, "budget", text).near(name, what, expected=left, got=got, within=0.0151, grade="rounding")
    source = Source(FAMILY, "budget", "vllm-ascend issues 14004, 14005, 14274 (310P counts another process twice)")
    shared = card(43.24, hbm_free_bytes=round(23.45 * GIB))
    engine = settings(gpu_memory_utilization=0.5, **_with_weights(small, 1.71))
    got = plain_budget(shared, small, engine, page_size=16).kv_bytes_available / GIB / 2
    yield source.near(
        "foreign",
        "GiB for KV, half of what is left on this card",
        expected=9.95,
        got=got,
        within=0.01,
        grade="rounding",
    )
    source = Source(FAMILY, "budget", "vllm-ascend issue 8285: 60.96 to 60.97 GiB seen of 64")
    seen = preset_device("910B3").hbm_usable_bytes / GIB
    yield source.near("visible", "GiB of a 64 GiB card that the framework sees", expected=60.965, got=seen, rel=0.01)
    mib = preset_device("910B3").hbm_usable_bytes // MIB
    what = "MiB that the framework sees: more than the 61,756 in use, fewer than the card's 65,536"
    yield source.between("visible-used", what, low=61_756, high=65_535, got=mib, grade="ordering")
    for length, peak in ((20_000, 17.06), (29_000, 17.98)):
        llama = preset_model("llama-3.1-8b")
        parts = plain_budget(card(80), llama, settings(max_num_batched_tokens=length, max_model_len=length))
        source = Source(FAMILY, "budget", f"vllm issue 10517 (peak of {peak} GiB less weights)")
        logged = peak - parts.weights_bytes_per_device / GIB
        what = f"GiB of activations in a profile run of {length:,} tokens"
        yield source.near(f"peak-{length}", what, expected=logged, got=parts.activation_bytes / GIB, rel=0.05)


def _pools() -> Iterator[Check]:
    """Blocks and tokens of pools of known size."""
    llama, mha = preset_model("llama-3.1-8b"), preset_model("llama-2-7b")
    source = Source(FAMILY, "pool", "InternLM/lmdeploy issue 3411")
    budget = memory_budget(pool_of(6214 * 8 * MIB), llama, settings(), page_size=64)
    yield source.exact("lmdeploy", "tokens of 6,214 blocks of 8 MiB", expected=397_696, got=budget.kv_tokens)
    source = Source(FAMILY, "pool", "NVIDIA/TensorRT-LLM issue 1400")
    trt = memory_budget(pool_of(69_524_783_104), mha, settings(), page_size=64)
    yield source.exact("trtllm", "tokens in 69,524,783,104 bytes", expected=132_608, got=trt.kv_tokens)
    big = preset_model("qwen3-235b-a22b")
    source = Source(FAMILY, "pool", "vllm issue 21348 (SGLang, 367,404 tokens, TP4)")
    keys_gib = 367_404 * big.kv_bytes_per_token(4) / 2 / GIB
    yield source.near("sglang", "GiB of keys", expected=8.23, got=keys_gib, within=0.005, grade="rounding")
    for text, name, model, tp, blocks, gib in (
        (
            "vllm issue 13061: the other rank is the smaller one",
            "min-rank",
            transformer(48, 8, hidden=5120),
            2,
            5096,
            7.465,
        ),
        (
            "Tandemn-Labs/tandemn-system thread 11 (Qwen2.5-7B on A10G)",
            "a10g",
            preset_model("qwen2.5-7b"),
            1,
            4818,
            4.117,
        ),
        ("QwenLM/Qwen3 issue 295", "qwen-295", mha, 1, 459, 3.586),
        (
            "vllm issue 21348: 178,880 tokens are 8.018 GiB, the other ranks have 8.11",
            "vllm-235b",
            big,
            4,
            11_180,
            8.018,
        ),
    ):
        got = blocks * 16 * model.kv_bytes_per_token(tp) / GIB
        what = f"GiB of {blocks:,} blocks of 16"
        yield Source(FAMILY, "pool", text).near(name, what, expected=gib, got=got, within=0.0006, grade="rounding")
    source = Source(FAMILY, "pool", "vllm issue 21348: one rank alone would give 180,928")
    yield source.exact(
        "one-rank", "tokens in 8.11 GiB", expected=180_928, got=_tokens_in(big, 8.11, 4), grade="rounding"
    )
    source = Source(FAMILY, "pool", "vllm issue 9802 (Llama-3.1-8B, TP4, 52.89x at 40,000)")
    blocks = _blocks(64.56, llama, 4)
    yield source.near("four-a100", "blocks in 64.56 GiB", expected=132_225, got=blocks, within=12, grade="rounding")


def _blocks(gib: float, model: Model, tp: int) -> int:
    return int(gib * GIB) // (16 * model.kv_bytes_per_token(tp))


def _tokens_in(model: Model, gib: float, tp: int) -> int:
    return 16 * _blocks(gib, model, tp)


def _lengths() -> Iterator[Check]:
    """Longest lengths that a pool holds."""
    mha = preset_model("llama-2-7b", max_position_embeddings=1 << 21)
    source = Source(FAMILY, "length", "vLLM tests/v1/core test_estimate_max_model_len (8 GiB)")
    for asked, expected in ((16_385, 16_384), (16_383, 16_383)):
        got = largest_model_len(pool_of(8 * GIB), mha, settings(max_model_len=asked), page_size=16)
        yield source.exact(str(asked), f"longest length up to {asked:,}", expected=expected, got=got)
    source = Source(FAMILY, "length", "QwenLM/Qwen3 issue 295")
    pool = pool_of(459 * 8 * MIB + MIB)
    got = largest_model_len(pool, mha, settings(max_model_len=32_768), page_size=16)
    yield source.exact("qwen-295", "longest length of 459 blocks", expected=7344, got=got)
    fits = memory_budget(pool, mha, settings(max_model_len=7200), page_size=16).fits
    yield source.holds("qwen-7200", "the advised 7,200 tokens fit", fits, grade="exact")
    linear = transformer(6, 8)
    source = Source(FAMILY, "length", "vllm pull request 16118 (24.00 GiB for 1,048,576 tokens, 9.97 available)")
    got = largest_model_len(pool_of(int(9.97 * GIB)), linear, settings(max_model_len=1 << 20), page_size=16)
    yield source.between("pr-16118", "longest length if memory were linear in it", low=435_500, high=435_699, got=got)
