"""From a scenario to a finished folder: what ``run``, ``rerun`` and ``report`` have in common."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.showing import output
from simulator.showing.manifest import NAME, RUN, Outputs, RunOptions, checked_manifest, kind_of, read_json

if TYPE_CHECKING:
    from simulator.metrics import Columns
    from simulator.scenario import Scenario
    from simulator.serving.pool_map import PoolMaps
    from simulator.serving.step_log import StepLog, StepLogs
    from simulator.serving.watching import Observe, Progress
    from simulator.showing.rerun import Recorded
    from simulator.simulation import Result

    _Recorded = tuple[Result, list[Columns], list[StepLog]]

Interrupted = Callable[[], bool]


def run_into(
    folder: Path | None,
    scenario: "Scenario",
    options: RunOptions,
    *,
    jobs: int = 1,
    progress: "Progress | None" = None,
    interrupted: Interrupted | None = None,
    watch: "Observe | None" = None,
) -> "Result":
    """Simulate on ``jobs`` processes and write ``folder`` (``None``: write nothing). Raises ``InputError``.

    ``watch`` looks on, which takes a single process.
    """
    recorded = folder is not None
    runs = options.replications * len(options.allocators or scenario.labels)
    if min(jobs, runs) > 1 and watch is None:
        result, maps, logs = _on_processes(
            scenario, options, jobs, recorded=recorded, progress=progress, interrupted=interrupted
        )
    else:
        result, maps, logs = _here(
            scenario, options, recorded=recorded, progress=progress, interrupted=interrupted, watch=watch
        )
    if folder is not None:
        output.write_run(result, folder, scenario=scenario, options=options, pool_maps=maps, step_logs=logs)
    return result


def _here(
    scenario: "Scenario",
    options: RunOptions,
    *,
    recorded: bool,
    progress: "Progress | None",
    interrupted: Interrupted | None,
    watch: "Observe | None",
) -> "_Recorded":
    from simulator.serving.watching import together
    from simulator.simulation import simulate

    maps: PoolMaps | None = None
    logs: StepLogs | None = None
    if recorded:
        maps, logs = _recorders(options)
    result = simulate(
        scenario,
        seed=options.seed,
        allocators=options.allocators,
        replications=options.replications,
        verify=options.verify,
        progress=progress,
        interrupted=interrupted,
        observe=together([one for one in (maps, logs, watch) if one is not None]),
    )
    if maps is None or not maps.maps:
        return result, [], []
    ends_s = [run.summary["simulated_s"] for run in result.runs]
    columns = [pool_map.columns(end_s) for pool_map, end_s in zip(maps.maps, ends_s, strict=True)]
    return result, columns, [] if logs is None else logs.logs


def _recorders(options: RunOptions) -> "tuple[PoolMaps, StepLogs | None]":
    from simulator.serving.pool_map import PoolMaps
    from simulator.serving.step_log import StepLogs

    return PoolMaps(), StepLogs() if options.perfetto else None


def _on_processes(
    scenario: "Scenario",
    options: RunOptions,
    jobs: int,
    *,
    recorded: bool,
    progress: "Progress | None",
    interrupted: Interrupted | None,
) -> "_Recorded":
    from simulator.planning.run_parts import Part, run_parts
    from simulator.simulation import Result

    parts = [
        Part(
            scenario=scenario,
            seed=options.seed,
            label=label,
            replication=replication,
            replications=options.replications,
            verify=options.verify,
            mapped=recorded,
            logged=recorded and options.perfetto,
        )
        for replication in range(options.replications)
        for label in scenario.labels
        if options.allocators is None or label in options.allocators
    ]
    found = run_parts(parts, jobs, progress=progress, interrupted=interrupted)
    maps = [one.pool_map for one in found if one.pool_map is not None]
    logs = [one.step_log for one in found if one.step_log is not None]
    return Result(scenario, options.seed, tuple(one.run for one in found)), maps, logs


@dataclass(frozen=True, slots=True)
class Again:
    """What came of doing it again: files that differ, and in what the program is another one.

    ``interrupted``: the first time it was not done to its end.
    """

    changed: list[str]
    program: list[str]
    interrupted: bool


def rerun(folder: Path, out: Path | None, *, progress: "Progress | None" = None) -> Again:
    """Do what is in ``folder`` again, into ``out``, and compare.

    Without ``out`` the new files are compared and thrown away, except that files which are missing from ``folder`` or
    were altered there are put back when the work itself gives the recorded bytes. Raises ``InputError``, and
    ``KeyboardInterrupt`` when Ctrl-C stopped it.
    """
    from simulator.showing.rerun import recorded

    before = recorded(folder)
    if out is not None:
        output.prepare(out)
        return _done_again(before, out, progress)
    with tempfile.TemporaryDirectory(prefix="ascend-kv-sim-") as name:
        again = Path(name)
        found = _done_again(before, again, progress)
        if not found.changed:
            _put_back(again, folder, before.outputs)
    return found


def _done_again(before: "Recorded", into: Path, progress: "Progress | None") -> Again:
    """``KeyboardInterrupt`` when it was stopped this time: what is there by then compares with nothing."""
    from simulator.showing.rerun import differences, other_program, stopped

    before.do(into, progress)
    if stopped(into):
        raise KeyboardInterrupt
    return Again(differences(before, into), other_program(before, into), before.interrupted)


def _put_back(source: Path, folder: Path, outputs: dict[str, str]) -> None:
    from simulator.showing.manifest import sha256_of

    for name, sha256 in outputs.items():
        path = folder / name
        if not path.is_file() or sha256_of(path) != sha256:
            Outputs(folder).write(name, (source / name).read_bytes())


def render_again(folder: Path, language: str | None = None) -> Path:
    """Draw the pictures and the page of ``folder`` anew from its tables; the page's path. Raises ``InputError``."""
    from simulator import report
    from simulator.files import staged, write_text
    from simulator.showing.report_data import DATA_FILES

    content = checked_manifest(folder, ())
    is_run = kind_of(content) == RUN
    checked_manifest(folder, DATA_FILES if is_run else _tables_of(content))
    chosen = language or content["options"]["language"]
    with staged(folder, last=NAME) as stage:
        outputs = Outputs(stage)
        write = report.write_report if is_run else report.write_answer_report
        with _of_this_program([folder]):
            write(folder, outputs, command=content["command"], language=chosen)
        content["options"]["language"] = chosen
        content["outputs"] = dict(sorted({**content["outputs"], **outputs.sha256}.items()))
        write_text(stage / NAME, output.to_json(content))
    return folder / "report.html"


@contextmanager
def _of_this_program(folders: Sequence[Path]) -> Iterator[None]:
    """Results of another program may lack what this one shows: says so instead of failing on them."""
    from simulator.errors import InputError, Problem
    from simulator.version import code_sha256

    try:
        yield
    except (KeyError, TypeError) as error:
        others = [one for one in folders if read_json(one / NAME).get("code_sha256") != code_sha256()]
        if not others:
            raise
        message = f"was written by another program, and this one misses {error} in it; `simulate rerun` does it again"
        raise InputError([Problem(file=str(one), message=message) for one in others]) from None


def _tables_of(content: Mapping[str, Any]) -> list[str]:
    from simulator.showing.answer_folder import DATA_FILES

    return [*DATA_FILES, *(name for name in content["outputs"] if name.endswith(".parquet"))]


def compare_folders(folders: Sequence[Path], out: Path, language: str | None = None) -> Path:
    """One page with the runs of several folders side by side, written to ``out``. Raises ``InputError``."""
    from simulator.files import staged
    from simulator.report import write_comparison

    with staged(out, last="report.html") as stage, _of_this_program(folders):
        write_comparison(folders, Outputs(stage), language=language or "en")
    return out / "report.html"
