"""Commands that check: the articles' claims, and the simulator itself against the world."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.commands.common import (
    NO,
    Format,
    OutputFormat,
    Quiet,
    print_json,
    say,
)

if TYPE_CHECKING:
    pass


def claims(output_format: OutputFormat = Format.table) -> None:
    """Quantitative claims of two articles on paged KV caches, each computed by this program: claim, value, verdict."""
    from simulator.claims import check_claims

    found = check_claims()
    if output_format is Format.json:
        print_json([claim.to_dict() for claim in found])
    else:
        from simulator.showing.claims_view import print_claims

        print_claims(found)


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
    from simulator.files import make_folder

    if out is not None:
        make_folder(out.parent)
    report = validation.validate(family or (), long=long, progress=None if quiet else say)
    document = report.to_dict()
    if out is not None:
        import json

        from simulator.files import write_text

        write_text(out, json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    if write_docs:
        from simulator.validating.page import write_page

        say(f"wrote {write_page(report, Path('docs'))}")
    if output_format is Format.json:
        print_json(document)
    else:
        from simulator.validating.table import print_checks

        print_checks(report.checks)
    if report.failed:
        raise typer.Exit(NO)
