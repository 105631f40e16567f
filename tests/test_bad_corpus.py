"""Malformed inputs by the hundred: every key of a scenario with every kind of wrong value, and broken files by hand.

Each ends in exit code 2 with one message that names the place; where something looks wrong but has a meaning, it is
listed here with the reason. Single mistakes with their exact messages are in ``test_bad_input``.
"""

import copy
import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from scenario_text import VALID, changed

import cli
from simulator.errors import InputError, Problem
from simulator.model import PRESETS
from simulator.scenario import load_scenario, parse_scenario

FULL = """\
name: full
device: {preset: 910B3, count: 2, kv_capacity_bytes: 2GiB}
model: {preset: llama-3.1-8b, weight_dtype: int8, max_position_embeddings: 131072}
workload:
  arrivals: {process: gamma, rate: 2/s, cv: 2}
  classes:
    - {name: a, weight: 2, prompt_tokens: {dist: lognormal, mean: 90, p95: 300, max: 900}}
    - {name: b, output_tokens: {dist: zipf, s: 1.2, max: 50}, shared_prefix: {groups: 3, tokens: 20}}
  prompt_tokens: {dist: uniform, min: 10, max: 200}
  output_tokens: {dist: fixed, value: 20}
  requests: 30
  horizon: 1h
  warmup: 1s
engine: {max_num_seqs: 16, max_model_len: 4096, step_time: 10ms, queue_timeout: 5s}
allocators:
  - {kind: contiguous, reserve: grow}
  - {kind: paged, page_size: 128}
  - {kind: paged_cow, page_size: 128, safety_factor: 1.1}
  - {kind: paged_defrag, page_size: 128, trigger: {fragmentation: 0.5, period: 1s}}
seed: 7
"""
RESOLVED: dict[str, Any] = parse_scenario(FULL, Path()).resolved()
WRONG: dict[str, Any] = {
    "not a number": math.nan,
    "infinite": math.inf,
    "negative": -1,
    "huge": 1e300,
    "beyond 64 bits": 2**63,
    "wrong unit": "3 bananas",
    "negative text": "-5s",
    "a list": [1],
    "a mapping": {"a": 1},
    "a truth value": True,
    "other digits": "१२",
}
Path_ = tuple[str | int, ...]


def places(node: Any, path: Path_ = ()) -> Iterator[Path_]:
    if path:
        yield path
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


PLACES = list(places(RESOLVED))


def with_value(path: Path_, value: Any) -> str:
    document = copy.deepcopy(RESOLVED)
    node = document
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    return yaml.safe_dump(document)


def is_meant(path: Path_, kind: str) -> bool:
    """Texts take any text, switches take true; nothing else may pass."""
    if path[-1] in ("name", "description", "label"):
        return kind in ("wrong unit", "negative text", "other digits")
    if path[-1] == "priority":
        return kind == "negative"
    if path[-1] == "safety_factor":
        return kind == "huge"  # refused with both numbers when the pool is built
    switches = ("enable_chunked_prefill", "whole_prompt_admission", "null_page", "enable_prefix_caching", "on_failure")
    return kind == "a truth value" and path[-1] in (*switches, "strict_runs", "adaptive_long_prefill_threshold")


def problems_of(text: str) -> tuple[Problem, ...]:
    """What is wrong with a scenario."""
    try:
        parse_scenario(text, Path(), file="s.yaml")
    except InputError as refused:
        return refused.problems
    return ()


@pytest.mark.parametrize("kind", WRONG)
def test_no_key_takes_a_wrong_value(kind: str) -> None:
    passed = []
    for path in PLACES:
        key = ".".join(map(str, path))
        problems = problems_of(with_value(path, WRONG[kind]))
        assert len(problems) <= 2, problems
        for problem in problems:
            assert str(problem).startswith("s.yaml:") and str(problem).isprintable() and len(str(problem)) < 1500
        if problems:
            # at the key itself, at what it lacks or has too much, or at the mapping it contradicts
            first = problems[0].key
            assert first.startswith(key) or key.startswith(first), f"{key}: {problems}"
        elif not is_meant(path, kind):
            passed.append(key)
    assert not passed, f"{kind} passes"


