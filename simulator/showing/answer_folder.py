"""The folder of an answer of the planner (`compare`, `size`, `sweep`, `kernel`), written like that of a run.

``summary.json``            the answer, with everything that the page shows
``basis.json``              which question, and what the answer stands on: scenario, budget, device figures, model
``scenario.resolved.yaml``  the scenario with every default
``<table>.parquet``         the answer's rows, for other programs
``report.html``             the page for people, and its pictures as ``<picture>.svg`` and ``.png``
``manifest.json``           how to ask again, and the SHA-256 of every other file
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.files import staged, write_text
from simulator.showing import output
from simulator.showing.asking import Answered, Question, Rows, options_of
from simulator.showing.manifest import NAME, Deed, Outputs, checked_manifest, kind_of, manifest, read_json
from simulator.showing.report_data import Basis, basis_of
from simulator.version import version

#: what a page of an answer is made from, beside its Parquet tables
DATA_FILES = ("summary.json", "basis.json")


@dataclass(frozen=True, slots=True)
class AnswerData:
    """An answer, read back from its folder. ``name`` tells it from others on the same page."""

    kind: str
    name: str
    basis: Basis
    document: Mapping[str, Any]
    folder: Path

    def table(self, name: str) -> dict[str, list[Any]]:
        """A Parquet table of the folder, by column."""
        import pyarrow.parquet

        found: dict[str, list[Any]] = pyarrow.parquet.read_table(self.folder / f"{name}.parquet").to_pydict()
        return found


def write_answer(answered: Answered, question: Question, folder: Path, *, command: str, language: str) -> Path:
    """Write everything into ``folder``; the path of the page. Raises ``InputError``.

    Files of an earlier answer that this one lacks are removed; until all are written, those of the earlier one stay.
    """
    from simulator.report import write_answer_report

    deed = Deed(
        kind=question.kind,
        command=command,
        options={**options_of(question), "language": language},
        scenarios=answered.scenarios,
        asked=question.asked.to_dict(),
        interrupted=answered.interrupted,
    )
    with staged(folder, last=NAME, dropping=output.earlier_outputs(folder)) as stage:
        outputs = Outputs(stage)
        _write_data(answered, question, outputs)
        write_answer_report(stage, outputs, command=command, language=language)
        content = manifest(deed, outputs.sha256, not_hashed=answered.not_hashed)
        write_text(stage / NAME, output.to_json(content))
    return folder / "report.html"


def _write_data(answered: Answered, question: Question, outputs: Outputs) -> None:
    scenario = answered.scenarios[0]
    for name, rows in answered.tables.items():
        outputs.write(f"{name}.parquet", parquet_bytes(rows))
    resolved = scenario.resolved()
    outputs.write("scenario.resolved.yaml", output.scenario_yaml(resolved).encode())
    outputs.write("summary.json", output.to_json(answered.summary).encode())
    basis = {
        "kind": question.kind,
        "scenario": resolved,
        "seed": scenario.seed,
        "version": version(),
        **output.basis(scenario),
    }
    outputs.write("basis.json", output.to_json(basis).encode())


def parquet_bytes(rows: Rows) -> bytes:
    """A Parquet file with all columns that any row has, in the order in which they appear."""
    import io

    from simulator.planning.sweep_table import write_rows

    stream = io.BytesIO()
    write_rows(stream, rows)
    return stream.getvalue()


def read_answer(folder: Path, name: str, *, command: str | None = None) -> AnswerData:
    """The answer in ``folder``; ``command`` stands in for the manifest's while there is none. Raises ``InputError``."""
    if command is None:
        content = checked_manifest(folder, DATA_FILES)
        tables = [file for file in content["outputs"] if file.endswith(".parquet")]
        command = str(checked_manifest(folder, tables)["command"])
    plain = read_json(folder / "basis.json")
    kind = kind_of(plain)
    basis = basis_of({key: value for key, value in plain.items() if key != "kind"}, name, command)
    return AnswerData(kind, name, basis, read_json(folder / "summary.json"), folder)
