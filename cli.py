"""Command line of the simulator: commands, options, exit codes. No modelling happens here.

Results go to stdout, progress and warnings to stderr. Exit codes: 0 done, 1 internal error (a bug), 2 bad input,
3 the answer is no, 130 interrupted. Each command imports what it needs when it runs, so that ``--help`` is quick.
"""

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from simulator.memory import MemoryBudget
    from simulator.scenario import Scenario

NO = 3
INTERRUPTED = 130


class Format(StrEnum):
    """How results are printed."""

    table = "table"
    json = "json"


class Cause(StrEnum):
    """Why an allocation fails."""

    capacity = "capacity"
    fragmentation = "fragmentation"


class Language(StrEnum):
    """Languages of the HTML report."""

    en = "en"
    zh = "zh"


class Catalogue(StrEnum):
    """What ``simulate list`` can list."""

    models = "models"
    devices = "devices"
    allocators = "allocators"
    scenarios = "scenarios"


class _Commands(TyperGroup):
    """Turns bad input into exit code 2 and an interrupt into 130, for every command."""

    def invoke(self, ctx: Any) -> Any:
        from simulator.errors import InputError

        try:
            return super().invoke(ctx)
        except InputError as error:
            _note(str(error))
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            _note("interrupted")
            raise typer.Exit(INTERRUPTED) from None


def _complete_scenario(incomplete: str) -> list[str]:
    from simulator.loading.catalogue import scenario_names

    beside = [str(path) for path in Path().glob(f"{incomplete}*.yaml")]
    return [name for name in (*scenario_names(), *sorted(beside)) if name.startswith(incomplete)]


ScenarioName = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO", help="A YAML file, or the name of a shipped scenario.", autocompletion=_complete_scenario
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one key, such as engine.max_num_seqs=64. Repeatable."),
]
OutputFormat = Annotated[Format, typer.Option("--format", help="A table for people or one JSON document.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no warnings on stderr.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed in place of the scenario's.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Processes; default: one for each usable core.")]
Confidence = Annotated[float, typer.Option(min=0.5, max=0.999999, help="Of the intervals, on both sides together.")]

ReportLanguage = Annotated[Language | None, typer.Option("--lang", help="Language of the report's words.")]
ResultsFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that `simulate run` wrote.")]

app = typer.Typer(
    name="simulate",
    cls=_Commands,
    help="Simulate KV-cache memory of LLM serving on Ascend NPUs: how often requests run out of memory, why, and "
    "what would help. `simulate SCENARIO` is short for `simulate run SCENARIO`.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from simulator.version import version

        typer.echo(f"ascend-kv-sim {version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    scenario: ScenarioName,
    *,
    allocator: Annotated[
        list[str] | None, typer.Option("--allocator", metavar="NAME", help="Only this allocator. Repeatable.")
    ] = None,
    replications: Annotated[int, typer.Option(min=1, help="Independent repetitions.")] = 1,
    verify: Annotated[bool, typer.Option("--verify", help="Check every invariant after every step (slow).")] = False,
    settings: Settings = None,
    seed: Seed = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder for the results; default: reports/<name>.")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no files.")] = False,
    perfetto: Annotated[bool, typer.Option("--perfetto", help="Also write a trace for ui.perfetto.dev.")] = False,
    language: ReportLanguage = None,
    output_format: OutputFormat = Format.table,
    quiet: Quiet = False,
) -> None:
    """Simulate a scenario under each of its allocators; all see the same requests.

    Writes a report folder: a page, pictures, tables, and a manifest to do it again.
    """
    from simulator.scenario import load_scenario
    from simulator.showing import output
    from simulator.showing.interrupt import asked_to_stop
    from simulator.showing.manifest import RunOptions
    from simulator.showing.progress import reporting
    from simulator.showing.reporting import run_into

    loaded = load_scenario(scenario, settings or ())
    chosen = _chosen_allocators(loaded, allocator or ())
    if loaded.budget.overdraft_bytes:
        _refuse(loaded.budget)
    folder = _results_folder(loaded.name, out, wanted=not no_report)
    options = RunOptions(
        command=_run_command(scenario, settings, seed, allocator, replications, verify, perfetto),
        seed=loaded.seed if seed is None else seed,
        allocators=chosen,
        replications=replications,
        verify=verify,
        perfetto=perfetto,
        language=(language or Language.en).value,
    )
    if folder is not None:
        output.prepare(folder)
    with reporting(enabled=not quiet) as progress, asked_to_stop() as interrupted, loaded.located():
        result = run_into(folder, loaded, options, progress=progress, interrupted=interrupted)
    document = result.to_json()
    if output_format is Format.json:
        _print_json(document)
    else:
        from simulator.showing import terminal

        terminal.print_runs(document["runs"])
    if folder is not None and not quiet:
        _note(f"report: {folder / 'report.html'}")
    if any(one["ended_because"] == "interrupted" for one in document["runs"]):
        raise typer.Exit(INTERRUPTED)


