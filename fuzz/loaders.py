"""What reads bytes from outside, one function a kind of input: each returns or raises ``InputError``, nothing else.

``TARGETS`` are called by ``fuzz_loaders.py`` with inputs made up by a coverage-guided fuzzer, and by
``tests/test_fuzz_inputs.py`` with those that it has found before.
"""

import gzip
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml

from simulator.device import DeviceConfig, load_device
from simulator.errors import InputError, Problem
from simulator.kernels.measured_rows import read_measured
from simulator.loading.overrides import Override
from simulator.loading.yaml_source import parse_value, parse_yaml
from simulator.model import ModelConfig, load_model
from simulator.planning.cache_curve import cache_curves
from simulator.planning.grid import parse_axis
from simulator.planning.pool_interval import parse_interval
from simulator.planning.target import parse_goal
from simulator.scenario import parse_scenario
from simulator.showing.cache_curve_table import parse_capacities, parse_policies
from simulator.showing.report_data import read_folder
from simulator.showing.rerun import recorded
from simulator.traffic.traces import read_trace
from simulator.traffic.value_files import read_lengths

SCENARIO = """\
name: a
device: {preset: 910B3}
model: {preset: llama-3.1-8b}
workload:
  arrivals: {process: poisson, rate: 2/s}
  prompt_tokens: {dist: lognormal, mean: 200, p95: 800, max: 3000}
  output_tokens: {dist: fixed, value: 20}
  requests: 30
engine: {max_num_seqs: 16, max_model_len: 4096, on_oom: fail}
allocators: [{kind: paged, page_size: 128}, {kind: contiguous, fit: first}]
"""


