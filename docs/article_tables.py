"""The tables of docs/articles.md, in both languages."""
# ruff: noqa: RUF001 (Chinese punctuation)

from docs.table_text import Words, runs, table
from simulator.config import EngineConfig
from simulator.device import DeviceConfig, load_device
from simulator.kernels.kernel_table import kernel_table
from simulator.kernels.tiles import KernelOptions
from simulator.model import ModelConfig, load_model
from simulator.planning.kernel_answer import BATCH, CONTEXT_TOKENS
from simulator.scenario import load_scenario
from simulator.showing.terminal import cause_shares
from simulator.units import format_bytes, format_seconds
from simulator.units import format_percent as percent

#: the page sizes that the articles argue about
PAGES = (8, 16, 32, 64, 128)


def article_fragmentation(language: str) -> str:
    """The ATB article's mix under four allocators."""
    heads = {
        "en": ("", "OOM rate", "of it fragmentation", "of it capacity", "KV used, mean"),
        "zh": ("", "OOM 率", "其中碎片", "其中容量不足", "KV 平均占用"),
    }[language]
    names: dict[str, Words] = {
        "contiguous": ("contiguous, `max_model_len` for everybody", "连续分配，人人预留 `max_model_len`"),
        "contiguous_exact": ("contiguous, exactly what will be needed (an oracle)", "连续分配，恰好预留所需（先知）"),
        "paged": ("paged", "分页"),
        "paged_defrag": ("paged, compacted into runs of 8", "分页，整理成 8 页一段"),
    }
    rows = []
    for run in runs("llama70b_128k"):
        if run["label"] in names:
            shares = cause_shares(run)
            figures = (run["oom_rate"], shares["fragmentation"], shares["capacity"], run["kv"]["mean_utilization"])
            rows.append((names[run["label"]][language == "zh"], *map(percent, figures)))
    return table(heads, rows)


def article_pool(language: str) -> str:
    """What the ATB article's model leaves for KV on four devices."""
    heads = {
        "en": ("four 910B3, tensor parallelism 4", "KV memory of a device", "KV of a token", "tokens in the pool"),
        "zh": ("四张 910B3，张量并行 4", "每张卡的 KV 内存", "每 token 的 KV", "池中 token 数"),
    }[language]
    budget = load_scenario("llama70b_128k").budget
    sizes = map(format_bytes, (budget.kv_bytes_available, budget.kv_bytes_per_token_per_device))
    return table(heads, [("Llama-2-70B", *sizes, f"{budget.kv_tokens:,}")])


def article_pages(language: str) -> str:
    """Bandwidth use of a kernel that brings in one head's tile at a time, by page size."""
    heads = {"en": ("tokens a page", "of the HBM's peak"), "zh": ("每页 token", "占 HBM 峰值带宽")}[language]
    return table(heads, [(str(size), percent(share)) for size, share in _bandwidth(KernelOptions())])


def article_cliff(language: str) -> str:
    """The same for the article's kernel: whole pages, read again where they overflow the buffer."""
    heads = {
        "en": ("tokens a page", "whole pages, read again for each part that overflows", "one head at a time"),
        "zh": ("每页 token", "整页搬运，装不下的部分重读", "一次一个头"),
    }[language]
    whole = _bandwidth(KernelOptions(tile="whole_page", overflow="reload"))
    rows = zip(whole, _bandwidth(KernelOptions()), strict=True)
    return table(heads, [(str(size), percent(share), percent(real)) for (size, share), (_, real) in rows])


def _bandwidth(options: KernelOptions) -> list[tuple[int, float]]:
    device = load_device(DeviceConfig.model_validate({"preset": "910B2"}))
    llama = load_model(ModelConfig(preset="llama-2-7b"))
    rows = kernel_table(device, llama, EngineConfig(), PAGES, context=CONTEXT_TOKENS, batch=BATCH, options=options)
    return [(row.page_size, row.bandwidth_utilization) for row in rows]


def article_rows(language: str) -> str:
    """The cann-recipes article's rows against pages."""
    heads = {
        "en": ("", "requests/s", "against rows", "TTFT p50", "KV used, mean", "held for tokens that never come"),
        "zh": ("", "请求/秒", "相对整行", "TTFT p50", "KV 平均占用", "留给永不出现的 token"),
    }[language]
    names: tuple[Words, ...] = (
        ("rows of 2,048", "每行 2,048"),
        ("rows as long as needed (an oracle)", "按需行长（先知）"),
        ("pages of 16", "16 token 一页"),
    )
    rows = []
    found = runs("llama7b_8x2048", "engine.scheduler=continuous")
    whole_rows = found[0]["throughput"]["requests_per_s"]
    for name, run in zip(names, found, strict=True):
        kv, gain = run["kv"], run["throughput"]["requests_per_s"] / whole_rows - 1
        first = format_seconds(run["latency"]["ttft_s"]["p50"])
        cells = (
            f"{run['throughput']['requests_per_s']:.2f}",
            f"{100 * gain:+.0f} %" if gain else "",
            first.replace("min", "分钟") if language == "zh" else first,
        )
        rows.append((name[language == "zh"], *cells, percent(kv["mean_utilization"]), percent(kv["waste"]["internal"])))
    return table(heads, rows)


def article_factor(language: str) -> str:
    """Requests lost by safety factor."""
    chinese = language == "zh"
    rows = []
    for factor in ("1.0", "1.2", "1.5", "2.0"):
        settings = ("engine.on_oom=fail", f"allocators=[{{kind: paged, page_size: 16, safety_factor: {factor}}}]")
        (run,) = runs("llama7b_8x2048", *settings)
        lost, arrived, peak = run["oom_rate"], run["requests"]["arrived"], run["kv"]["peak_pages"]
        none = f"{arrived:,} 个中 0 个" if chinese else f"none of {arrived:,}"
        most = f"（最多用 {peak:,} 页）" if chinese else f" ({peak:,} pages at most in use)"
        rows.append((factor, f"{run['max_pages']:,}", percent(lost) if lost else none + most))
    return table(("系数", "`max_pages`", "丢失的请求") if chinese else ("factor", "`max_pages`", "requests lost"), rows)
