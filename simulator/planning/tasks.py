"""Many independent simulations on several processes, with results in the order of the tasks.

What a task gives does not depend on where or when it runs, so the results are the same for any number of processes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from simulator.errors import InputError, Problem

Task = TypeVar("Task")
Found = TypeVar("Found")

#: how often a process looks whether the one it works for is still there
_PARENT_LOOK_S = 0.5


class Runner(Protocol):
    """Calls ``function`` with each task; yields ``(index, result)`` as they finish, in any order."""

    def __call__(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> Iterator[tuple[int, Found]]: ...


def in_order(runner: Runner, function: Callable[[Task], Found], tasks: Sequence[Task]) -> list[Found]:
    """The results in the order of the tasks."""
    placed = dict(runner(function, tasks))
    return [placed[index] for index in range(len(tasks))]


def until_interrupted(
    runner: Runner, function: Callable[[Task], Found], tasks: Sequence[Task]
) -> tuple[dict[int, Found], bool]:
    """Results by the place of their task, and whether Ctrl-C came before all were there."""
    placed: dict[int, Found] = {}
    try:
        for index, found in runner(function, tasks):
            placed[index] = found
    except KeyboardInterrupt:
        return placed, True
    return placed, False


def extend(row: list[Found], runner: Runner, function: Callable[[Task], Found], tasks: Sequence[Task]) -> None:
    """Put the results behind those in ``row``, in order; after Ctrl-C those without a gap before them.

    ``KeyboardInterrupt`` then goes on.
    """
    placed, interrupted = until_interrupted(runner, function, tasks)
    for index in range(len(tasks)):
        if index not in placed:
            break
        row.append(placed[index])
    if interrupted:
        raise KeyboardInterrupt


def one_by_one(function: Callable[[Task], Found], tasks: Sequence[Task]) -> Iterator[tuple[int, Found]]:
    """The runner of a single process."""
    for index, task in enumerate(tasks):
        yield index, function(task)


@contextmanager
def processes(jobs: int) -> Iterator[Runner]:
    """A runner with ``jobs`` processes; with one job everything happens in this process.

    Tasks and results cross process borders by pickle. An interrupt stops the waiting tasks at once.
    """
    if jobs <= 1:
        yield one_by_one
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed

    with naming_deaths(), ProcessPoolExecutor(jobs, initializer=begin_worker) as pool:

        def run(function: Callable[[Task], Found], tasks: Sequence[Task]) -> Iterator[tuple[int, Found]]:
            futures = {pool.submit(function, task): index for index, task in enumerate(tasks)}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BaseException:
                # Whoever goes on with what there is should not wait for the rest.
                for future in futures:
                    future.cancel()
                raise

        try:
            yield run
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def naming_deaths() -> Iterator[None]:
    """A process that ended by itself is said to have, as ``InputError``: it was killed, most likely for its memory."""
    from concurrent.futures.process import BrokenProcessPool

    try:
        yield
    except BrokenProcessPool:
        message = "one of the processes was killed, perhaps because memory ran out: ask for fewer"
        raise InputError([Problem(option="--jobs", message=message)]) from None


def begin_worker() -> None:
    """Make this process one that works for another: Ctrl-C is for that one, and without it there is nothing to do."""
    import os
    import signal
    import threading

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_without, args=(os.getppid(),), daemon=True).start()


def _end_without(parent: int) -> None:
    """End this process soon after its ``parent``, which may have been killed and told nobody."""
    import os
    import time

    while os.getppid() == parent:
        time.sleep(_PARENT_LOOK_S)
    os._exit(1)


def watched(runner: Runner, progress: Callable[[str, int, int, float | None], None] | None, label: str) -> Runner:
    """The same runner, telling ``progress`` how many tasks of how many are done, and the OOM rate of these."""
    if progress is None:
        return runner

    def run(function: Callable[[Task], Found], tasks: Sequence[Task]) -> Iterator[tuple[int, Found]]:
        progress(label, 0, len(tasks), None)
        lost = arrived = 0
        for done, finished in enumerate(runner(function, tasks), 1):
            yield finished
            more_lost, more_arrived = _counts(finished[1])
            lost, arrived = lost + more_lost, arrived + more_arrived
            progress(label, done, len(tasks), lost / arrived if arrived else None)

    return run


def _counts(found: object) -> tuple[int, int]:
    """Lost and arrived requests of a task's result: an observation, or rows of a sweep; nothing for others."""
    if isinstance(found, list):
        arrived = [row["requests.arrived"] for row in found]
        return round(sum(row["oom_rate"] * row["requests.arrived"] for row in found)), sum(arrived)
    return getattr(found, "lost", 0), getattr(found, "arrived", 0)


def usable_processes(jobs: int | None) -> int:
    """``jobs``, or the number of cores that this process may use."""
    import os

    return jobs or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else jobs or os.cpu_count() or 1