def _in_file(data: bytes, name: str, read: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        read(path)


def scenario(data: bytes) -> None:
    """A whole scenario file."""
    parse_yaml(data, "fuzzed.yaml")
    parse_scenario(data.decode("utf-8-sig"), Path("/nowhere"), file="fuzzed.yaml")


def change(data: bytes) -> None:
    """A change to a good scenario, ``key=value`` as after ``--set``."""
    parse_scenario(SCENARIO, Path("/nowhere"), [data.decode(errors="replace")])


def value(data: bytes) -> None:
    """A value of a deep key, any YAML: one of the workload's, the device's or an allocator's."""
    keys = ("workload.arrivals", "workload.prompt_tokens", "workload", "device", "model", "engine", "allocators.0")
    if data:
        found = parse_value(data[1:].decode(errors="replace"), "--set")
        parse_scenario(SCENARIO, Path("/nowhere"), [Override(keys[data[0] % len(keys)], found, "--set")])


def device(data: bytes) -> None:
    """A device file."""
    config = DeviceConfig.model_validate({"file": "npu.yaml"})
    _in_file(data, "npu.yaml", lambda path: _refusing(lambda: load_device(config, path.parent)))


def model(data: bytes) -> None:
    """A Hugging Face ``config.json``."""
    config = ModelConfig(config="config.json")
    _in_file(data, "config.json", lambda path: _refusing(lambda: load_model(config, path.parent)))


def _refusing(load: Callable[[], object]) -> None:
    """Two loaders raise ``ValueError``, which a scenario that names the file reports as bad input."""
    try:
        load()
    except InputError:
        raise
    except ValueError as error:
        raise InputError([Problem(message=str(error))]) from None


def trace(data: bytes) -> None:
    """A trace: CSV of any dialect or JSON lines, plain or gzip."""
    _in_file(data, "trace", lambda path: [len(rows) for rows in read_trace(path)])


def packed_trace(data: bytes) -> None:
    """The same, packed, so that the fuzzer need not find a valid gzip by itself."""
    trace(gzip.compress(data, 1))


def lengths(data: bytes) -> None:
    """A file of lengths, without a header and with one."""
    _in_file(data, "lengths.csv", lambda path: read_lengths(path, None if data[:1] == b"1" else "tokens"))


def measured(data: bytes) -> None:
    """Measurements for ``calibrate``."""
    _in_file(data, "measured.csv", read_measured)


def blocks(data: bytes) -> None:
    """A trace for ``cache-curve``."""
    _in_file(data, "trace", lambda path: cache_curves(path, ("lru",), (10,), block_tokens=512))


def options(data: bytes) -> None:
    """Texts of options with a grammar of their own."""
    text = data[1:].decode(errors="replace")
    parsers: tuple[Callable[[], object], ...] = (
        lambda: parse_axis(text, "--grid"),
        lambda: parse_interval(text),
        lambda: parse_goal([text]),
        lambda: parse_capacities(text),
        lambda: parse_policies([text]),
    )
    if data:
        parsers[data[0] % len(parsers)]()


def manifest(data: bytes) -> None:
    """A results folder's manifest, for ``rerun``."""
    _in_file(data, "manifest.json", lambda path: recorded(path.parent))


def results(data: bytes) -> None:
    """A results folder's summary, for ``report``."""
    _in_file(data, "summary.json", lambda path: read_folder(path.parent, command=""))


TARGETS: dict[str, Callable[[bytes], None]] = {
    function.__name__: function
    for function in (
        scenario, change, value, device, model, trace, packed_trace, lengths, measured, blocks, options, manifest,
        results,
    )
}  # fmt: skip


def read(target: str, data: bytes) -> InputError | None:
    """Give ``data`` to a target; the refusal, if it is one. Anything else that is raised is a fault.

    A refusal must be fit to print: short lines without control characters.
    """
    try:
        TARGETS[target](data)
    except InputError as refused:
        for problem in refused.problems:
            text = str(problem)
            assert text.isprintable(), f"not printable: {text!r}"
            assert len(text) < 4000, f"{len(text)} characters: {text[:200]}"
        return refused
    except UnicodeDecodeError:
        if target != "scenario":
            raise
        raise AssertionError("text that is not UTF-8 passed the YAML reader") from None
    return None


def seeds(target: str) -> list[bytes]:
    """Good inputs to start from."""
    root = Path(__file__).resolve().parents[1]
    presets = root / "simulator" / "presets"
    plain = b"arrived_at,prompt_tokens,output_tokens,prefix_id,prefix_tokens\n0,10,5,1,4\n1.5,20,6,,\n"
    azure = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
    burst = (
        b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
    )
    mooncake = b'{"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]}\n' * 2
    found: dict[str, list[bytes]] = {
        "scenario": [path.read_bytes() for path in sorted((root / "scenarios").glob("*.yaml"))],
        "change": [b"engine.max_num_seqs=4", b"allocators.1={kind: paged_cow, page_size: 16KiB}", b"seed=3"],
        "value": [b"\0{process: gamma, rate: 2/s, cv: 2}", b"\1{dist: zipf, s: 1.1, max: 100}", b"\6kind: paged"],
        "device": [path.read_bytes() for path in sorted((presets / "devices").glob("*.yaml"))],
        "model": [path.read_bytes() for path in sorted((presets / "models").glob("*.json"))],
        "lengths": [b"1\n20\n300\n", b"tokens\n10\n20\n"],
        "measured": [b"batch,context_tokens,step_ms\n1,1000,20\n8,2000,30.5\n", b"transfer_bytes,gb_per_s\n1024,10\n"],
        "options": [b"\0engine.max_num_seqs=1:9:2", b"\1\x31GiB:2GiB", b"\2ttft_p95=2s", b"\3\x31,2,30", b"\4lru"],
        "manifest": [
            yaml.safe_dump({"outputs": {}, "schema_version": 2}).encode(),
            b'{"schema_version": 2, "outputs": {}}',
        ],
        "results": [b'{"runs": [], "scenario": {"name": "a", "description": ""}, "seed": 0, "version": "1"}'],
    }
    traces = [plain, azure, burst, mooncake]
    return found.get(target, traces)