@app.command()
def explain(
    scenario: ScenarioName,
    *,
    allocator: Annotated[
        str | None,
        typer.Option("--allocator", metavar="NAME", help="Whose run; default: the first that refuses anything."),
    ] = None,
    event: Annotated[int, typer.Option(min=1, help="Number of the failed allocation, from 1.")] = 1,
    request: Annotated[int | None, typer.Option(min=0, help="Only failed allocations of this request.")] = None,
    cause: Annotated[Cause | None, typer.Option(help="Only failed allocations of this cause.")] = None,
    settings: Settings = None,
    seed: Seed = None,
    output_format: OutputFormat = Format.table,
) -> None:
    """Explain one failed allocation: who held the memory, where it was lost, and what would have served the request.

    Runs the same arrivals again with other allocators, page sizes and larger pools.
    """
    from simulator.planning.explain_oom import explain_oom
    from simulator.scenario import load_scenario
    from simulator.serving.oom_state import Wanted

    loaded = load_scenario(scenario, settings or ())
    label = (_chosen_allocators(loaded, [allocator]) or ("",))[0] if allocator is not None else None
    if loaded.budget.overdraft_bytes:
        _refuse(loaded.budget)
    with loaded.located():
        wanted = Wanted(event, request, None if cause is None else cause.value)
        document = explain_oom(loaded, wanted, allocator=label, seed=seed)
    if output_format is Format.json:
        _print_json(document)
        return
    from simulator.showing import explain_table

    explain_table.print_explanation(document)


@app.command()
def rerun(
    folder: ResultsFolder,
    *,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Keep the new results here.")] = None,
    quiet: Quiet = False,
) -> None:
    """Do the run of a results folder again, from its manifest, and compare every byte (exit 3 if any differs)."""
    from simulator.showing.interrupt import asked_to_stop
    from simulator.showing.progress import reporting
    from simulator.showing.reporting import rerun as do_again

    with reporting(enabled=not quiet) as progress, asked_to_stop() as interrupted:
        changed = do_again(folder, out, progress=progress, interrupted=interrupted)
    if changed:
        typer.echo(f"{folder}: not the same: {', '.join(changed)}")
        raise typer.Exit(NO)
    typer.echo(f"{folder}: the same, byte for byte")


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Folders that `simulate run` wrote.")],
    *,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the page of several folders goes.")] = Path(
        "reports/comparison"
    ),
    language: ReportLanguage = None,
) -> None:
    """Make the page and pictures of a results folder again, or one page for several folders side by side."""
    from simulator.showing.reporting import compare_folders, render_again

    chosen = None if language is None else language.value
    page = render_again(folders[0], chosen) if len(folders) == 1 else compare_folders(folders, out, chosen)
    _note(f"report: {page}")


@app.command()
def memory(
    scenario: Annotated[
        str | None,
        typer.Argument(metavar="[SCENARIO]", help="A YAML file or a shipped name.", autocompletion=_complete_scenario),
    ] = None,
    *,
    model: Annotated[str | None, typer.Option(help="Preset, Hugging Face id or config.json.")] = None,
    device: Annotated[str | None, typer.Option(help="Preset or device YAML.")] = None,
    count: Annotated[int | None, typer.Option(help="Devices; also the tensor parallel size.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Longest request, in tokens.")] = None,
    settings: Settings = None,
    output_format: OutputFormat = Format.table,
) -> None:
    """Where one device's memory goes: weights, activations, runtime, and how many KV tokens the rest holds."""
    from simulator.loading.static import budget_scenario

    loaded = budget_scenario(
        scenario, settings or (), model=model, device=device, count=count, max_model_len=max_model_len
    )
    document = loaded.budget.to_dict()
    if output_format is Format.json:
        _print_json(document)
    else:
        from simulator.showing import terminal

        target = loaded.loaded_device
        terminal.print_budget(document, f"{loaded.loaded_model.name} on {target.count} x {target.name}")
    if not loaded.budget.fits:
        _refuse(loaded.budget)


