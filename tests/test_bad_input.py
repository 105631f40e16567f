"""Bad input of every kind: exit code 2, nothing on stdout, one clear message at the right place, no traceback.

The corpus changes one thing of a valid scenario; ``says`` is what the message must contain. ``test_mutations`` goes
on from there: whatever is put in whatever place, the answer is a scenario or a message, never anything else.
"""

import json
import os
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario_text import VALID, changed, line_of

import cli
from simulator.errors import InputError
from simulator.loading.yaml_source import MAX_BYTES, MAX_NODES, parse_yaml
from simulator.scenario import Scenario, parse_scenario

ARRIVALS = "    process: poisson\n    rate: 2/s\n"
PROMPTS = "  prompt_tokens:\n    dist: uniform\n    min: 10\n    max: 200\n"

# (what is replaced, by what, the place and the words that the message must have)
CHANGES: list[tuple[str, str, str]] = [
    # top level
    ("name: small", "nam: small", "nam: unknown key; did you mean 'name'?"),
    ("name: small", "name: 12", "name: found 12; expected text"),
    ("name: small", "name: [a]", "name: found a list of 1 item; expected text"),
    ("name: small", "name: ''", "name: found ''; must have at least 1 character"),
    ("name: small", "name: a/../b", "name: a name may not hold slashes"),
    ("name: small", 'name: "a\\nb"', "name: a name may not hold slashes or control characters"),
    ("name: small", "name: true", "name: found true"),
    ("name: small", "<<: {seed: 1}", "<<: unknown key"),
    ("name: small", "12: small", "12: a key must be a name"),
    ("seed: 7", "seed: -1", "seed: found -1; must be >= 0"),
    ("seed: 7", "seed: 1.5", "seed: found 1.5; expected a whole number"),
    ("seed: 7", "seed: 9223372036854775808", "seed: 9223372036854775808 is beyond the 64-bit"),
    ("seed: 7", "seed: " + "9" * 5000, "is beyond the 64-bit integer range"),
    ("seed: 7", "seed: .inf", "seed: found inf"),
    ("seed: 7", "seed: true", "seed: found true"),
    ("seed: 7", "seed: abc", "seed: found 'abc'; expected a whole number"),
    ("seed: 7", "seed: null", "seed: found nothing; expected a whole number"),
    # device
    ("  preset: 910B3\n", "  preset: 910B9\n", "device.preset: unknown device preset '910B9'; did you mean '910B"),
    ("  preset: 910B3\n", "  preset: 910\n", "device.preset: found 910; expected text"),
    ("  preset: 910B3\n", "  preset: ../910B3\n", "device.preset: unknown device preset"),
    ("  preset: 910B3\n", "", "lacks hbm_bytes"),
    ("  preset: 910B3\n", "  preset: 910B3\n  file: x.yaml\n", "device: give preset or file, not both"),
    ("  preset: 910B3\n", "  file: nowhere.yaml\n", "device.file: "),
    ("  preset: 910B3\n", "  file: .\n", "is a directory"),
    ("  preset: 910B3\n", "  file: /dev/zero\n", "is not a regular file"),
    ("  preset: 910B3\n", '  file: "a\\0b"\n', "not a usable file name"),
    ("  count: 4", "  count: 0", "device.count: found 0; must be >= 1"),
    ("  count: 4", "  count: -4", "device.count: found -4; must be >= 1"),
    ("  count: 4", "  count: 1", "device.count: found 1; tensor_parallel_size 2"),
    ("  count: 4", "  count: four", "device.count: found 'four'; expected a whole number"),
    ("  count: 4", "  count: 2.5", "device.count: found 2.5; expected a whole number"),
    ("  count: 4", "  count: [4]", "device.count: found a list of 1 item; expected a whole number"),
    ("  count: 4", "  count: true", "device.count: found true"),
    ("  count: 4", "  cuont: 4", "device.cuont: unknown key; did you mean 'count'?"),
    ("  count: 4", "  count: 4\n  count: 5", "device.count: duplicate key, first given on line 4"),
    ("  count: 4", "  count: 4\n  hbm_bytes: 64XB", "device.hbm_bytes: '64XB' has unknown unit 'XB'"),
    ("  count: 4", "  count: 4\n  hbm_bytes: -1", "device.hbm_bytes: found -1; must be >= 0"),
    ("  count: 4", "  count: 4\n  hbm_bytes: 1e300", "device.hbm_bytes: found 1e+300; must be <= "),
    ("  count: 4", "  count: 4\n  hbm_bytes: 1e308GB", "device.hbm_bytes: '1e308GB' is too large"),
    ("  count: 4", "  count: 4\n  hbm_bytes: 1GiB", "is larger than hbm_bytes"),
    (
        "  count: 4",
        "  count: 4\n  hbm_bandwidth: {valu: 1TB/s}",
        "device.hbm_bandwidth.valu: unknown key; did you mean 'v",
    ),
    ("  count: 4", "  count: 4\n  hbm_bandwidth: {value: fast}", "'fast' is not a bandwidth"),
    ("  count: 4", "  count: 4\n  hbm_bandwidth: 1.6TB/h", "unknown unit"),
    ("  count: 4", "  count: 4\n  clock_hz: 0", "must be >= 1"),
    ("  count: 4", "  count: 4\n  kv_capacity_bytes: 1TiB", "device.kv_capacity_bytes: kv_capacity_bytes 1,099,511"),
    ("  count: 4", "  count: 4\n  replicas: 0", "device.replicas: found 0; must be >= 1"),
    (
        "model:",
        "router: {policy: least_loadd}\nmodel:",
        "router.policy: found 'least_loadd'; did you mean 'least_loaded'?",
    ),
    ("model:", "router: {policy: least_loaded, lod: kv}\nmodel:", "router.lod: unknown key; did you mean 'load'?"),
    (
        "model:",
        "router: {policy: least_loaded, load: pages}\nmodel:",
        "router.load: found 'pages'; allowed: requests, kv",
    ),
    ("model:", "router: {}\nmodel:", "router.policy: required key is missing; allowed: round_robin, least_loaded"),
    ("model:", "router: least_loaded\nmodel:", "router: found 'least_loaded'; expected a mapping"),
    (
        "model:",
        "router: {policy: prefix_affinity, cache_threshold: 2}\nmodel:",
        "router.cache_threshold: found 2; must be <= 1",
    ),
    # model
    ("  preset: llama-3.1-8b\n", "  preset: lama-3.1-8b\n", "did you mean 'llama-3.1-8b'?"),
    ("  preset: llama-3.1-8b\n", "  preset: ../../etc\n", "model.preset: unknown model preset"),
    ("  preset: llama-3.1-8b\n", "  config: nowhere.json\n", "model.config: "),
    ("  preset: llama-3.1-8b\n", "  preset: llama-3.1-8b\n  config: x.json\n", "model: give either preset"),
    ("  preset: llama-3.1-8b\n", "  {}\n", "model: give either preset"),
    ("  preset: llama-3.1-8b\n", "  preset: llama-3.1-8b\n  weight_dtype: int3\n", "model.weight_dtype: found 'int3'"),
    ("model:\n  preset: llama-3.1-8b\n", "model: llama-3.1-8b\n", "model: found 'llama-3.1-8b'; expected a mapping"),
    ("model:\n  preset: llama-3.1-8b\n", "", "model: required key is missing"),
    # arrivals
    ("process: poisson", "process: poison", "found 'poison'; did you mean 'poisson'? allowed: poisson, fixed"),
    ("    process: poisson\n", "", "workload.arrivals.process: required key is missing; allowed: poisson"),
    ("process: poisson", "process: [poisson]", "workload.arrivals.process: found"),
    ("process: poisson", "process: fixed\n    interval: 1s", "workload.arrivals: give either rate or interval"),
    ("process: poisson", "process: gamma", "workload.arrivals: give either cv or burstiness"),
    ("process: poisson", "process: gamma\n    cv: 0", "workload.arrivals.cv: found 0; must be >= 0.01"),
    ("    rate: 2/s\n", "", "workload.arrivals.rate: required key is missing"),
    ("rate: 2/s", "rate: 0", "workload.arrivals.rate: found 0; must be > 0"),
    ("rate: 2/s", "rate: -2/s", "workload.arrivals.rate: found '-2/s'; must be > 0"),
    ("rate: 2/s", "rate: .nan", "workload.arrivals.rate: nan is not finite"),
    ("rate: 2/s", "rate: .inf", "workload.arrivals.rate: inf is not finite"),
    ("rate: 2/s", "rate: 2/fortnight", "workload.arrivals.rate: '2/fortnight' has unknown unit"),
    ("rate: 2/s", "rate: true", "workload.arrivals.rate: found true"),
    ("rate: 2/s", "rate: 1e300", "workload.arrivals.rate: found 1e+300; must be <= "),
    ("rate: 2/s", "rate: 1e-300", "workload.arrivals.rate: found 1e-300; must be >= "),
    ("rate: 2/s", "rate: {value: 2}", "is not a rate such as 8/s"),
    ("rate: 2/s", "rat: 2/s", "workload.arrivals.rat: unknown key; did you mean 'rate'? allowed: process, rate"),
    ("rate: 2/s", "rate: 2/s\n    request_rate: 3", "means the same as 'rate', which is given, too"),
    ("  arrivals:\n" + ARRIVALS, "  arrivals: often\n", "workload.arrivals: found 'often'; expected a mapping"),
    ("  arrivals:\n" + ARRIVALS, "", "workload.arrivals: required key is missing"),
    (ARRIVALS, "    process: closed\n", "workload.arrivals.users: required key is missing"),
    (ARRIVALS, "    process: closed\n    users: 0\n", "workload.arrivals.users: found 0; must be >= 1"),
    (ARRIVALS, "    process: trace\n    path: x.csv\n", "a trace brings its own lengths"),
    (ARRIVALS, "    process: trace\n    times_only: true\n    path: nowhere.csv\n", "path: no such file"),
    (ARRIVALS, "    process: trace\n    times_only: true\n    path: azure_cod\n", "did you mean 'azure_code'?"),
    (
        ARRIVALS,
        "    process: trace\n    times_only: true\n    path: azure_code\n    scale: 0\n",
        "scale: found 0; must be",
    ),
    # lengths and the rest of the workload
    (PROMPTS, "", "prompt_tokens is missing"),
    (PROMPTS, "  prompt_tokens: many\n", "workload.prompt_tokens: found 'many'; expected"),
    (PROMPTS, "  prompt_tokens: {dist: normal, mean: 3}\n", "workload.prompt_tokens.dist: found 'normal'"),
    (PROMPTS, "  prompt_tokens: {dist: lognormal}\n", "workload.prompt_tokens.mean: required key is missing"),
    (PROMPTS, "  prompt_tokens: {dist: lognormal, mean: 9, p95: 2}\n", "p95 2 must be above the mean"),
    (PROMPTS, "  prompt_tokens: {dist: lognormal, mean: 9, p95: 20, cv: 1}\n", "give one of p95, cv, sigma"),
    (PROMPTS, "  prompt_tokens: {dist: empirical}\n", "workload.prompt_tokens: give either values or file"),
    (
        PROMPTS,
        "  prompt_tokens: {dist: empirical, values: []}\n",
        "values: found an empty list; must have at least 1 i",
    ),
    (PROMPTS, "  prompt_tokens: {dist: empirical, values: [1, 0]}\n", "workload.prompt_tokens.values.1: found 0"),
    (PROMPTS, "  prompt_tokens: {dist: empirical, file: nowhere.csv}\n", "workload.prompt_tokens.file: no such file"),
    ("    min: 10\n", "    min: 300\n", "workload.prompt_tokens: "),
    ("    min: 10\n", "    min: 0\n", "workload.prompt_tokens.min: found 0; must be >= 1"),
    ("    max: 200\n", "    max: 1e18\n", "workload.prompt_tokens.max: found 1e+18; must be <= "),
    ("    max: 200\n", "    max: 200.5\n", "workload.prompt_tokens.max: found 200.5; expected a whole number"),
    ("    value: 20\n", "    value: 0\n", "workload.output_tokens.value: found 0; must be >= 1"),
    ("    value: 20\n", "    value: -5\n", "workload.output_tokens.value: found -5; must be >= 1"),
    ("    value: 20\n", "    value: twenty\n", "workload.output_tokens.value: found 'twenty'"),
    ("  requests: 30\n", "", "requests or horizon is missing"),
    ("  requests: 30\n", "  requests: 0\n", "workload.requests: found 0; must be >= 1"),
    ("  requests: 30\n", "  requests: 1e18\n", "workload.requests: found 1e+18; must be <= "),
    ("  requests: 30\n", "  horizon: 0\n", "workload.horizon: found 0; must be > 0"),
    ("  requests: 30\n", "  horizon: 10 parsecs\n", "workload.horizon: '10 parsecs' has unknown unit 'parsecs'"),
    ("  requests: 30\n", "  horizon: 1e9\n", "workload"),
    ("  requests: 30\n", "  requests: 30\n  warmup: soon\n", "workload.warmup: "),
    ("  requests: 30\n", "  requests: 30\n  samples: 0\n", "workload.samples: found 0; must be >= 1"),
    ("  requests: 30\n", "  requests: 30\n  samples: 4\n  beam_width: 4\n", "samples and beam_width cannot both"),
    ("  requests: 30\n", "  requests: 30\n  shared_prefix: {groups: 0, tokens: 9}\n", "groups: found 0; must be >= 1"),
    (
        "  requests: 30\n",
        "  requests: 30\n  shared_prefix: {groups: 3}\n",
        "shared_prefix.tokens: required key is missing",
    ),
    (
        "  requests: 30\n",
        "  requests: 30\n  classes: [{weight: 1}]\n",
        "workload.classes.0.name: required key is missing",
    ),
    (
        "  requests: 30\n",
        "  requests: 30\n  classes: {a: 1}\n",
        "workload.classes: found a mapping of 1 key; expected a l",
    ),
    ("  requests: 30\n", "  requests: 30\n  classes: [{name: a}, {name: a}]\n", "two classes are called 'a'"),
    # engine
    ("max_num_seqs: 16", "max_num_sequences: 16", "engine.max_num_sequences: unknown key; did you mean 'max_num_seqs'"),
    ("max_num_seqs: 16", "max_num_seqs: 0", "engine.max_num_seqs: found 0; must be >= 1"),
    ("max_num_seqs: 16", "max_num_seqs: 16\n  max-num-seqs: 8", "duplicate key, first given on line"),
    ("max_num_seqs: 16", "max_num_seqs: sixteen", "engine.max_num_seqs: found 'sixteen'; expected a whole number"),
    ("max_num_seqs: 16", "max_num_seqs: 16\n  gpu_memory_utilization: 1.9", "found 1.9; must be <= 1"),
    ("max_num_seqs: 16", "max_num_seqs: 16\n  gpu_memory_utilization: 90%", "found '90%'; expected a number"),
    ("max_num_seqs: 16", "max_num_seqs: 16\n  kv_cache_dtype: fp9", "did you mean 'fp8'? allowed: auto, fp32"),
    ("max_num_seqs: 16", "max_num_seqs: 16\n  scheduler: fcfs", "engine.scheduler: found 'fcfs'; allowed: continuous"),
    ("max_num_seqs: 16", "max_num_seqs: 16\n  profile: vllm-0.12", "engine.profile: found 'vllm-0.12'; did you mean"),
    ("max_num_seqs: 16", "max_num_seqs: 16\n  enable_chunked_prefill: perhaps", "expected true or false"),
    ("max_num_seqs: 16", "max_num_seqs: 16\n  step_time: -1ms", "engine.step_time: found '-1ms'; must be >"),
    (
        "max_num_seqs: 16",
        "max_num_seqs: 16\n  step_time: 10 minutes",
        "engine.step_time: '10 minutes' has unknown unit",
    ),
    ("max_num_seqs: 16", "max_num_seqs: 16\n  swap_bytes: lots", "engine.swap_bytes: 'lots' is not a size"),
    ("max_num_seqs: 16", "max_num_seqs: 16\n  swap_space: 4XB", "engine.swap_space: '4XB' has unknown unit"),
    ("max_num_seqs: 16", "max_num_seqs: 16\n  watermark: 2", "engine.watermark: found 2; must be <= 1"),
    ("max_num_seqs: 16", "max_num_seqs: 16\n  max_num_batched_tokens: 8", "must be >= max_num_seqs (16)"),
    ("tensor_parallel_size: 2", "tensor_parallel_size: 3", "engine.tensor_parallel_size: found 3; must divide the 32"),
    ("tensor_parallel_size: 2", "tensor_parallel_size: 0", "engine.tensor_parallel_size: found 0; must be >= 1"),
    ("max_model_len: 4096", "max_model_len: 0", "engine.max_model_len: found 0; must be >= 1"),
    (
        "max_model_len: 4096",
        "max_model_len: 1000000",
        "engine.max_model_len: found 1000000; llama-3.1-8b has positions",
    ),
    ("on_oom: fail", "on_oom: retry", "engine.on_oom: found 'retry'; allowed: fail, wait"),
    ("on_oom: fail", "on_oom: null", "engine.on_oom: found nothing; allowed: fail"),
    # allocators
    (
        "kind: contiguous",
        "kind: continuous",
        "found 'continuous'; did you mean 'contiguous'? allowed: contiguous, paged",
    ),
    ("kind: contiguous", "kid: contiguous", "allocators.0.kind: required key is missing; allowed: contiguous, paged"),
    ("fit: first", "fit: frist", "allocators.0.fit: found 'frist'; did you mean 'first'?"),
    ("fit: first", "reserve: 4096", "allocators.0.reserve: found 4096; allowed: max_model_len, pow2"),
    ("fit: first", "page_sise: 3", "allocators.0.page_sise: unknown key; did you mean 'page_size'?"),
    ("page_size: 128", "page_size: 0", "allocators.1.page_size: page_size must be at least one token"),
    ("page_size: 128", "page_size: -128", "allocators.1.page_size: page_size must be at least one token"),
    ("page_size: 128", "page_size: 12XiB", "allocators.1.page_size: '12XiB' has unknown unit"),
    ("page_size: 128", "page_size: 1.5", "allocators.1.page_size: "),
    ("page_size: 128", "page_size: 128\n    block_size: 64", "means the same as 'page_size', which is given, too"),
    (
        "page_size: 128",
        "max_pages: many",
        "allocators.1.max_pages: found 'many'; expected a whole number or 'unlimited'",
    ),
    ("page_size: 128", "max_pages: unlimited", "allowed only with engine.scheduler: replay"),
    ("page_size: 128", "max_pages: 0", "allocators.1.max_pages: "),
    ("page_size: 128", "max_pages: 100000000", "allocators.1.max_pages: asks for"),
    ("page_size: 128", "safety_factor: 1e6", "allocators.1.safety_factor: asks for"),
    ("page_size: 128", "kv_capacity_bytes: 1TiB", "allocators.1.kv_capacity_bytes: asks for"),
    ("page_size: 128", "page_size: 100B", "allocators.1.page_size: a page of 100 bytes cannot hold one token"),
    ("page_size: 128", "safety_factor: 0", "allocators.1.safety_factor: found 0; must be > 0"),
    ("page_size: 128", "label: a\n  - {kind: paged, label: a}", "'a' is the label of allocators.1, too"),
    ("page_size: 128", "label: <script>", "allocators.1.label: found '<script>'; must be"),
    ("page_size: 128", "enable_prefix_caching: true", "allocators.1.enable_prefix_caching: unknown key"),
    (
        "  - kind: contiguous\n    fit: first\n",
        "  - paged\n",
        "allocators.0: found 'paged'; expected a mapping of keys",
    ),
]

