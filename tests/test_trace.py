"""``--perfetto``: what the trace says, read as Perfetto's trace processor reads Chrome's JSON format.

``Reader`` is strict about the format: required keys, numbers where numbers belong, asynchronous slices that nest. Where
Perfetto's own trace processor is installed (its Python package fetches a program from a server, which a closed
network refuses), it reads the same traces and has to find the same.
"""

import gzip
import importlib.util
import json
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from answer_folders import TEXT, Folders

import cli

#: prompts and outputs of a pool that is far too small, so that sequences lose their memory
PRESSED = TEXT.replace("{dist: fixed, value: 20}", "{dist: fixed, value: 90}").replace("requests: 50", "requests: 40")
#: keys that an event of a phase must have beside ph, name and pid, and their types
NEEDED: dict[str, dict[str, tuple[type, ...]]] = {
    "M": {"tid": (int,), "args": (dict,)},
    "X": {"tid": (int,), "ts": (float,), "dur": (float,), "cat": (str,), "args": (dict,)},
    "i": {"tid": (int,), "ts": (float,), "s": (str,)},
    "C": {"ts": (float,), "args": (dict,)},
    "b": {"ts": (float,), "id": (str,), "cat": (str,)},
    "e": {"ts": (float,), "id": (str,), "cat": (str,)},
    "n": {"ts": (float,), "id": (str,), "cat": (str,)},
}


class Reader:
    """The tracks of a trace. ``slices`` by (process, track) hold (name, start, end, depth), in microseconds."""

    def __init__(self, path: Path) -> None:
        content = json.loads(gzip.decompress(path.read_bytes()), parse_constant=self._refuse)
        self.left_out = content["otherData"]["left_out"]
        self.names: dict[tuple[int, int], str] = {}
        self.processes: dict[int, str] = {}
        self.slices: dict[tuple[int, Any], list[tuple[str, float, float, int]]] = defaultdict(list)
        self.instants: dict[tuple[int, Any], list[tuple[str, float]]] = defaultdict(list)
        self.counters: dict[tuple[int, str], list[tuple[float, dict[str, float]]]] = defaultdict(list)
        self.arguments: dict[tuple[int, Any], list[dict[str, Any]]] = defaultdict(list)
        open_slices: dict[tuple[int, str], list[tuple[str, float]]] = defaultdict(list)
        # Names first, then everything in the order of time; what comes at one instant in the order of the file.
        for event in sorted(content["traceEvents"], key=lambda one: one.get("ts", -1.0)):
            self._check(event)
            getattr(self, f"_read_{event['ph']}")(event, open_slices[event["pid"], event.get("id", "")])
        assert not any(open_slices.values()), "every slice that begins must end"

    @staticmethod
    def _refuse(text: str) -> None:
        raise AssertionError(f"{text} is no JSON number")

    @staticmethod
    def _check(event: dict[str, Any]) -> None:
        assert isinstance(event["name"], str) and event["name"]
        assert type(event["pid"]) is int
        for key, kinds in NEEDED[event["ph"]].items():
            assert type(event[key]) in kinds, f"{event['ph']}: {key} is {event.get(key)!r}"
        assert event["ph"] == "M" or event["ts"] >= 0

    def _read_M(self, event: dict[str, Any], _: Any) -> None:
        if event["name"] == "process_name":
            self.processes[event["pid"]] = event["args"]["name"]
        else:
            assert event["name"] == "thread_name"
            self.names[event["pid"], event["tid"]] = event["args"]["name"]

    def _read_X(self, event: dict[str, Any], _: Any) -> None:
        track = event["pid"], event["tid"]
        assert event["dur"] >= 0
        self.slices[track].append((event["name"], event["ts"], event["ts"] + event["dur"], 0))
        self.arguments[track].append(event["args"])

    def _read_i(self, event: dict[str, Any], _: Any) -> None:
        assert event["s"] in ("g", "p", "t")
        self.instants[event["pid"], event["tid"]].append((event["name"], event["ts"]))

    def _read_C(self, event: dict[str, Any], _: Any) -> None:
        assert event["args"] and all(type(value) in (int, float) for value in event["args"].values())
        self.counters[event["pid"], event["name"]].append((event["ts"], event["args"]))

    def _read_b(self, event: dict[str, Any], inside: list[tuple[str, float]]) -> None:
        inside.append((event["name"], event["ts"]))

    def _read_e(self, event: dict[str, Any], inside: list[tuple[str, float]]) -> None:
        name, start = inside.pop()
        assert name == event["name"], "slices of a track nest"
        self.slices[event["pid"], event["id"]].append((name, start, event["ts"], len(inside)))

    def _read_n(self, event: dict[str, Any], _: Any) -> None:
        self.instants[event["pid"], event["id"]].append((event["name"], event["ts"]))

    def requests(self, process: int) -> dict[int, list[tuple[str, float, float, int]]]:
        """The slices of each request."""
        tracks = {track: slices for (pid, track), slices in self.slices.items() if pid == process}
        return {int(track.split(".")[1]): found for track, found in tracks.items() if isinstance(track, str)}


