"""Checks of the claims about cycles, bandwidth, kernels and steps."""

import math
from collections.abc import Sequence
from functools import cache

from simulator.claims import Check, Finding, Given, Value, Verdict, device, model, near
from simulator.config import EngineConfig
from simulator.cost import StepCost
from simulator.kernel import PagedKernel
from simulator.kernels.decode_attention import attention_shape
from simulator.kernels.dma import make_dma
from simulator.kernels.kernel_table import kernel_table
from simulator.kernels.mechanisms import free_list, qkv_read, table_row
from simulator.kernels.tiles import KernelOptions
from simulator.units import ceil_div

HEAD_DIM, HEADS = 128, 32
# A batch large enough to fill the cores, for bandwidth shares that do not depend on it.
BATCH, CONTEXT = 16, 2048


def hbm_look_up(given: Given) -> Finding:
    """A9."""
    card = device()
    _, confidence = card.provenance("hbm_latency_cycles")
    values = (
        Value(name="HBM, " + confidence, value=card.hbm_latency_cycles, unit="cycles"),
        Value(name="same", value=card.hbm_latency_cycles / card.clock_hz, unit="s"),
        Value(name="L2, " + card.provenance("l2_latency_cycles")[1], value=card.l2_latency_cycles, unit="cycles"),
    )
    near_by = card.l2_latency_cycles <= given["cycles"] <= 4 * card.l2_latency_cycles
    verdict: Verdict = "wrong" if not near_by else "plausible" if confidence == "assumed" else "right"
    return Finding(verdict=verdict, values=values)


def l1_look_up(given: Given) -> Finding:
    """A10."""
    cycles = device().l1_latency_cycles
    values = (Value(name="cached scalar load", value=cycles, unit="cycles"),)
    return Finding(verdict="right" if cycles <= given["cycles"] else "wrong", values=values)


def look_up_saving(given: Given) -> Finding:
    """A11."""
    card = device()
    each = given["hbm_cycles"] - given["l1_cycles"]
    total = each * given["pages"]
    one_core = total / card.clock_hz
    entries = card.table_line_bytes // 4
    values = (
        Value(name="saved by one page of 2 MB", value=each, unit="cycles"),
        Value(name="by the pages of 32 GB", value=total, unit="cycles"),
        Value(name="on one core", value=one_core, unit="s"),
        Value(name=f"on {card.cores}", value=one_core / card.cores, unit="s"),
        Value(name=f"with {entries} entries a line", value=one_core / card.cores / entries, unit="s"),
    )
    return Finding(verdict="right" if near(each, given["cycles"]) else "wrong", values=values)


def paged_speed(given: Given) -> Finding:
    """A12."""
    values = tuple(
        Value(name=f"{tokens} tokens, {'one tile' if depth == 1 else 'two tiles'} in flight", value=share, unit="share")
        for tokens in (16, 128, 512)
        for depth, share in ((1, tile_share(tokens)), (2, tile_share(tokens, depth=2)))
    )
    return Finding(verdict="right" if near(values[0].value, values[-1].value) else "wrong", values=values)


def tile_share(tokens: int, *, depth: int = 1) -> float:
    """Share of peak bandwidth when all cores read per-head tiles of ``tokens`` tokens, ``depth`` at a time."""
    card = device()
    size = tokens * HEAD_DIM * 2
    return card.cores * size / make_dma(card, depth=depth).seconds(size, card.cores) / card.hbm_bandwidth


def online_softmax(given: Given) -> Finding:
    """A14."""
    scores, values_of = [1.0, 3.0, 2.0], [1.0, 2.0, 3.0]
    exact = _softmax_sum(scores, values_of)
    found = _article_sum(scores, values_of)
    values = (
        Value(name="softmax", value=exact),
        Value(name="the article's loop, started at the first score", value=found),
        Value(name="its first exponent as written (FP32 ends at 88.7)", value=scores[0] - given["start"]),
    )
    return Finding(verdict="right" if near(found, exact, 1e-3) else "wrong", values=values)


