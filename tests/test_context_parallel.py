"""Decode context parallelism: devices with the same KV heads deal the tokens of a context among them.

Right values by hand, after vLLM's ``docs/serving/context_parallel_deployment.md`` and ``v1/kv_cache_interface.py``.
"""

from pathlib import Path

import numpy as np
import pytest

from simulator.allocators.paged import PagedAllocator
from simulator.config import EngineConfig, PagedConfig
from simulator.cost import StepCost, launches
from simulator.device import DeviceConfig, load_device
from simulator.errors import InputError
from simulator.kernels.roofline import ContextShares, Transfer
from simulator.memory import memory_budget
from simulator.model import Model, ModelConfig, load_model
from simulator.planning.kernel_answer import kernel_answer
from simulator.scenario import load_scenario
from simulator.serving.pool import build_allocator
from simulator.serving.pool_parts import PoolParts
from simulator.simulation import simulate

SCENARIO = """
device: {preset: 910B3, count: 8}
model: {preset: qwen3-235b-a22b, weight_dtype: int8}
workload:
  arrivals: {process: poisson, rate: 4}
  prompt_tokens: {dist: lognormal, mean: 4000, p95: 12000, max: 16000}
  output_tokens: {dist: lognormal, mean: 200, max: 1000}
  requests: 60
engine: {tensor_parallel_size: 8, max_num_seqs: 32, max_model_len: 20000, decode_context_parallel_size: 2}
allocators:
  - {kind: paged, page_size: 64, max_pages: 900}
  - {kind: paged_cow, page_size: 64, max_pages: 900}
  - {kind: paged_defrag, page_size: 64, max_pages: 900}
  - {kind: contiguous, reserve: exact}
"""


def engine(**keys: object) -> EngineConfig:
    return EngineConfig.model_validate(keys)


def model(name: str) -> Model:
    return load_model(ModelConfig(preset=name))


@pytest.mark.parametrize(
    ("name", "tp", "limit"),
    # copies of a KV head: 8 of the one latent, 8 // 4, none of 8 heads, 16 // 8
    [("deepseek-v3", 8, 8), ("qwen3-235b-a22b", 8, 2), ("llama-3.1-8b", 8, 1), ("llama-3.1-70b", 16, 2)],
)
def test_as_many_devices_share_a_context_as_hold_copies_of_a_head(name: str, tp: int, limit: int) -> None:
    found = model(name)
    assert found.context_limit(tp) == limit
    found.check_context_parallelism(tp, limit)
    with pytest.raises(ValueError, match=f"decode_context_parallel_size {2 * limit}.* at most {limit}"):
        found.check_context_parallelism(tp, 2 * limit)


def test_models_with_windows_are_not_divided() -> None:
    with pytest.raises(ValueError, match="at most 1"):
        model("gpt-oss-120b").check_context_parallelism(64, 2)


@pytest.mark.parametrize(("dcp", "token_bytes"), [(1, 70_272), (2, 35_136), (4, 17_568), (8, 8_784)])
def test_each_device_has_its_share_of_the_latents(dcp: int, token_bytes: int) -> None:
    # 61 layers x (512 + 64) x 2 bytes = 70,272 on every device of a tensor-parallel group
    assert model("deepseek-v3").kv_bytes_per_token(8, dcp=dcp) == token_bytes


def test_a_page_covers_as_many_tokens_on_each_device() -> None:
    device = load_device(DeviceConfig.model_validate({"preset": "910B3"}))
    llama = model("llama-3.1-70b")
    one, two = (
        memory_budget(
            device, llama, engine(tensor_parallel_size=16, decode_context_parallel_size=dcp, max_model_len=1000),
            page_size=16,
        )
        for dcp in (1, 2)
    )  # fmt: skip
    assert (one.page_bytes, one.max_pages) == (two.page_bytes, two.max_pages)
    assert two.kv_tokens == 2 * one.kv_tokens
    # ceil(1000 / 16) = 63 pages, ceil(500 / 16) = 32
    assert one.max_concurrency == one.max_pages / 63
    assert two.max_concurrency == two.max_pages / 32


def test_the_allocator_gives_whole_pages_on_every_device() -> None:
    parts = PoolParts(model("llama-3.1-70b"), engine(tensor_parallel_size=16, decode_context_parallel_size=2), 2**33, 1)
    pool = build_allocator(PagedConfig(kind="paged", page_size=16, max_pages=10), parts, key="")
    assert isinstance(pool, PagedAllocator)
    assert pool.layout.page_tokens == 32
    # 80 layers, one head of 128 for K and V, 2 bytes, 16 tokens on this device
    assert pool.capacity_bytes == 10 * 80 * 2 * 128 * 2 * 16


