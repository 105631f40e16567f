"""Lines that real engines printed at start-up: blocks, tokens, concurrency, refusals, by the rules of the version."""

from collections.abc import Iterator

from simulator.validating.check import Check, Source
from simulator.validating.startup import BlockPool, Version

FAMILY = "engines"


def checks() -> Iterator[Check]:
    """Figures of public logs that hold by the rules of a version alone."""
    yield from _printed_concurrency()
    yield from _printed_tokens()
    yield from _refusals()
    yield from _windows()


#: issue, version, blocks, tokens a block, longest length, concurrency as printed (two decimals)
_CONCURRENCY: tuple[tuple[str, Version, int, int, int, float], ...] = (
    ("vllm issue 10517 (20k case)", "0.6", 1952, 16, 20_000, 1.56),
    ("vllm issue 10517 (29k case)", "0.6", 1478, 16, 29_000, 0.82),
    ("vllm pull request 12569", "0.11", 1381, 16, 2048, 10.79),
    ("vllm pull request 13596", "0.11", 127_626, 16, 2048, 997.08),
    ("vllm-ascend issue 145", "0.6", 35_511, 16, 4096, 138.71),
    ("open-r1 report on a 910B2", "0.6", 3915, 128, 32_768, 15.29),
    ("public vllm-ascend log of 2025-02-18", "0.6", 572_252, 16, 32_768, 279.42),
)


def _printed_concurrency() -> Iterator[Check]:
    for index, (text, version, blocks, size, length, printed) in enumerate(_CONCURRENCY):
        pool = BlockPool(version=version, blocks=blocks, block_tokens=size)
        yield Source(FAMILY, "concurrency", text).near(
            str(index),
            f"Maximum concurrency for {length:,} tokens, {blocks:,} blocks of {size}",
            expected=printed,
            got=pool.concurrency(length),
            within=0.005,
            grade="rounding",
        )
    yield from _decoded_from_tokens()
    hybrid = BlockPool(version="0.11", blocks=1487, block_tokens=784, windows=(None, 0, 0, 0))
    source = Source(FAMILY, "hybrid", "vllm issue 40691 (Qwen3.5 on H20, one attention and three state groups)")
    what = "printed token count, blocks split over four groups"
    yield source.exact("tokens", what, expected=290_864, got=hybrid.tokens(32_768), grade="decoded")
    yield source.near(
        "concurrency",
        "printed concurrency, state groups of one block each",
        expected=33.04,
        got=hybrid.concurrency(32_768),
        within=0.005,
        grade="decoded",
    )


def _decoded_from_tokens() -> Iterator[Check]:
    """Lines of the newest version, where the token count is the concurrency times the length."""
    for text, tokens, length, printed in (
        ("GLM-5.3-Flash-EXL3 thread 122", 356_667, 262_144, 1.36),
        ("DeepSeek-v4.1-Flash-EXL3 thread 19", 785_676, 600_000, 1.31),
        ("vllm issue 51041 (preview)", 1_009_661, 912_128, 1.11),
        ("vllm issue 51041 (release)", 150_992, 121_344, 1.24),
    ):
        # Blocks of one token stand for whatever the model's groups are: both figures come from one ratio.
        pool = BlockPool(version="0.33", blocks=tokens, block_tokens=1)
        yield Source(FAMILY, "newest", text).near(
            str(tokens),
            f"concurrency that belongs to {tokens:,} tokens at {length:,}",
            expected=printed,
            got=pool.concurrency(length),
            within=0.005,
            grade="rounding",
        )


