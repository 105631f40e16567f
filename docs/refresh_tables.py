"""Put computed tables into the pages: ``python -m docs.refresh_tables [NAME]...`` (by default all, some minutes).

A line ``<!-- table: NAME -->`` is followed by a table, which is replaced by what ``TABLES[NAME]`` computes for the
page's language. Nothing in such a table is written by hand but its words.
"""

import re
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from docs.article_tables import (
    article_cliff,
    article_factor,
    article_fragmentation,
    article_pages,
    article_pool,
    article_rows,
)
from docs.table_text import runs, table
from simulator.allocators.page_pool import PagePool
from simulator.allocators.paged import PagedAllocator, PageLayout, plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.paged_defrag import PagedDefragAllocator
from simulator.config import DefragTrigger, FreeOrder, PagedConfig
from simulator.scenario import Scenario, load_scenario
from simulator.serving.pool import page_layout
from simulator.serving.pool_parts import PoolParts
from simulator.serving.sequence import Sequence as Request
from simulator.units import format_bytes, format_seconds
from simulator.units import format_percent as percent

DOCS = Path(__file__).parent
PAGES = ("allocators.md", "articles.md", "articles.zh-CN.md")
TABLE = re.compile(r"(<!-- table: (\w+) -->\n)((?:\|[^\n]*\n)+)")
#: the article's pool: 128K tokens in pages of 16 KiB, 80 layers
ARTICLE_PAGES = 2_600_000


# ---- allocators.md


def static_padding(language: str) -> str:
    """What a static batch computes and holds for nothing."""
    del language
    names = ("rows of 2,048", "rows as needed", "paged")
    rows = []
    for scheduler in ("static", "continuous"):
        for name, run in zip(names, runs("llama7b_8x2048", f"engine.scheduler={scheduler}"), strict=True):
            if scheduler == "continuous" and name == "rows as needed":
                continue
            padding, rates = run["padding_tokens"], run["throughput"]
            rows.append(
                (
                    f"{name}, {scheduler}",
                    f"{padding / 1e6:.2f} million tokens" if padding else "0",
                    percent(run["kv"]["waste"]["internal"]),
                    f"{rates['prompt_tokens_per_s']:.0f}",
                    f"{rates['requests_per_s']:.2f}",
                )
            )
    heads = ("`llama7b_8x2048`, 2,000 requests", "padding computed", "`internal`", "prompt tokens/s", "requests/s")
    return table(heads, rows)


def compaction_worth(language: str) -> str:
    """Whether moving pages every second pays, by page size and life."""
    del language
    short = (
        "workload.classes.0.output_tokens={dist: fixed, value: 4}",
        "workload.classes.1.output_tokens={dist: fixed, value: 4}",
        "workload.arrivals.rate=5",
    )
    rows = []
    for page_size, brief in ((16, False), (128, False), (16, True), (128, True), (512, True)):
        changes = (f"allocators.4.page_size={page_size}", *(short if brief else ()))
        kv = next(run["kv"] for run in runs("defrag_runs", *changes) if run["label"] == "every_second")
        found = kv["compaction"]
        after = found["break_even_s"]
        rows.append(
            (
                f"pages of {page_size}, outputs of {'4, 5 requests/s' if brief else '300'}",
                format_bytes(kv["moved_bytes"]),
                "never" if after is None else format_seconds(after),
                format_seconds(found["lifetime_s"]),
                "yes" if found["pays"] else "**no**",
            )
        )
    heads = ("workload of `defrag_runs`, `every_second`", "moved", "break-even", "lifetime", "pays")
    return table(heads, rows)


