"""The runs of a simulation on several processes: one allocator in one replication each.

What a run gives does not depend on where it is made, so the results are those of one process, in the same order. The
processes tell how far they are, and are asked to stop, through memory that all of them share.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray, RawValue
from typing import Any

from simulator.metrics import Columns, RunResult
from simulator.planning.tasks import begin_worker, naming_deaths
from simulator.scenario import Scenario
from simulator.serving.pool_map import PoolMaps
from simulator.serving.step_log import StepLog, StepLogs
from simulator.serving.watching import Observe, Progress, together
from simulator.simulation import simulate

#: how often progress is told and an interrupt is looked for
_LOOK_S = 0.1
#: numbers that a run shows while it is under way: requests ended, requests in all, OOM rate
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One run: the allocator ``label`` in one replication. ``mapped`` and ``logged``: what is recorded beside it."""

    scenario: Scenario
    seed: int
    label: str
    replication: int
    replications: int
    verify: bool
    mapped: bool
    logged: bool

    @property
    def name(self) -> str:
        """What tells it from the others in a progress display."""
        return self.label if self.replications == 1 else f"{self.label}-{self.replication}"


@dataclass(frozen=True, slots=True)
class PartRun:
    """A finished part, with the map of its pool and the log of its steps where they were asked for."""

    run: RunResult
    pool_map: Columns | None
    step_log: StepLog | None


@dataclass(frozen=True, slots=True)
class _Shared:
    """Memory of all processes: whether to stop, and ``_SHOWN`` numbers a part."""

    stop: Any
    shown: Any


#: what this process was given when it began to work for another
_shared: list[_Shared] = []


def run_parts(
    parts: Sequence[Part],
    jobs: int,
    *,
    progress: Progress | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> list[PartRun]:
    """All ``parts``, in order, on ``jobs`` processes. Raises ``InputError``.

    Once ``interrupted`` says yes, the parts under way end at a scheduling point and the others are left out;
    ``KeyboardInterrupt`` goes on when there is none.
    """
    shared = _Shared(RawValue("b", 0), RawArray("d", _SHOWN * len(parts)))
    workers = min(jobs, len(parts))
    with naming_deaths(), ProcessPoolExecutor(workers, initializer=_begin, initargs=(shared,)) as pool:
        futures = [pool.submit(_run_here, part, place) for place, part in enumerate(parts)]
        try:
            for _ in _until_done(futures):
                _tell(progress, parts, shared)
                if interrupted is not None and interrupted():
                    _stop(futures, shared)
            runs = [future.result() for future in futures if not future.cancelled()]
        finally:
            _stop(futures, shared)
    found = [one for one in runs if one is not None]
    if not found:
        raise KeyboardInterrupt
    return found


def run_part(part: Part, progress: Progress | None = None, interrupted: Callable[[], bool] | None = None) -> PartRun:
    """Run one part here. Raises ``InputError``."""
    maps, logs = PoolMaps(), StepLogs()
    wanted: list[Observe] = [one for one, asked in ((maps, part.mapped), (logs, part.logged)) if asked]
    (run,) = simulate(
        part.scenario,
        seed=part.seed,
        allocators=(part.label,),
        first_replication=part.replication,
        verify=part.verify,
        progress=progress,
        interrupted=interrupted,
        observe=together(wanted),
    ).runs
    if part.replications > 1:
        run.summary["replication"] = part.replication
    for log in logs.logs:
        log.let_go()
    end_s = run.summary["simulated_s"]
    return PartRun(run, maps.maps[0].columns(end_s) if maps.maps else None, logs.logs[0] if logs.logs else None)


def _begin(shared: _Shared) -> None:
    _shared[:] = [shared]
    begin_worker()


def _run_here(part: Part, place: int) -> PartRun | None:
    """What a process does; nothing once all were asked to stop."""
    (shared,) = _shared
    if shared.stop.value:
        return None

    def show(_label: str, done: int, total: int, oom_rate: float | None) -> None:
        numbers = (done, total, math.nan if oom_rate is None else oom_rate)
        shared.shown[_SHOWN * place : _SHOWN * (place + 1)] = numbers

    return run_part(part, show, lambda: bool(shared.stop.value))


def _until_done(futures: "Sequence[Future[PartRun | None]]") -> Iterator[None]:
    """A turn every ``_LOOK_S`` seconds until all are done or one has failed."""
    left = set(futures)
    while left:
        done, left = wait(left, timeout=_LOOK_S)
        if any(not one.cancelled() and one.exception() for one in done):
            return
        yield


def _tell(progress: Progress | None, parts: Sequence[Part], shared: _Shared) -> None:
    if progress is None:
        return
    for place, part in enumerate(parts):
        done, total, oom_rate = shared.shown[_SHOWN * place : _SHOWN * (place + 1)]
        if total:
            progress(part.name, int(done), int(total), None if math.isnan(oom_rate) else oom_rate)


def _stop(futures: "Sequence[Future[PartRun | None]]", shared: _Shared) -> None:
    shared.stop.value = 1
    for future in futures:
        future.cancel()