# (the whole file, what the message must contain)
FILES: list[tuple[str, bytes, str]] = [
    ("empty", b"", ":1: is empty"),
    ("only_a_comment", b"# nothing\n", ":1: is empty"),
    ("a_list", b"- a\n", ":1: holds a list"),
    ("a_word", b"hello\n", ":1: holds a single value"),
    ("utf16", VALID.encode("utf-16"), ":1: is UTF-16 text"),
    ("latin1", VALID.replace("small", "caf\xe9").encode("latin-1"), ":1: is not UTF-8 text (byte 0xe9)"),
    ("binary", bytes(range(256)), "is not UTF-8 text"),
    ("nul", VALID.replace("small", "a\0b").encode(), ":1: is not valid YAML"),
    ("tab", VALID.replace("  count", "\tcount").encode(), "indent with spaces, not tabs"),
    ("two_documents", f"{VALID}---\n{VALID}".encode(), "more than one YAML document"),
    ("unclosed", f"{VALID}extra: [1, 2\n".encode(), "is not valid YAML"),
    ("unclosed_quote", b"name: 'x\n", "is not valid YAML"),
    ("colon_in_value", b"name: a: b\n", ":1: is not valid YAML"),
    ("duplicate", b"name: a\nseed: 1\nname: b\n", ":3: name: duplicate key, first given on line 1"),
    ("anchor", b"name: &a x\n", ":1: anchor '&a' is refused"),
    ("alias", b"name: a\nseed: *a\n", ":2: "),
    (
        "bomb",
        b"a: &a [x, x]\n" + b"".join(b"%c: &%c [*%c, *%c]\n" % (c + 1, c + 1, c, c) for c in range(97, 121)),
        "&a",
    ),
    ("tag", b"name: !!python/object/apply:os.system ['true']\n", ":1: tag "),
    ("local_tag", b"name: !x a\n", ":1: tag '!x' is refused"),
    ("null_key", b"null: 1\n", ":1: a key must be a name"),
    ("list_key", b"? [a, b]\n: 1\n", ":1: a key must be a name"),
    ("bool_key", b"true: 1\n", ":1: a key must be a name"),
    ("deep_lists", b"name: " + b"[" * 100_000, "is n"),
    ("deep_mappings", b"{a: " * 60 + b"1" + b"}" * 60, "is nested deeper"),
    ("too_many_values", b"a: [" + b"1," * MAX_NODES + b"]", "holds more than 100000 values"),
    ("too_large", b"# " + b"x" * MAX_BYTES, "is larger than 4 MiB"),
    ("json_with_a_trailing_part", b'{"name": "a"} x', "is not valid YAML"),
    ("escape_codes", b'"\\e[31mred": 1\nname: 1\n', "\\x1b[31mred: unknown key"),
    ("long_key", b"? " + b"k" * 5000 + b"\n: 1\n", "kkk...: unknown key"),
    ("everything_missing", b"name: a\n", "device: required key is missing"),
]


