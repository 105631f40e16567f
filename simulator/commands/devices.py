"""Commands about a device and a model: what fits, what attention costs, figures fitted to measurements."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from simulator.commands.common import (
    DeviceCount,
    DeviceName,
    Format,
    MaybeScenario,
    ModelName,
    NoReport,
    Out,
    OutputFormat,
    Quiet,
    ReportLanguage,
    ScenarioName,
    Settings,
    print_json,
    refuse,
    reply,
    results_folder,
    say,
    typed,
)

#: a kernel's figures are exact up to here, far beyond any device
MOST_CONTEXT_TOKENS = 10**8
MOST_SEQUENCES = 10**5

PageSizes = Annotated[str | None, typer.Option(metavar="N,N,...", help="Page sizes in tokens.")]
Context = Annotated[
    int | None, typer.Option(min=1, max=MOST_CONTEXT_TOKENS, help="Tokens of each sequence; default: the workload's.")
]
Batch = Annotated[int | None, typer.Option(min=1, max=MOST_SEQUENCES, help="Sequences; default: 32, or what fits.")]
Tile = Annotated[Literal["per_head", "whole_page"], typer.Option(help="What has to be on chip together.")]
Table = Annotated[Literal["hbm", "dcache", "l1"], typer.Option(help="Where page ids are read.")]
Prefetch = Annotated[Literal["none", "next", "all"], typer.Option(help="Tiles in flight beside one.")]
Layout = Annotated[Literal["token_major", "head_major"], typer.Option(help="Order inside a page.")]
Overflow = Annotated[
    Literal["split", "reload"], typer.Option(help="A tile too large comes in parts, or is read again for each.")
]


def memory(
    scenario: MaybeScenario = None,
    *,
    model: ModelName = None,
    device: DeviceName = None,
    count: DeviceCount = None,
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
        print_json(document)
    else:
        from simulator.showing import terminal

        target = loaded.loaded_device
        terminal.print_budget(document, f"{loaded.loaded_model.name} on {target.count} x {target.name}")
    if not loaded.budget.fits:
        refuse(loaded.budget)


def kernel(
    scenario: MaybeScenario = None,
    *,
    model: ModelName = None,
    device: DeviceName = None,
    count: DeviceCount = None,
    page_size: PageSizes = None,
    context: Context = None,
    batch: Batch = None,
    tile: Tile = "per_head",
    table: Table = "dcache",
    prefetch: Prefetch = "next",
    layout: Layout = "token_major",
    overflow: Overflow = "split",
    stages: Annotated[bool, typer.Option("--stages", help="Also the seven stages of a decode step.")] = False,
    mechanisms: Annotated[bool, typer.Option("--mechanisms", help="Also what each mechanism is worth.")] = False,
    settings: Settings = None,
    out: Out = None,
    no_report: NoReport = False,
    language: ReportLanguage = None,
    output_format: OutputFormat = Format.table,
    quiet: Quiet = False,
) -> None:
    """What page-level attention costs by page size: bytes, look-ups, cycles, what bounds it; the page size to take.

    Writes a report folder, by default reports/<name>-kernel.
    """
    from simulator.showing.asking import Asked
    from simulator.showing.kernel_command import KernelQuestion

    question = KernelQuestion(
        asked=Asked.read(scenario, settings),
        model=model,
        device=device,
        count=count,
        page_size=page_size,
        context=context,
        batch=batch,
        tile=tile,
        table=table,
        prefetch=prefetch,
        layout=layout,
        overflow=overflow,
        stages=stages,
        mechanisms=mechanisms,
    )
    reply(
        question,
        results_folder(f"{_stem(scenario or model)}-kernel", out, wanted=not no_report),
        command=typed("kernel", scenario, {"set": settings} | question.unusual()),
        language=language,
        output_format=output_format,
        quiet=quiet,
    )


def _stem(name: str | None) -> str:
    """What a folder can be named after: the last part of a name or path, without its ending."""
    last = Path(name or "").name
    return Path(last).stem if last.endswith((".yaml", ".yml", ".json")) else last


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
        say(f"wrote {out}; use it with: --set device.file={out} --set device.preset=null")
    if output_format is Format.json:
        print_json(found.to_dict())
    else:
        from simulator.showing.calibrate_view import print_calibration

        print_calibration(found, rows)