def summaries(folder: Path) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads((folder / "summary.json").read_text())["runs"]
    return runs


@pytest.fixture(scope="module", params=["fail", "preempt_recompute", "preempt_swap", "wait"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, folders: Folders) -> Path:
    if request.param == "fail":
        return folders["run"]
    base = tmp_path_factory.mktemp("trace")
    swap = "" if request.param != "preempt_swap" else "swap_bytes: 1GiB, "
    (base / "pressed.yaml").write_text(PRESSED.replace("on_oom: fail", f"{swap}on_oom: {request.param}"))
    words = ["run", str(base / "pressed.yaml"), "--perfetto", "--quiet", "--allocator", "paged"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simulator.showing.pages.run.PICTURES", {})
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, "--out", str(base / "out")])
    assert not ended.value.code
    return base / "out"


@pytest.fixture(scope="module")
def trace(folder: Path) -> Reader:
    return Reader(folder / "trace.json.gz")


def test_a_run_is_a_process_and_a_request_a_track(trace: Reader, folder: Path) -> None:
    runs = summaries(folder)
    assert list(trace.processes.values()) == [run["label"] for run in runs]
    table = pd.read_parquet(folder / "requests.parquet")
    for (process, label), run in zip(trace.processes.items(), runs, strict=True):
        rows = table[table["allocator"] == label].set_index("request_id")
        tracks = trace.requests(process)
        assert sorted(tracks) == rows.index.tolist()
        for request, slices in tracks.items():
            whole = [one for one in slices if one[3] == 0]
            row = rows.loc[request]
            assert [one[0] for one in whole] == [f"request {request}"]
            assert whole[0][1] == pytest.approx(1e6 * row["arrival_s"])
            finished = row["finish_s"] == row["finish_s"]
            assert whole[0][2] == pytest.approx(1e6 * (row["finish_s"] if finished else run["simulated_s"]))
            phases = [one[0] for one in slices if one[3] == 1]
            assert phases == ["queue", "prefill", "decode"][: len(phases)]
            assert (len(phases) == 3) == (row["first_token_s"] == row["first_token_s"])
            assert trace.instants[process, f"{process}.{request}"][-1][0] == row["outcome"]


def test_steps_add_up_to_those_of_the_run_and_never_overlap(trace: Reader, folder: Path) -> None:
    for process, run in zip(trace.processes, summaries(folder), strict=True):
        (track,) = [tid for (pid, tid), name in trace.names.items() if pid == process and name == "engine steps"]
        slices, arguments = trace.slices[process, track], trace.arguments[process, track]
        assert sum(one["steps"] for one in arguments) == run["steps"]
        assert {name for name, *_ in slices} <= {"prefill", "decode", "mixed"}
        assert all(end <= start + 1e-3 for (_, _, end, _), (_, start, _, _) in pairwise(sorted(slices, key=_start)))
        outputs = sum(one["output_tokens"] for one in arguments)
        assert outputs == pytest.approx(run["throughput"]["output_tokens_per_s"] * run["simulated_s"])
        # Every step of this scenario takes 20 ms.
        busy_s = sum(end - start for _, start, end, _ in slices) / 1e6
        assert busy_s == pytest.approx(0.02 * run["steps"])


def _start(one: tuple[str, float, float, int]) -> float:
    return one[1]


def test_preemptions_and_swaps_are_instants_and_stretches_of_their_requests(trace: Reader, folder: Path) -> None:
    table = pd.read_parquet(folder / "requests.parquet")
    for process, run in zip(trace.processes, summaries(folder), strict=True):
        (track,) = [tid for (pid, tid), name in trace.names.items() if pid == process and name == "memory"]
        seen = Counter(name for name, _ in trace.instants[process, track])
        taken = seen["preempted"] + seen["swapped out"]
        assert taken == run["preemptions"]
        assert seen["resumed"] + seen["swapped in"] <= taken
        stretches: Counter[int] = Counter()
        for request, slices in trace.requests(process).items():
            inner = [one for one in slices if one[3] == 2]
            assert {name for name, *_ in inner} <= {"preempted", "swapped out"}
            stretches[request] = len(inner)
        rows = table[table["allocator"] == run["label"]].set_index("request_id")["preemptions"]
        assert stretches == Counter(rows.to_dict())