def test_the_corpus_has_more_than_a_thousand_wrong_scenarios() -> None:
    assert len(PLACES) * len(WRONG) > 1000


# ---- files by hand


def refused(words: list[str | Path], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    said = capsys.readouterr()
    assert ended.value.code == 2, said.err
    assert said.out == ""
    assert "Traceback" not in said.err
    assert 1 <= len(said.err.splitlines()) <= 2 and len(said.err) < 4000
    return said.err


HEAD = "arrived_at,prompt_tokens,output_tokens\n"
GOOD = HEAD + "0,10,5\n1,20,6\n"
TRACES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "only_a_newline": (b"\n", "empty"),
    "only_a_header": (HEAD.encode(), "no request"),
    "missing_column": (b"arrived_at,prompt_tokens\n0,10\n", "output_tokens"),
    "other_columns": (b"a,b,c\n1,2,3\n", "'a,b,c' are no known trace"),
    "column_twice": (b"arrived_at,prompt_tokens,prompt_tokens\n0,1,2\n", "twice"),
    "unsorted": ((HEAD + "5,10,5\n1,20,6\n").encode(), "3"),
    "too_few_cells": ((HEAD + "0,10\n").encode(), "found 2 cells"),
    "too_many_cells": ((HEAD + "0,10,5,7\n").encode(), "found 4 cells"),
    "quoted_newline": ((HEAD + '0,"1\n0",5\n').encode(), "found '1\\n0'"),
    "open_quote": ((HEAD + '0,"10,5\n').encode(), "CSV"),
    "quote_within": ((HEAD + '0,1"0,5\n').encode(), "found"),
    "nan_time": ((HEAD + "nan,10,5\n").encode(), "arrived_at"),
    "negative_time": ((HEAD + "-1,10,5\n").encode(), "arrived_at"),
    "endless_time": ((HEAD + "1e300,10,5\n").encode(), "arrived_at"),
    "no_time": ((HEAD + ",10,5\n").encode(), "arrived_at"),
    "zero_tokens": ((HEAD + "0,0,5\n").encode(), "prompt_tokens"),
    "negative_tokens": ((HEAD + "0,-10,5\n").encode(), "prompt_tokens"),
    "half_a_token": ((HEAD + "0,10.5,5\n").encode(), "prompt_tokens"),
    "a_quintillion_tokens": ((HEAD + "0,1000000000000000000,5\n").encode(), "prompt_tokens"),
    "1e18_tokens": ((HEAD + "0,1e18,5\n").encode(), "prompt_tokens"),
    "more_than_64_bits": ((HEAD + "0,10," + "9" * 400 + "\n").encode(), "output_tokens"),
    "words": ((HEAD + "0,ten,5\n").encode(), "found 'ten'"),
    "no_output": ((HEAD + "0,10,0\n").encode(), "output_tokens"),
    "hexadecimal": ((HEAD + "0,0x10,5\n").encode(), "prompt_tokens"),
    "latin1": ((HEAD + "0,10,5\n").encode() + b"1,2\xe9,3\n", "not UTF-8"),
    "utf16": (GOOD.encode("utf-16"), "UTF-8"),
    "nul": ((HEAD + "0,1\0,5\n").encode(), "found"),
    "binary": (bytes(range(256)), "UTF-8"),
    "long_line": (b"x" * (17 * 2**20), "longer than"),
    "damaged_gzip": (b"\x1f\x8b" + b"\0" * 20, "gzip"),
    "truncated_gzip": (gzip.compress((HEAD + "0,10,5\n" * 3000).encode())[:-12], "truncated"),
    "gzip_with_a_wrong_sum": (gzip.compress(GOOD.encode())[:-8] + b"\0" * 8, "damaged"),
    "gzip_in_gzip": (gzip.compress(gzip.compress(GOOD.encode())), "UTF-8"),
    "gzip_with_rubbish_after": (gzip.compress(GOOD.encode()) + b"rubbish", "damaged"),
    "prefix_longer_than_prompt": (
        b"arrived_at,prompt_tokens,output_tokens,prefix_id,prefix_tokens\n0,10,5,1,11\n",
        "prefix_tokens",
    ),
    "prefix_without_length": (b"arrived_at,prompt_tokens,output_tokens,prefix_id\n0,10,5,1\n", "prefix"),
    "azure_time": (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-45 18:17:03.9,10,5\n", "TIMESTAMP"),
    "azure_date_only": (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,10,5\n", "TIMESTAMP"),
    "azure_other_zone": (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03+02:00,10,5\n", "TIMESTAMP"),
    "json_broken": (b'{"timestamp": 0, "input_length": 10\n', "JSON"),
    "json_a_list": (b"[1, 2]\n", "no known trace"),
    "json_missing_key": (b'{"timestamp": 0, "input_length": 10}\n', "output_length"),
    "json_text_for_number": (b'{"timestamp": 0, "input_length": "10", "output_length": 5}\n', "input_length"),
    "json_true_for_number": (b'{"timestamp": 0, "input_length": true, "output_length": 5}\n', "input_length"),
    "json_negative": (b'{"timestamp": -1, "input_length": 10, "output_length": 5}\n', "timestamp"),
    "json_nan": (b'{"timestamp": NaN, "input_length": 10, "output_length": 5}\n', "timestamp"),
    "json_infinite": (b'{"timestamp": Infinity, "input_length": 10, "output_length": 5}\n', "timestamp"),
    "json_ids_for_too_little": (
        b'{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1, 2, 3]}\n',
        "hash_ids",
    ),
    "json_ids_of_text": (b'{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": ["a"]}\n', "hash_ids"),
    "json_ids_no_list": (b'{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": 1}\n', "hash_ids"),
    "json_deep": (b'{"timestamp": ' + b"[" * 100_000 + b"\n", "JSON"),
    "json_huge_number": (b'{"timestamp": ' + b"9" * 5000 + b', "input_length": 1, "output_length": 1}\n', ""),
}


@pytest.mark.parametrize("name", TRACES)
def test_a_malformed_trace_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, says = TRACES[name]
    (tmp_path / "t.csv").write_bytes(content)
    text = VALID.replace("    process: poisson\n    rate: 2/s\n", "    process: trace\n    path: t.csv\n")
    text = text.replace("  prompt_tokens:\n    dist: uniform\n    min: 10\n    max: 200\n", "")
    (tmp_path / "s.yaml").write_text(text.replace("  output_tokens:\n    dist: fixed\n    value: 20\n", ""))
    message = refused(["run", tmp_path / "s.yaml", "--no-report"], capsys)
    assert "t.csv" in message and says in message


@pytest.mark.parametrize("ending", ["\r\n", "\n"])
def test_a_byte_order_mark_and_windows_line_ends_are_fine_everywhere(ending: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", ending).encode())
    text = VALID.replace(
        "    process: poisson\n    rate: 2/s\n", "    process: trace\n    path: t.csv\n    times_only: true\n"
    )
    path = tmp_path / "s.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", ending).encode())
    assert len(load_scenario(path).requests()) == 2


# ---- models

LLAMA: dict[str, Any] = json.loads((PRESETS / "llama-3.1-8b.json").read_text())
COUNTS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
COUNTS_TOO = ("num_key_value_heads", "max_position_embeddings")
WRONG_COUNTS: dict[str, Any] = {
    "zero": 0,
    "negative": -1,
    "half": 1.5,
    "text": "many",
    "a list": [1],
    "a mapping": {},
    "true": True,
    "not a number": math.nan,
    "infinite": math.inf,
    "huge": 10**18,
}


@pytest.mark.parametrize("kind", WRONG_COUNTS)
@pytest.mark.parametrize("key", [*COUNTS, *COUNTS_TOO])
def test_a_model_with_a_wrong_size_is_refused(key: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, key: WRONG_COUNTS[kind]}))
    with pytest.raises(InputError) as found:
        parse_scenario(changed("  preset: llama-3.1-8b\n", "  config: config.json\n"), tmp_path, file="s.yaml")
    assert len(found.value.problems) == 1
    assert "config.json" in str(found.value) and key in str(found.value)


