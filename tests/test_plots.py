"""Pictures: what they show, not how they look; the pool map against a naive account of who holds what."""

import re
import struct
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.allocators.contiguous import ContiguousAllocator
from simulator.allocators.paged import PagedAllocator, plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.config import ContiguousConfig
from simulator.scenario import parse_scenario
from simulator.serving import ledger
from simulator.serving.pool_map import CACHED, FREE, SHARED, PoolMap, grid, owners
from simulator.showing import page as pages
from simulator.showing.page import Drawing
from simulator.showing.pages.run import run_pictures
from simulator.showing.plots import PICTURES, style
from simulator.showing.plots.latency import quantiles
from simulator.showing.plots.memory_time import layers
from simulator.showing.plots.oom import event_counts
from simulator.showing.plots.outcomes import outcome_shares
from simulator.showing.plots.pool_map import moves, pool_close_up
from simulator.showing.report_data import Basis, ReportData, RunData
from simulator.showing.tables import TABLES, read_tables, write_table
from simulator.simulation import simulate

CAPACITY = 2**30


def summary(**changes: Any) -> dict[str, Any]:
    return {
        "label": "paged",
        "kv_capacity_bytes": CAPACITY,
        "max_pages": 64,
        "page_size": 16,
        "requests": {
            "arrived": 10,
            "completed": 6,
            "oom_admission": 2,
            "oom_decode": 1,
            "too_large": 1,
            "timed_out": 0,
            "unfinished": 0,
        },
        "oom_rate": 0.4,
        "oom_rate_ci": [0.2, 0.6],
        "oom_events": {"capacity": 1, "fragmentation": 2},
        "preemptions": 0,
        "kv": {"mean_utilization": 0.3, "waste": {"reserved": 0.1, "internal": 0.2, "external": 0.0}},
        "simulated_s": 100.0,
        "timeline": {"rows": 50, "interval_s": 2.0},
        **changes,
    }


def timeline(rows: int) -> dict[str, Any]:
    ones = np.ones(rows, np.int64)
    return {
        "time_s": np.linspace(0, 99, rows),
        "used_bytes": ones * 300,
        "allocated_bytes": ones * 500,
        "peak_allocated_bytes": ones * 600,
        "internal_bytes": ones * 50,
        "cached_bytes": ones * 0,
        "largest_free_bytes": ones * (CAPACITY - 700),
        "running": ones * 3,
        "waiting": ones * 2,
        "swapped": ones * 0,
    }


def requests(outcomes: list[str]) -> dict[str, Any]:
    count = len(outcomes)
    start = np.arange(count, dtype=float)
    return {
        "outcome": np.array(outcomes, dtype=object),
        "arrival_s": start,
        "first_token_s": start + 1.0,
        "finish_s": start + 5.0,
        "generated_tokens": np.full(count, 5),
    }


def events(times: list[float], causes: list[str]) -> dict[str, Any]:
    cause = np.array(causes, dtype=object)
    so_far = {f"{name}_so_far": np.cumsum(cause == name) for name in ("capacity", "fragmentation")}
    return {"time_s": np.array(times), "cause": cause, **so_far}


def run(name: str = "paged", rows: int = 50, **changes: Any) -> RunData:
    ended = ["completed"] * 6 + ["oom_admission"] * 2 + ["oom_decode", "too_large"]
    failures = events([1.0, 50.0, 99.9], ["capacity", "fragmentation", "fragmentation"])
    return RunData(name, summary(**changes), requests(ended), timeline(rows), failures, {})


def report(*runs: RunData) -> ReportData:
    memory = {
        "kv_capacity_bytes": CAPACITY,
        "weights_bytes_per_device": CAPACITY,
        "activation_bytes": 1000,
        "runtime_bytes": 0,
        "graph_bytes": 0,
        "usable_bytes": 3 * CAPACITY,
        "hbm_bytes": 4 * CAPACITY,
    }
    basis = Basis("folder", {}, 0, "0", memory, {}, {}, "")
    return ReportData("title", "", (basis,), runs)


def draw(data: ReportData) -> dict[str, Drawing]:
    return pages.draw(run_pictures(data))


def png_size(png: bytes) -> tuple[int, int]:
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def texts(svg: bytes) -> str:
    return " ".join(
        "".join(element.itertext()) for element in ET.fromstring(svg).iter() if element.tag.endswith("text")
    )


# ---- every picture