def _printed_tokens() -> Iterator[Check]:
    pool = BlockPool(version="0.11", blocks=127_626, block_tokens=16)
    source = Source(FAMILY, "tokens", "vllm pull request 13596")
    yield source.exact("pr-13596", "GPU KV cache size in tokens", expected=2_042_016, got=pool.tokens(2048))
    capacities = (23_648, 7344, 3792, 1216, 78_336, 15_248, 1792, 13_360, 77_088, 81_536, 178_880, 53_136)
    source = Source(
        FAMILY,
        "tokens",
        "capacities in refusals of vLLM 0.x: vllm 10517 and 13061, Qwen3 295, QAnything 289, "
        "LlamaFactory 6472 and 7234, DeepSeek-V2 83 and others",
    )
    again = [BlockPool(version="0.11", blocks=tokens // 16, block_tokens=16).tokens(1) for tokens in capacities]
    yield source.holds(
        "whole-blocks", "twelve printed capacities are whole blocks of 16", again == list(capacities), grade="exact"
    )


def _refusals() -> Iterator[Check]:
    old = BlockPool(version="0.6", blocks=1478, block_tokens=16)
    source = Source(FAMILY, "refusal", "vllm issue 10517")
    yield source.holds("29k", "29,000 tokens are refused by 1,478 blocks", not old.accepts(29_000), grade="exact")
    yield source.exact("29k-limit", "tokens named by the refusal", expected=23_648, got=old.largest_model_len(29_000))
    source = Source(FAMILY, "refusal", "vLLM tests/v1/core, null block reserved (33 blocks accepted, 32 refused)")
    rows: tuple[tuple[int, Version, bool], ...] = ((32, "0.11", True), (32, "0.33", False), (33, "0.33", True))
    for blocks, version, starts in rows:
        pool = BlockPool(version=version, blocks=blocks, block_tokens=16)
        what = f"{version} starts with {blocks} blocks of 16 for 512 tokens"
        yield source.exact(f"null-{version}-{blocks}", what, expected=starts, got=pool.accepts(512))
    fit = BlockPool(version="0.33", blocks=32, block_tokens=16).largest_model_len(1024)
    yield source.exact("auto-fit", "length fitted to 32 blocks of 16", expected=496, got=fit)
    ample = BlockPool(version="0.33", blocks=1024, block_tokens=16).largest_model_len(1024)
    yield source.exact("auto-fit-all", "length fitted to 1,024 blocks of 16, of 1,024", expected=1024, got=ample)
    derived = BlockPool(version="0.33", blocks=32, block_tokens=16).largest_model_len(16_384)
    what = "length fitted to an override of 32 blocks, of 16,384 (at most 512)"
    yield source.exact("auto-fit-override", what, expected=496, got=derived)
    override = BlockPool(version="0.33", blocks=32, block_tokens=16)
    source = Source(FAMILY, "refusal", "vLLM test_check_enough_kv_cache_memory_respects_num_gpu_blocks_override")
    yield source.holds(
        "override", "16,384 tokens are refused by 32 blocks", not override.accepts(16_384), grade="exact"
    )
    large = BlockPool(version="0.11", blocks=981, block_tokens=256)
    source = Source(FAMILY, "refusal", "vllm-deepseek-v4-sm89 thread 41")
    yield source.exact(
        "blocks-of-256", "estimated length, 981 blocks of 256", expected=251_136, got=large.largest_model_len(262_144)
    )


def _windows() -> Iterator[Check]:
    source = Source(FAMILY, "windows", "vLLM 0.33 tests/v1/core/test_kv_cache_utils.py, window 1,024, blocks of 16")
    one = BlockPool(version="0.33", blocks=129 * 3, block_tokens=16, windows=(1024,), in_flight_tokens=1024)
    yield source.exact("one", "concurrency of 387 blocks with a window only", expected=3.0, got=one.concurrency(16_384))
    both = BlockPool(version="0.33", blocks=1153 * 3, block_tokens=16, windows=(None, 1024), in_flight_tokens=1024)
    yield source.exact(
        "both", "concurrency of 3,459 blocks, a full and a window group", expected=3.0, got=both.concurrency(16_384)
    )
    yield source.exact("both-tokens", "tokens of the same pool", expected=49_152, got=both.tokens(16_384))
