"""The replay of a workload's demand: worked cases, a tick-by-tick second implementation, published golden integers."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from engine_worlds import BYTES_PER_TOKEN, World, replay_of, requests_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.config import EngineConfig
from simulator.errors import InputError
from simulator.scenario import Scenario, parse_scenario
from simulator.serving.live_tokens import LiveTokens
from simulator.serving.sequence import Outcome
from simulator.simulation import simulate
from simulator.traffic.requests import ClosedLoop
from simulator.units import ceil_div

REPLAY = EngineConfig(scheduler="replay", on_oom="fail")
Rows = list[tuple[int, int, int]]


def world(rows: Rows, *, kind: str = "paged", pool_pages: int = 1000, **keys: object) -> World:
    return World(requests_of(rows), REPLAY, kind, pool_pages, **keys)  # type: ignore[arg-type]


# ---- a second implementation: every instant of a small grid, one after the other


def demand(rows: Rows, step_ns: int, page_tokens: int) -> dict[str, int]:
    """Sums over all nanoseconds and peaks over them, by the definition: P + k tokens in the k-th interval."""
    end = max(arrival + output * step_ns for arrival, _, output in rows)
    token_ns = page_ns = live_ns = peak_tokens = peak_pages = peak_live = 0
    for now in range(end):
        lengths = [
            prompt + (now - arrival) // step_ns + 1
            for arrival, prompt, output in rows
            if arrival <= now < arrival + output * step_ns
        ]
        tokens, pages = sum(lengths), sum(ceil_div(length, page_tokens) for length in lengths)
        token_ns, page_ns, live_ns = token_ns + tokens, page_ns + pages, live_ns + len(lengths)
        peak_tokens, peak_pages = max(peak_tokens, tokens), max(peak_pages, pages)
        peak_live = max(peak_live, len(lengths))
    return {
        "token_ns": token_ns,
        "page_ns": page_ns,
        "live_ns": live_ns,
        "peak_tokens": peak_tokens,
        "peak_pages": peak_pages,
        "peak_live": peak_live,
        "end": end,
    }


rows_strategy = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=8)


@settings(max_examples=60)
@given(rows=rows_strategy, step_ns=st.integers(1, 7), page_tokens=st.integers(1, 5))
def test_an_unlimited_replay_equals_the_definition_instant_by_instant(
    rows: Rows, step_ns: int, page_tokens: int
) -> None:
    rows.sort()
    run, replay = replay_of(world(rows, page_tokens=page_tokens), step_ns)
    recorder, page_bytes = run.recorder, page_tokens * BYTES_PER_TOKEN
    assert demand(rows, step_ns, page_tokens) == {
        "token_ns": Fraction(recorder.used_byte_ns, BYTES_PER_TOKEN),
        "page_ns": Fraction(recorder.allocated.total, page_bytes),
        "live_ns": recorder.sequence_steps * step_ns,
        "peak_tokens": Fraction(recorder.peak_used_bytes, BYTES_PER_TOKEN),
        "peak_pages": Fraction(recorder.allocated.peak, page_bytes),
        "peak_live": recorder.peak_sequences,
        "end": run.ended_ns,
    }
    assert set(run.ledger.outcome) == {Outcome.completed}
    assert replay.allocator.allocated_bytes == 0


@settings(max_examples=40)
@given(
    rows=rows_strategy,
    pool=st.integers(4, 20),
    kind=st.sampled_from(["paged", "contiguous", "paged_cow", "paged_defrag"]),
)
def test_a_limited_replay_never_holds_more_than_its_pool_and_accounts_for_every_request(
    rows: Rows, pool: int, kind: str
) -> None:
    rows.sort()
    run, replay = replay_of(world(rows, kind=kind, pool_pages=pool, page_tokens=2, max_model_len=21), 5)
    assert run.recorder.allocated.peak <= replay.allocator.capacity_bytes
    counts = {outcome: run.ledger.outcome.count(outcome) for outcome in Outcome}
    assert sum(counts.values()) == len(rows) and not counts[Outcome.unfinished]
    assert sum(run.ledger.oom_events.values()) == counts[Outcome.oom_admission] + counts[Outcome.oom_decode]
    assert replay.allocator.allocated_bytes == replay.allocator.tail_bytes == replay.allocator.discount_bytes == 0


class LossyPages:
    """A pool of pages and requests that outgrow it, one nanosecond at a time: ends, then growth, then arrivals."""

    def __init__(self, rows: Rows, *, step_ns: int, pages: int, page_tokens: int) -> None:
        self.outcomes = [Outcome.unfinished] * len(rows)
        held: dict[int, int] = {}
        for now in range(max(arrival + output * step_ns for arrival, _, output in rows) + 1):
            live = list(held)
            for i in live:
                if now == rows[i][0] + rows[i][2] * step_ns:
                    del held[i]
                    self.outcomes[i] = Outcome.completed
            for i in live:
                if i in held and (now - rows[i][0]) % step_ns == 0:
                    needed = ceil_div(rows[i][1] + (now - rows[i][0]) // step_ns + 1, page_tokens)
                    if sum(held.values()) - held[i] + needed > pages:
                        del held[i]
                        self.outcomes[i] = Outcome.oom_decode
                    else:
                        held[i] = needed
            for i, (arrival, prompt, output) in enumerate(rows):
                if arrival == now:
                    self._arrive(
                        held, i, ceil_div(prompt + 1, page_tokens), ceil_div(prompt + output, page_tokens), pages
                    )

    def _arrive(self, held: dict[int, int], i: int, first: int, last: int, pages: int) -> None:
        if last > pages:
            self.outcomes[i] = Outcome.too_large
        elif sum(held.values()) + first > pages:
            self.outcomes[i] = Outcome.oom_admission
        else:
            held[i] = first


@settings(max_examples=100)
@given(rows=rows_strategy, pages=st.integers(2, 14), step_ns=st.integers(1, 7))
def test_losses_of_a_paged_pool_equal_those_of_the_naive_one(rows: Rows, pages: int, step_ns: int) -> None:
    rows.sort()
    run, _ = replay_of(world(rows, pool_pages=pages, page_tokens=2), step_ns)
    assert list(run.ledger.outcome) == LossyPages(rows, step_ns=step_ns, pages=pages, page_tokens=2).outcomes


@given(
    rows=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), min_size=1, max_size=12),
    step_ns=st.integers(1, 9),
    after=st.integers(0, 40),
)
def test_live_tokens_count_whole_and_started_steps(rows: list[tuple[int, int]], step_ns: int, after: int) -> None:
    live = LiveTokens(step_ns)
    for arrival, prompt in rows:
        live.add(prompt, arrival)
    now = 51 + after
    assert live.before(now) == sum(prompt + ceil_div(now - arrival, step_ns) for arrival, prompt in rows)
    live.remove(rows[0][1], rows[0][0])
    assert live.before(now) == sum(prompt + ceil_div(now - arrival, step_ns) for arrival, prompt in rows[1:])


# ---- worked cases


def test_a_request_is_served_from_its_arrival_at_one_token_a_step() -> None:
    run, _ = replay_of(world([(100, 3, 4)]), 10)
    ledger = run.ledger
    assert (ledger.started_ns[0], ledger.first_token_ns[0], ledger.finished_ns[0]) == (100, 110, 140)
    assert ledger.output_tokens[0] == 4 and run.ended_ns == 140


def test_what_ends_at_an_instant_makes_room_for_what_comes_at_it() -> None:
    rows = [(0, 5, 2), (20, 5, 2), (21, 5, 2)]
    run, _ = replay_of(world(rows, pool_pages=2, page_tokens=4), 10)
    assert list(run.ledger.outcome) == [Outcome.completed, Outcome.completed, Outcome.oom_admission]


def test_growth_comes_before_an_arrival_of_the_same_instant() -> None:
    # One page each at first; at 10 the first one needs the last free page, which the newcomer wants, too.
    rows = [(0, 3, 3), (0, 3, 1), (10, 3, 1)]
    run, _ = replay_of(world(rows, pool_pages=2, page_tokens=4), 10)
    assert list(run.ledger.outcome) == [Outcome.completed, Outcome.completed, Outcome.oom_admission]


def test_a_refused_growth_ends_the_request_with_what_it_had_made() -> None:
    rows = [(0, 7, 8), (0, 7, 8)]
    run, replay = replay_of(world(rows, pool_pages=5, page_tokens=4), 10)
    # Both hold 2 pages; at 10 they reach 9 tokens: the first takes page 5, the second finds none. At 50 the first takes
    # its fourth page (13 tokens), of those that the second has given back.
    assert list(run.ledger.outcome) == [Outcome.completed, Outcome.oom_decode]
    assert run.ledger.finished_ns[1] == 10 and run.ledger.output_tokens[1] == 1
    assert run.ledger.oom_events == {"capacity": 1, "fragmentation": 0}
    assert run.recorder.output_tokens == 9 and replay.allocator.allocated_bytes == 0
    needed, free = run.ledger.events[0][4:6]
    assert (needed, free) == (4 * BYTES_PER_TOKEN, 0)


def test_the_last_output_is_held_too_so_a_pool_must_have_room_for_prompt_and_output() -> None:
    # An engine stores P + O - 1 tokens, the demand process P + O.
    fits, _ = replay_of(world([(0, 5, 3)], pool_pages=8, page_tokens=1), 10)
    too_large, _ = replay_of(world([(0, 5, 4)], pool_pages=8, page_tokens=1), 10)
    assert (fits.ledger.outcome[0], too_large.ledger.outcome[0]) == (Outcome.completed, Outcome.too_large)


def test_outputs_are_cut_at_the_longest_sequence_and_longer_prompts_refused() -> None:
    run, _ = replay_of(world([(0, 60, 50), (0, 64, 1)], max_model_len=64), 10)
    assert list(run.ledger.outcome) == [Outcome.completed, Outcome.too_large]
    assert run.ledger.output_tokens[0] == 4


def test_a_horizon_cuts_in_the_middle_of_a_step() -> None:
    run, replay = replay_of(world([(0, 3, 9), (70, 3, 1)], page_tokens=1, horizon_ns=25), 10)
    assert (run.ended_because, run.ended_ns) == ("horizon", 25)
    assert run.recorder.used_byte_ns == BYTES_PER_TOKEN * (10 * 4 + 10 * 5 + 5 * 6)
    assert run.recorder.output_tokens == 2 and run.ledger.arrived == 1
    assert replay.allocator.allocated_bytes == 6 * BYTES_PER_TOKEN


def test_a_run_that_is_over_before_the_horizon_ends_when_its_last_request_does() -> None:
    run, _ = replay_of(world([(0, 3, 2)], horizon_ns=500), 10)
    assert (run.ended_because, run.ended_ns) == ("completed", 20)


def test_users_send_their_next_request_a_think_time_after_the_end_of_the_last() -> None:
    closed = ClosedLoop(users=2, think_ns=np.array([5, 7, 1, 2], np.int64))
    requests = requests_of([(0, 3, 2), (0, 3, 4), (0, 3, 1), (0, 3, 1)], closed=closed)
    run, _ = replay_of(World(requests, REPLAY, "paged", 100), 10)
    # 0: 5..25; 1: 7..47; the user of 0 sends 2 at 26, done 36, then 3 at 38.
    assert run.ledger.arrived_ns.tolist() == [5, 7, 26, 38]
    assert run.ledger.finished_ns.tolist() == [25, 47, 36, 48]


def test_samples_share_their_prompt_only_where_pages_can_be_shared() -> None:
    requests = requests_of([(0, 8, 4)], samples=3)
    shared, _ = replay_of(World(requests, REPLAY, "paged_cow", 100), 10)
    alone, _ = replay_of(World(requests, REPLAY, "paged", 100), 10)
    # Pages of 4: two for the prompt, one for the outputs of each sample.
    assert shared.recorder.allocated.peak == (2 + 3) * 4 * BYTES_PER_TOKEN
    assert alone.recorder.allocated.peak == 9 * 4 * BYTES_PER_TOKEN
    assert shared.recorder.output_tokens == alone.recorder.output_tokens == 12
    assert shared.recorder.peak_used_bytes == (8 + 3 * 4) * BYTES_PER_TOKEN
    assert alone.recorder.peak_used_bytes == 3 * (8 + 4) * BYTES_PER_TOKEN
    assert shared.recorder.peak_sequences == 3


def test_a_shared_partial_page_is_copied_by_all_but_the_last_sample() -> None:
    requests = requests_of([(0, 6, 2)], samples=3)
    _, replay = replay_of(World(requests, REPLAY, "paged_cow", 100), 10)
    assert replay.allocator.totals.cow_copies == 2


def test_equal_prefixes_of_live_requests_are_stored_once() -> None:
    rows = [(0, 9, 3), (1, 9, 3)]
    requests = requests_of(rows, prefixes=[(7, 8), (7, 8)])
    run, _ = replay_of(World(requests, REPLAY, "paged_cow", 100), 10)
    assert run.recorder.allocated.peak == (2 + 1 + 1) * 4 * BYTES_PER_TOKEN
    assert run.ledger.hit_tokens.tolist() == [0, 8]
    assert run.recorder.prompt_tokens == 9 + 1


def test_a_window_holds_no_more_than_it_can_see() -> None:
    # Half of the bytes see everything, half the last 5 tokens: 4-token pages, one row each.
    run, _ = replay_of(world([(0, 1, 40)], window_tokens=5), 10)
    full = ceil_div(41, 4)
    half_page = 4 * BYTES_PER_TOKEN // 2
    assert run.recorder.allocated.peak <= (full + 3) * half_page
    assert run.recorder.peak_used_bytes < 41 * BYTES_PER_TOKEN


def test_the_timeline_shows_the_lengths_at_its_instants() -> None:
    rows = [(0, 3, 4), (1_500_000, 2, 2)]
    run, _ = replay_of(world(rows), 1_000_000)
    timeline = run.recorder.timeline()
    assert timeline["time_ns"].tolist() == [0, 1_000_000, 2_000_000, 3_000_000]
    assert (timeline["used_bytes"] // BYTES_PER_TOKEN).tolist() == [4, 5, 6 + 3, 7 + 4]
    assert timeline["running"].tolist() == [1, 1, 2, 2]


# ---- scenarios


SCENARIO = """
device: {preset: 910B3}
model: {preset: llama-3.1-8b}
workload: {arrivals: {process: trace, path: TRACE}}
engine: {scheduler: replay, step_time: 50ms, on_oom: fail}
allocators: [{kind: paged, page_size: 16, max_pages: unlimited}]
"""


def scenario(trace: str, *overrides: str) -> Scenario:
    return parse_scenario(SCENARIO.replace("TRACE", trace), Path(), overrides)


# Golden values of two public traces (Azure LLM inference 2023, code; Mooncake FAST'25, conversation) for an infinite
# pool, 50 ms a token and pages of 16, made once by an independent program.
@pytest.mark.parametrize(
    ("trace", "token_s", "page_s", "mean_tokens", "mean_pages", "mean_live", "peak_tokens", "peak_pages", "peak_live"),
    [
        ("azure_code", "26205458.65", "1643607", 7553.567, 473.7599, 3.54390, 164_777, 10_333, 80),
        pytest.param(
            "mooncake_conversation",
            None,
            None,
            756_591.531,
            47_313.9913,
            57.63893,
            1_336_305,
            83_554,
            101,
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_public_trace_has_its_known_demand(
    trace: str,
    token_s: str | None,
    page_s: str | None,
    mean_tokens: float,
    mean_pages: float,
    mean_live: float,
    peak_tokens: int,
    peak_pages: int,
    peak_live: int,
) -> None:
    result = simulate(scenario(trace)).runs[0]
    summary, kv = result.summary, result.summary["kv"]
    token_bytes = 2 * 32 * 8 * 128 * 2
    assert kv["peak_used_bytes"] == peak_tokens * token_bytes
    assert (kv["peak_pages"], kv["peak_allocated_bytes"]) == (peak_pages, peak_pages * 16 * token_bytes)
    assert kv["mean_pages"] == pytest.approx(mean_pages, abs=6e-5)
    assert summary["batch"]["max"] == peak_live
    # The batch is averaged over whole steps, of which the last is counted in full.
    assert summary["batch"]["mean"] == pytest.approx(mean_live, rel=2e-5)
    assert summary["requests"]["completed"] == summary["requests"]["arrived"] == len(result.requests["request_id"])
    mean_used_bytes = kv["mean_utilization"] * summary["kv_capacity_bytes"]
    assert mean_used_bytes / token_bytes == pytest.approx(mean_tokens, abs=6e-4)
    if token_s is not None and page_s is not None:
        span_s = Fraction(summary["simulated_s"]).limit_denominator(10**9)
        assert mean_used_bytes / token_bytes * span_s == pytest.approx(float(token_s), rel=1e-12)
        assert kv["mean_pages"] * span_s == pytest.approx(float(page_s), rel=1e-12)
        internal = 1 - float(token_s) / (16 * float(page_s))
        assert internal * 100 == pytest.approx(0.350804, abs=5e-7)


def test_integrals_of_a_trace_are_exact_integers() -> None:
    requests = scenario("azure_code").requests()
    plain = World(requests, REPLAY, "paged", 1 << 30, page_tokens=16, max_model_len=1 << 20)
    run, _ = replay_of(plain, 50_000_000, verify=False)
    assert run.recorder.used_byte_ns == 262_054_586_500_000 * 100 * BYTES_PER_TOKEN
    assert run.recorder.allocated.total == 16_436_070_000_000 * 100 * 16 * BYTES_PER_TOKEN


def test_a_pool_as_large_as_the_peak_loses_nothing_and_one_page_less_loses_something() -> None:
    limit = "workload.arrivals.limit=1500"
    peak = simulate(scenario("azure_code", limit)).runs[0].summary["kv"]["peak_pages"]
    rates = []
    for pages in (peak, peak - 1):
        pool = (f"allocators.0.max_pages={pages}", "device.kv_capacity_bytes=24GB")
        rates.append(simulate(scenario("azure_code", limit, *pool)).runs[0].summary["oom_rate"])
    assert rates[0] == 0 < rates[1]


@pytest.mark.parametrize("kind", ["contiguous", "paged", "paged_cow", "paged_defrag"])
def test_every_allocator_can_be_unlimited(kind: str) -> None:
    asked = scenario("azure_code", f"allocators.0.kind={kind}", "workload.requests=200")
    summary = simulate(asked).runs[0].summary
    assert summary["requests"]["completed"] == summary["requests"]["arrived"] == 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("engine.step_time=null", "engine.scheduler: found replay; it needs engine.step_time"),
        ("engine.on_oom=wait", "engine.on_oom: found wait; engine.scheduler: replay needs fail"),
        ("engine.on_oom=preempt_recompute", "found preempt_recompute; engine.scheduler: replay needs fail"),
        ("engine.step_time=0.1ns", "engine.step_time: found 1e-10 s; a replay needs at least 1 ns"),
    ],
)
def test_what_a_replay_cannot_do_is_refused(change: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        scenario("azure_code", change)
    assert message in str(caught.value)


def test_a_replay_plants_no_mistakes_and_says_so() -> None:
    with pytest.raises(InputError, match="faults: found mistakes to plant; a replay is the demand"):
        scenario("azure_code", "faults=[{kind: missed_end_of_sequence}]")


def test_a_replay_is_watched_like_any_other_run() -> None:
    run = simulate(scenario("azure_code", "workload.requests=50", "allocators.0.max_pages=5000"), verify=True).runs[0]
    # each request is admitted once and released once, and grows in between
    assert run.summary["verified"]["operations"] >= 100
    assert run.summary["verified"]["tables_read"] >= 100


def test_an_unlimited_pool_cannot_be_verified_page_by_page() -> None:
    with pytest.raises(InputError, match="has 1,099,511,627,776 of at most 8,388,608: lower max_pages"):
        simulate(scenario("azure_code"), verify=True)


def test_an_interrupted_replay_keeps_what_it_has() -> None:
    result = simulate(scenario("azure_code"), interrupted=lambda: True).runs[0]
    requests = result.summary["requests"]
    assert result.summary["ended_because"] == "interrupted"
    assert 0 < requests["unfinished"] < requests["arrived"] < 8819


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(rows=rows_strategy, factor=st.integers(2, 5), pool=st.integers(4, 30))
def test_a_slower_clock_changes_no_outcome(rows: Rows, factor: int, pool: int) -> None:
    rows.sort()
    run, _ = replay_of(world(rows, pool_pages=pool, page_tokens=2), 7)
    slow_rows = [(arrival * factor, prompt, output) for arrival, prompt, output in rows]
    slow, _ = replay_of(world(slow_rows, pool_pages=pool, page_tokens=2), 7 * factor)
    assert slow.ledger.outcome == run.ledger.outcome
    assert slow.recorder.used_byte_ns == factor * run.recorder.used_byte_ns
    assert slow.recorder.allocated.total == factor * run.recorder.allocated.total
