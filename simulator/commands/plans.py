"""Commands that ask many runs: which allocator, how large, over a grid; and what to tell the engine."""

from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.commands.common import (
    MOST_REPLICATIONS,
    Allocators,
    Confidence,
    Format,
    Jobs,
    NoReport,
    Out,
    OutputFormat,
    Quiet,
    ReportLanguage,
    ScenarioName,
    Seed,
    Settings,
    chosen_allocators,
    print_json,
    refuse,
    reply,
    results_folder,
    say,
    typed,
)


def compare(
    scenario: ScenarioName,
    *,
    replications: Annotated[int, typer.Option(min=1, max=MOST_REPLICATIONS, help="Paired repetitions.")] = 10,
    allocator: Allocators = None,
    vary: Annotated[
        str | None, typer.Option("--vary", metavar="KEY=A:B:STEP", help="Once for each value of a key (or KEY=A,B,C).")
    ] = None,
    confidence: Confidence = 0.95,
    settings: Settings = None,
    seed: Seed = None,
    jobs: Jobs = None,
    out: Out = None,
    no_report: NoReport = False,
    language: ReportLanguage = None,
    output_format: OutputFormat = Format.table,
    quiet: Quiet = False,
) -> None:
    """Which allocator loses fewer requests: all meet the same requests in each of several replications.

    Writes a report folder, by default reports/<name>-compare.
    """
    from simulator import planner
    from simulator.planning.grid import parse_axis
    from simulator.showing.asking import Asked
    from simulator.showing.compare_command import CompareQuestion

    asked = Asked.read(scenario, settings, seed)
    assert asked.scenario is not None
    axis = parse_axis(vary, "--vary") if vary else None
    first = planner.varied(asked.scenario, asked.changes, axis)[0]
    question = CompareQuestion(
        asked=asked,
        replications=replications,
        confidence=confidence,
        vary=vary,
        allocators=chosen_allocators(first, allocator or ()),
    )
    options = {"set": settings, "seed": seed, "allocator": allocator, "replications": replications, "vary": vary}
    reply(
        question,
        results_folder(f"{first.name}-compare", out, wanted=not no_report),
        command=typed("compare", scenario, options | {"confidence": _changed(confidence, 0.95)}),
        language=language,
        jobs=jobs,
        output_format=output_format,
        quiet=quiet,
    )


TargetOom = Annotated[
    float | None, typer.Option("--target-oom", metavar="RATE", help="OOM rate to stay below; default 0.001.")
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        "--slo",
        metavar="NAME=LIMIT",
        help="Another target: preemption=0.01, ttft_p95=2s, ... Repeatable: all have to hold.",
    ),
]
OneAllocator = Annotated[
    str | None, typer.Option("--allocator", metavar="NAME", help="Which one; default: the first paged one.")
]
PoolBytes = Annotated[
    str | None,
    typer.Option(
        "--pool-interval", metavar="LOW:HIGH", help="Bytes the KV pool of a device has, when not known exactly."
    ),
]
Solve = Annotated[
    list[str] | None,
    typer.Option(
        "--solve",
        metavar="KEY=A:B:STEP",
        help="Instead: how far a key may go with the pool there is. Twice: how two keys trade.",
    ),
]


