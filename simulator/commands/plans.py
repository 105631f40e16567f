"""Commands that ask many runs: which allocator, how large, over a grid; and what to tell the engine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.commands.common import (
    NO,
    Confidence,
    Format,
    Jobs,
    OutputFormat,
    Quiet,
    ScenarioName,
    Seed,
    Settings,
    chosen_allocators,
    print_json,
    refuse,
    say,
)

if TYPE_CHECKING:
    pass


def compare(
    scenario: ScenarioName,
    *,
    replications: Annotated[int, typer.Option(min=1, help="Paired repetitions.")] = 10,
    allocator: Annotated[
        list[str] | None, typer.Option("--allocator", metavar="NAME", help="Only this allocator. Repeatable.")
    ] = None,
    vary: Annotated[
        str | None, typer.Option("--vary", metavar="KEY=A:B:STEP", help="Once for each value of a key (or KEY=A,B,C).")
    ] = None,
    confidence: Confidence = 0.95,
    settings: Settings = None,
    seed: Seed = None,
    jobs: Jobs = None,
    output_format: OutputFormat = Format.table,
    quiet: Quiet = False,
) -> None:
    """Which allocator loses fewer requests: all meet the same requests in each of several replications."""
    from simulator import planner
    from simulator.planning.grid import parse_axis
    from simulator.planning.tasks import usable_processes
    from simulator.showing.progress import reporting

    axis = parse_axis(vary, "--vary") if vary else None
    scenarios = planner.varied(scenario, planner.with_seed(settings or (), seed), axis)
    chosen = chosen_allocators(scenarios[0], allocator or ())
    with reporting(enabled=not quiet) as progress:
        found = planner.comparisons(
            scenarios,
            replications=replications,
            confidence=confidence,
            allocators=chosen,
            jobs=usable_processes(jobs),
            progress=progress,
        )
    if output_format is Format.json:
        print_json(planner.comparison_document(scenarios[0], found, axis, confidence=confidence))
        return
    from simulator.showing import compare_table

    if axis is None:
        compare_table.print_comparison(found[0])
    else:
        compare_table.print_series(axis.key, axis.values, found)


def size(
    scenario: ScenarioName,
    *,
    target_oom: Annotated[
        float | None, typer.Option("--target-oom", metavar="RATE", help="OOM rate to stay below; default 0.001.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            "--slo",
            metavar="NAME=LIMIT",
            help="Another target: preemption=0.01, ttft_p95=2s, ... Repeatable: all have to hold.",
        ),
    ] = None,
    confidence: Confidence = 0.95,
    allocator: Annotated[
        str | None, typer.Option("--allocator", metavar="NAME", help="Which one; default: the first paged one.")
    ] = None,
    pool_interval: Annotated[
        str | None,
        typer.Option(
            "--pool-interval", metavar="LOW:HIGH", help="Bytes the KV pool of a device has, when not known exactly."
        ),
    ] = None,
    solve: Annotated[
        list[str] | None,
        typer.Option(
            "--solve",
            metavar="KEY=A:B:STEP",
            help="Instead: how far a key may go with the pool there is. Twice: how two keys trade.",
        ),
    ] = None,
    max_replications: Annotated[int, typer.Option(min=1, help="Most replications of one size.")] = 64,
    settings: Settings = None,
    seed: Seed = None,
    jobs: Jobs = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Also write JSON and a picture.")] = None,
    output_format: OutputFormat = Format.table,
    quiet: Quiet = False,
) -> None:
    """The smallest pool that keeps a target with confidence, and the settings that follow from it."""
    from simulator import planner
    from simulator.files import make_folder
    from simulator.planning.pool_interval import parse_interval
    from simulator.planning.tasks import usable_processes
    from simulator.scenario import load_scenario
    from simulator.showing.progress import reporting
    from simulator.showing.size_command import Question, answered

    changes = planner.with_seed(settings or (), seed)
    loaded = load_scenario(scenario, changes)
    question = Question(
        name=scenario,
        settings=changes,
        scenario=loaded,
        index=planner.sizable(loaded, chosen_allocators(loaded, [allocator] if allocator else ())),
        goal=planner.chosen_goal(loaded, target_oom, target or ()),
        confidence=confidence,
        most_replications=max_replications,
        jobs=usable_processes(jobs),
    )
    interval = None if pool_interval is None else parse_interval(pool_interval)
    if loaded.budget.overdraft_bytes:
        refuse(loaded.budget)
    if out is not None:
        make_folder(out)
    with reporting(enabled=not quiet) as progress:
        answer = answered(question, solve or (), interval, progress)
    if out is not None:
        answer.write(out)
    if output_format is Format.json:
        print_json(answer.document)
    else:
        answer.show()
    if not answer.holds:
        raise typer.Exit(NO)


def sweep(
    scenario: ScenarioName,
    *,
    grid: Annotated[
        list[str], typer.Option("--grid", metavar="KEY=A:B:STEP", help="Values of a key (or KEY=A,B,C). Repeatable.")
    ],
    replications: Annotated[int, typer.Option(min=1, help="Independent repetitions of each point.")] = 1,
    allocator: Annotated[
        list[str] | None, typer.Option("--allocator", metavar="NAME", help="Only this allocator. Repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder; default: reports/<name>-sweep.")
    ] = None,
    dask: Annotated[
        str | None, typer.Option("--dask", metavar="ADDRESS", help="Run on a Dask cluster: tcp://host:port, or local.")
    ] = None,
    settings: Settings = None,
    seed: Seed = None,
    jobs: Jobs = None,
    output_format: OutputFormat = Format.table,
    quiet: Quiet = False,
) -> None:
    """One row of metrics for every combination of some keys' values, in a Parquet file; goes on where it stopped."""
    from simulator import planner
    from simulator.planning.grid import parse_axis
    from simulator.planning.tasks import usable_processes
    from simulator.scenario import load_scenario
    from simulator.showing.output import default_folder
    from simulator.showing.progress import reporting

    changes = planner.with_seed(settings or (), seed)
    axes = [parse_axis(one, "--grid") for one in grid]
    loaded = load_scenario(scenario, changes)
    folder = default_folder(f"{loaded.name}-sweep") if out is None else out
    chosen = chosen_allocators(loaded, allocator or ())
    with reporting(enabled=not quiet) as progress:
        done = planner.swept(
            planner.sweep_points(scenario, changes, axes, replications=replications, allocators=chosen),
            folder,
            jobs=usable_processes(jobs),
            dask=dask,
            progress=progress,
        )
    if output_format is Format.json:
        print_json({"points": done.points, "resumed": done.resumed, "rows": done.rows, "parquet": str(done.parquet)})
    else:
        earlier = f", {done.resumed:,} of them from an earlier run" if done.resumed else ""
        typer.echo(f"{done.points:,} points{earlier}, {done.rows:,} rows: {done.parquet}")


