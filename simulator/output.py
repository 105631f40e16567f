"""The folder of a run: one JSON summary, the resolved scenario, and the columns of every allocator as Parquet."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.files import make_folder, write_text, write_with

if TYPE_CHECKING:
    from simulator.simulation import Result


def prepare(folder: Path) -> None:
    """Make sure that ``folder`` can be written, before any time is spent. Raises ``InputError``."""
    make_folder(folder)


def write_run(result: "Result", document: Mapping[str, Any], folder: Path) -> None:
    """Write ``summary.json``, ``scenario.resolved.yaml`` and ``<table>-<run>.parquet`` for every run.

    Raises ``InputError`` when a file cannot be written; files already complete stay.
    """
    prepare(folder)
    for run in result.runs:
        for table in ("requests", "timeline", "oom_events"):
            _write_parquet(folder / f"{table}-{run_name(run.summary)}.parquet", getattr(run, table))
    write_text(folder / "scenario.resolved.yaml", scenario_yaml(document["scenario"]))
    write_text(folder / "summary.json", json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def run_name(summary: Mapping[str, Any]) -> str:
    """What tells a run from the others: its label, with the replication when there are several."""
    replication = summary.get("replication")
    return str(summary["label"]) + ("" if replication is None else f"-{replication}")


def scenario_yaml(resolved: Mapping[str, Any]) -> str:
    """A resolved scenario as YAML that loads to the same scenario."""
    import yaml

    return yaml.dump(dict(resolved), Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=120)


def _dumper() -> Any:
    """PyYAML's dumper, told to quote what YAML 1.2 would read as a number (``1e9``)."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        from simulator.yaml_source import resolve_scalar

        try:
            # PyYAML leaves some line separators unquoted, which then read back as spaces.
            plain = value.isprintable() and isinstance(resolve_scalar(value), str)
        except ValueError:
            plain = False
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')

    Dumper.add_representer(str, text)
    return Dumper


def _write_parquet(path: Path, columns: Mapping[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(dict(columns))
    write_with(path, lambda stream: pq.write_table(table, stream, compression="zstd"))