# ---- devices

DEVICE = yaml.safe_load((Path(cli.__file__).parent / "simulator/presets/devices/910B3.yaml").read_text())
FIGURES = [key for key, value in DEVICE.items() if isinstance(value, dict) and "value" in value]
WRONG_FIGURES: dict[str, Any] = {
    "negative": -1,
    "not a number": math.nan,
    "infinite": math.inf,
    "wrong unit": "3 bananas",
    "a list": [1],
    "true": True,
    "nothing inside": {},
}


@pytest.mark.parametrize("kind", WRONG_FIGURES)
def test_a_device_with_a_wrong_figure_is_refused(kind: str, tmp_path: Path) -> None:
    assert len(FIGURES) >= 20
    for key in FIGURES:
        text = yaml.safe_dump({**DEVICE, key: WRONG_FIGURES[kind]})
        (tmp_path / "npu.yaml").write_text(text)
        with pytest.raises(InputError) as found:
            parse_scenario(changed("  preset: 910B3\n", "  file: npu.yaml\n"), tmp_path, file="s.yaml")
        assert len(found.value.problems) == 1
        assert "npu.yaml" in str(found.value) and key in str(found.value), found.value


# ---- options

OPTIONS: list[list[str]] = [
    ["run"],
    ["run", "s.yaml", "--seed", "1.5"],
    ["run", "s.yaml", "--seed", "99999999999999999999"],
    ["run", "s.yaml", "--replications", "-1"],
    ["run", "s.yaml", "--replications", "x"],
    ["run", "s.yaml", "--lang", "fr"],
    ["run", "s.yaml", "--no-report", "--out", "x"],
    ["run", "s.yaml", "--set"],
    ["run", "s.yaml", "--allocator", ""],
    ["compare", "s.yaml", "--replications", "0"],
    ["compare", "s.yaml", "--confidence", "1"],
    ["compare", "s.yaml", "--confidence", "nan"],
    ["compare", "s.yaml", "--vary", "seed"],
    ["compare", "s.yaml", "--vary", "seed=1:1e999999:1"],
    ["compare", "s.yaml", "--vary", "seed=1:2:1e-999999999"],
    ["compare", "s.yaml", "--vary", "seed=1:9:0"],
    ["compare", "s.yaml", "--vary", "seed=9:1:1"],
    ["compare", "s.yaml", "--vary", "engine.no_key=1,2"],
    ["compare", "s.yaml", "--jobs", "0"],
    ["size", "s.yaml", "--target-oom", "-1"],
    ["size", "s.yaml", "--target-oom", "2"],
    ["size", "s.yaml", "--target-oom", "nan"],
    ["size", "s.yaml", "--target", "speed=1"],
    ["size", "s.yaml", "--target", "ttft_p95"],
    ["size", "s.yaml", "--target", "ttft_p95=-1s"],
    ["size", "s.yaml", "--target", "ttft_p95=soon"],
    ["size", "s.yaml", "--pool-interval", "2GiB"],
    ["size", "s.yaml", "--pool-interval", "2GiB:1GiB"],
    ["size", "s.yaml", "--pool-interval", "a:b"],
    ["size", "s.yaml", "--max-replications", "0"],
    ["size", "s.yaml", "--solve", "seed"],
    ["size", "s.yaml", "--solve", "seed=1,2", "--solve", "seed=3,4"],
    ["size", "s.yaml", "--solve", "engine.max_num_seqs=1,x"],
    ["sweep", "s.yaml"],
    ["sweep", "s.yaml", "--grid", ""],
    ["sweep", "s.yaml", "--grid", "seed="],
    ["sweep", "s.yaml", "--grid", "seed=1:1e18:1"],
    ["sweep", "s.yaml", "--grid", "seed=a:b:c"],
    ["sweep", "s.yaml", "--grid", "seed=nan:1:1"],
    ["sweep", "s.yaml", "--grid", "seed=1,2", "--grid", "seed=3,4"],
    ["sweep", "s.yaml", "--grid", "seed=1,2", "--dask", "tcp://"],
    ["memory"],
    ["memory", "--model", "llama-3.1-8b"],
    ["memory", "--model", "nobody", "--device", "910B3"],
    ["memory", "--model", "llama-3.1-8b", "--device", "nothing"],
    ["memory", "--model", "llama-3.1-8b", "--device", "910B3", "--count", "0"],
    ["kernel", "s.yaml", "--page-size", "0"],
    ["kernel", "s.yaml", "--page-size", "-16"],
    ["kernel", "s.yaml", "--page-size", "x"],
    ["kernel", "s.yaml", "--page-size", ""],
    ["cache-curve"],
    ["cache-curve", "nowhere.jsonl"],
    ["cache-curve", "azure_code"],
    ["cache-curve", "mooncake_conversation", "--policy", "best"],
    ["cache-curve", "mooncake_conversation", "--capacity", "0"],
    ["cache-curve", "mooncake_conversation", "--capacity", "_4x"],
    ["cache-curve", "mooncake_conversation", "--capacity", "_"],
    ["cache-curve", "mooncake_conversation", "--capacity", "9999999999999"],
    ["cache-curve", "mooncake_conversation", "--block-tokens", "0"],
    ["calibrate", "s.yaml"],
    ["calibrate", "s.yaml", "nowhere.csv"],
    ["calibrate", "s.yaml", "s.yaml"],
    ["export", "s.yaml"],
    ["export", "s.yaml", "--for", "tgi"],
    ["export", "s.yaml", "--for", "vllm", "--max-pages", "0"],
    ["explain", "s.yaml", "--event", "0"],
    ["explain", "s.yaml", "--cause", "bad_luck"],
    ["explain", "s.yaml", "--request", "-1"],
    ["report"],
    ["report", "nowhere"],
    ["report", "."],
    ["rerun", "nowhere"],
    ["rerun", "."],
    ["list"],
    ["list", "sins"],
    ["init", "s.yaml"],
    ["init", "nowhere/new.yaml"],
    ["frobnicate"],
    ["--no-such-option"],
    ["validate", "--out", "/proc/nowhere.json"],
]


