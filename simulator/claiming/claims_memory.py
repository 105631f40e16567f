"""Checks of the claims about bytes, pages and pools."""

import math
from dataclasses import replace
from itertools import pairwise

from simulator.allocators.page_pool import SCAN_CYCLES_PER_PAGE, PagePool
from simulator.claims import Check, Finding, Given, Value, Verdict, device, model, near
from simulator.device import device_names
from simulator.kernels.decode_attention import attention_shape
from simulator.kernels.mechanisms import packing
from simulator.kernels.tiles import KernelOptions, plan_tiles
from simulator.models.model_shape import Model
from simulator.units import ceil_div

GIGA = 1e9
# A 910C package carries two dies; software sees each as a device.
DIES_910C = 2


def growth(given: Given) -> Finding:
    """A1."""
    llama, tokens = model("llama-2-70b"), 65536
    cache = math.log2(llama.kv_bytes(2 * tokens) / llama.kv_bytes(tokens))
    prefill = math.log2((2 * tokens * (2 * tokens + 1)) / (tokens * (tokens + 1)))
    values = (Value(name="exponent of the KV cache", value=cache), Value(name="of prefill attention", value=prefill))
    return Finding(verdict="right" if near(cache, given["exponent"]) else "wrong", values=values)


def product(given: Given) -> Finding:
    """A2."""
    elements = given["tokens"] * 2 * given["hidden"] * given["heads"]
    values = (
        Value(name="at 1 byte", value=elements, unit="bytes"),
        Value(name="in FP16", value=2 * elements, unit="bytes"),
    )
    return Finding(verdict="right" if near(elements, given["bytes"]) else "wrong", values=values)


def llama_70b(given: Given) -> Finding:
    """A3."""
    grouped, tokens = model("llama-2-70b"), int(given["tokens"])
    found = grouped.kv_bytes(tokens)
    values = (
        Value(name="8 KV heads", value=found, unit="bytes"),
        Value(name="64 KV heads", value=_ungrouped(grouped).kv_bytes(tokens), unit="bytes"),
    )
    return Finding(verdict="right" if near(found, given["bytes"]) else "wrong", values=values)


def _ungrouped(grouped: Model) -> Model:
    """The model with a KV head for every query head."""
    groups = tuple(replace(group, kv_heads=grouped.num_attention_heads) for group in grouped.groups)
    return replace(grouped, groups=groups)


def weights_70b(given: Given) -> Finding:
    """A4."""
    found = model("llama-3.1-70b").parameters * 2
    values = (Value(name="weights", value=found / GIGA, unit="GB"), Value(name="same", value=found, unit="bytes"))
    return Finding(verdict="right" if near(found / GIGA, given["gigabytes"]) else "wrong", values=values)


def device_memory(given: Given) -> Finding:
    """A5."""
    real = {name: device(name).hbm_bytes for name in device_names() if name != "seed_910"}
    values = [Value(name=name, value=size, unit="bytes") for name, size in real.items()]
    package = Value(name="910C package of two", value=DIES_910C * real["910C"], unit="bytes")
    claimed = any(near(size / GIGA, given["gigabytes"]) for size in real.values())
    return Finding(verdict="right" if claimed else "wrong", values=(*values, package))


def smaller_requests(given: Given) -> Finding:
    """A6."""
    a_token, llama = given["bytes"] / given["tokens"], model("llama-2-70b")
    small, large = given["small_tokens"] * a_token, given["large_tokens"] * a_token
    values = (
        Value(name="512 tokens", value=small, unit="bytes"),
        Value(name="64K tokens", value=large, unit="bytes"),
        Value(name="512 tokens of llama-2-70b", value=llama.kv_bytes(int(given["small_tokens"])), unit="bytes"),
        Value(name="64K tokens of llama-2-70b", value=llama.kv_bytes(int(given["large_tokens"])), unit="bytes"),
    )
    fits = near(small, given["small_bytes"]), near(large, given["large_bytes"])
    return Finding(verdict="right" if all(fits) else "partly" if any(fits) else "wrong", values=values)


def page_counts(given: Given) -> Finding:
    """A7."""
    sizes = {"32 GiB": 2**35, "16 MiB": 2**24, "16 GiB": 2**34}
    values = tuple(
        Value(name=name, value=ceil_div(size, int(given["page_bytes"])), unit="pages") for name, size in sizes.items()
    )
    claimed = [given[name] for name in ("first", "second", "third")]
    return Finding(verdict="right" if [value.value for value in values] == claimed else "wrong", values=values)


