"""Commands that simulate one scenario, and those that look again at what a run has left."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.commands.common import (
    INTERRUPTED,
    NO,
    Allocators,
    Cause,
    Format,
    Language,
    OutputFormat,
    Quiet,
    ReportLanguage,
    ResultsFolder,
    ScenarioName,
    Seed,
    Settings,
    chosen_allocators,
    print_json,
    refuse,
    results_folder,
    say,
    typed,
)


def run(
    scenario: ScenarioName,
    *,
    allocator: Allocators = None,
    replications: Annotated[int, typer.Option(min=1, help="Independent repetitions.")] = 1,
    verify: Annotated[bool, typer.Option("--verify", help="Check every invariant after every step (slow).")] = False,
    settings: Settings = None,
    seed: Seed = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder for the results; default: reports/<name>.")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no files.")] = False,
    perfetto: Annotated[bool, typer.Option("--perfetto", help="Also write a trace for ui.perfetto.dev.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show the pool live while it runs, on a terminal.")] = False,
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
    from simulator.showing.watch import live_view

    loaded = load_scenario(scenario, settings or ())
    chosen = chosen_allocators(loaded, allocator or ())
    if loaded.budget.overdraft_bytes:
        refuse(loaded.budget)
    folder = results_folder(loaded.name, out, wanted=not no_report)
    options = RunOptions(
        command=typed(
            "run",
            scenario,
            {
                "set": settings,
                "seed": seed,
                "allocator": allocator,
                "replications": None if replications == 1 else replications,
                "verify": verify,
                "perfetto": perfetto,
            },
        ),
        seed=loaded.seed if seed is None else seed,
        allocators=chosen,
        replications=replications,
        verify=verify,
        perfetto=perfetto,
        language=(language or Language.en).value,
    )
    if folder is not None:
        output.prepare(folder)
    labels = (chosen or loaded.labels) * replications
    with (
        reporting(enabled=not quiet and not watch) as progress,
        asked_to_stop() as interrupted,
        live_view(labels, wanted=watch, quiet=quiet) as looking,
        loaded.located(),
    ):
        result = run_into(folder, loaded, options, progress=progress, interrupted=interrupted, watch=looking)
    _tell(result.to_json(), folder, output_format, quiet=quiet)


def _tell(document: dict[str, Any], folder: Path | None, output_format: Format, *, quiet: bool) -> None:
    """The answer on stdout, the rest on stderr; the exit code of a run that was interrupted."""
    if output_format is Format.json:
        print_json(document)
    else:
        from simulator.showing import terminal

        terminal.print_runs(document["runs"])
    if not quiet:
        for text in _never_planted(document["runs"]):
            say(text)
        if folder is not None:
            say(f"report: {folder / 'report.html'}")
    if any(one["ended_because"] == "interrupted" and "faults" not in one for one in document["runs"]):
        raise typer.Exit(INTERRUPTED)


def _never_planted(runs: list[dict[str, Any]]) -> Iterator[str]:
    """Warnings of mistakes that were asked for but had no occasion: such a run says nothing about them."""
    for one in runs:
        for fault in one.get("faults", {}).get("never_planted", ()):
            how_often = f"every {fault['every']} releases, and there were {fault['releases']}"
            yield f"warning: {one['label']}: {fault['kind']} was never planted ({how_often}); lower faults.every"


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
    label = (chosen_allocators(loaded, [allocator]) or ("",))[0] if allocator is not None else None
    if loaded.budget.overdraft_bytes:
        refuse(loaded.budget)
    with loaded.located():
        wanted = Wanted(event, request, None if cause is None else cause.value)
        document = explain_oom(loaded, wanted, allocator=label, seed=seed)
    if output_format is Format.json:
        print_json(document)
        return
    from simulator.showing import explain_table

    explain_table.print_explanation(document)


def rerun(
    folder: ResultsFolder,
    *,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Keep the new results here.")] = None,
    quiet: Quiet = False,
) -> None:
    """Do what a results folder holds again, from its manifest, and compare every byte (exit 3 if any differs)."""
    from simulator.showing.progress import reporting
    from simulator.showing.reporting import rerun as do_again

    with reporting(enabled=not quiet) as progress:
        again = do_again(folder, out, progress=progress)
    program = "; ".join(again.program)
    if again.changed:
        why = f"the program is another one ({program})" if program else "the program is the same"
        typer.echo(f"{folder}: not the same: {', '.join(again.changed)}; {why}")
        raise typer.Exit(NO)
    typer.echo(f"{folder}: the same, byte for byte" + (f", though by another program ({program})" if program else ""))


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Results folders.")],
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
    say(f"report: {page}")