def search_cost(language: str) -> str:
    """Cycles to find 128 of the article's pages where every fifth is free, and where only the last ones are."""
    del language
    low = list(range(0, 5 * 128, 5))
    high = list(range(ARTICLE_PAGES - 128, ARTICLE_PAGES))
    orders: tuple[tuple[FreeOrder, str, str, Sequence[int]], ...] = (
        ("lifo", "vLLM 0.6, SGLang", "released last", low),
        ("fifo", "vLLM 0.11, 0.33 (cached pages), cann-recipes", "released first", low),
        ("address_ordered", "-", "lowest id", low),
        ("first_fit_scan", "the ATB article's `FindFreePage`", "lowest id, by looking at every page", low),
    )
    rows = []
    for order, who, which, taken in orders:
        pool = PagePool(ARTICLE_PAGES, order)
        costs = (pool.search_cycles(pages) for pages in (taken, high))
        rows.append((f"`{order}`", who, which, *(f"{cycles:,}" for cycles in costs)))
    heads = ("`free_order`", "who", "next page", "128 pages, every fifth free", "only the last 128 free")
    return table(heads, rows, left=3)


def scan_latency(language: str) -> str:
    """What the article's loop does to the time between two tokens."""
    del language
    rows = []
    for page_size in ("16", "16KiB"):
        for order in ("lifo", "first_fit_scan"):
            changes = ("workload.requests=1500", f"allocators.2.page_size={page_size}")
            run = runs("chat_burst", *changes, f"allocators.2.free_order={order}")[2]
            times = run["latency"]["tpot_s"]
            cells = (f"{run['max_pages']:,}", *(format_seconds(times[rank]) for rank in ("p50", "p95")))
            rows.append((f"page_size {page_size}, `{order}`", *cells))
    return table(("`chat_burst`, 1,500 requests", "pages", "TPOT p50", "TPOT p95"), rows)


