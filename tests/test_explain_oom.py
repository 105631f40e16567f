"""``simulate explain``: four requests on ten pages, followed by hand, and what the command answers."""

import json
from pathlib import Path
from typing import Any

import pytest

import cli
from simulator.errors import InputError
from simulator.planning.explain_oom import explain_oom
from simulator.scenario import Scenario, parse_scenario
from simulator.serving.oom_state import Wanted

#: 32 layers, 8 KV heads of 128, K and V of 2 bytes
TOKEN_BYTES = 131_072
PAGE_BYTES = 16 * TOKEN_BYTES

#: A token a second and a request a second: each has 40 tokens when it comes and 41 to 70 in its thirty seconds.
FOUR = """\
name: four
device: {preset: 910B3, count: 1}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: fixed, interval: 1s}
  prompt_tokens: {dist: fixed, value: 40}
  output_tokens: {dist: fixed, value: 30}
  requests: 4
engine: {scheduler: replay, step_time: 1s, on_oom: fail, max_num_seqs: 4, max_model_len: 128}
allocators:
  - {kind: paged, page_size: 16, max_pages: 10, free_order: lifo, null_page: false}
  - {kind: contiguous, reserve: exact, kv_capacity_bytes: 20971520}
  - {kind: paged, label: roomy, page_size: 16, max_pages: 40}
"""


def four(*changes: str) -> Scenario:
    return parse_scenario(FOUR, Path(), changes)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return explain_oom(four())


def test_the_event_says_who_was_refused_what_and_why(document: dict[str, Any]) -> None:
    # The first three take pages 0-8; the fourth finds one page where 41 tokens need three. Later the second request
    # is refused, too: the first has taken the last page for its 49th token.
    event = document["event"]
    assert (document["allocator"], document["events"], event["number"], event["request_id"]) == ("paged", 2, 1, 3)
    assert (event["cause"], event["during"]) == ("capacity", "admission")
    assert event["needed_bytes"] == 3 * PAGE_BYTES
    assert event["free_bytes"] == event["largest_free_bytes"] == PAGE_BYTES
    assert event["missing_bytes"] == 2 * PAGE_BYTES
    assert document["request"]["outcome"] == "oom_admission"


def test_holders_are_named_with_their_pages_and_tokens(document: dict[str, Any]) -> None:
    held = [(one["request_id"], one["tokens"], one["pages"], one["first_pages"]) for one in document["holders"]]
    assert held == [(0, 43, 3, (0, 1, 2)), (1, 42, 3, (3, 4, 5)), (2, 41, 3, (6, 7, 8))]
    assert document["other_holders"] == {"sequences": 0, "held_bytes": 0}


def test_the_waste_of_the_moment_adds_up_to_the_pool(document: dict[str, Any]) -> None:
    waste = document["pool"]["waste"]
    tokens = {key.removesuffix("_bytes"): size / TOKEN_BYTES for key, size in waste.items()}
    assert tokens == {"used": 126, "reserved": 18, "internal": 0, "external": 16, "unusable": 0, "leaked": 0}


def test_two_more_pages_would_have_served_it_and_one_would_not(document: dict[str, Any]) -> None:
    # With twelve pages the first request fails in its ninth second, the fourth lives to its end.
    margin = document["counterfactual"]["margin"]
    assert (margin["extra_pages"], margin["max_pages"], margin["extra_bytes"]) == (2, 12, 2 * PAGE_BYTES)
    assert margin["not_enough_bytes"] == 11 * PAGE_BYTES
    # 12 pages of 16 tokens, over 4 seats of 70 tokens on average
    assert margin["safety_factor"] == pytest.approx(192 / 280)
    assert margin["within_budget"]


def test_other_allocators_answer_by_their_own_runs(document: dict[str, Any]) -> None:
    # 160 tokens hold two ranges of 70; forty pages hold four times five.
    trials = {trial["label"]: trial for trial in document["counterfactual"]["allocators"]}
    assert {label: trial["served"] for label, trial in trials.items()} == {"contiguous": False, "roomy": True}
    assert trials["contiguous"]["outcome"] == "oom_admission"
    assert trials["roomy"]["refused_s"] is None


def test_page_sizes_share_out_the_same_bytes(document: dict[str, Any]) -> None:
    sizes = document["counterfactual"]["page_sizes"]
    assert [(trial["page_size"], trial["max_pages"]) for trial in sizes] == [(4, 40), (8, 20), (32, 5), (64, 2)]
    assert not any(trial["served"] for trial in sizes)


