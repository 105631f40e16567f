"""Numbers that are large, fine or many: nothing overflows, rounds away or depends on how the program was started."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import cow_world
import numpy as np
import pytest
from engine_worlds import BYTES_PER_TOKEN, FixedCost, World, requests_of
from scenario_text import VALID

import cli
from simulator import engine
from simulator.allocators.base import Life
from simulator.allocators.paged import PagedAllocator, plain_layout
from simulator.allocators.paged_cow import PagedCowAllocator
from simulator.allocators.paged_defrag import PagedDefragAllocator
from simulator.allocators.sharing import RULES
from simulator.config import DefragTrigger, EngineConfig
from simulator.scenario import parse_scenario
from simulator.serving import recorder

ROOT = Path(cli.__file__).resolve().parent
DAY_NS = 86_400 * 10**9
PAGES = 2**31

# ---- large


@pytest.mark.parametrize("kind", ["paged", "paged_cow", "paged_defrag"])
def test_pools_of_two_to_the_31_pages_count_exactly(kind: str) -> None:
    layout = plain_layout(page_tokens=128, bytes_per_token=131_072)
    pool = {
        "paged": lambda: PagedAllocator(layout, max_pages=PAGES),
        "paged_cow": lambda: PagedCowAllocator(layout, max_pages=PAGES, rules=RULES["vllm-0.11"]),
        "paged_defrag": lambda: PagedDefragAllocator(
            layout, max_pages=PAGES, run_length=8, trigger=DefragTrigger(), null_page=True
        ),
    }[kind]()
    assert pool.capacity_bytes == 2**31 * 2**24 == 2**55
    tokens = 10**8
    held = pool.admit(cow_world.Sequence(1, tokens, 1, tokens=range(tokens)), tokens)  # type: ignore[arg-type]
    assert held is not None
    pages = -(-tokens // 128)
    now = pool.occupancy()
    assert now.allocated_bytes == pages * 2**24
    assert now.allocated_bytes + now.free_bytes + now.cached_bytes + now.unusable_bytes == 2**55
    assert not pool.can_ever_hold(Life(2, PAGES * 128 + 1, 1, PAGES * 128 + 1))
    pool.release(held)
    assert pool.allocated_bytes == 0


def test_a_thousand_million_tokens_are_integrated_exactly() -> None:
    """Ten requests of 10^8 tokens, prefilled at once, hold 10^9 tokens for 1,000 steps of an hour: 5.8e25 byte ns."""
    prompt, outputs, hour = 10**8, 1001, 3600 * 10**9
    world = World(
        requests_of([(0, prompt, outputs)] * 10),
        EngineConfig(max_num_seqs=10, max_num_batched_tokens=2 * 10**9, on_oom="fail"),
        "contiguous",
        10 * (prompt + outputs),
        page_tokens=1,
        max_model_len=prompt + outputs,
        options={"reserve": "exact"},
    )
    run, _ = world.run(verify=False, cost=FixedCost(hour))
    assert set(run.ledger.outcome) == {0} or run.ledger.ended_count == 10
    assert run.ended_ns == 1001 * hour
    # the first step writes the prompts, each of the 1,000 others one more token
    tokens = 10 * (prompt + sum(prompt + step for step in range(1, 1001)))
    assert run.recorder.used_byte_ns == tokens * BYTES_PER_TOKEN * hour
    assert run.recorder.used_byte_ns > 2**84


@pytest.mark.long
def test_ten_million_requests_have_rising_times_and_exact_sums() -> None:
    text = VALID.replace("requests: 30", "requests: 10000000").replace("rate: 2/s", "rate: 10/s")
    requests = parse_scenario(text, Path()).requests()
    assert len(requests) == 10**7
    assert bool(np.all(np.diff(requests.arrival_ns) >= 0))
    # a sum of 10^7 exponential gaps of 100 ms: 10^6 s, give or take five standard deviations of 316 s
    assert abs(int(requests.arrival_ns[-1]) / 1e9 - 1e6) < 5 * 316.3
    assert int(requests.prompt_tokens.sum()) == sum(map(int, requests.prompt_tokens.tolist()))


# ---- fine


def test_a_month_into_a_run_a_nanosecond_is_a_nanosecond() -> None:
    month = 30 * DAY_NS
    rows = [(0, 4, 3), (month, 4, 3), (month + 1, 4, 3), (month + 20, 4, 3)]
    world = World(requests_of(rows), EngineConfig(max_num_seqs=1, max_num_batched_tokens=64), "paged", 100)
    run, _ = world.run(cost=FixedCost(7))
    # one at a time, three steps of 7 ns each
    assert list(run.ledger.started_ns) == [0, month, month + 21, month + 42]
    assert list(run.ledger.finished_ns) == [21, month + 21, month + 42, month + 63]
    assert run.ended_ns == month + 63
    assert run.recorder.busy_ns == 4 * 21


def test_a_month_of_steps_is_as_long_as_their_sum() -> None:
    """2.6 million steps of one second and one nanosecond: the nanoseconds are still there at the end."""
    steps = 30 * 86_400
    world = World(
        requests_of([(0, 1, steps)]), EngineConfig(max_num_batched_tokens=512), "contiguous", steps + 1,
        page_tokens=1, max_model_len=steps + 1,
    )  # fmt: skip
    run, _ = world.run(verify=False, cost=FixedCost(10**9 + 1))
    assert run.ended_ns == steps * (10**9 + 1) == 30 * DAY_NS + steps


# ---- many: the timeline


def test_a_coarser_timeline_keeps_true_rows_and_every_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(i * 90_000_000, 1 + i % 13, 1 + i % 7) for i in range(150)]

    def timeline(most: int) -> recorder.Recorder:
        monkeypatch.setattr(recorder, "MAX_ROWS", most)
        world = World(requests_of(rows), EngineConfig(max_num_seqs=5), "paged", 12, page_tokens=2)
        return world.run(cost=FixedCost(17_000_000))[0].recorder

    fine, coarse = timeline(10**6), timeline(16)
    assert 8 <= len(coarse.rows) <= 16 < len(fine.rows)
    factor = coarse.interval_ns // fine.interval_ns
    assert factor & (factor - 1) == 0 and factor > 64
    names = recorder.COLUMNS
    at = {row[0]: row[:-1] for row in fine.rows}
    for row in coarse.rows:
        assert row[:-1] == at[row[0]], "a sample that is kept is the state at its instant"
    assert max(row[-1] for row in coarse.rows) == max(row[-1] for row in fine.rows) == fine.allocated.peak
    assert (coarse.allocated.total, coarse.used_byte_ns) == (fine.allocated.total, fine.used_byte_ns)
    assert names[-1] == "peak_allocated_bytes"


def test_a_timeline_that_begins_coarse_has_the_rows_of_one_that_begins_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_ROWS", 32)
    rows = [(i * 90_000_000, 1 + i % 13, 1 + i % 7) for i in range(150)]

    def timeline() -> recorder.Recorder:
        world = World(requests_of(rows), EngineConfig(max_num_seqs=5), "paged", 12, page_tokens=2)
        return world.run(cost=FixedCost(17_000_000))[0].recorder

    # 13.41 s of arrivals; in a quarter of that, 3.35 s, 32 rows lie that are 64 ms apart, but not if they are 128 ms
    assert recorder.first_interval_ns(149 * 90_000_000) == 64_000_000
    assert recorder.first_interval_ns(0) == recorder.FIRST_INTERVAL_NS == 1_000_000
    coarse = timeline()
    monkeypatch.setattr(engine, "first_interval_ns", lambda known_ns: recorder.FIRST_INTERVAL_NS)
    fine = timeline()
    assert coarse.rows == fine.rows and len(fine.rows) > 16
    assert coarse.interval_ns == fine.interval_ns > 64_000_000


def test_a_result_says_how_coarse_its_timeline_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(VALID)
    with pytest.raises(SystemExit):
        cli.main(["run", str(tmp_path / "s.yaml"), "--no-report", "-q", "--format", "json"])
    for run in json.loads(capsys.readouterr().out)["runs"]:
        assert 1 <= run["timeline"]["rows"] <= 2048
        assert run["timeline"]["interval_s"] * (run["timeline"]["rows"] - 1) <= run["simulated_s"]


@pytest.mark.long
def test_a_million_requests_of_a_trace_take_less_than_a_gibibyte(tmp_path: Path) -> None:
    """In a process of its own, report and all. Short outputs keep it short; what is kept of a request is as much."""
    rng = np.random.default_rng(1)
    count = 1_000_000
    with (tmp_path / "t.csv").open("w") as file:
        file.write("arrived_at,prompt_tokens,output_tokens\n")
        times = np.cumsum(rng.exponential(0.02, count))
        file.writelines(f"{time:.6f},{1 + i % 900},{1 + i % 3}\n" for i, time in enumerate(times.tolist()))
    (tmp_path / "s.yaml").write_text(
        "name: million\ndevice: {preset: 910B3}\nmodel: {preset: llama-3.1-8b}\n"
        "workload: {arrivals: {process: trace, path: t.csv}}\n"
        "engine: {max_num_seqs: 256, max_model_len: 8192}\nallocators: [{kind: paged, page_size: 128}]\n"
    )
    before_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    command = [sys.executable, str(ROOT / "cli.py"), "run", "s.yaml", "-q", "--out", "out"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert max(before_kib, peak_kib) <= 2**20
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["runs"][0]["requests"]["arrived"] == count


# ---- however it is started

RUN = """
import sys
if sys.argv[1] == "backwards":
    import importlib, pkgutil, simulator
    names = sorted(one.name for one in pkgutil.walk_packages(simulator.__path__, "simulator."))
    for name in reversed(names):
        importlib.import_module(name)
import cli
cli.main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    "words",
    [
        ("run", "s.yaml", "-q", "--no-report", "--format", "json"),
        ("compare", "s.yaml", "-q", "--no-report", "--replications", "3", "--format", "json", "--jobs", "1"),
    ],
    ids=["run", "compare"],
)
def test_hash_seed_import_order_and_jobs_change_no_byte(words: tuple[str, ...], tmp_path: Path) -> None:
    text = VALID.replace("  requests: 30\n", "  requests: 60\n  shared_prefix: {groups: 3, tokens: 64}\n")
    text = text.replace("  - kind: paged\n", "  - kind: paged_cow\n    page_size: 16\n  - kind: paged\n")
    (tmp_path / "s.yaml").write_text(text)
    found = set()
    ways = [("0", "forwards"), ("1", "forwards"), ("4294967295", "backwards")]
    for number, (hash_seed, order) in enumerate(ways):
        said = [*words[:-1], str(number + 1)] if "--jobs" in words else list(words)
        done = subprocess.run(
            [sys.executable, "-c", RUN, order, *said],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        document = json.loads(done.stdout)
        for run in document.get("runs", []):
            del run["wall_s"]
        found.add(json.dumps(document))
    assert len(found) == 1
