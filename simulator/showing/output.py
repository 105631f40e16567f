"""The folder of a run: what is in which file, and how it is written.

``summary.json``            the document of ``--format json``, without wall times
``basis.json``              what the run stands on: memory budget, device figures with their sources, model
``scenario.resolved.yaml``  the scenario with every default, as it was run
``<table>.parquet``         requests, timeline, oom_events, pool_map: the rows of all allocators, one after another
``report.html``             the page for people, and its pictures as ``<picture>.svg`` and ``.png``
``trace.json.gz``           with ``--perfetto``: for ui.perfetto.dev
``manifest.json``           how to do it again, and the SHA-256 of every other file
``timing.json``             wall times: the only file that two equal runs do not have in common
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.files import make_folder, staged, write_text

if TYPE_CHECKING:
    from simulator.metrics import Columns
    from simulator.scenario import Scenario
    from simulator.serving.step_log import StepLog
    from simulator.showing.manifest import Outputs, RunOptions
    from simulator.simulation import Result

REPORTS = "reports"


def default_folder(scenario_name: str) -> Path:
    """Where results go unless told otherwise: ``reports/<name>`` below the current folder."""
    return Path(REPORTS) / (scenario_name.strip(". ") or "scenario")


def prepare(folder: Path) -> None:
    """Make sure that ``folder`` can be written, before any time is spent. Raises ``InputError``."""
    make_folder(folder)


def write_run(
    result: "Result",
    folder: Path,
    *,
    scenario: "Scenario",
    options: "RunOptions",
    pool_maps: Sequence["Columns"] = (),
    step_logs: Sequence["StepLog"] = (),
) -> Path:
    """Write everything into ``folder``; the path of the page. Files of an earlier run that this one lacks are removed.

    ``pool_maps`` are the maps of the runs and ``step_logs`` their steps, in order. Raises ``InputError`` when a file
    cannot be written: results of an earlier run are then still there. The manifest comes last, so a folder with one
    is whole.
    """
    from simulator.report import write_report
    from simulator.showing.manifest import NAME, Outputs, manifest, run_deed

    with staged(folder, last=NAME, dropping=earlier_outputs(folder)) as stage:
        outputs = Outputs(stage)
        _write_data(result, outputs, scenario, pool_maps)
        if options.perfetto:
            from simulator.trace import trace_bytes

            outputs.write("trace.json.gz", trace_bytes(stage, step_logs))
        write_report(stage, outputs, command=options.command, language=options.language)
        deed = run_deed(scenario, options, interrupted=was_interrupted(run.summary for run in result.runs))
        content = manifest(deed, outputs.sha256, not_hashed=["timing.json"])
        write_text(stage / NAME, to_json(content))
    return folder / "report.html"


def _write_data(result: "Result", outputs: "Outputs", scenario: "Scenario", pool_maps: Sequence["Columns"]) -> None:
    import io

    from simulator.showing.tables import run_rows, write_table

    for table, columns in (
        ("requests", [run.requests for run in result.runs]),
        ("timeline", [run.timeline for run in result.runs]),
        ("oom_events", [run.oom_events for run in result.runs]),
        ("pool_map", pool_maps or [{} for _ in result.runs]),
    ):
        stream = io.BytesIO()
        write_table(stream, run_rows([run.summary for run in result.runs], columns))
        outputs.write(f"{table}.parquet", stream.getvalue())
    summary, timing = without_wall_times(result.to_json())
    outputs.write("scenario.resolved.yaml", scenario_yaml(summary["scenario"]).encode())
    outputs.write("summary.json", to_json(summary).encode())
    outputs.write("basis.json", to_json(basis(scenario)).encode())
    write_text(outputs.folder / "timing.json", to_json(timing))


def without_wall_times(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The document without what differs between two equal runs, and that by itself."""
    runs = [{key: value for key, value in run.items() if key != "wall_s"} for run in document["runs"]]
    times = [{"run": run_name(run), "wall_s": run.get("wall_s")} for run in document["runs"]]
    return {**document, "runs": runs}, {"runs": times}


def basis(scenario: "Scenario") -> dict[str, Any]:
    """What the answers rest on: the memory budget, each device figure with its source, the model's shape."""
    from simulator.device import FIGURES, DeviceFields

    device, model = scenario.loaded_device, scenario.loaded_model
    figures = []
    for name in FIGURES:
        source, confidence = device.provenance(name)
        meaning = DeviceFields.model_fields[name].description or ""
        value = getattr(device, name)
        figures.append({"name": name, "value": value, "source": source, "confidence": confidence, "meaning": meaning})
    return {
        "memory": scenario.budget.to_dict(),
        "device": {"name": device.name, "count": device.count, "replicas": device.replicas, "figures": figures},
        "model": {
            "name": model.name,
            "parameters": model.parameters,
            "active_parameters": model.active_parameters,
            "layers": model.num_layers,
        },
    }


def earlier_outputs(folder: Path) -> set[str]:
    """Files in ``folder`` that an earlier run wrote."""
    try:
        names = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["outputs"]
        return {name for name in names if Path(name).name == name}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def was_interrupted(summaries: Iterable[Mapping[str, Any]]) -> bool:
    """Whether Ctrl-C ended one of the runs; one that a planted mistake ended is whole."""
    return any(one["ended_because"] == "interrupted" and "faults" not in one for one in summaries)


def run_name(summary: Mapping[str, Any]) -> str:
    """What tells a run from the others: its label, with the replication when there are several."""
    replication = summary.get("replication")
    return str(summary["label"]) + ("" if replication is None else f"-{replication}")


def to_json(content: Mapping[str, Any]) -> str:
    """JSON for files: indented, a line break at the end."""
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


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
        from simulator.loading.yaml_source import resolve_scalar

        try:
            # PyYAML leaves some line separators unquoted, which then read back as spaces.
            plain = value.isprintable() and isinstance(resolve_scalar(value), str)
        except ValueError:
            plain = False
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')

    Dumper.add_representer(str, text)
    return Dumper