@app.command()
def kernel(
    scenario: Annotated[
        str | None,
        typer.Argument(metavar="[SCENARIO]", help="A YAML file or a shipped name.", autocompletion=_complete_scenario),
    ] = None,
    *,
    model: Annotated[str | None, typer.Option(help="Preset, Hugging Face id or config.json.")] = None,
    device: Annotated[str | None, typer.Option(help="Preset or device YAML.")] = None,
    count: Annotated[int | None, typer.Option(help="Devices; also the tensor parallel size.")] = None,
    page_size: Annotated[str | None, typer.Option(metavar="N,N,...", help="Page sizes in tokens.")] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens of each sequence; default: the workload's.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences; default: 32, or what fits.")] = None,
    tile: Annotated[
        Literal["per_head", "whole_page"], typer.Option(help="What has to be on chip together.")
    ] = "per_head",
    table: Annotated[Literal["hbm", "dcache", "l1"], typer.Option(help="Where page ids are read.")] = "dcache",
    prefetch: Annotated[Literal["none", "next", "all"], typer.Option(help="Tiles in flight beside one.")] = "next",
    layout: Annotated[Literal["token_major", "head_major"], typer.Option(help="Order inside a page.")] = "token_major",
    overflow: Annotated[
        Literal["split", "reload"], typer.Option(help="A tile too large comes in parts, or is read again for each.")
    ] = "split",
    stages: Annotated[bool, typer.Option("--stages", help="Also the seven stages of a decode step.")] = False,
    mechanisms: Annotated[bool, typer.Option("--mechanisms", help="Also what each mechanism is worth.")] = False,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write JSON and pictures here.")] = None,
    output_format: OutputFormat = Format.table,
) -> None:
    """What page-level attention costs by page size: bytes, look-ups, cycles, what bounds it; the page size to take."""
    from simulator.kernels.tiles import KernelOptions
    from simulator.loading.static import budget_scenario
    from simulator.planning.kernel_answer import kernel_answer, parse_page_sizes
    from simulator.showing import kernel_view

    answer = kernel_answer(
        budget_scenario(scenario, settings or (), model=model, device=device, count=count),
        page_sizes=parse_page_sizes(page_size),
        context=context,
        batch=batch,
        options=KernelOptions(table=table, tile=tile, prefetch=prefetch, layout=layout, overflow=overflow),
        has_workload=scenario is not None,
    )
    warning = kernel_view.unaligned(answer)
    if warning:
        _note(warning)
    if out is not None:
        kernel_view.write_answer(answer, out)
    if output_format is Format.json:
        _print_json(answer.to_list(with_stages=stages, with_mechanisms=mechanisms))
    else:
        kernel_view.print_answer(answer, with_stages=stages, with_mechanisms=mechanisms)


@app.command()
def calibrate(
    scenario: ScenarioName,
    measured: Annotated[
        Path, typer.Argument(metavar="MEASURED.csv", help="batch,context_tokens,step_ms or transfer_bytes,gb_per_s.")
    ],
    *,
    fit: Annotated[
        str | None, typer.Option("--fit", metavar="NAME,NAME,...", help="Device figures to fit; default: the usual.")
    ] = None,
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the fitted device here (YAML).")
    ] = None,
    output_format: OutputFormat = Format.table,
) -> None:
    """Fit figures of the scenario's device to measured step times or transfers; say which the data cannot tell."""
    from simulator import calibrate as calibration
    from simulator.files import write_text
    from simulator.kernels.measured_rows import read_measured
    from simulator.scenario import load_scenario

    loaded, rows = load_scenario(scenario, settings or ()), read_measured(measured)
    found = calibration.calibrate(
        loaded.loaded_device,
        loaded.loaded_model,
        loaded.engine,
        rows,
        parameters=[name.strip() for name in fit.split(",")] if fit else (),
    )
    if out is not None:
        write_text(out, calibration.device_yaml(found, measured=measured.name))
        _note(f"wrote {out}; use it with: --set device.file={out} --set device.preset=null")
    if output_format is Format.json:
        _print_json(found.to_dict())
    else:
        from simulator.showing.calibrate_view import print_calibration

        print_calibration(found, rows)