def _softmax_sum(scores: Sequence[float], values: Sequence[float]) -> float:
    weights = [math.exp(score - max(scores)) for score in scores]
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)


def _article_sum(scores: Sequence[float], values: Sequence[float]) -> float:
    """The article's update: each new weight is taken against the maximum before it."""
    highest, total, output = scores[0], 0.0, 0.0
    for score, value in zip(scores, values, strict=True):
        weight = math.exp(score - highest)
        if score > highest:
            correction = math.exp(highest - score)
            highest, total, output = score, total * correction, output * correction
        total, output = total + weight, output + value * weight
    return output / total


def page_cliff(given: Given) -> Finding:
    """B7."""
    small, large = tile_share(32), tile_share(64)
    variants = {
        "per-head tiles": KernelOptions(),
        "whole pages in parts": KernelOptions(tile="whole_page"),
        "whole pages read again": KernelOptions(tile="whole_page", overflow="reload"),
    }
    values = [
        Value(name="DMA, 32 tokens", value=small, unit="share"),
        Value(name="DMA, 64 tokens", value=large, unit="share"),
    ]
    for name, options in variants.items():
        values += [
            Value(name=f"{name}, {row.page_size}", value=row.bandwidth_utilization, unit="share")
            for row in kernel_table(
                device(), model("llama-2-7b"), EngineConfig(), (32, 64), context=CONTEXT, batch=BATCH, options=options
            )
        ]
    plateau = abs(small - given["small"]) < 0.25
    cliff = large < small
    return Finding(verdict="right" if plateau and cliff else "partly" if plateau else "wrong", values=tuple(values))


def row_alignment(given: Given) -> Finding:
    """B8."""
    rows = {
        (page, align): table_row(device(), max_model_len=int(given["tokens"]), page_tokens=page, align_bytes=align)
        for page in (16, 32)
        for align in (4, int(given["align_bytes"]))
    }
    values = tuple(
        Value(name=f"pages of {page}, {align} bytes", value=row.stride_entries, unit="entries")
        for (page, align), row in rows.items()
    )
    padding = sum(row.padding_bytes for row in rows.values())
    shared = any(row.shares_line for row in rows.values())
    return Finding(verdict="unsupported" if not padding and not shared else "plausible", values=values)


def page_reuse(given: Given) -> Finding:
    """B12."""
    cost = free_list(device(), batch=int(given["batch"]), page_tokens=int(given["page_size"]), step_s=given["step_s"])
    values = (
        Value(name="pages a step", value=cost.pages_per_step, unit="pages"),
        Value(name="time", value=cost.seconds, unit="s"),
        Value(name="of the step", value=cost.share, unit="share"),
    )
    return Finding(verdict="right" if near(cost.share, given["share"], 0.5) else "implausible", values=values)


def throughput(given: Given) -> Finding:
    """B13."""
    llama, lengths = model("llama-2-7b"), (BATCH, BATCH * CONTEXT)
    shape = attention_shape(llama, llama.groups[0], tp=1, kv_bytes=2.0)
    pages = BATCH * ceil_div(CONTEXT, 16)
    paged, contiguous = (
        PagedKernel(device(), shape, page_tokens=16, options=KernelOptions(run_pages=run)).seconds(*lengths, pages)
        for run in (1.0, CONTEXT / 16)
    )
    values = (Value(name="kernel time, pages of 16 / contiguous", value=paged / contiguous, unit="x"),)
    gained = contiguous / paged - 1 >= given["gain"]
    return Finding(verdict="plausible" if gained else "unsupported", values=values)


@cache
def _llama_step() -> tuple[float, float]:
    """Milliseconds at peak bandwidth of the weights, and of the KV cache of 480 tokens."""
    llama, peak = model("llama-2-7b"), device().hbm_bandwidth
    return llama.parameters * 2 / peak * 1e3, llama.kv_bytes(480) / peak * 1e3