def test_every_title_asks_a_question_and_axes_have_units() -> None:
    data = report(run(), run("contiguous"))
    with style.styled():
        for name, picture in PICTURES.items():
            drawn = picture(data, str)
            if drawn is None:
                assert name.startswith("pool_")
                continue
            assert drawn.texts[0].get_text().endswith("?")
            labelled = [axes.get_xlabel() for axes in drawn.axes if axes.get_xlabel()]
            assert labelled
            assert all(re.search(r"\[.+\]$", label) for label in labelled), labelled


def test_pictures_are_wide_as_a_phone_can_show_and_bytes_repeat() -> None:
    first, second = draw(report(run())), draw(report(run()))
    assert first == second
    for drawing in first.values():
        assert png_size(drawing.png)[0] == round(style.WIDTH_IN * style.PNG_DPI)
        assert b"Date" not in drawing.svg
        assert b"matplotlib" not in drawing.svg.lower().replace(b"matplotlib.axis", b"")


def test_names_are_shown_as_they_are() -> None:
    awkward = ["_under", "$x$ $", "a<b>&c", "漢字", "x" * 60, "line\nbreak"]
    drawings = draw(report(*(run(name) for name in awkward)))
    shown = texts(drawings["queue_and_batch"].svg)
    for piece in ("_under", "$x$ $", "a<b>&c", "漢字", "x" * 47 + "…", "line break"):
        assert piece in shown


@pytest.mark.parametrize("count", [0, 1, 3, 40])
def test_any_number_of_allocators_can_be_drawn(count: int) -> None:
    drawings = draw(report(*(run(f"a{index}") for index in range(count))))
    assert all(png_size(drawing.png)[1] < 2600 for drawing in drawings.values())


def test_a_run_in_which_nothing_happened_can_be_drawn() -> None:
    nobody = dict.fromkeys(summary()["requests"], 0)
    empty = RunData(
        "empty",
        summary(requests=nobody, oom_rate=0.0, oom_rate_ci=[0.0, 1.0], simulated_s=0.0),
        requests([]),
        timeline(0),
        events([], []),
        {},
    )
    assert {"outcomes", "hbm_budget"} <= draw(report(empty)).keys()


def test_a_million_points_stay_small() -> None:
    drawings = draw(report(run(rows=1_000_000)))
    assert max(len(drawing.svg) for drawing in drawings.values()) < 150_000


