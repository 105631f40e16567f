"""Exports: each engine's names, units and refusals."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import cli
from simulator.errors import InputError
from simulator.export import export
from simulator.scenario import Scenario, parse_scenario
from simulator.showing.export_base import Export
from simulator.simulation import simulate

BASE = """
name: serve
device: {preset: 910B3, count: 2}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: poisson, rate: 4/s}
  prompt_tokens: {dist: uniform, min: 10, max: 3000}
  output_tokens: {dist: uniform, min: 1, max: 500}
  requests: 200
engine: {tensor_parallel_size: 2, max_num_seqs: 64, max_num_batched_tokens: 8192, max_model_len: 8192, on_oom: fail}
allocators:
  - {kind: contiguous}
  - {kind: paged, page_size: 128}
  - {kind: paged_cow, page_size: 128}
"""


def scenario(*changes: str) -> Scenario:
    return parse_scenario(BASE, Path(), changes)


def made(engine: str, *changes: str, index: int = 1, max_pages: int | None = 1000) -> Export:
    return export(scenario(*changes), index, engine, max_pages=max_pages)


def refused(engine: str, *changes: str, index: int = 1) -> str:
    with pytest.raises(InputError) as found:
        made(engine, *changes, index=index)
    return str(found.value)


def options(found: Export) -> dict[str, str]:
    lines = [line for line in found.text.splitlines() if not line.startswith("#")]
    words = shlex.split(" ".join(line.removesuffix("\\") for line in lines))
    assert words[:2] == ["vllm", "serve"]
    pairs: dict[str, str] = {}
    for word in words[3:]:
        if word.startswith("--"):
            pairs[word] = ""
            last = word
        else:
            pairs[last] = word
    return pairs


@pytest.mark.parametrize("engine", ["vllm", "vllm-ascend"])
def test_vllm_gets_a_command_in_its_own_options(engine: str) -> None:
    found = options(made(engine))
    assert found == {
        "--tensor-parallel-size": "2",
        "--max-model-len": "8192",
        "--max-num-seqs": "64",
        "--max-num-batched-tokens": "8192",
        "--block-size": "128",
        "--gpu-memory-utilization": "0.9",
        "--num-gpu-blocks-override": "1000",
        "--no-enable-prefix-caching": "",
        "--enable-chunked-prefill": "",
    }


def test_vllm_shares_prefixes_when_the_allocator_does() -> None:
    assert "--enable-prefix-caching" in options(made("vllm", index=2))


def test_the_ascend_plugin_has_blocks_of_128_only() -> None:
    assert "allowed: 128" in refused("vllm-ascend", "allocators.1.page_size=64")
    assert options(made("vllm", "allocators.1.page_size=64"))["--block-size"] == "64"
    assert "has no blocks of 48 tokens" in refused("vllm", "allocators.1.page_size=48")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("engine.on_oom=preempt_swap", "swaps nothing out"),
        ("engine.kv_cache_dtype=int4", "no KV cache of type int4"),
        ("engine.scheduler=static", "does not schedule static"),
        ("engine.fraction_of=free_at_start", "share of the total"),
    ],
)
def test_what_vllm_does_not_accept_is_refused(change: str, complaint: str) -> None:
    assert complaint in refused("vllm", change)


def test_whole_prompts_need_room_in_a_step() -> None:
    changes = ("engine.enable_chunked_prefill=false", "engine.max_num_batched_tokens=4096")
    assert "max_model_len (8192)" in refused("vllm", *changes)


def test_everything_refused_is_said_at_once() -> None:
    text = refused("vllm", "engine.on_oom=preempt_swap", "allocators.1.page_size=48")
    assert "page_size" in text and "on_oom" in text


def mindie(*changes: str, index: int = 1) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(made("mindie", *changes, index=index).text)["BackendConfig"]
    return document


def test_mindie_gets_its_config_json() -> None:
    backend = mindie()
    deploy, schedule = backend["ModelDeployConfig"], backend["ScheduleConfig"]
    assert backend["npuDeviceIds"] == [[0, 1]]
    assert deploy["maxSeqLen"] == 8192
    assert 2900 < deploy["maxInputTokenLen"] <= 3000
    # 1000 pages * 128 tokens * 65,536 bytes (131,072 over two devices) = 7.8125 GiB: the next whole number is 8.
    assert deploy["ModelConfig"][0]["npuMemSize"] == 8
    assert deploy["ModelConfig"][0]["worldSize"] == 2
    assert schedule["cacheBlockSize"] == 128
    assert schedule["maxBatchSize"] == 64
    assert schedule["maxPrefillTokens"] == 8192
    assert schedule["maxPreemptCount"] == 0
    assert deploy["ModelConfig"][0]["cpuMemSize"] == 0
    assert schedule["templateType"] == "Mix"


def test_mindie_preempts_only_with_host_memory() -> None:
    backend = mindie("engine.on_oom=preempt_swap", "engine.swap_bytes=5GiB")
    assert backend["ScheduleConfig"]["maxPreemptCount"] == 64
    assert backend["ModelDeployConfig"]["ModelConfig"][0]["cpuMemSize"] == 5


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (("allocators.1.page_size=24",), "has no blocks of 24 tokens"),
        (("allocators.1.page_size=256",), "has no blocks of 256 tokens"),
        (("engine.max_num_seqs=6000",), "at most 5000"),
        (("engine.max_num_batched_tokens=1000",), "must hold the longest prompt"),
        (("engine.kv_cache_dtype=fp8",), "takes it from the weights"),
        (("model.preset=deepseek-v3", "model.weight_dtype=int4", "engine.tensor_parallel_size=16", "device.count=16"),
         "head_dim 576 * 128 tokens exceed the operator's 16384"),
    ],
)  # fmt: skip
def test_what_mindie_does_not_accept_is_refused(changes: tuple[str, ...], complaint: str) -> None:
    assert complaint in refused("mindie", *changes)


def test_cann_recipes_gets_its_yaml() -> None:
    document = yaml.safe_load(made("cann-recipes").text)
    assert document["parallel_config"] == {"world_size": 2, "attn_tp_size": 2}
    schedule = document["scheduler_config"]
    assert schedule["batch_size"] == 64
    assert schedule["block_size"] == 128
    assert schedule["max_prefill_tokens"] == 8192
    assert schedule["num_reserved_decode_tokens"] == 64


def test_the_memory_share_of_cann_recipes_leaves_the_pages() -> None:
    """total * fraction - everything else, in whole pages, is at least the size asked for and not much more."""
    loaded = scenario()
    budget = loaded.budget
    share = yaml.safe_load(made("cann-recipes").text)["scheduler_config"]["mem_fraction_static"]
    others = budget.weights_bytes_per_device + budget.activation_bytes + budget.runtime_bytes + budget.graph_bytes
    pages = (share * budget.usable_bytes - others) // (128 * 65_536)
    assert 1000 <= pages <= 1002


@pytest.mark.parametrize(
    ("changes", "index", "complaint"),
    [
        (("allocators.1.page_size=64",), 1, "has no blocks of 64 tokens"),
        ((), 2, "shares no prefixes"),
        (("engine.on_oom=preempt_recompute",), 1, "preempts nobody"),
        (("engine.max_num_batched_tokens=2000",), 1, "refuses prompts above max_prefill_tokens"),
    ],
)
def test_what_cann_recipes_does_not_accept_is_refused(changes: tuple[str, ...], index: int, complaint: str) -> None:
    assert complaint in refused("cann-recipes", *changes, index=index)


def test_a_pool_too_small_for_a_prefill_batch_is_refused() -> None:
    with pytest.raises(InputError, match="blocks admit"):
        made("cann-recipes", max_pages=64)


def test_the_scenarios_own_pool_is_exported_unless_told_otherwise() -> None:
    loaded = scenario("workload.requests=5")
    pages = simulate(loaded, allocators=("paged",)).runs[0].summary["max_pages"]
    assert options(export(loaded, 1, "vllm"))["--num-gpu-blocks-override"] == str(pages)


def test_more_pages_than_the_budget_leaves_are_refused() -> None:
    with pytest.raises(InputError, match="memory budget leaves"):
        made("vllm", max_pages=10_000_000)


def test_contiguous_memory_is_refused() -> None:
    assert "no engine reserves contiguous memory" in refused("vllm", index=0)


# ---- the command


def run(tmp_path: Path, *words: str) -> int:
    path = tmp_path / "serve.yaml"
    path.write_text(BASE)
    with pytest.raises(SystemExit) as left:
        cli.main(["export", str(path), *words])
    return int(left.value.code or 0)


def test_the_command_prints_what_one_pastes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--for", "mindie", "--max-pages", "1000") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["BackendConfig"]
    assert "npuMemSize: GB of KV on each NPU" in printed.err


def test_the_command_prints_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--for", "vllm-ascend", "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"]["--block-size"] == 128


def test_an_unknown_engine_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--for", "vlm") == 2
    assert "did you mean 'vllm'" in capsys.readouterr().err


def test_a_refusal_names_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--for", "cann-recipes", "--allocator", "paged_cow") == 2
    assert "serve.yaml:" in capsys.readouterr().err


def test_a_model_is_loaded_by_the_name_that_was_given_for_it() -> None:
    assert shlex.split(made("vllm").text, comments=True)[2] == "meta-llama/Llama-3.1-8B"
    for change, served in (
        ("model={preset: meta-llama/Llama-3.1-8B-Instruct}", "meta-llama/Llama-3.1-8B-Instruct"),
        ("model={preset: llama-3.1-8b, name: our own}", "our own"),
    ):
        assert shlex.split(made("vllm", change).text, comments=True)[2] == served