def test_the_scenarios_of_these_tests_put_memory_under_pressure(folders: Folders, trace: Reader, folder: Path) -> None:
    (run, *_) = summaries(folder)
    policy = json.loads((folder / "manifest.json").read_text())["scenario"]["engine"]["on_oom"]
    assert (run["preemptions"] > 0) == policy.startswith("preempt")
    assert (run["swapped_bytes"] > 0) == (policy == "preempt_swap")
    assert any("OOM: " in name for seen in trace.instants.values() for name, _ in seen)
    assert set(trace.left_out[run["label"]].values()) == {0}


def test_counters_are_those_of_the_timeline(trace: Reader, folder: Path) -> None:
    table = pd.read_parquet(folder / "timeline.parquet")
    for process, run in zip(trace.processes, summaries(folder), strict=True):
        rows = table[table["allocator"] == run["label"]]
        capacity = run["kv_capacity_bytes"]
        name, unit = ("free pages", capacity // run["max_pages"]) if run["max_pages"] else ("free bytes", 1)
        series = trace.counters[process, name]
        assert [at for at, _ in series] == pytest.approx((1e6 * rows["time_s"]).tolist())
        assert [value["free"] for _, value in series] == ((capacity - rows["allocated_bytes"]) // unit).tolist()
        ratios = [value["ratio"] for _, value in trace.counters[process, "fragmentation of free bytes"]]
        assert min(ratios) >= 0 and max(ratios) <= 1
        if run["max_pages"]:
            assert max(ratios) == 0, "pages are all alike"


def test_each_instance_of_a_fleet_has_its_steps(tmp_path: Path) -> None:
    text = PRESSED.replace("on_oom: fail", "on_oom: preempt_recompute")
    text = text.replace("{preset: 910B3, kv_capacity_bytes: 1GiB}", "{preset: 910B3, count: 2, replicas: 2}")
    (tmp_path / "fleet.yaml").write_text(text.replace("max_pages: 140", "max_pages: 70"))
    words = ["run", str(tmp_path / "fleet.yaml"), "--perfetto", "--quiet", "--allocator", "paged"]
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--out", str(tmp_path / "out")])
    assert not ended.value.code
    (run,) = summaries(tmp_path / "out")
    found = Reader(tmp_path / "out" / "trace.json.gz")
    tracks = {name: track for track, name in found.names.items()}
    for place, instance in enumerate(run["instances"]):
        steps = found.arguments[tracks[f"engine steps, instance {place}"]]
        assert sum(one["steps"] for one in steps) == instance["steps"] > 0
        seen = Counter(name for name, _ in found.instants[tracks[f"memory, instance {place}"]])
        assert seen["preempted"] == instance["preemptions"]
    assert run["preemptions"] > 0


# ---- Perfetto's own reader


def trace_processor() -> str | None:
    """The program that Perfetto's Python package runs: named by the environment, on the path, or fetched before."""
    if importlib.util.find_spec("perfetto") is None:
        return None
    named = os.environ.get("TRACE_PROCESSOR") or shutil.which("trace_processor_shell")
    fetched = sorted((Path.home() / ".local/share/perfetto/prebuilts").glob("trace_processor_shell-*"))
    return named or (str(fetched[-1]) if fetched else None)


@pytest.fixture
def processor(folder: Path) -> Iterator[Any]:
    program = trace_processor()
    if program is None:
        pytest.skip("Perfetto's trace processor is not installed (pip install perfetto, and TRACE_PROCESSOR=program)")
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    with TraceProcessor(str(folder / "trace.json.gz"), config=TraceProcessorConfig(bin_path=program)) as opened:
        yield opened


def test_perfettos_trace_processor_finds_the_same(processor: Any, trace: Reader) -> None:
    def number(query: str) -> int:
        (row,) = processor.query(query)
        return int(row.n)

    slices = sum(len(found) for found in trace.slices.values())
    instants = sum(len(found) for found in trace.instants.values())
    assert number("select count(*) as n from slice") == slices + instants
    assert number("select count(*) as n from process where name is not null") == len(trace.processes)
    samples = sum(len(values) for series in trace.counters.values() for _, values in series)
    assert number("select count(*) as n from counter") == samples
    assert number("select sum(value) as n from stats where severity = 'error'") == 0
