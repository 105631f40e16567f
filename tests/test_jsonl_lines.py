"""Lines of a JSONL trace that are read many at once: what json.loads makes of each is the second opinion."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from simulator.traffic import jsonl_plain, text_lines, trace_jsonl
from simulator.traffic.jsonl_plain import plain_lines
from simulator.traffic.trace_rows import TraceRows, joined
from simulator.traffic.traces import read_trace, trace_path

#: how ids may be spelled, from what programs write to what no JSON is
LISTS = (
    "[0, 1]",
    "[0,1]",
    "[0,  1]",
    "[0 , 1]",
    "[0, 1, ]",
    "[, 1]",
    "[00, 1]",
    "[0 1]",
    "[]",
    "[ 0, 1]",
    "[0, 1 ]",
    "[0, 1x]",
)
MORE = (
    "[0, 1.0]",
    "[0, -1]",
    "[0, 1e3]",
    f"[0, {2**63 - 1}]",
    f"[0, {10**18 - 1}]",
    f"[{2**63}, 0]",
    "[0, null]",
    "[0, 1",
    "[7]",
)


def line(time: str, prompt: str, output: str, ids: str, gap: str) -> str:
    pairs = (("timestamp", time), ("input_length", prompt), ("output_length", output), ("hash_ids", ids))
    return "{" + f",{gap}".join(f'"{key}":{gap}{value}' for key, value in pairs if value) + "}"


GOOD = line("0", "600", "2", "[0, 1]", " ")
NUMBERS = st.sampled_from(["0", "1", "600", "601", "01", "-1", "6.0", "1e2", "999999999", "true", "٣", ""])
LINES = st.builds(
    line,
    st.sampled_from(["0", "0", "5", "5", "4.5", "00", "9" * 15, "9" * 16]),
    st.just("600") | NUMBERS,
    st.just("2") | NUMBERS,
    st.sampled_from(["[0, 1]", *LISTS, *MORE, ""]),
    st.sampled_from([" ", " ", ""]),
)
ODD_LINES = st.sampled_from(["", " ", "[1]", "{}", '{"timestamp": 0}', GOOD + "\r"])


def outcome(path: Path, *, skip_empty_output: bool) -> TraceRows | str:
    try:
        return joined(list(read_trace(path, skip_empty_output=skip_empty_output)))
    except ValueError as error:
        return str(error)


def columns(rows: TraceRows) -> list[object]:
    found = [rows.time_ns, rows.prompt_tokens, rows.output_tokens, rows.skipped]
    if rows.prefix is not None:
        found += [rows.prefix.offsets, rows.prefix.ids, rows.prefix.ends]
    return [one.tolist() if isinstance(one, np.ndarray) else one for one in found]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@example(["{"], False, 2**20)
@example([GOOD.replace(": 0,", ": 5,"), GOOD], False, 2**20)
@example([GOOD.replace(": 0,", ": 5,"), *[GOOD] * 3], False, 200)
@example([GOOD, GOOD.replace(": 2,", ": 0,"), GOOD], True, 2**20)
@given(
    st.lists(LINES, min_size=1, max_size=4) | st.lists(LINES | ODD_LINES, min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([200, 2**20]),
)
def test_lines_read_at_once_say_what_they_say_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], skip: bool, block_bytes: int
) -> None:
    path = tmp_path / "t"
    path.write_text("{" + "\n".join(lines)[1:] if not lines[0].startswith("{") else "\n".join(lines))
    with monkeypatch.context() as patched:
        patched.setattr(text_lines, "_BLOCK_BYTES", block_bytes)
        at_once = outcome(path, skip_empty_output=skip)
        patched.setattr(trace_jsonl, "plain_lines", lambda text, with_ids: None)
        one_by_one = outcome(path, skip_empty_output=skip)
    if isinstance(at_once, str) or isinstance(one_by_one, str):
        assert at_once == one_by_one
    else:
        assert columns(at_once) == columns(one_by_one)


@pytest.mark.parametrize("gap", [" ", ""])
def test_numbers_are_those_that_json_reads(gap: str) -> None:
    text = "\n".join(line(str(at), "1025", str(at + 1), json.dumps([at, 10**at, 9]), gap) for at in range(18))
    text = text.replace(", ", f",{gap}")
    found = plain_lines(text, with_ids=True)
    assert found is not None
    rows = [json.loads(one) for one in text.split("\n")]
    assert found.milliseconds.tolist() == [row["timestamp"] for row in rows]
    assert found.prompts.tolist() == [row["input_length"] for row in rows]
    assert found.outputs.tolist() == [row["output_length"] for row in rows]
    assert found.counts.tolist() == [3] * len(rows)
    assert found.ids.tolist() == [one for row in rows for one in row["hash_ids"]]


@pytest.mark.parametrize("ids", [*LISTS[2:], *MORE[:4], *MORE[5:-1]])
def test_anything_but_whole_numbers_as_json_spells_them_is_left_to_others(ids: str) -> None:
    for text in (line("0", "600", "2", ids, " "), f"{GOOD}\n{line('0', '600', '2', ids, ' ')}\n{GOOD}"):
        assert plain_lines(text, with_ids=True) is None


def test_no_line_of_the_shipped_trace_takes_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> None:
        raise AssertionError("a line was read alone")

    monkeypatch.setattr(trace_jsonl._Reader, "add", slow)
    assert sum(map(len, read_trace(trace_path("mooncake_conversation")))) == 12_031


def test_digits_are_counted_without_leading_zeros() -> None:
    values = [0, 9, 10, 99, 100, 10**17, 10**18 - 1]
    assert jsonl_plain._digits(np.array(values)) == sum(len(str(value)) for value in values)
