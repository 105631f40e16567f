"""The tables of docs/articles.md, in both languages."""
# ruff: noqa: RUF001 (Chinese punctuation)

from docs.table_text import Words, runs, table
from simulator.showing.terminal import cause_shares
from simulator.units import format_percent as percent
from simulator.units import format_seconds


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


def article_rows(language: str) -> str:
    """The cann-recipes article's rows against pages."""
    heads = {
        "en": ("", "requests/s", "TTFT p50", "KV used, mean", "held for tokens that never come"),
        "zh": ("", "请求/秒", "TTFT p50", "KV 平均占用", "留给永不出现的 token"),
    }[language]
    names: tuple[Words, ...] = (
        ("rows of 2,048", "每行 2,048"),
        ("rows as long as needed (an oracle)", "按需行长（先知）"),
        ("pages of 16", "16 token 一页"),
    )
    rows = []
    for name, run in zip(names, runs("llama7b_8x2048", "engine.scheduler=continuous"), strict=True):
        kv = run["kv"]
        first = format_seconds(run["latency"]["ttft_s"]["p50"])
        cells = (
            f"{run['throughput']['requests_per_s']:.2f}",
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
