"""Commands that simulate one scenario, and those that look again at what a run has left."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.commands.common import (
    INTERRUPTED,
    MOST_REPLICATIONS,
    NO,
    Allocators,
    Cause,
    Format,
    Jobs,
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

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.showing.manifest import RunOptions
    from simulator.showing.watch import PoolWatch


def run(
    scenario: ScenarioName,
    *,
    allocator: Allocators = None,
    replications: Annotated[int, typer.Option(min=1, max=MOST_REPLICATIONS, help="Independent repetitions.")] = 1,
    verify: Annotated[bool, typer.Option("--verify", help="Check every invariant after every step (slow).")] = False,
    settings: Settings = None,
    seed: Seed = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder for the results; default: reports/<name>.")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no files.")] = False,
    perfetto: Annotated[bool, typer.Option("--perfetto", help="Also write a trace for ui.perfetto.dev.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show the pool live while it runs, on a terminal.")] = False,
    jobs: Jobs = None,
    language: ReportLanguage = None,
    output_format: OutputFormat = Format.table,
    quiet: Quiet = False,
) -> None:
    """Simulate a scenario under each of its allocators; all see the same requests.

    Writes a report folder: a page, pictures, tables, and a manifest to do it again.
    """
    from simulator.scenario import load_scenario
    from simulator.showing.manifest import RunOptions

    loaded = load_scenario(scenario, settings or ())
    chosen = chosen_allocators(loaded, allocator or ())
    jobs = _processes(jobs, watched=watch)
    if loaded.budget.overdraft_bytes:
        refuse(loaded.budget)
    folder = results_folder(loaded.name, out, wanted=not no_report)
    asked = {"set": settings, "seed": seed, "allocator": allocator, "verify": verify, "perfetto": perfetto}
    asked["replications"] = None if replications == 1 else replications
    options = RunOptions(
        command=typed("run", scenario, asked),
        seed=loaded.seed if seed is None else seed,
        allocators=chosen,
        replications=replications,
        verify=verify,
        perfetto=perfetto,
        language=(language or Language.en).value,
    )
    document = _simulated(loaded, options, folder, jobs=jobs, watch=watch, quiet=quiet)
    _tell(document, folder, output_format, quiet=quiet)


def _processes(jobs: int | None, *, watched: bool) -> int:
    """How many processes to run on; who watches sees one run after the other, in this one. Raises ``InputError``."""
    from simulator.errors import InputError, Problem
    from simulator.planning.tasks import usable_processes

    if watched and (jobs or 1) > 1:
        raise InputError([Problem(option="--watch", message="shows one run at a time: drop it or --jobs")])
    return 1 if watched else usable_processes(jobs)


def _simulated(
    scenario: "Scenario", options: "RunOptions", folder: Path | None, *, jobs: int, watch: bool, quiet: bool
) -> dict[str, Any]:
    """The document of the runs, which are in ``folder`` by then. Raises ``InputError``."""
    from simulator.showing import output
    from simulator.showing.interrupt import asked_to_stop
    from simulator.showing.progress import reporting
    from simulator.showing.reporting import run_into

    if folder is not None:
        output.prepare(folder)
    labels = (options.allocators or scenario.labels) * options.replications
    with (
        reporting(enabled=not quiet and not watch) as progress,
        asked_to_stop() as interrupted,
        _live_view(labels, wanted=watch, quiet=quiet) as looking,
        scenario.located(),
    ):
        return run_into(
            folder, scenario, options, jobs=jobs, progress=progress, interrupted=interrupted, watch=looking
        ).to_json()


def _live_view(labels: Sequence[str], *, wanted: bool, quiet: bool) -> "AbstractContextManager[PoolWatch | None]":
    if not wanted:
        return nullcontext()
    from simulator.showing.watch import live_view

    return live_view(labels, wanted=True, quiet=quiet)


def _tell(document: dict[str, Any], folder: Path | None, output_format: Format, *, quiet: bool) -> None:
    """The answer on stdout, the rest on stderr; the exit code of a run that was interrupted."""
    from simulator.showing.output import was_interrupted

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
    if was_interrupted(document["runs"]):
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
    if again.changed and again.interrupted:
        so_far = f"it was interrupted, and its {', '.join(again.changed)} tell what there was by then"
        typer.echo(f"{folder}: not the same: {so_far}; done again {'it is' if out is None else f'{out} is'} whole")
        raise typer.Exit(NO)
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
