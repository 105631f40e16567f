"""Commands about what ships: catalogues, a scenario to start from, its schema."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.commands.common import (
    Catalogue,
    Format,
    OutputFormat,
    print_json,
    say,
)

if TYPE_CHECKING:
    pass


def list_(
    what: Annotated[Catalogue, typer.Argument(help="Which catalogue.")],
    output_format: OutputFormat = Format.table,
) -> None:
    """List the shipped models, devices or scenarios, or the allocators."""
    from simulator.showing import listing

    rows = listing.rows(what.value)
    if output_format is Format.json:
        print_json(rows)
    else:
        from simulator.showing import terminal

        terminal.print_rows("", listing.as_text(rows))


def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("scenario.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a commented scenario to start from."""
    from simulator.files import write_text
    from simulator.loading.catalogue import starter_text

    write_text(file, starter_text(), replace=force)
    say(f"wrote {file}; run it with: simulate {file}")


def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from simulator.loading.schema import scenario_schema

    print_json(scenario_schema())
