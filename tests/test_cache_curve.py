"""Prefix-cache curves against plain simulations, published integers and their own invariants."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cli
from simulator.errors import InputError
from simulator.planning import block_stream
from simulator.planning.block_stream import BlockStream, Chunk
from simulator.planning.cache_curve import CacheCurve, CurvePoint, PolicyName, cache_curves, default_capacities
from simulator.planning.cache_policies import Fifo, Lfu, belady_hits, items
from simulator.planning.first_uses import FirstUses
from simulator.planning.stack_distance import LruCurve, smaller_before
from simulator.traffic.traces import trace_path

CONVERSATION = trace_path("mooncake_conversation")
#: computed for the issue by programs of another author: hits and evictions by capacity
GOLDEN: dict[PolicyName, dict[int, tuple[int, int | None]]] = {
    "lru": {
        1_000: (12_831, 274_669),
        10_000: (60_921, 217_579),
        30_000: (93_967, 164_533),
        50_000: (102_290, 136_210),
        100_000: (104_924, 83_576),
    },
    "fifo": {
        1_000: (12_509, 274_941),
        10_000: (52_351, 224_688),
        30_000: (84_936, 171_348),
        50_000: (96_228, 140_404),
        100_000: (102_794, 84_849),
    },
    "lfu": {
        1_000: (13_871, 273_629),
        10_000: (38_013, 240_487),
        30_000: (79_595, 178_905),
        50_000: (99_189, 139_311),
        100_000: (104_755, 83_745),
    },
    "belady": {
        1_000: (54_994, None),
        10_000: (105_710, None),
        30_000: (105_710, None),
        50_000: (105_710, None),
        100_000: (105_710, None),
    },
}

Trace = list[list[int]]
traces = st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=6), min_size=1, max_size=25)
capacities = st.integers(1, 9)


# ---- the plain simulations


def plain(trace: Trace, capacity: int, policy: str) -> tuple[int, int]:
    """Hits by the prefix rule and evictions, with a dict of resident blocks and a search for each victim."""
    resident: dict[int, tuple[int, int, int]] = {}  # block -> inserted, uses, last use
    now = hits = evictions = 0
    for blocks in trace:
        for block in blocks:
            if block not in resident:
                break
            hits += 1
        for block in blocks:
            now += 1
            if block in resident:
                inserted, uses, _ = resident[block]
                resident[block] = inserted, uses + 1, now
                continue
            if len(resident) == capacity:
                del resident[min(resident, key=lambda one: order(resident[one], policy))]
                evictions += 1
            resident[block] = now, 1, now
    return hits, evictions


def order(state: tuple[int, int, int], policy: str) -> tuple[int, ...]:
    inserted, uses, last = state
    return {"lru": (last,), "fifo": (inserted,), "lfu": (uses, last)}[policy]


def plain_belady(blocks: list[int], capacity: int) -> int:
    resident: set[int] = set()
    hits = 0
    for place, block in enumerate(blocks):
        if block in resident:
            hits += 1
            continue
        if len(resident) == capacity:
            rest = blocks[place + 1 :]
            resident.remove(max(resident, key=lambda one: rest.index(one) if one in rest else len(rest)))
        resident.add(block)
    return hits


def numbered(trace: Trace) -> Trace:
    """Blocks renumbered in the order of their first use."""
    number: dict[int, int] = {}
    return [[number.setdefault(block, len(number)) for block in blocks] for blocks in trace]


def chunks(trace: Trace, cut: int) -> list[Chunk]:
    """The trace in one chunk, or in two when ``cut`` is inside."""
    trace = numbered(trace)
    parts = [part for part in (trace[:cut], trace[cut:]) if part]
    made, known = [], 0
    for part in parts:
        flat = np.array([block for blocks in part for block in blocks], np.int64)
        request = np.repeat(np.arange(len(part)), [len(blocks) for blocks in part])
        known = max(known, int(flat.max()) + 1)
        made.append(Chunk(blocks=flat, request=request, known_blocks=known, whole=len(parts) == 1))
    return made


@given(traces, capacities, st.integers(0, 10))
def test_lru_of_one_pass_equals_a_plain_lru(trace: Trace, capacity: int, cut: int) -> None:
    curve = LruCurve()
    for chunk in chunks(trace, cut):
        curve.feed(chunk)
    unique = len({block for blocks in trace for block in blocks})
    found = curve.hits(capacity), curve.misses(capacity) - min(capacity, unique)
    assert found == plain(trace, capacity, "lru")


@given(traces, capacities, st.integers(0, 10), st.sampled_from((("fifo", Fifo), ("lfu", Lfu))))
@settings(max_examples=200)
def test_a_policy_equals_its_plain_simulation(
    trace: Trace, capacity: int, cut: int, kind: tuple[str, type[Fifo] | type[Lfu]]
) -> None:
    policy = kind[1](capacity)
    for chunk in chunks(trace, cut):
        policy.feed(items(chunk), chunk.known_blocks)
    unique = len({block for blocks in trace for block in blocks})
    assert (policy.hits, policy.misses - min(capacity, unique)) == plain(trace, capacity, kind[0])


@given(st.lists(st.integers(0, 7), min_size=1, max_size=60), capacities)
def test_beladys_optimum_equals_a_search_for_the_farthest_use(blocks: list[int], capacity: int) -> None:
    flat = np.array(numbered([blocks])[0], np.int64)
    assert belady_hits(flat, [capacity]) == [plain_belady(blocks, capacity)]


@given(st.permutations(range(40)))
def test_smaller_elements_to_the_left_are_counted(values: list[int]) -> None:
    expected = [sum(other < value for other in values[:place]) for place, value in enumerate(values)]
    assert smaller_before(np.array(values, np.int64)).tolist() == expected


def test_smaller_before_of_nothing_is_nothing() -> None:
    assert smaller_before(np.zeros(0, np.int64)).tolist() == []


# ---- whole traces


def points(curve: CacheCurve) -> dict[int | None, CurvePoint]:
    return {point.capacity_blocks: point for point in curve.curve}


def check_golden(policies: tuple[PolicyName, ...], sizes: tuple[int, ...]) -> None:
    for curve in cache_curves(CONVERSATION, policies, sizes):
        assert (curve.requests, curve.block_refs, curve.unique_blocks) == (12_031, 288_500, 182_790)
        assert curve.full_blocks == 276_491
        found = points(curve)
        assert found[None].hits == 105_710
        assert found[None].evictions == 0
        for size in sizes:
            hits, evictions = GOLDEN[curve.policy][size]
            assert found[size].hits == hits
            assert found[size].hit_ratio == hits / 276_491
            assert evictions in (None, found[size].evictions)


def test_the_conversation_trace_gives_the_golden_integers() -> None:
    check_golden(("lru", "fifo", "lfu", "belady"), (1_000, 30_000))


@pytest.mark.long
def test_the_conversation_trace_gives_all_golden_integers() -> None:
    check_golden(("lru", "fifo", "lfu", "belady"), (1_000, 10_000, 30_000, 50_000, 100_000))


def test_ratios_to_all_blocks_agree_with_another_authors_figures() -> None:
    """LRU at 1, 5, 10, 25 and 50 % of the different blocks, hits over all references."""
    sizes = [182_790 * percent // 100 for percent in (1, 5, 10, 25, 50)]
    (curve,) = cache_curves(CONVERSATION, ("lru",), sizes)
    ratios = [point.hits / curve.block_refs for point in curve.curve[:-1]]
    assert ratios == pytest.approx([0.052, 0.195, 0.278, 0.353, 0.363], abs=6e-4)


def test_no_published_point_is_out_of_reach() -> None:
    """FAST'25 figure 9 was made with finer blocks: at most one 512-token block a request lies between."""
    published = {19: 0.0449, 195: 0.0731, 1953: 0.0866, 7812: 0.2149, 19531: 0.3263, 97656: 0.3983}
    (curve,) = cache_curves(CONVERSATION, ("lru",), list(published))
    for point in curve.curve[:-1]:
        assert point.capacity_blocks is not None
        missing = published[point.capacity_blocks] - point.hit_ratio
        assert 0 <= missing <= 512 / 12_035