def export(
    scenario: ScenarioName,
    *,
    engine: Annotated[str, typer.Option("--for", metavar="ENGINE", help="vllm-ascend, vllm, mindie or cann-recipes.")],
    allocator: Annotated[
        str | None, typer.Option("--allocator", metavar="NAME", help="Which one; default: the first paged one.")
    ] = None,
    max_pages: Annotated[int | None, typer.Option(min=1, help="Pages of the pool, as `size` recommends.")] = None,
    settings: Settings = None,
    output_format: OutputFormat = Format.table,
    quiet: Quiet = False,
) -> None:
    """Settings of a serving engine, in its own names and units; what it cannot accept is refused."""
    from simulator import planner
    from simulator.export import export as exported
    from simulator.export import export_document
    from simulator.scenario import load_scenario

    loaded = load_scenario(scenario, settings or ())
    index = planner.sizable(loaded, chosen_allocators(loaded, [allocator] if allocator else ()))
    with loaded.located():
        found = exported(loaded, index, engine, max_pages=max_pages)
    if output_format is Format.json:
        print_json(export_document(found))
        return
    typer.echo(found.text)
    if not quiet:
        for note in found.notes:
            say(f"note: {note}")


def cache_curve(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A trace file with block ids, or a shipped trace.")],
    *,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", metavar="NAME", help="lru, fifo, lfu or belady. Repeatable.")
    ] = None,
    capacity: Annotated[
        str | None, typer.Option("--capacity", metavar="N,N,...", help="Pool sizes in blocks; default: a series.")
    ] = None,
    block_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens a block id covers.")] = 512,
    output_format: OutputFormat = Format.table,
) -> None:
    """Prefix-cache hits of a trace against the size of the pool, all sizes in one pass."""
    from simulator.planning.cache_curve import cache_curves
    from simulator.showing import cache_curve_table as table
    from simulator.traffic.traces import trace_path

    policies, sizes = table.parse_policies(policy or ()), table.parse_capacities(capacity)
    curves = cache_curves(trace_path(trace), policies, sizes, block_tokens=block_tokens)
    if output_format is Format.table:
        table.print_curves(curves, block_tokens=block_tokens)
    else:
        documents = [curve.to_dict() for curve in curves]
        print_json(documents[0] if len(documents) == 1 else documents)
