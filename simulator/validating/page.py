"""``docs/validation.md``: every check with its source, the pictures, and what is known about what does not hold."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from simulator import validation
from simulator.files import make_folder, write_text
from simulator.validating import pictures, reports
from simulator.validating.check import Check, spelled

_INTRODUCTION = """# Validation

Written by `simulate validate {options}--write-docs`; run it yourself, everything it needs is in the package.
Expected values come from the sources named in the tables: public logs, papers, test suites of engines, vendor
documents, closed forms. Nothing is tuned to pass: what does not hold stays here, with what is known about it.

**{answer}**

| grade | means |
|---|---|
| exact | equal |
| rounding | equal within the last digit that was printed |
| decoded | equal to integers that were worked out from printed figures |
| ordering | a direction or an inequality |
| statistical | a simulated mean within four standard errors (of batch means) of theory |
| measured | within the stated distance of a measurement |
| approximate | within the stated distance of theory that is itself an approximation |
"""


def write_page(report: "validation.Report", folder: Path) -> Path:
    """Write ``validation.md`` and ``img/validation/*.svg`` below ``folder``; the path of the page.

    Raises ``InputError`` when that cannot be.
    """
    images = folder / "img" / "validation"
    make_folder(images)
    drawn = pictures.draw(report.checks)
    for name, (_, svg) in drawn.items():
        write_text(images / f"{name}.svg", svg.decode())
    page = folder / "validation.md"
    write_text(page, page_text(report, {name: title for name, (title, _) in drawn.items()}))
    return page


def page_text(report: "validation.Report", drawn: dict[str, str]) -> str:
    """The page in Markdown; ``drawn`` gives the titles of the pictures that there are."""
    from simulator.validating.table import answer

    parts = [_INTRODUCTION.format(options="--long " if report.long else "", answer=answer(report.checks))]
    parts += _failures(report.failed)
    for family, (title, _) in validation.FAMILIES.items():
        checks = [check for check in report.checks if check.family == family]
        if checks:
            parts += ["", f"## {title}", "", *validation.notes(family), "", *_pictures(family, drawn), *_table(checks)]
    if {check.family for check in report.checks} == set(validation.FAMILIES):
        parts += [*_not_checked(), *_rows([check.id for check in report.checks])]
    return "\n".join(parts) + "\n"


def _not_checked() -> Iterator[str]:
    yield "\n## What is not checked\n"
    for one in reports.not_checked():
        yield f"- **{one.what}**: {one.why}"


def _rows(ids: Sequence[str]) -> Iterator[str]:
    """Every report and test case that was looked at, with the checks that cover it."""
    yield "\n## Public reports, one by one\n"
    yield (
        "Grades: E an identity of integers, R right to the rounding of a log line, D decoded from printed figures, B a "
        "direction or an inequality, T figures that mislead when taken at face value.\n"
    )
    yield "| row | report | grade | checks |"
    yield "|---|---|---|---|"
    for row in reports.public_reports():
        yield f"| {row.row} | {row.text} | {row.grade} | {_covering(row, ids)} |"
    yield "\n## Cases of engines' own test suites, one by one\n"
    yield "| row | case | checks, or tests of this project |"
    yield "|---|---|---|"
    for row in reports.engine_tests():
        yield f"| {row.row} | {row.text} | {_covering(row, ids)} |"


def _covering(row: reports.Row, ids: Sequence[str]) -> str:
    found = [*row.covered_by(ids), *row.tests]
    return ", ".join(f"`{one}`" for one in found) or "none"


def _failures(failed: Sequence[Check]) -> Iterator[str]:
    if failed:
        yield "## What does not hold\n"
    for check in failed:
        values = f"expected {spelled(check.expected)}, got {spelled(check.got)}"
        yield f"- `{check.id}` ({check.what}): {values}. {check.note}"


def _pictures(family: str, drawn: dict[str, str]) -> Iterator[str]:
    for name, title in drawn.items():
        if pictures.family_of(name) == family:
            yield f"![{title}](img/validation/{name}.svg)\n"


def _table(checks: Sequence[Check]) -> Iterator[str]:
    yield "| check | source | expected | tolerance | got | grade | holds |"
    yield "|---|---|---|---|---|---|---|"
    for check in checks:
        note = f" <br>{check.note}" if check.note and check.passed else ""
        cells = (
            f"`{check.id}` {check.what}{note}",
            check.source,
            spelled(check.expected),
            check.tolerance,
            spelled(check.got),
            check.grade,
            "yes" if check.passed else "**no**",
        )
        yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