# ---- what they show


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=400), st.integers(1, 60))
def test_thinning_keeps_the_greatest_value_and_the_mean(values: list[int], points: int) -> None:
    series = np.array(values)
    most, mean = (style.thinned(series, how, points) for how in ("max", "mean"))  # type: ignore[arg-type]
    assert len(most) == len(mean) <= points
    assert most.max() == series.max()
    width = -(-len(values) // points)
    for index, average in enumerate(mean[: len(values) // width].tolist()):
        assert average == pytest.approx(np.mean(values[index * width : (index + 1) * width]))


def test_layers_add_up_to_what_is_allocated_cached_and_scattered() -> None:
    contiguous = run(max_pages=0, rows=3)
    stack = layers(contiguous)
    assert [stack[name][0] for name in stack] == [300, 150, 50, 0, 200]
    free_in_one_piece = contiguous.timeline["largest_free_bytes"]
    assert (sum(stack.values()) + free_in_one_piece == CAPACITY).all()


def test_shares_of_outcomes_add_up_and_split_by_cause() -> None:
    shares = outcome_shares(summary())
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["out of memory: fragmentation"] == pytest.approx(0.2)
    assert shares["out of memory: capacity"] == pytest.approx(0.1)
    assert shares["too large for an empty pool"] == pytest.approx(0.1)


def test_every_failure_is_counted_once_in_its_interval() -> None:
    edges, counts = event_counts(run(), 100.0, bins=10)
    assert edges.tolist() == pytest.approx(list(range(0, 101, 10)))
    assert counts["capacity"].tolist() == [1] + [0] * 9
    assert counts["fragmentation"].tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert counts["too large"].tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("kept", [1, 7, 40])
def test_failures_without_a_row_are_counted_where_they_were(
    monkeypatch: pytest.MonkeyPatch, kept: int, replicas: int
) -> None:
    def failing(most: int) -> RunData:
        monkeypatch.setattr(ledger, "MAX_EVENTS", most)
        (found,) = simulate(parse_scenario(FAILING.format(replicas=replicas), Path())).runs
        return RunData("a", found.summary, found.requests, found.timeline, found.oom_events, {})

    whole, thin = failing(10**9), failing(kept)
    total = sum(whole.summary["oom_events"].values())
    assert len(whole.oom_events["time_s"]) == total > 120
    rows = len(thin.oom_events["time_s"])
    assert kept / 2 <= rows <= kept
    not_of_all = {"wall_s": 0, "kv": 0, "instances": 0}
    assert thin.summary | not_of_all == whole.summary | not_of_all
    end_s = whole.summary["simulated_s"]
    # The least that tells rows apart: each instance keeps one of so many, and so do all of them together.
    stride = 2 ** int(np.ceil(np.log2(total / kept))) * 2 * replicas
    _, exact = event_counts(whole, end_s, bins=20)
    for cause in ("capacity", "fragmentation"):
        at = whole.oom_events["time_s"][whole.oom_events["cause"] == cause]
        assert exact[cause].tolist() == np.histogram(at, np.linspace(0, end_s, 21))[0].tolist()
    _, counts = event_counts(thin, end_s, bins=20)
    for cause, expected in exact.items():
        assert counts[cause].sum() == expected.sum(), cause
        assert (counts[cause] >= 0).all()
        assert np.abs(np.cumsum(counts[cause]) - np.cumsum(expected)).max() <= stride


FAILING = """\
device: {{preset: 910B3, kv_capacity_bytes: 600MiB, replicas: {replicas}}}
model: {{preset: llama-3.1-8b}}
workload:
  arrivals: {{process: poisson, rate: 30/s}}
  prompt_tokens: {{dist: uniform, min: 10, max: 3000}}
  output_tokens: {{dist: uniform, min: 1, max: 60}}
  requests: 400
engine: {{max_num_seqs: 64, max_model_len: 4096, on_oom: fail, step_time: 20ms}}
allocators: [{{kind: contiguous, reserve: exact}}]
"""


def test_quantiles_go_from_the_least_to_the_greatest() -> None:
    at, share = quantiles(np.arange(100_001.0))
    assert (at[0], at[-1]) == (0.0, 100_000.0)
    assert (share[0], share[-1]) == (0.0, 1.0)
    assert at == pytest.approx(100_000 * share)


def test_tables_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = 1_100_000  # more than a Parquet row group holds
    words = np.array(["decode", "", "é"], dtype=object)
    wide = {"number": np.arange(rows), "share": np.linspace(0, 1, rows), "word": words[np.arange(rows) % 3]}
    runs = [("a", 0, wide), ("b", 0, {name: values[:0] for name, values in wide.items()}), ("c", 1, wide)]
    for table in TABLES:
        with (tmp_path / f"{table}.parquet").open("wb") as stream:
            write_table(stream, runs)
    tables = read_tables(tmp_path)
    for position, (_, _, columns) in enumerate(runs):
        read = tables[position]["requests"]
        assert read.keys() == columns.keys()
        assert all((read[name] == columns[name]).all() and len(read[name]) == len(columns[name]) for name in columns)


# ---- the pool map


def demand(request_id: int, tokens: int) -> Any:
    return SimpleNamespace(
        request_id=request_id,
        prompt_tokens=tokens,
        output_tokens=1,
        final_tokens=tokens,
        target_tokens=tokens,
        computed_tokens=tokens,
        prefix=None,
        sample=0,
        priority=0,
    )


def test_pages_belong_to_the_request_whose_table_names_them() -> None:
    allocator = PagedAllocator(plain_layout(page_tokens=16, bytes_per_token=2), max_pages=12)
    first, second = allocator.admit(demand(7, 40), 40), allocator.admit(demand(8, 16), 16)
    assert first is not None
    assert second is not None
    expected = [FREE] * 12
    for holding in (first, second):
        for page in holding.pages:
            expected[page] = holding.demand.request_id
    assert owners(allocator, [first, second], np.arange(12)).tolist() == expected
    odd = np.arange(1, 12, 2)
    assert owners(allocator, [first, second], odd).tolist() == expected[1::2]


def test_ranges_belong_to_their_request() -> None:
    config = ContiguousConfig(kind="contiguous", reserve="exact")
    allocator = ContiguousAllocator(config, capacity_bytes=200, bytes_per_token=2, max_model_len=100)
    first, second = allocator.admit(demand(3, 10), 10), allocator.admit(demand(4, 30), 30)
    assert first is not None
    assert second is not None
    expected = [3] * 10 + [4] * 30 + [FREE] * 60
    assert owners(allocator, [second, first], np.arange(100)).tolist() == expected
    allocator.release(first)
    assert owners(allocator, [second], np.arange(100)).tolist() == [FREE] * 10 + expected[10:]


def test_shared_and_cached_pages_are_told_apart() -> None:
    allocator = PagedCowAllocator(plain_layout(page_tokens=16, bytes_per_token=2), max_pages=10)
    prompt = demand(1, 48)
    prompt.prefix = ([5], [48])
    first = allocator.admit(prompt, 48)
    assert first is not None
    pages = list(first.pages)
    child = allocator.fork(first, prompt, 48)
    everywhere = np.arange(10)
    assert owners(allocator, [first, child], everywhere)[pages].tolist() == [SHARED] * 3
    allocator.release(child)
    assert owners(allocator, [first], everywhere)[pages].tolist() == [1] * 3
    allocator.release(first)
    found = owners(allocator, [], everywhere)
    assert set(found[pages].tolist()) <= {CACHED, FREE}
    assert np.count_nonzero(found == CACHED) == allocator.occupancy().cached_bytes // 32 > 0


def test_snapshots_stay_few_and_regular_however_long_the_run() -> None:
    allocator = PagedAllocator(plain_layout(page_tokens=16, bytes_per_token=2), max_pages=1000)
    watched = PoolMap(allocator)
    running: Any = SimpleNamespace(place=0, now_ns=0, scheduler=SimpleNamespace(live_holdings=list))
    for now in range(0, 10**12, 10**8):
        running.now_ns = now
        watched.observe(running)
    times, held = grid(watched.columns(1000.0))
    assert 60 <= len(times) <= 162
    assert held.shape == (len(times), 256)
    assert times[-1] == 1000.0
    gaps = np.diff(times[:-1])
    assert gaps.max() <= 2 * gaps.min() + 0.2
    assert (held == FREE).all()


def test_a_close_up_has_every_page_of_a_stretch_and_says_when_pages_were_moved() -> None:
    allocator = PagedAllocator(plain_layout(page_tokens=16, bytes_per_token=2), max_pages=1000)
    holdings: list[Any] = []
    watched = PoolMap(allocator)
    running: Any = SimpleNamespace(place=0, now_ns=0, scheduler=SimpleNamespace(live_holdings=lambda: holdings))
    naive = []
    for step, moved in enumerate((0, 0, 512, 512, 2048)):
        holding = allocator.admit(demand(step, 16 * 30), 16 * 30)
        assert holding is not None
        holdings.append(holding)
        allocator.totals.moved_bytes = moved
        running.now_ns = step * 10**9
        watched.observe(running)
        owner = [FREE] * 1000
        for one in holdings:
            for page in one.pages:
                owner[page] = one.demand.request_id
        naive.append(owner)
    columns = watched.columns(5.0)
    times, held = grid(columns, "close_up")
    assert times.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    first = columns["address_bytes"][columns["close_up"] == 1][0] // 32
    assert held.shape == (5, 128)
    assert held.tolist() == [owner[first : first + 128] for owner in naive]
    assert (held >= 0).any(), "the stretch lies where a pool is used first"
    mapped = RunData("a", summary(max_pages=1000, kv_capacity_bytes=32_000), {}, {}, {}, columns)
    assert moves(mapped)[1].tolist() == [0, 0, 512, 0, 1536]
    sampled = columns["address_bytes"][columns["sampled"] == 1][:256] // 32
    assert grid(columns)[1].tolist() == [[owner[page] for page in sampled] for owner in naive]
    with style.styled():
        drawn = pool_close_up(report(mapped), str)
        plain = replace(mapped, pool_map=columns | {"moved_bytes": np.zeros_like(columns["moved_bytes"])})
        assert pool_close_up(report(plain), str) is None, "nothing is shared or moved"
    assert drawn is not None
    assert drawn.axes[0].get_ylabel() == "page"
    (marks,) = drawn.axes[0].get_lines()
    assert np.asarray(marks.get_xdata()).tolist() == [2.0, 4.0]


def test_an_unlimited_pool_has_no_map() -> None:
    allocator = PagedAllocator(plain_layout(page_tokens=16, bytes_per_token=1024), max_pages=1 << 40)
    watched = PoolMap(allocator)
    watched.observe(SimpleNamespace(place=0, now_ns=0, scheduler=SimpleNamespace(live_holdings=list)))
    assert len(watched.columns(1.0)["time_s"]) == 0
