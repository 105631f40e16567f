"""What an engine must refuse: pools larger than the card, models that leave nothing; and which set-up holds more."""

from collections.abc import Iterator
from dataclasses import replace

from simulator.device import Device
from simulator.memory import MemoryBudget, memory_budget, plain_budget
from simulator.model import Model
from simulator.models.ways_out import largest_model_len, more_devices
from simulator.units import ceil_div
from simulator.validating.check import Check, Source
from simulator.validating.parts import GIB, MIB, bare, card, pool_of, preset_model, settings

FAMILY = "engines"


def checks() -> Iterator[Check]:
    """Refusals, then orderings."""
    yield from _refused()
    yield from _orderings()


def _available(budget: MemoryBudget) -> float:
    return (budget.kv_bytes_available - budget.overdraft_bytes) / GIB


def _refused() -> Iterator[Check]:
    """What cannot be: pools larger than the card, and models that leave nothing."""
    llama, mha = preset_model("llama-3.1-8b"), preset_model("llama-2-7b")
    source = Source(
        FAMILY, "refused", "inference-sim capacity anchors (132,139 blocks at TP2 and 559,190 at TP4 on 80 GiB)"
    )
    for tp, blocks, low, high in ((2, 132_139, 54_000, 66_000), (4, 559_190, 117_000, 143_000)):
        wanted = replace(card(80), kv_capacity_bytes=blocks * 16 * llama.kv_bytes_per_token(tp))
        engine = settings(tensor_parallel_size=tp, runtime_bytes="0.6GiB", graph_bytes="1GiB")
        yield source.holds(
            f"tp{tp}", f"{blocks:,} blocks on an 80 GiB card are refused", _refuses(wanted, llama, tp), grade="exact"
        )
        got = memory_budget(card(80), llama, engine, page_size=16).max_pages
        yield source.between(
            f"tp{tp}-blocks", f"blocks that there is room for at TP{tp}", low=low, high=high, got=got, grade="ordering"
        )
    source = Source(FAMILY, "refused", "NVIDIA/TensorRT-LLM issue 224 (8,348 blocks of a 7B model on 24 GB)")
    wanted = replace(card(22.5), kv_capacity_bytes=8348 * 8 * MIB)
    yield source.holds("a10", "65.2 GiB of KV on a 24 GB card are refused", _refuses(wanted, mha, 1), grade="exact")
    source = Source(
        FAMILY, "refused", "QAnything issue 302 and Qwen3 issue 12: No available memory for the cache blocks"
    )
    shares = [
        _available(plain_budget(card(14), mha, settings(gpu_memory_utilization=share))) for share in (0.9, 0.8, 0.7)
    ]
    yield source.holds("nothing", "nothing is left for KV", all(left < 0 for left in shares), grade="exact")
    yield from _more_devices()
    lower = shares == sorted(shares, reverse=True)
    yield source.holds("lower-share", "a lower share of the memory makes it worse", lower)


def _more_devices() -> Iterator[Check]:
    text = (
        "inference-sim TestCalculateKVBlocks_InsufficientMemory_SuggestsMinTP: 664.51 GiB over 71.4 GiB a card are 10"
    )
    large, engine = preset_model("deepseek-v3"), settings(runtime_bytes="0.6GiB", max_num_batched_tokens=2048)
    least = ceil_div(large.weight_bytes_per_device(), round(71.4 * GIB))
    way = more_devices(card(80), large, engine, page_size=16)
    what = f"tensor parallelism proposed: the first divisor of 128 heads from {least} devices on"
    yield Source(FAMILY, "refused", text).exact("more-devices", what, expected=16, got=way.tensor_parallel_size)


def _refuses(device: Device, model: Model, tp: int) -> bool:
    try:
        memory_budget(device, model, bare(tensor_parallel_size=tp), page_size=16)
    except ValueError:
        return True
    return False


def _orderings() -> Iterator[Check]:
    large = preset_model("llama-3.1-70b")
    source = Source(FAMILY, "order", "vllm issue 16011 (21.89x at TP8, 7.56x on each of two at TP4)")
    eight, four = (
        memory_budget(card(80), large, bare(tensor_parallel_size=tp), page_size=16).max_concurrency for tp in (8, 4)
    )
    yield source.holds(
        "tp8", "one instance of 8 holds more than two of 4", eight > 2 * four, seen=f"{eight:.2f} > 2 x {four:.2f}"
    )
    source = Source(FAMILY, "order", "vllm pull request 39254 (64K to 93K when windows are honoured)")
    hybrid = preset_model("gemma-3-27b")
    full = replace(hybrid, groups=tuple(replace(group, kind="full", window=None) for group in hybrid.groups))
    pool = pool_of(8 * GIB)
    long, short = (
        largest_model_len(pool, model, bare(max_model_len=131_072), page_size=16) for model in (hybrid, full)
    )
    yield source.holds("windows", "windows let longer requests in", long > short, seen=f"{long:,} > {short:,}")
    source = Source(FAMILY, "order", "vllm issue 2248 (two servers at 0.4 each on one card)")
    small = preset_model("llama-2-7b")
    alone = plain_budget(card(80), small, bare(gpu_memory_utilization=0.4)).kv_bytes_available
    beside = plain_budget(card(80, hbm_free_bytes=48 * GIB), small, bare(gpu_memory_utilization=0.4)).kv_bytes_available
    what = "a second server on one card gets the pool of the first: its neighbour is counted once"
    yield source.exact("two-servers", what, expected=alone, got=beside, grade="ordering")