def size(
    scenario: ScenarioName,
    *,
    target_oom: TargetOom = None,
    target: Targets = None,
    confidence: Confidence = 0.95,
    allocator: OneAllocator = None,
    pool_interval: PoolBytes = None,
    solve: Solve = None,
    max_replications: Annotated[
        int, typer.Option(min=1, max=MOST_REPLICATIONS, help="Most replications of one size.")
    ] = 64,
    settings: Settings = None,
    seed: Seed = None,
    jobs: Jobs = None,
    out: Out = None,
    no_report: NoReport = False,
    language: ReportLanguage = None,
    output_format: OutputFormat = Format.table,
    quiet: Quiet = False,
) -> None:
    """The smallest pool that keeps a target with confidence, and the settings that follow from it.

    Writes a report folder, by default reports/<name>-size.
    """
    from simulator import planner
    from simulator.scenario import load_scenario
    from simulator.showing.asking import Asked
    from simulator.showing.size_command import SizeQuestion

    asked = Asked.read(scenario, settings, seed)
    assert asked.scenario is not None
    loaded = load_scenario(asked.scenario, asked.changes)
    index = planner.sizable(loaded, chosen_allocators(loaded, [allocator] if allocator else ()))
    question = SizeQuestion(
        asked=asked,
        target_oom=target_oom,
        targets=tuple(target or ()),
        confidence=confidence,
        allocator=loaded.labels[index],
        pool_interval=pool_interval,
        solve=tuple(solve or ()),
        max_replications=max_replications,
    )
    if loaded.budget.overdraft_bytes:
        refuse(loaded.budget)
    options: dict[str, Any] = {"set": settings, "seed": seed, "target-oom": target_oom, "target": target}
    options |= {"allocator": allocator, "pool-interval": pool_interval, "solve": solve}
    options |= {"confidence": _changed(confidence, 0.95), "max-replications": _changed(max_replications, 64)}
    folder = results_folder(f"{loaded.name}-size", out, wanted=not no_report)
    command = typed("size", scenario, options)
    told: dict[str, Any] = {"language": language, "jobs": jobs, "output_format": output_format, "quiet": quiet}
    reply(question, folder, command=command, **told)


def sweep(
    scenario: ScenarioName,
    *,
    grid: Annotated[
        list[str], typer.Option("--grid", metavar="KEY=A:B:STEP", help="Values of a key (or KEY=A,B,C). Repeatable.")
    ],
    replications: Annotated[
        int, typer.Option(min=1, max=MOST_REPLICATIONS, help="Independent repetitions of each point.")
    ] = 1,
    allocator: Allocators = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder; default: reports/<name>-sweep.")
    ] = None,
    dask: Annotated[
        str | None, typer.Option("--dask", metavar="ADDRESS", help="Run on a Dask cluster: tcp://host:port, or local.")
    ] = None,
    plot: Annotated[
        list[str] | None,
        typer.Option("--plot", metavar="COLUMN", help="A column of the rows to draw; default: the usual. Repeatable."),
    ] = None,
    language: ReportLanguage = None,
    settings: Settings = None,
    seed: Seed = None,
    jobs: Jobs = None,
    output_format: OutputFormat = Format.table,
    quiet: Quiet = False,
) -> None:
    """One row of metrics for every combination of some keys' values, in a Parquet file; goes on where it stopped."""
    from simulator.scenario import load_scenario
    from simulator.showing.asking import Asked
    from simulator.showing.output import default_folder
    from simulator.showing.sweep_command import PLOTTED, SweepQuestion

    asked = Asked.read(scenario, settings, seed)
    assert asked.scenario is not None
    loaded = load_scenario(asked.scenario, asked.changes)
    question = SweepQuestion(
        asked=asked,
        grid=tuple(grid),
        replications=replications,
        allocators=chosen_allocators(loaded, allocator or ()),
        plots=tuple(plot) if plot else PLOTTED,
        dask=dask,
    )
    options = {"set": settings, "seed": seed, "allocator": allocator, "grid": grid, "plot": plot}
    reply(
        question,
        default_folder(f"{loaded.name}-sweep") if out is None else out,
        command=typed("sweep", scenario, options | {"replications": _changed(replications, 1)}),
        language=language,
        jobs=jobs,
        output_format=output_format,
        quiet=quiet,
    )


def _changed(value: Any, usual: Any) -> Any:
    """``value`` if it is not the usual one, which nobody has to type."""
    return None if value == usual else value


def export(
    scenario: ScenarioName,
    *,
    engine: Annotated[str, typer.Option("--for", metavar="ENGINE", help="vllm-ascend, vllm, mindie or cann-recipes.")],
    allocator: OneAllocator = None,
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