def refusal(path: Path | str, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the command line says about a bad file; checks the exit code and that stdout stays empty."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(path), *words])
    captured = capsys.readouterr()
    assert ended.value.code == 2, captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert "internal error" not in captured.err
    assert all(line.isprintable() for line in captured.err.splitlines())
    return captured.err


@pytest.mark.parametrize(("old", "new", "says"), CHANGES)
def test_one_wrong_thing_gives_one_message_at_its_line(
    old: str, new: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = changed(old, new)
    path = tmp_path / "s.yaml"
    path.write_text(text)
    message = refusal(path, capsys)
    assert says in message
    assert message.count("\n") == 1
    place = message[len(str(path)) :].split(":", 2)
    assert message.startswith(f"{path}:")
    assert 1 <= int(place[1]) <= len(text.splitlines())


def test_the_line_is_that_of_the_key_and_not_of_its_parent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for old, new in (("rate: 2/s", "rate: -1"), ("fit: first", "fit: no"), ("seed: 7", "seed: x")):
        path = tmp_path / "s.yaml"
        path.write_text(changed(old, new))
        assert refusal(path, capsys).startswith(f"{path}:{line_of(old)}: ")


@pytest.mark.parametrize(("content", "says"), [pytest.param(*rest, id=name) for name, *rest in FILES])
def test_files_that_are_no_scenario(
    content: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(content)
    started = time.perf_counter()
    message = refusal(path, capsys)
    assert says in message
    assert message.startswith(f"{path}")
    assert len(message) < 2000
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere.yaml", "no such file, and no shipped scenario"),
        ("folder/nowhere.yaml", "no such file"),
        (".", "is a directory"),
        ("/dev/zero", "is not a regular file"),
        ("x\x00.yaml", "no such file"),
        ("y" * 5000 + ".yaml", "no such file"),
        ("", "no such file"),
    ],
)
def test_names_that_are_no_file(name: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refusal(name, capsys)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_read_permission(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(VALID)
    path.chmod(0)
    assert "cannot be read: Permission denied" in refusal(path, capsys)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("engine.max_num_seq=3", "engine.max_num_seq: unknown key; did you mean 'max_num_seqs'?"),
        ("engine", "expected dotted.key=value"),
        ("engine=", "expected dotted.key=value"),
        ("=3", "expected dotted.key=value"),
        ("engine..x=3", "a part of the dotted key is empty"),
        (".=3", "a part of the dotted key is empty"),
        ("allocators.2.page_size=3", "'2' is not an index of it (allowed: 0 to 1)"),
        ("allocators.-1.page_size=3", "'-1' is not an index"),
        ("allocators.x=3", "'x' is not an index"),
        ("allocators.\u0662=3", "is not an index"),
        ("allocators." + "9" * 5000 + "=3", "is not an index"),
        ("allocators=[]", "allocators: found an empty list; must have at least 1 item"),
        ("name.x=3", "name is 'small', which has no keys below it"),
        ("seed=[1", "is not valid YAML"),
        ("seed=*a", "is refused"),
        ("seed=&a 1", "anchor '&a' is refused"),
        ("seed=!!int 3", "is refused"),
        ("seed={a: 1, a: 2}", "duplicate key"),
        ("seed=" + "[" * 5000, "is n"),
        ("device=null", "device: required key is missing"),
        ("workload.arrivals={process: fixed, rate: x}", "workload.arrivals.rate: 'x' is not a rate"),
        ("workload.arrivals.process=closed", "workload.arrivals"),
    ],
)
def test_settings_that_cannot_be(setting: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(VALID)
    message = refusal(path, capsys, "--set", setting)
    assert says in message
    assert message.startswith(("--set", str(path)))


@pytest.mark.parametrize(
    "words",
    [
        ["--seed", "-1"],
        ["--seed", "x"],
        ["--replications", "0"],
        ["--format", "xml"],
        ["--allocator", "slab"],
        ["--no-such-option"],
        ["too", "many"],
    ],
)
def test_options_that_cannot_be(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(VALID)
    refusal(path, capsys, *words)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("name: x\n", "lacks"),
        ("name: x\nhbm_byte: 3\n", "did you mean 'hbm_bytes'?"),
        ("name: x\nhbm_bytes: 3 apples\n", ":2: hbm_bytes"),
        ("- 1\n", "holds a list"),
        ("name: &x a\n", "anchor"),
    ],
)
def test_device_files_are_held_to_the_same_rules(
    content: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "npu.yaml").write_text(content)
    path = tmp_path / "s.yaml"
    path.write_text(changed("  preset: 910B3\n", "  file: npu.yaml\n"))
    message = refusal(path, capsys)
    assert says in message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b"[]", "mapping"),
        (b"{}", ""),
        (b'{"model_type": "llama"', "not JSON"),
        (b"[" * 200_000, "JSON"),
        (b'{"a": ' * 50_000, "JSON"),
        (b"\xff\xfe{\x00}\x00", ""),
        (b"\xe9", ""),
        (json.dumps({"model_type": "martian"}).encode(), "martian"),
        (json.dumps({"model_type": "llama", "hidden_size": -1}).encode(), ""),
        (json.dumps({"model_type": "llama", "hidden_size": "wide"}).encode(), ""),
        (b'{"model_type": "llama", "hidden_size": 1e400}', ""),
        (b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}", ""),
    ],
)
def test_model_configs_that_cannot_be_read(
    content: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    path = tmp_path / "s.yaml"
    path.write_text(changed("  preset: llama-3.1-8b\n", "  config: config.json\n"))
    message = refusal(path, capsys)
    assert says in message
    assert "config" in message
    assert len(message) < 2000


def test_an_endless_model_config_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(changed("  preset: llama-3.1-8b\n", "  config: /dev/zero\n"))
    assert "not a regular file" in refusal(path, capsys)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["1e400", "16KiB", "-3s", "unlimited", "auto", "910B3", "paged", "trace", "..", "/", "0x", "\x1b[0m"]
    ),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def _paths(node: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(found for key, value in inner for found in _paths(value, (*path, key)))]