@app.command()
def claims(output_format: OutputFormat = Format.table) -> None:
    """Quantitative claims of two articles on paged KV caches, each computed by this program: claim, value, verdict."""
    from simulator.claims import check_claims

    found = check_claims()
    if output_format is Format.json:
        _print_json([claim.to_dict() for claim in found])
    else:
        from simulator.showing.claims_view import print_claims

        print_claims(found)


@app.command()
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
    chosen = _chosen_allocators(scenarios[0], allocator or ())
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
        _print_json(planner.comparison_document(scenarios[0], found, axis, confidence=confidence))
        return
    from simulator.showing import compare_table

    if axis is None:
        compare_table.print_comparison(found[0])
    else:
        compare_table.print_series(axis.key, axis.values, found)


@app.command()
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
        index=planner.sizable(loaded, _chosen_allocators(loaded, [allocator] if allocator else ())),
        goal=planner.chosen_goal(loaded, target_oom, target or ()),
        confidence=confidence,
        most_replications=max_replications,
        jobs=usable_processes(jobs),
    )
    interval = None if pool_interval is None else parse_interval(pool_interval)
    if loaded.budget.overdraft_bytes:
        _refuse(loaded.budget)
    with reporting(enabled=not quiet) as progress:
        answer = answered(question, solve or (), interval, progress)
    if out is not None:
        answer.write(out)
    if output_format is Format.json:
        _print_json(answer.document)
    else:
        answer.show()
    if not answer.holds:
        raise typer.Exit(NO)


@app.command()
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
    chosen = _chosen_allocators(loaded, allocator or ())
    with reporting(enabled=not quiet) as progress:
        done = planner.swept(
            planner.sweep_points(scenario, changes, axes, replications=replications, allocators=chosen),
            folder,
            jobs=usable_processes(jobs),
            dask=dask,
            progress=progress,
        )
    if output_format is Format.json:
        _print_json({"points": done.points, "resumed": done.resumed, "rows": done.rows, "parquet": str(done.parquet)})
    else:
        earlier = f", {done.resumed:,} of them from an earlier run" if done.resumed else ""
        typer.echo(f"{done.points:,} points{earlier}, {done.rows:,} rows: {done.parquet}")


@app.command()
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
    index = planner.sizable(loaded, _chosen_allocators(loaded, [allocator] if allocator else ()))
    with loaded.located():
        found = exported(loaded, index, engine, max_pages=max_pages)
    if output_format is Format.json:
        _print_json(export_document(found))
        return
    typer.echo(found.text)
    if not quiet:
        for note in found.notes:
            _note(f"note: {note}")


@app.command(name="cache-curve")
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
        _print_json(documents[0] if len(documents) == 1 else documents)