def test_a_smaller_page_serves_what_a_larger_one_refuses() -> None:
    # Three pages of 64 hold the first three requests; 192 tokens in pages of 16 hold four of up to 48.
    scenario = four("allocators.0.page_size=64", "allocators.0.max_pages=3", "workload.output_tokens.value=8")
    sizes = {t["page_size"]: t["served"] for t in explain_oom(scenario)["counterfactual"]["page_sizes"]}
    assert sizes == {16: True, 32: False, 128: False}


def test_a_range_is_named_by_its_addresses_and_the_free_room_by_its_holes() -> None:
    found = explain_oom(four(), allocator="contiguous")
    places = [(one["request_id"], one["start_byte"], one["end_byte"]) for one in found["holders"]]
    assert places == [(0, 0, 70 * TOKEN_BYTES), (1, 70 * TOKEN_BYTES, 140 * TOKEN_BYTES)]
    hole = {"start_byte": 140 * TOKEN_BYTES, "size_bytes": 20 * TOKEN_BYTES}
    assert found["pool"]["free"] == {"largest_free_bytes": hole["size_bytes"], "holes": 1, "largest_holes": [hole]}
    assert found["counterfactual"]["page_sizes"] == []


def test_events_can_be_picked_by_request_and_by_cause() -> None:
    assert explain_oom(four(), Wanted(request_id=3), allocator="contiguous")["event"]["number"] == 2
    assert explain_oom(four(), Wanted(event=2), allocator="contiguous")["event"]["request_id"] == 3
    assert explain_oom(four(), Wanted(cause="capacity"), allocator="contiguous")["event"]["request_id"] == 2


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Wanted(event=3), "there is no such event: under paged 2 allocations fail"),
        (Wanted(cause="fragmentation"), r"\(2 by capacity, 0 by fragmentation\)"),
        (Wanted(request_id=4), "there is no such request: the workload has 4"),
        (Wanted(request_id=0), r"none of its allocations fails \(completed\)"),
    ],
)
def test_what_does_not_exist_is_refused_and_counted(wanted: Wanted, message: str) -> None:
    with pytest.raises(InputError, match=message):
        explain_oom(four(), wanted, allocator="paged")


def test_a_request_too_large_for_an_empty_pool_is_told_apart() -> None:
    with pytest.raises(InputError, match="an empty pool could not hold it"):
        explain_oom(four("allocators.0.max_pages=4"), Wanted(request_id=0), allocator="paged")


def test_an_engine_run_is_explained_at_the_moment_of_the_failure() -> None:
    """Two requests of 40 tokens on six pages of 16, one a step ahead: it finds no fourth page for its 49th token."""
    changes = ("engine.scheduler=continuous", "workload.requests=2", "allocators.0.max_pages=6")
    found = explain_oom(four(*changes, "workload.arrivals.interval=1us"), allocator="paged")
    event = found["event"]
    assert (event["during"], event["needed_bytes"], event["free_bytes"]) == ("decode", PAGE_BYTES, 0)
    assert [(one["request_id"], one["tokens"], one["state"]) for one in found["holders"]] == [
        (0, 48, "decode"),
        (1, 47, "decode"),
    ]
    assert found["pool"]["waste"]["used_bytes"] == 95 * TOKEN_BYTES


def _run(tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    path = tmp_path / "four.yaml"
    path.write_text(FOUR)
    with pytest.raises(SystemExit) as stop:
        cli.main(["explain", str(path), *words])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_the_command_prints_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(tmp_path, capsys, "--format", "json")
    assert code == 0 and json.loads(out)["event"]["request_id"] == 3


def test_the_command_tells_the_story_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(tmp_path, capsys, "--allocator", "paged")
    assert code == 0
    assert "request 3 (40 + 30 tokens, class default) was refused 6 MiB at admission: capacity" in out
    assert "Served with 2 more pages, 4 MiB more: a pool of 12 pages" in out


def test_no_failure_is_an_answer_and_an_unknown_event_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = _run(tmp_path, capsys, "--allocator", "roomy")
    assert code == 0 and "No allocation failed under roomy: 4 of 4 requests completed" in out
    code, _, err = _run(tmp_path, capsys, "--event", "7")
    assert code == 2 and "--event 7: there is no such event" in err