def page_of_16_kb(given: Given) -> Finding:
    """A8."""
    llama = model("llama-2-70b")
    layer = llama.groups[0].elements_per_token_layer() * 2
    tokens = given["page_bytes"] / (2 * given["hidden"] * 2)
    values = (
        Value(name="tokens of one layer in a page", value=tokens, unit="tokens"),
        Value(name="by integer division", value=int(tokens), unit="tokens"),
        Value(name="of one layer of llama-2-70b", value=given["page_bytes"] / layer, unit="tokens"),
    )
    return Finding(verdict="right" if tokens >= 1 else "wrong", values=values)


def listed_requests(given: Given) -> Finding:
    """A13."""
    total = given["first"] + given["second"] + given["third"]
    values = (Value(name="the listed requests", value=total, unit="bytes"),)
    return Finding(verdict="right" if near(total, given["bytes"]) else "unsupported", values=values)


def page_scan(given: Given) -> Finding:
    """A15."""
    pages = int(given["pages"])
    scan = PagePool(pages, "first_fit_scan").search_cycles([pages - 1]) // SCAN_CYCLES_PER_PAGE
    listed = PagePool(pages, "lifo").take(1)
    values = (
        Value(name="looked at in the worst case", value=scan, unit="pages"),
        Value(name="with a free list", value=len(listed), unit="pages"),
    )
    return Finding(verdict="right" if scan <= len(listed) else "poor", values=values)


def llama_7b_batch(given: Given) -> Finding:
    """B1."""
    weights, reserved = _llama_7b(int(given["batch"] * given["tokens"]))
    a_token = model("llama-2-7b").kv_bytes_per_token()
    int8 = weights / 2
    held = [(given[name] - int8) * GIGA / a_token for name in ("contiguous", "paged")]
    values = (
        Value(name="weights", value=weights, unit="GB"),
        Value(name="KV reserved", value=reserved, unit="GB"),
        Value(name="contiguous", value=weights + reserved, unit="GB"),
        Value(name="paged, at least", value=weights, unit="GB"),
        Value(name="14.2 GB in INT8 would hold", value=round(held[0]), unit="tokens"),
        Value(name="9.8 GB in INT8 would hold", value=round(held[1]), unit="tokens"),
    )
    possible = near(weights + reserved, given["contiguous"]) and given["paged"] >= weights
    return Finding(verdict="right" if possible else "wrong", values=values)


def _llama_7b(tokens: int) -> tuple[float, float]:
    """GB of the weights in FP16 and of the KV cache of ``tokens``."""
    llama = model("llama-2-7b")
    return llama.parameters * 2 / GIGA, llama.kv_bytes(tokens) / GIGA


def saving(given: Given) -> Finding:
    """B2."""
    tokens = given["gigabytes"] * GIGA / model("llama-2-7b").kv_bytes_per_token()
    fill = 1 - tokens / (given["batch"] * given["tokens"])
    values = (
        Value(name="saved", value=round(tokens), unit="tokens"),
        Value(name="mean fill, at most", value=fill, unit="share"),
    )
    return Finding(verdict="plausible" if 0 < fill < 1 else "wrong", values=values)


def batch_of_16(given: Given) -> Finding:
    """B3."""
    weights, cache = _llama_7b(int(given["batch"] * given["tokens"]))
    usable = {name: device(name).hbm_usable_bytes / GIGA for name in ("910B3", "910B4")}
    values = (
        Value(name="needed", value=weights + cache, unit="GB"),
        *(Value(name=f"usable on {name}", value=size, unit="GB") for name, size in usable.items()),
    )
    return Finding(verdict="right" if weights + cache > usable["910B3"] else "wrong", values=values)


def one_token(given: Given) -> Finding:
    """B4."""
    llama = model("llama-2-7b")
    whole = llama.kv_bytes_per_token()
    layer = whole / llama.num_layers
    values = (Value(name="a layer", value=layer, unit="bytes"), Value(name="all layers", value=whole, unit="bytes"))
    verdict: Verdict = "right" if near(whole, given["bytes"]) else "partly" if near(layer, given["bytes"]) else "wrong"
    return Finding(verdict=verdict, values=values)


def buffer_size(given: Given) -> Finding:
    """B5."""
    card = device()
    values = (
        Value(name="L1 of a cube core", value=card.lds_bytes, unit="bytes"),
        Value(name="UB of a vector core", value=card.ub_bytes, unit="bytes"),
    )
    return Finding(verdict="partly" if near(card.lds_bytes, given["bytes"]) else "wrong", values=values)