@app.command()
def validate(
    *,
    family: Annotated[
        list[str] | None, typer.Option("--family", metavar="NAME", help="Only this family of checks. Repeatable.")
    ] = None,
    long: Annotated[bool, typer.Option("--long", help="Also the checks that take minutes.")] = False,
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="Write docs/validation.md and its pictures below this folder.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Also write the checks as JSON.")] = None,
    output_format: OutputFormat = Format.table,
    quiet: Quiet = False,
) -> None:
    """Check the simulator against published numbers, real engines and theory (exit 3 if a check does not hold)."""
    from simulator import validation

    report = validation.validate(family or (), long=long, progress=None if quiet else _note)
    document = report.to_dict()
    if out is not None:
        import json

        from simulator.files import write_text

        write_text(out, json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    if write_docs:
        from simulator.validating.page import write_page

        _note(f"wrote {write_page(report, Path('docs'))}")
    if output_format is Format.json:
        _print_json(document)
    else:
        from simulator.validating.table import print_checks

        print_checks(report.checks)
    if report.failed:
        raise typer.Exit(NO)


@app.command(name="list")
def list_(
    what: Annotated[Catalogue, typer.Argument(help="Which catalogue.")],
    output_format: OutputFormat = Format.table,
) -> None:
    """List the shipped models, devices or scenarios, or the allocators."""
    from simulator.showing import listing

    rows = listing.rows(what.value)
    if output_format is Format.json:
        _print_json(rows)
    else:
        from simulator.showing import terminal

        terminal.print_rows("", listing.as_text(rows))


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("scenario.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a commented scenario to start from."""
    from simulator.files import write_text
    from simulator.loading.catalogue import starter_text

    write_text(file, starter_text(), replace=force)
    _note(f"wrote {file}; run it with: simulate {file}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from simulator.loading.schema import scenario_schema

    _print_json(scenario_schema())


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``simulate``; never returns, exits with one of the codes above."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    from simulator.errors import InputError

    try:
        app(args=with_command(words, command_names()), prog_name="simulate")
    except InputError as error:
        _note(str(error))
        sys.exit(2)
    except Exception:
        import traceback

        traceback.print_exc()
        _note("internal error: this is a bug in ascend-kv-sim, not in your input; please report the lines above")
        sys.exit(1)


def command_names() -> tuple[str, ...]:
    """The commands, in the order of the help text."""
    return tuple(str(command.name or getattr(command.callback, "__name__", "")) for command in app.registered_commands)


def with_command(words: Sequence[str], commands: Sequence[str]) -> list[str]:
    """``words`` with ``run`` in front when they start with a scenario or an option of ``run``.

    Raises ``InputError`` for a first word that is neither a command nor a file nor a shipped scenario.
    """
    if not words or words[0] in commands or words[0] in _GROUP_OPTIONS:
        return list(words)
    first = words[0]
    if first.startswith("-") or _names_scenario(first):
        return ["run", *words]
    from simulator.errors import InputError, Problem, nearest_name, printable
    from simulator.loading.catalogue import scenario_names

    shipped = scenario_names()
    message = f"{printable(first)!r} is no command, no file and no shipped scenario"
    nearest = nearest_name(first, [*commands, *shipped])
    raise InputError([Problem(message=message, nearest=nearest, allowed=(*commands, *shipped))])


_GROUP_OPTIONS = ("--help", "-h", "--version", "--install-completion", "--show-completion")


def _names_scenario(word: str) -> bool:
    if word.endswith((".yaml", ".yml")) or "/" in word:
        return True
    from simulator.loading.catalogue import is_scenario

    return is_scenario(word)


def _chosen_allocators(scenario: "Scenario", names: Sequence[str]) -> tuple[str, ...] | None:
    """Labels of the allocators that ``names`` (labels or kinds) mean; ``None`` for all."""
    from simulator.errors import InputError, Problem, nearest_name

    if not names:
        return None
    pairs = list(zip(scenario.labels, (one.kind for one in scenario.allocators), strict=True))
    known = tuple(dict.fromkeys(name for pair in pairs for name in pair))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(
            Problem(
                option=f"--allocator {name}",
                message="the scenario has no such allocator",
                nearest=nearest_name(name, known),
                allowed=known,
            )
            for name in unknown
        )
    return tuple(label for label, kind in pairs if label in names or kind in names)


def _results_folder(name: str, out: Path | None, *, wanted: bool) -> Path | None:
    """Where a run's results go; ``None``: nowhere."""
    from simulator.errors import InputError, Problem
    from simulator.showing import output

    if not wanted and out is not None:
        raise InputError([Problem(option="--no-report", message="writes nothing, so --out has no use: drop one")])
    return (out or output.default_folder(name)) if wanted else None


def _run_command(
    scenario: str,
    settings: Sequence[str] | None,
    seed: int | None,
    allocators: Sequence[str] | None,
    replications: int,
    verify: bool,
    perfetto: bool,
) -> str:
    """What to type for the same results, whatever folder and format they were asked in."""
    import shlex

    words = ["simulate", "run", scenario]
    words += [word for setting in settings or () for word in ("--set", setting)]
    words += [] if seed is None else ["--seed", str(seed)]
    words += [word for allocator in allocators or () for word in ("--allocator", allocator)]
    words += [] if replications == 1 else ["--replications", str(replications)]
    words += ["--verify"] * verify + ["--perfetto"] * perfetto
    return shlex.join(words)


def _refuse(budget: "MemoryBudget") -> NoReturn:
    """Exit with the answer *no*: what is missing, and three ways out."""
    from simulator.units import format_bytes

    length = f"one request of {budget.max_model_len:,} tokens"
    _note(f"does not fit: {format_bytes(budget.shortfall_bytes)} too little on each device for {length}. Ways out:")
    for way in budget.ways_out:
        _note(f"  - {way}")
    raise typer.Exit(NO)


def _print_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    import json

    typer.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def _note(text: str) -> None:
    typer.echo(text, err=True)


if __name__ == "__main__":
    main()
