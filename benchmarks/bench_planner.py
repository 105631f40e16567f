"""How long the planner's two large questions take: ``python benchmarks/bench_planner.py [size] [sweep] [--points N]``.

* ``size``: the smallest pool of llama70b_128k that keeps the OOM rate below 1 % with 95 % confidence;
* ``sweep``: 200 points of the chat scenario with 2,000 requests each, one allocator a point.

Both on two processes. Processor time is that of all processes together, children included: on a machine that
others use it says more than wall time. Nothing here is a test.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

from simulator import planner
from simulator.planning.grid import parse_axis
from simulator.scenario import load_scenario

JOBS = 2


def cpu_s() -> float:
    """Processor seconds of this process and of its children that have ended."""
    usages = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def size() -> str:
    """Size llama70b_128k."""
    scenario = load_scenario("llama70b_128k")
    question = planner.Question(
        index=planner.sizable(scenario, None),
        goal=planner.chosen_goal(scenario, 0.01, ()),
        confidence=0.95,
        most_replications=64,
        jobs=JOBS,
    )
    answer = planner.sized_answer(scenario, question, with_sensitivity=True)
    found = answer.recommended
    return "no size found" if found is None else f"{found.max_pages:,} pages, {found.replications} verifying runs"


def sweep(points: int) -> str:
    """A grid over rate and batch limit of the chat scenario."""
    axes = [
        parse_axis(f"workload.arrivals.rate=1:{points // 20}:1", "--grid"),
        parse_axis("engine.max_num_seqs=16:320:16", "--grid"),
    ]
    settings = ["workload.requests=2000"]
    made = planner.sweep_points("chat_burst", settings, axes, replications=1, allocators=("paged",))
    with tempfile.TemporaryDirectory() as folder:
        done = planner.swept(made, Path(folder), jobs=JOBS)
    return f"{done.points} points, {len(done.rows)} rows"


def timed(name: str, work: Callable[[], str]) -> None:
    """Do ``work`` and print what it found and what it took."""
    wall, cpu = time.perf_counter(), cpu_s()
    found = work()
    spent_s, passed_s = cpu_s() - cpu, time.perf_counter() - wall
    shared = f"{spent_s / JOBS:.1f} s for each of {JOBS} processes"
    print(f"{name}: {found}; {spent_s:.1f} s of processor time ({shared}), {passed_s:.1f} s of wall time")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("questions", nargs="*", default=["size", "sweep"], choices=["size", "sweep"])
    options.add_argument("--points", type=int, default=200, help="points of the sweep, a multiple of 20")
    chosen = options.parse_args()
    if "size" in chosen.questions:
        timed("size llama70b_128k", size)
    if "sweep" in chosen.questions:
        timed("sweep chat_burst", lambda: sweep(chosen.points))