def dealt(tokens: int, *, devices: int, run: int) -> int:
    """Tokens on the device with the most, dealt one by one."""
    counts = [0] * devices
    for token in range(tokens):
        counts[token // run % devices] += 1
    return max(counts)


@pytest.mark.parametrize(("devices", "run"), [(2, 1), (8, 1), (4, 16), (3, 5)])
def test_the_longest_share_is_that_of_dealing_tokens_one_by_one(devices: int, run: int) -> None:
    nothing = Transfer(token_bytes=0, factor=0, bandwidth=1, latency_s=0, bound="link")
    shares = ContextShares(devices=devices, run=run, exchange=nothing)
    lengths = np.arange(1, 6 * devices * run + 1)
    known = shares.longest_of(lambda: lengths)
    assert known is not None
    expected = [dealt(int(tokens), devices=devices, run=run) for tokens in lengths]
    assert known().tolist() == expected
    # By sums alone the mean is right to half a token.
    mean = shares.longest_share(len(lengths), float(lengths.sum())) / len(lengths)
    assert mean == pytest.approx(np.mean(expected), abs=0.5)
    assert shares.longest_shares(3, np.array([700, 1])).tolist() == [shares.longest_share(3, t) for t in (700.0, 1.0)]


def test_attention_reads_a_share_for_the_heads_of_all_and_merges() -> None:
    device, deepseek = load_device(DeviceConfig.model_validate({"preset": "910C"})), model("deepseek-v3")
    shared = StepCost(device, deepseek, engine(tensor_parallel_size=16, decode_context_parallel_size=4), page_tokens=64)
    quarter = StepCost(device, deepseek, engine(tensor_parallel_size=4), page_tokens=64)
    # 8 sequences of 4,096 tokens: 1,024 on each of 4 devices (and 1.5 / 4 more on the one that has the most)
    got = shared.groups[0].seconds(8, 8 * 4096, 8 * 16, 0, None) / deepseek.num_layers
    local = quarter.groups[0].seconds(8, 8 * 1024 + 3, 8 * 16, 0, None) / deepseek.num_layers
    # queries of 3 devices x 8 heads of 576 (K) and partial outputs of 512, 2 bytes, and a log-sum-exp
    received = 8 * 3 * 8 * ((576 + 512) * 2 + 4)
    exchange = received / device.link_bandwidth + 3 * device.link_latency_s
    assert got == pytest.approx(local + exchange, rel=1e-9)
    many = np.array([8 * 4096, 8 * 5000])
    pages = np.array([8 * 16, 8 * 20])
    each = [shared.groups[0].seconds(8, int(t), int(p), 0, None) for t, p in zip(many, pages, strict=True)]
    assert shared.groups[0].seconds_array(8, many, pages, many * 0, None).tolist() == each
    assert launches(deepseek, 16, 4) == launches(deepseek, 16) + 3 * deepseek.num_layers


def test_a_chunk_gathers_what_earlier_chunks_left_on_the_others() -> None:
    device, deepseek = load_device(DeviceConfig.model_validate({"preset": "910C"})), model("deepseek-v3")
    one, four = (
        StepCost(device, deepseek, engine(tensor_parallel_size=16, decode_context_parallel_size=dcp), page_tokens=64)
        for dcp in (1, 4)
    )
    more = four.prefill[0].seconds(100, 55_050, 1100, 1) - one.prefill[0].seconds(100, 55_050, 1100, 1)
    # 1,000 earlier tokens, three quarters of them elsewhere, 576 x 2 bytes in each of 61 layers
    assert more == pytest.approx(61 * 1000 * 0.75 * 576 * 2 / device.link_bandwidth, rel=1e-9)


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    path = tmp_path / "shared.yaml"
    path.write_text(SCENARIO)
    return path


def test_leaps_are_exact_and_the_pool_serves_twice_as_many(scenario_file: Path) -> None:
    scenario = load_scenario(str(scenario_file))
    leaping, stepping = simulate(scenario, verify=True), simulate(scenario, leap=False)
    for fast, slow in zip(leaping.runs, stepping.runs, strict=True):
        timeless = {"wall_s": 0, "verified": None}
        assert fast.summary | timeless == slow.summary | timeless
    whole = simulate(load_scenario(str(scenario_file), ["engine.decode_context_parallel_size=1"]))
    shared, copied = leaping.runs[0].summary, whole.runs[0].summary
    assert (shared["page_size"], copied["page_size"]) == (128, 64)
    assert shared["kv_capacity_bytes"] == copied["kv_capacity_bytes"]
    assert shared["batch"]["max"] > 1.5 * copied["batch"]["max"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("engine.decode_context_parallel_size=4", "at most 2"),
        ("engine.cp_kv_cache_interleave_size=48", "must be a multiple of cp_kv_cache_interleave_size"),
        ("allocators.0.page_size=1MiB", "give tokens where devices share contexts"),
        ("model.preset=gemma-3-27b", "layers with a window"),
    ],
)
def test_what_cannot_be_divided_is_refused(scenario_file: Path, setting: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_scenario(str(scenario_file), [setting])


def test_a_launch_is_looked_at_on_one_device(scenario_file: Path) -> None:
    with pytest.raises(InputError, match="on one device"):
        kernel_answer(load_scenario(str(scenario_file)), has_workload=True)