def decode_step(given: Given) -> Finding:
    """B17."""
    weights_ms, cache_ms = _llama_step()
    share = given["saved_ms"] / (given["step_ms"] + given["saved_ms"])
    values = (
        Value(name="weights", value=weights_ms / 1e3, unit="s"),
        Value(name="KV of 480 tokens", value=cache_ms / 1e3, unit="s"),
        Value(name="saved / step", value=given["saved_ms"] / given["step_ms"], unit="share"),
        Value(name="saved / step before", value=share, unit="share"),
    )
    return Finding(verdict="plausible" if given["saved_ms"] <= cache_ms else "implausible", values=values)


def kernel_rate(given: Given) -> Finding:
    """B18."""
    card, llama = device(), model("llama-2-7b")
    group = StepCost(card, llama, EngineConfig(), page_tokens=128).groups[0]
    work = group.work(BATCH, BATCH * CONTEXT, BATCH * CONTEXT // 128, 0)
    intensity = work.flops / work.moved_bytes
    rate = given["flops"] / intensity
    values = (
        Value(name="operations a byte", value=intensity),
        Value(name="bandwidth", value=rate / 1e12, unit="TB/s"),
        Value(name="of peak", value=rate / card.hbm_bandwidth, unit="share"),
    )
    share = rate / card.hbm_bandwidth
    verdict: Verdict = (
        "right" if near(share, given["share"]) else "partly" if near(share, given["share"], 0.5) else "wrong"
    )
    return Finding(verdict=verdict, values=values)


def cache_misses(given: Given) -> Finding:
    """B19."""
    gain = (1 - given["after"]) / (1 - given["before"]) - 1
    lines = [qkv_read(device(), head_dim=HEAD_DIM, interleaved=how).lines for how in (True, False)]
    values = (
        Value(name="hits", value=gain, unit="share"),
        Value(name="hits, difference", value=100 * (given["before"] - given["after"]), unit="points"),
        Value(name="misses", value=given["after"] / given["before"] - 1, unit="share"),
        Value(name="lines read, interleaved", value=lines[0]),
        Value(name="separate", value=lines[1]),
    )
    return Finding(verdict="right" if near(gain, given["gain"]) else "wrong", values=values)


def token_bytes(given: Given) -> Finding:
    """B20."""
    head = qkv_read(device(), head_dim=HEAD_DIM, interleaved=True).burst_bytes
    values = (
        Value(name="all heads", value=head * HEADS, unit="bytes"),
        Value(name="one head", value=head, unit="bytes"),
    )
    holds = head * HEADS == given["all_bytes"] and head == given["head_bytes"]
    return Finding(verdict="right" if holds else "wrong", values=values)


def order_of_products(given: Given) -> Finding:
    """B22."""
    query, keys, values_of = [1.0, 0.5], [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [1.0, 2.0, 3.0]
    scores = [sum(q * k for q, k in zip(query, key, strict=True)) for key in keys]
    attention = _softmax_sum(scores, values_of)
    multiplied = sum(score * value for score, value in zip(scores, values_of, strict=True))
    card = device("910B3")
    values = (
        Value(name="softmax(Q K^T) V", value=attention),
        Value(name="Q (K^T V)", value=multiplied),
        Value(name="pinned host memory", value=card.host_bandwidth / 1e9, unit="GB/s"),
        Value(name="pageable", value=card.pageable_host_bandwidth / 1e9, unit="GB/s"),
    )
    return Finding(verdict="right" if near(multiplied, attention, 1e-3) else "wrong", values=values)


CHECKS: dict[str, Check] = {
    "A9": hbm_look_up,
    "A10": l1_look_up,
    "A11": look_up_saving,
    "A12": paged_speed,
    "A14": online_softmax,
    "B7": page_cliff,
    "B8": row_alignment,
    "B12": page_reuse,
    "B13": throughput,
    "B17": decode_step,
    "B18": kernel_rate,
    "B19": cache_misses,
    "B20": token_bytes,
    "B22": order_of_products,
}