def hybrid_groups(language: str) -> str:
    """Tables and pages of models with several groups of layers."""
    del language
    rows = []
    for model, page_size, tp, pp in (
        ("llama-3.1-8b", 128, 2, 1),
        ("llama-3.1-8b", "64KiB", 2, 1),
        ("gemma-3-27b", 128, 2, 1),
        ("gemma-3-27b", "64KiB", 2, 1),
        ("gpt-oss-20b", 128, 2, 1),
        ("deepseek-v3", 128, 16, 2),
    ):
        parts = _parts(model, tp, pp)
        layout = page_layout(PagedConfig(kind="paged", page_size=page_size), parts, key="")
        groups = [
            f"{group.copies} {'full' if group.window_tokens is None else f'window {group.window_tokens:,}'}"
            for group in layout.groups
        ]
        most = _peak(layout, 32_768)
        alone = layout.row_pages * -(-32_768 // layout.page_tokens)
        rows.append(
            (
                model + (f", tp {tp}, pp {pp}" if pp > 1 else ""),
                f"{page_size} ({layout.page_tokens} tokens)" if isinstance(page_size, str) else str(page_size),
                format_bytes(layout.page_bytes),
                " + ".join(groups),
                f"{most:,}" + (f", not {alone:,}" if most < alone else ""),
            )
        )
    heads = ("model, tensor parallel 2", "page_size", "page", "tables a sequence", "most pages of one 32K sequence")
    return table(heads, rows, left=4)


def _parts(model: str, tp: int, pp: int) -> PoolParts:
    settings = (
        f"model={{preset: {model}}}",
        f"device={{preset: 910B3, count: {tp * pp}}}",
        f"engine={{tensor_parallel_size: {tp}, pipeline_parallel_size: {pp}, max_model_len: 32768}}",
    )
    scenario: Scenario = load_scenario("chat_burst", settings)
    return PoolParts(scenario.loaded_model, scenario.engine, 0, 0.0)


def _peak(layout: PageLayout, tokens: int) -> int:
    return PagedAllocator(layout, max_pages=1 << 30, chunk_tokens=8192).peak_pages(tokens, tokens)


def planted_mistakes(language: str) -> str:
    """What is found first of each mistake planted."""
    del language
    rows = []
    for kind, what in (
        ("missed_end_of_sequence", "nothing is given back"),
        ("forgotten_decrement", "the last page keeps a reference"),
        ("stale_page_table", 'the next sequence starts with an old entry ("false full")'),
        ("double_release", "pages are given back twice"),
    ):
        faults = runs("chat_burst", "workload.requests=300", f"faults=[{{kind: {kind}, every: 20}}]", _PAGED)[0][
            "faults"
        ]
        rows.append((f"`{kind}`", what, f"`{faults['messages'][0]}`"))
    return table(("kind", "what goes wrong", "first finding"), rows, left=3)


_PAGED = "allocators=[{kind: paged, page_size: 128}]"


def leak(language: str) -> str:
    """How a leak grows until requests fail."""
    del language
    rows = []
    for every in (None, 50, 20, 10):
        faults = () if every is None else (f"faults=[{{kind: missed_end_of_sequence, every: {every}}}]",)
        (run,) = runs("chat_burst", _PAGED, *faults)
        first = run["first_oom_s"]
        rows.append(
            (
                "none" if every is None else f"every {every}th",
                str(run["faults"]["planted"]) if every is not None else "0",
                percent(run["kv"]["waste"]["leaked"]),
                "never" if first is None else format_seconds(first),
                percent(run["oom_rate"]),
            )
        )
    heads = ("ends of sequences missed", "planted", "pool leaked, mean", "first OOM at", "OOM rate")
    return table(heads, rows)


def memory_of_pages(language: str) -> str:
    """Host memory of the simulator for the article's pages: all held, half given back, all given back."""
    del language
    plain, table_pages = plain_layout(page_tokens=16, bytes_per_token=1024), 8192
    builders: dict[str, Callable[[], PagedAllocator]] = {
        "`paged`": lambda: PagedAllocator(plain, max_pages=ARTICLE_PAGES),
        "`paged_cow`, all findable": lambda: PagedCowAllocator(plain, max_pages=ARTICLE_PAGES),
        "`paged_defrag`, runs of 8": lambda: PagedDefragAllocator(
            plain, max_pages=ARTICLE_PAGES, run_length=8, trigger=DefragTrigger()
        ),
    }
    rows = [(name, *_memory_mib(build, table_pages * 16)) for name, build in builders.items()]
    return table(("2.6 million pages", "all held", "half given back", "all given back", "peak"), rows)


def _memory_mib(build: Callable[[], PagedAllocator], tokens: int) -> Iterator[str]:
    tracemalloc.start()
    allocator = build()
    holdings = []
    for number in range(ARTICLE_PAGES * 16 // tokens):
        sequence = Request(number, prompt_tokens=tokens, output_tokens=1, arrival_ns=0)
        sequence.computed_tokens = tokens
        holdings.append(allocator.admit(sequence, tokens))
    seen = [tracemalloc.get_traced_memory()[0]]
    for part in (holdings[::2], holdings[1::2]):
        for holding in part:
            assert holding is not None
            allocator.release(holding)
        seen.append(tracemalloc.get_traced_memory()[0])
    seen.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    return (f"{size / 2**20:.0f} MiB" for size in seen)


TABLES: dict[str, Callable[[str], str]] = {
    each.__name__: each
    for each in (
        static_padding,
        compaction_worth,
        search_cost,
        scan_latency,
        hybrid_groups,
        planted_mistakes,
        leak,
        memory_of_pages,
        article_pool,
        article_fragmentation,
        article_pages,
        article_rows,
        article_cliff,
        article_factor,
    )
}
#: computed without a simulation, so that a test can compare them
QUICK = ("search_cost", "hybrid_groups", "article_pool", "article_pages", "article_cliff")


def language_of(page: Path) -> str:
    """The language that ``page`` is written in."""
    return "zh" if "zh" in page.name else "en"


def tables_in(page: Path) -> Iterator[tuple[str, str]]:
    """Name and text of every table marked in ``page``."""
    for found in TABLE.finditer(page.read_text(encoding="utf-8")):
        yield found[2], found[3]


def refresh(page: Path, names: Sequence[str]) -> None:
    """Replace those tables of ``page`` that ``names`` names."""

    def computed(found: re.Match[str]) -> str:
        return found[1] + (TABLES[found[2]](language_of(page)) if found[2] in names else found[3])

    page.write_text(TABLE.sub(computed, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    for each in PAGES:
        refresh(DOCS / each, sys.argv[1:] or tuple(TABLES))