@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
def test_an_option_that_cannot_be_is_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.yaml").write_text(VALID)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    said = capsys.readouterr()
    assert ended.value.code == 2, said.err
    assert said.err.strip() and "Traceback" not in said.err + said.out
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["s.yaml"], "something was written"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("allocators.1.page_size=1000000000", "not one page of 59.6 TiB fits"),
        ("allocators.0.page_size=1000000000", "not one page of 59.6 TiB fits"),
        ("allocators.1.page_size=1e18GiB", "not one page"),
        ("allocators.1.safety_factor=1e300", "asks for"),
        (
            "allocators.1={kind: paged, kv_capacity_bytes: 2GiB, page_table_align_bytes: 1000000000}",
            "of which page tables take 14.9 GiB",
        ),
        ("device.kv_capacity_bytes=100", "not one page"),
        ("engine.step_time=1e9s", "end of the clock"),
        ("workload.arrivals.rate=1e-9", "beyond the clock"),
        ("device.hbm_sustained_bandwidth=1", "end of the clock"),
    ],
)
def test_what_only_shows_when_the_pool_is_built_or_runs(
    setting: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.yaml").write_text(VALID)
    assert says in refused(["run", tmp_path / "s.yaml", "--no-report", "--set", setting], capsys)


def test_a_quoted_number_of_tokens_is_tokens_and_not_bytes() -> None:
    plain, quoted = (parse_scenario(changed("page_size: 128", f"page_size: {text}"), Path()) for text in ("64", "'64'"))
    assert plain.allocators[1].page_size == quoted.allocators[1].page_size == 64