PATHS = [path for path in _paths(yaml.safe_load(VALID)) if path]


@settings(max_examples=150, deadline=None)
@given(path=st.sampled_from(PATHS), value=VALUES, key=st.none() | st.text(max_size=8))
def test_mutations_end_in_a_scenario_or_in_a_message(
    path: tuple[str | int, ...], value: object, key: str | None
) -> None:
    document = yaml.safe_load(VALID)
    node = document
    for part in path[:-1]:
        node = node[part]
    if key is not None and isinstance(node, dict):
        node[key] = node.pop(path[-1])
    else:
        node[path[-1]] = value
    try:
        scenario: Scenario | None = parse_scenario(yaml.safe_dump(document), Path(__file__).parent)
        problems: tuple[object, ...] = ()
    except InputError as refused:
        scenario, problems = None, refused.problems
    assert scenario is not None or problems
    assert all(str(problem).isprintable() for problem in problems)


@settings(max_examples=150, deadline=None)
@given(
    st.text(alphabet=st.sampled_from("ab:-[]{}&*!|>'\"#%@`,?~ \n\t\x00\x85\u2028\ufeff1.e"), max_size=60)
    | st.binary(max_size=40)
)
def test_any_text_is_read_or_refused(text: str | bytes) -> None:
    try:
        data = parse_yaml(text, "f").data
    except InputError:
        return
    assert isinstance(data, dict)