@given(st.lists(st.lists(st.integers(0, 9) | st.integers(0, 2**63 - 1), max_size=9), max_size=5))
def test_an_id_has_the_number_of_different_ones_before_its_first_use(pieces: list[list[int]]) -> None:
    numbers, known = FirstUses(), dict[int, int]()
    for piece in pieces:
        expected = [known.setdefault(one, len(known)) for one in piece]
        assert numbers.numbered(np.array(piece, np.int64)).tolist() == expected
        assert len(numbers) == len(known)


def test_chunks_give_the_same_curves_as_the_whole_trace(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policies: tuple[PolicyName, ...] = ("lru", "fifo", "lfu", "belady")
    whole = cache_curves(small, policies)
    # A run of rows is a few lines, and every run a chunk of its own.
    monkeypatch.setattr(block_stream, "CHUNK_REFERENCES", 1)
    monkeypatch.setattr("simulator.traffic.text_lines._BLOCK_BYTES", 500)
    monkeypatch.setattr("simulator.traffic.trace_jsonl._RUN_REQUESTS", 1)
    assert len(list(BlockStream(small).chunks())) > 5
    assert cache_curves(small, policies) == whole


@pytest.fixture
def small(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    lines = []
    for nth in range(60):
        ids = [int(one) for one in np.minimum(rng.zipf(1.3, rng.integers(1, 9)), 50)]
        prompt = 512 * len(ids) - int(rng.integers(0, 512))
        row = {"timestamp": nth * 1000, "input_length": prompt, "output_length": 5, "hash_ids": ids}
        lines.append(json.dumps(row))
    path = tmp_path / "small.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_belady_bounds_every_policy(small: Path) -> None:
    lru, fifo, lfu, belady = cache_curves(small, ("lru", "fifo", "lfu", "belady"))
    for rows in zip(lru.curve, fifo.curve, lfu.curve, belady.curve, strict=True):
        assert max(row.hits for row in rows[:3]) <= rows[3].hits


def test_csv_prefixes_are_cut_into_blocks(tmp_path: Path) -> None:
    path = tmp_path / "shared.csv"
    path.write_text(
        "arrived_at,prompt_tokens,output_tokens,prefix_id,prefix_tokens\n"
        "0,1000,5,system,700\n"  # two blocks, the first one shared
        "1,1100,5,system,1100\n"  # three blocks, two shared
        "2,1100,5,system,1100\n"
        "3,100,5,,\n"
    )
    (curve,) = cache_curves(path, ("lru",), [10])
    # Block 0 of the prefix is hit by the second and third request, block 1 by the third.
    assert (curve.requests, curve.block_refs, curve.full_blocks) == (4, 9, 1 + 2 + 2)
    assert curve.curve[0].hits == 3
    assert curve.unique_blocks == 6


def test_a_trace_without_block_ids_is_refused() -> None:
    with pytest.raises(InputError, match="has no hash_ids or prefix_id"):
        cache_curves(trace_path("azure_conv"))


def test_a_trace_without_requests_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("")
    with pytest.raises(InputError):
        cache_curves(path)


def test_default_capacities_are_a_series_below_the_number_of_blocks() -> None:
    assert default_capacities(120) == [1, 2, 5, 10, 20, 50, 100]
    assert default_capacities(1) == []


# ---- the command


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(["cache-curve", *words])
    return int(left.value.code or 0)


def test_the_command_prints_the_documented_document(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(small), "--capacity", "5,20", "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["requests", "block_refs", "full_blocks", "unique_blocks", "policy", "curve"]
    assert document["policy"] == "lru"
    assert [row["capacity_blocks"] for row in document["curve"]] == [5, 20, None]
    assert all(list(row) == ["capacity_blocks", "hits", "evictions", "hit_ratio"] for row in document["curve"])


def test_several_policies_make_a_list_of_documents(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(small), "--policy", "fifo,lfu", "--policy", "belady", "--format", "json") == 0
    assert [one["policy"] for one in json.loads(capsys.readouterr().out)] == ["fifo", "lfu", "belady"]


def test_the_table_says_what_can_be_found(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(small)) == 0
    assert "can be found in a cache" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--policy", "lur"), "did you mean 'lru'?"),
        (("--capacity", "10,x"), "'x' is no pool size"),
        (("--capacity", "0"), "'0' is no pool size"),
    ],
)
def test_wrong_options_are_named(
    small: Path, words: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(small), *words) == 2
    assert complaint in capsys.readouterr().err