def largest_page(given: Given) -> Finding:
    """B6."""
    llama, options = model("llama-2-7b"), KernelOptions()
    shape = attention_shape(llama, llama.groups[0], tp=1, kv_bytes=2.0)
    fitting = [n for n in range(16, 1024, 16) if plan_tiles(device(), shape, options, n).buffers >= 2]
    tile = plan_tiles(device(), shape, options, 32).tile_bytes
    values = (
        Value(name="by the article's rule", value=given["buffer_bytes"] // given["token_bytes"], unit="tokens"),
        Value(name="per-head tile of 32 tokens", value=tile, unit="bytes"),
        Value(name="largest page with two tiles in the buffer", value=max(fitting), unit="tokens"),
    )
    return Finding(verdict="right" if near(max(fitting), values[0].value) else "wrong", values=values)


def entries(given: Given) -> Finding:
    """B9."""
    found = [ceil_div(int(given["tokens"]), size) for size in (16, 32)]
    values = tuple(
        Value(name=f"pages of {size}", value=count, unit="entries") for size, count in zip((16, 32), found, strict=True)
    )
    return Finding(verdict="right" if found == [given["first"], given["second"]] else "wrong", values=values)


def pool_formula(given: Given) -> Finding:
    """B10."""
    product = given["batch"] * given["mean_tokens"] * given["factor"]
    pages = math.ceil(product / given["page_size"])
    values = (
        Value(name="the product", value=product, unit="tokens"),
        Value(name="max_pages", value=pages, unit="pages"),
        Value(name="pages claimed / needed", value=product / pages, unit="x"),
    )
    return Finding(verdict="right" if near(product, pages) else "wrong", values=values)


def pool_under_load(given: Given) -> Finding:
    """B11."""
    size, batch = int(given["page_size"]), int(given["batch"])
    each = ceil_div(int(given["tokens"]), size)
    worst = PagePool(batch * int(given["tokens"]) // size, "lifo")
    taken = sum(len(worst.take(min(each, len(worst)))) for _ in range(batch))
    average = math.ceil(batch * given["mean_tokens"] * given["factor"] / size)
    values = (
        Value(name="a full batch takes", value=batch * each, unit="pages"),
        Value(name="the first pool is short by", value=batch * each - taken, unit="pages"),
        Value(name="the second by", value=max(0, batch * each - average), unit="pages"),
    )
    return Finding(verdict="right" if taken < batch * each <= average else "wrong", values=values)


def pages_needed(given: Given) -> Finding:
    """B14."""
    lengths, size = [128, 64, 256, 32], int(given["page_size"])
    now, later = (sum(ceil_div(length + more, size) for length in lengths) for more in (0, 1))
    values = (
        Value(name="sum of ceilings", value=now, unit="pages"),
        Value(name="one token later", value=later, unit="pages"),
        Value(name="the claimed formula then", value=ceil_div(sum(lengths) + len(lengths), size), unit="pages"),
    )
    holds = now == given["pages"] and later == values[2].value
    return Finding(verdict="right" if holds else "wrong", values=values)


def cache_shape(given: Given) -> Finding:
    """B15."""
    elements = model("llama-2-7b").groups[0].elements_per_token_layer()
    shape = attention_shape(model("llama-2-7b"), model("llama-2-7b").groups[0], tp=1, kv_bytes=2.0)
    held = 2 * shape.kv_heads * shape.head_dim / elements
    values = (
        Value(name="a page of that shape holds", value=held, unit="tokens"),
        Value(name="it should hold", value=given["page_size"], unit="tokens"),
    )
    return Finding(verdict="right" if held == given["page_size"] else "wrong", values=values)


def packed_positions(given: Given) -> Finding:
    """B16."""
    batches = [128, 64, 256], [128, 64, 256, 32]
    found = [packing(device(), model("llama-2-7b"), lengths).padding_tokens for lengths in batches]
    values = tuple(
        Value(name=f"{len(b)} sequences", value=n, unit="tokens") for b, n in zip(batches, found, strict=True)
    )
    return Finding(verdict="right" if found == [given["first"], given["second"]] else "wrong", values=values)


def scattered_pages(given: Given) -> Finding:
    """B21."""
    count = int(given["pages"])
    pool = PagePool(2 * count, "lifo")
    pool.give(pool.take(2 * count)[::2])
    free = sorted(pool.free_ids())
    adjacent = sum(after - before == 1 for before, after in pairwise(free))
    values = (
        Value(name="adjacent free pages", value=adjacent, unit="pages"),
        Value(name="taken from the free list", value=len(pool.take(count)), unit="pages"),
    )
    return Finding(verdict="wrong" if values[1].value == count else "right", values=values)


CHECKS: dict[str, Check] = {
    "A1": growth,
    "A2": product,
    "A3": llama_70b,
    "A4": weights_70b,
    "A5": device_memory,
    "A6": smaller_requests,
    "A7": page_counts,
    "A8": page_of_16_kb,
    "A13": listed_requests,
    "A15": page_scan,
    "B1": llama_7b_batch,
    "B2": saving,
    "B3": batch_of_16,
    "B4": one_token,
    "B5": buffer_size,
    "B6": largest_page,
    "B9": entries,
    "B10": pool_formula,
    "B11": pool_under_load,
    "B14": pages_needed,
    "B15": cache_shape,
    "B16": packed_positions,
    "B21": scattered_pages,
}
