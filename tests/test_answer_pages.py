"""Folders of `compare`, `size`, `sweep` and `kernel`: complete, repeatable, and with the answer first."""

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from answer_folders import COMMANDS, TEXT, Folders
from test_report import Page, listener

import cli
from simulator.planning.compare import compare
from simulator.planning.demand import demand
from simulator.planning.tasks import Found, Task
from simulator.planning.trial import observe
from simulator.scenario import parse_scenario
from simulator.showing.pages.compare import lead
from simulator.showing.pages.shared import key_label
from simulator.showing.reporting import render_again
from simulator.showing.words import translator
from simulator.units import format_percent

ROOT = Path(__file__).parents[1]
ANSWERS = [name for name in COMMANDS if name != "run"]


def simulate(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    return int(ended.value.code or 0)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def page_of(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def copied(folder: Path, to: Path) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


# ---- the folder


@pytest.mark.parametrize("name", ANSWERS)
def test_a_folder_has_page_summary_tables_pictures_scenario_and_manifest(name: str, folders: Folders) -> None:
    found = {path.name for path in folders[name].iterdir()}
    assert {"report.html", "summary.json", "basis.json", "scenario.resolved.yaml", "manifest.json"} <= found
    assert any(file.endswith(".parquet") for file in found)
    drawn = {file.removesuffix(".svg") for file in found if file.endswith(".svg")}
    assert "hbm_budget" in drawn and len(drawn) >= 2
    assert {f"{picture}.png" for picture in drawn} <= found
    manifest = read(folders[name] / "manifest.json")
    hashed = found - set(manifest["not_hashed"])
    assert manifest["outputs"] == {
        file: hashlib.sha256((folders[name] / file).read_bytes()).hexdigest() for file in hashed
    }
    assert manifest["kind"] == COMMANDS[name][0]
    assert len(manifest["code_sha256"]) == 64
    assert manifest["command"].startswith(f"simulate {COMMANDS[name][0]}")


@pytest.mark.parametrize("name", ANSWERS)
def test_rerun_gives_the_same_bytes(name: str, folders: Folders, tmp_path: Path) -> None:
    assert simulate("rerun", folders[name], "--out", tmp_path / "again", "--quiet") == 0
    loose = set(read(folders[name] / "manifest.json")["not_hashed"]) - {"manifest.json"}
    for path in (tmp_path / "again").iterdir():
        if path.name in loose:
            continue  # a journal has its points as they were finished
        assert path.read_bytes() == (folders[name] / path.name).read_bytes(), path.name


@pytest.mark.parametrize("name", ["vary", "sweep"])
def test_report_makes_the_same_page_from_the_tables(name: str, folders: Folders, tmp_path: Path) -> None:
    copy = copied(folders[name], tmp_path / "copy")
    (copy / "report.html").unlink()
    assert simulate("report", copy) == 0
    assert (copy / "report.html").read_bytes() == (folders[name] / "report.html").read_bytes()
    (copy / "summary.json").write_text("{}")
    assert simulate("report", copy) == 2


def test_rerun_says_that_the_program_is_another_one(
    folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(folders["kernel"], tmp_path / "copy")
    manifest = read(copy / "manifest.json")
    manifest["code_sha256"] = "0" * 64
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert simulate("rerun", copy) == 0
    assert "the same, byte for byte, though by another program (its code 000000000000 then, " in capsys.readouterr().out
    manifest["outputs"]["summary.json"] = "0" * 64
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert simulate("rerun", copy) == 3
    out = capsys.readouterr().out
    assert "not the same: summary.json; the program is another one (its code 000000000000 then, " in out


def test_the_code_of_the_program_has_one_hash_and_any_change_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simulator import version

    def sha256_of(files: dict[str, bytes]) -> str:
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
        monkeypatch.setattr(version, "__file__", str(tmp_path / "version.py"))
        return version.code_sha256()

    files = {
        "version.py": b"1\n",
        "templates/page.css": b"a\nb\n",
        "notes.txt": b"x",
        "_scenarios/a.yaml": b"y",
        "_core/a.json": b"z",
    }
    first = sha256_of(files)
    assert (
        sha256_of(
            {"notes.txt": b"z", "_scenarios/a.yaml": b"z", "_core/a.json": b"y", "templates/page.css": b"a\r\nb\r\n"}
        )
        == first
    )
    changed = sha256_of({"templates/page.css": b"a\nc\n"})
    assert changed != first
    (tmp_path / "templates/page.css").rename(tmp_path / "templates/other.css")
    assert version.code_sha256() not in (first, changed)


@pytest.mark.parametrize("words", [("compare",), ("size", "--max-replications", "1"), ("kernel",)])
def test_no_report_writes_nothing(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tight.yaml").write_text(TEXT)
    few = ["--replications", "1"] if words[0] == "compare" else []
    assert simulate(words[0], "tight.yaml", *words[1:], *few, "--no-report", "--quiet") in (0, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["tight.yaml"]


# ---- the page


@pytest.mark.parametrize("name", ANSWERS)
def test_a_page_needs_nothing_from_elsewhere_and_its_references_lead_somewhere(name: str, folders: Folders) -> None:
    page = page_of(folders[name])
    assert not {"link", "iframe", "object", "embed", "base", "form"} & set(page.elements)
    ids = [value for attribute, value in page.attributes if attribute == "id"]
    assert len(set(ids)) == len(ids)
    for attribute, value in page.attributes:
        assert not attribute.startswith("on")
        if attribute in ("src", "href", "xlink:href", "action"):
            assert value.startswith("data:image/png;base64,") or value[1:] in ids, value[:80]
    assert (folders[name] / "report.html").stat().st_size < 2 * 2**20


def test_every_title_asks_a_question(folders: Folders) -> None:
    for name in ANSWERS:
        for path in folders[name].glob("*.svg"):
            if name == "vary":
                continue  # its files are English, too: see the others
            text = re.sub(r"<[^>]+>", "\n", path.read_text(encoding="utf-8"))
            assert re.search(r"^\s*[A-Z].*\?\s*$|\?\s*$", text, re.MULTILINE), path


def test_compare_leads_with_the_verdict_and_shows_the_pooled_rate(folders: Folders) -> None:
    text = "".join(page_of(folders["compare"]).text)
    rows = pd.read_parquet(folders["compare"] / "replications.parquet")
    # Equally many requests in each replication: the pooled rate is the mean.
    lost = rows[rows["label"] == "contiguous"]["oom_rate"].mean()
    assert f"contiguous loses {format_percent(lost)}, which is" in text
    assert text.index("loses the fewest requests") < text.index("Allocators side by side")
    assert len(rows) == 2 * 3


def test_vary_draws_a_band_for_each_allocator_on_a_chinese_page(folders: Folders) -> None:
    html = (folders["vary"] / "report.html").read_text(encoding="utf-8")
    assert '<html lang="zh-CN">' in html
    assert "OOM 率如何随" in html
    picture = (folders["vary"] / "oom_rate.svg").read_text(encoding="utf-8")
    assert picture.count('id="FillBetweenPolyCollection') == 2 or picture.count('id="PolyCollection') == 2
    assert "How does the OOM rate depend on" in picture


def test_size_marks_the_recommended_pool_and_the_target(folders: Folders) -> None:
    document = read(folders["size"] / "summary.json")
    pages = document["recommended"]["max_pages"]
    assert pages
    text = "".join(page_of(folders["size"]).text)
    assert f"{pages:,} pages of 16 tokens" in text
    assert "any size as likely as any other" in text
    picture = (folders["size"] / "size_curve.svg").read_text(encoding="utf-8")
    for word in ("recommended", "target", "pages of the pool"):
        assert f">{word}<" in picture
    assert "PolyCollection" in picture
    curve = pd.read_parquet(folders["size"] / "curve.parquet")
    assert pages in curve["max_pages"].tolist()
    assert (curve["oom.low"] <= curve["oom"]).all() and (curve["oom"] <= curve["oom.high"]).all()
    assert "needed for KV" in (folders["size"] / "hbm_budget.svg").read_text(encoding="utf-8")


def test_sweep_has_a_line_for_each_row_and_a_map(folders: Folders) -> None:
    rows = pd.read_parquet(folders["sweep"] / "sweep.parquet")
    html = (folders["sweep"] / "report.html").read_text(encoding="utf-8")
    table = html[html.index("Points of the grid") :]
    table = table[table.index("<tbody>") : table.index("</tbody>")]
    assert table.count("<tr") == len(rows) == 18
    worst = rows.loc[rows["oom_rate"].idxmax()]
    assert f"to {format_percent(worst['oom_rate'])}" in "".join(page_of(folders["sweep"]).text)
    assert (folders["sweep"] / "oom_map.png").is_file()


def test_kernel_says_what_bounds_each_page_size(folders: Folders) -> None:
    document = read(folders["kernel"] / "summary.json")
    picture = (folders["kernel"] / "kernel_costs.svg").read_text(encoding="utf-8")
    bounds = {one["bound"] for one in document["pages"]}
    assert len(bounds) > 1
    for bound in bounds:
        assert f">bound by {bound}<" in picture
    best = document["recommended_page_size"]
    assert f"Page size {best} serves llama-2-7b on 910B2 best" in "".join(page_of(folders["kernel"]).text)
    stages = pd.read_parquet(folders["kernel"] / "stages.parquet")
    assert sorted(set(stages["page_size"])) == [16, 128, 1024]
    assert stages.groupby("page_size").size().tolist() == [7, 7, 7]


def test_an_answer_without_a_file_is_named_by_its_model_and_device(folders: Folders, tmp_path: Path) -> None:
    text = (folders["kernel"] / "scenario.resolved.yaml").read_text(encoding="utf-8")
    assert re.search(r"^name: llama-2-7b_910B2$", text, re.MULTILINE)
    config = tmp_path / "mine" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(TINY_CONFIG))
    words = ("kernel", "--model", config, "--device", "910B3", "--page-size", "16,128", "--quiet")
    assert simulate(*words, "--out", tmp_path / "out") == 0
    assert read(tmp_path / "out" / "manifest.json")["scenario"]["name"] == "mine_910B3"
    assert simulate(*words, "--set", "name=other", "--out", tmp_path / "out") == 0
    assert read(tmp_path / "out" / "manifest.json")["scenario"]["name"] == "other"


TINY_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def test_a_model_that_does_not_fit_is_drawn_against_the_memory_there_is(folders: Folders, tmp_path: Path) -> None:
    words = ("kernel", "--model", "llama-2-70b", "--device", "910B3", "--page-size", "128", "--quiet")
    assert simulate(*words, "--out", tmp_path) == 0
    assert "there is no more than 64 GiB" in (tmp_path / "hbm_budget.svg").read_text(encoding="utf-8")
    assert "there is no more than" not in (folders["kernel"] / "hbm_budget.svg").read_text(encoding="utf-8")


def rates(*courses: tuple[str, list[float]]) -> list[dict[str, Any]]:
    """The points of a key with these OOM rates of each allocator."""
    count = len(courses[0][1])
    return [
        {"value": 10 * place, "allocators": [{"label": name, "oom_rate": course[place]} for name, course in courses]}
        for place in range(count)
    ]


@pytest.mark.parametrize(
    ("courses", "expected"),
    [
        ((("a", [0.1, 0.2]), ("b", [0.3, 0.2])), "From k 0 to 10 no other loses fewer requests than a: at most 20 %."),
        ((("a", [0.1, 0.3]), ("b", [0.2, 0.2])), "depends on k: a at 0, b at 10."),
        ((("a", [0.1, 0.3]), ("b", [0.1, 0.3])), "From k 0 to 10 all lose the same share of the requests."),
        ((("a", [0.1, 0.3]),), "From k 0 to 10 the OOM rate of a goes from 10 % to 30 %."),
    ],
)
def test_a_comparison_along_a_key_leads_with_who_is_best(
    courses: tuple[tuple[str, list[float]], ...], expected: str
) -> None:
    assert lead("k", rates(*courses), str).endswith(expected)


def test_a_sweep_has_a_panel_for_each_allocator_and_names_its_lines_by_key(folders: Folders) -> None:
    picture = (folders["sweep"] / "oom_rate.svg").read_text(encoding="utf-8")
    for name in ("contiguous", "paged", "max_num_seqs 4", "max_num_seqs 8", "max_num_seqs 16"):
        assert picture.count(f">{name}<") == 1
    text = "".join(page_of(folders["sweep"]).text)
    assert text.index("Fewest requests are lost under paged (at most") < text.index("9 points over")


def test_keys_have_their_units_on_axes(folders: Folders) -> None:
    for name in ("vary", "sweep", "solve"):
        pictures = [path.read_text(encoding="utf-8") for path in folders[name].glob("*.svg")]
        assert any(">workload.arrivals.rate [1/s]<" in picture for picture in pictures), name
    assert key_label("model.preset", ["a", "b"], str) == "model.preset"
    assert key_label("engine.max_num_seqs", [1, 2], str) == "engine.max_num_seqs [sequences]"
    assert key_label("device.kv_capacity_bytes", ["1GiB", "2GiB"], str) == "device.kv_capacity_bytes"


def test_the_recommended_size_stands_apart_from_sizes_seen_by_the_search(folders: Folders) -> None:
    picture = (folders["size"] / "size_curve.svg").read_text(encoding="utf-8")
    assert ">on unseen replications<" in picture and ">sizes tried<" in picture
    text = "".join(page_of(folders["size"]).text)
    assert text.index("The answer in figures") < text.index("What the answer depends on most") < text.index("Pictures")


def test_a_chosen_column_is_drawn_and_an_unknown_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tight.yaml").write_text(TEXT)
    words = ["sweep", tmp_path / "tight.yaml", "--grid", "engine.max_num_seqs=4,8", "--jobs", "1", "--quiet"]
    out = tmp_path / "out"
    assert simulate(*words, "--out", out, "--plot", "batch.meen") == 2
    assert not out.exists(), "nothing was run"
    assert "--plot batch.meen: the rows have no such column of numbers; did you mean 'batch.mean'?" in (
        capsys.readouterr().err
    )
    assert simulate(*words, "--out", out, "--plot", "batch.mean") == 0
    assert (out / "batch_mean.svg").is_file()
    assert not (out / "kv_mean_utilization.svg").exists()


def test_a_dash_comes_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "tight.yaml").write_text(TEXT)
    nobody = ["--set", "device.kv_capacity_bytes=3MiB", "--set", "allocators.1.max_pages=null"]
    words = [tmp_path / "tight.yaml", *nobody, "--quiet", "--out"]
    assert simulate("run", *words, tmp_path / "run") == 0
    text = "".join(page_of(tmp_path / "run").text)
    assert "–: no request was completed after the warm-up under contiguous, paged" in text
    assert simulate("compare", *words, tmp_path / "compare", "--replications", "2", "--jobs", "1") == 0
    text = "".join(page_of(tmp_path / "compare").text)
    assert "–: in some replication no request was completed under contiguous, paged" in text


# ---- several folders


def test_two_sizes_stand_side_by_side(folders: Folders, tmp_path: Path) -> None:
    other = copied(folders["size"], tmp_path / "other")
    assert simulate("report", folders["size"], other, "--out", tmp_path / "both") == 0
    text = "".join(page_of(tmp_path / "both").text)
    assert "size: paged" in text and "other: paged" in text
    assert (tmp_path / "both" / "size_curve_1.png").read_bytes() == (
        tmp_path / "both" / "size_curve_2.png"
    ).read_bytes()


def test_results_of_another_program_that_lack_a_figure_are_named(
    folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(folders["size"], tmp_path / "copy")
    summary, manifest = read(copy / "summary.json"), read(copy / "manifest.json")
    del summary["sure_pages"]
    (copy / "summary.json").write_text(json.dumps(summary))
    manifest["outputs"]["summary.json"] = hashlib.sha256((copy / "summary.json").read_bytes()).hexdigest()
    manifest["code_sha256"] = "0" * 64
    (copy / "manifest.json").write_text(json.dumps(manifest))
    before = (copy / "report.html").read_bytes()
    assert simulate("report", copy) == 2
    assert "was written by another program, and this one misses 'sure_pages'" in capsys.readouterr().err
    assert (copy / "report.html").read_bytes() == before


def test_folders_of_different_commands_do_not_share_a_page(
    folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("report", folders["size"], folders["kernel"], "--out", tmp_path / "both") == 2
    assert "folders of different commands do not fit on one page" in capsys.readouterr().err


# ---- Ctrl-C


class Stopping:
    """A runner that is interrupted after some tasks."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> Iterator[tuple[int, Found]]:
        for index, task in enumerate(tasks[: self.after]):
            yield index, function(task)
        raise KeyboardInterrupt


def test_an_interrupted_comparison_keeps_the_replications_that_all_have_finished() -> None:
    scenario = parse_scenario(TEXT, Path())
    (whole,) = compare([scenario], replications=2, runner=Stopping(4))
    (partial,) = compare([scenario], replications=5, runner=Stopping(5))
    assert partial.interrupted
    assert [len(one.oom_rates) for one in partial.standings] == [2, 2]
    assert partial.standings == whole.standings
    with pytest.raises(KeyboardInterrupt):
        compare([scenario], replications=5, runner=Stopping(1))


RATES = "workload.arrivals.rate=4:20:4"
SIZE = ("size", "--target-oom", "0.05", "--max-replications", "8")


def pressed_at(moment: int, place: str, function: Callable[[Task], Found], patch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the ``moment``-th call of ``function``, which ``place`` names."""
    made = 0

    def stopping(task: Task) -> Found:
        nonlocal made
        made += 1
        if made == moment:
            raise KeyboardInterrupt
        return function(task)

    patch.setattr(place, stopping)


@pytest.mark.parametrize(
    ("words", "place", "moment", "table"),
    [
        (("compare", "--replications", "9"), "simulator.planning.compare.observe", 6, "replications"),
        (SIZE, "simulator.planning.sizing.observe", 6, "curve"),
        ((*SIZE, "--solve", RATES), "simulator.planning.solve.observe", 6, "curve"),
        (
            (*SIZE, "--solve", "engine.max_num_seqs=4,8", "--solve", RATES),
            "simulator.planning.solve.observe",
            6,
            "curve",
        ),
    ],
    ids=("compare", "size", "solve", "trade"),
)
def test_ctrl_c_writes_what_there_is_and_ends_with_130(
    words: tuple[str, ...],
    place: str,
    moment: int,
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "tight.yaml").write_text(TEXT)
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        pressed_at(moment, place, observe, patch)
        assert simulate(words[0], tmp_path / "tight.yaml", *words[1:], "--jobs", "1", "--out", out) == 130
    said = capsys.readouterr()
    assert said.out and "Traceback" not in said.err
    assert read(out / "summary.json")["interrupted"] is True
    assert "Interrupted" in "".join(page_of(out).text)
    rows = pd.read_parquet(out / f"{table}.parquet")
    assert len(rows) >= 1
    # five runs were done: four of the first size or value, one of the next
    assert words[0] == "compare" or sorted(rows[_runs(rows)]) == [1, 4]
    assert simulate("rerun", out) == 3
    assert "it was interrupted, and its" in capsys.readouterr().out


def _runs(rows: pd.DataFrame) -> str:
    return "replications" if "replications" in rows else "runs"


def test_ctrl_c_while_the_demand_is_looked_at_keeps_what_is_known_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tight.yaml").write_text(TEXT)
    out, words = tmp_path / "out", (SIZE[0], tmp_path / "tight.yaml", *SIZE[1:], "--jobs", "1")
    for moment, kept in ((3, True), (1, False)):
        with monkeypatch.context() as patch:
            pressed_at(moment, "simulator.planning.size.demand", demand, patch)
            assert simulate(*words, "--out", out / str(moment)) == 130
        assert (out / str(moment) / "summary.json").exists() is kept
    assert "Interrupted: 0 sizes were tried" in capsys.readouterr().out
    known = read(out / "3" / "summary.json")
    assert known["interrupted"] is True and known["curve"] == []
    assert known["demand"]["peak_pages"] > 0


def test_ctrl_c_after_the_size_was_verified_keeps_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tight.yaml").write_text(TEXT)
    words = (SIZE[0], tmp_path / "tight.yaml", *SIZE[1:], "--jobs", "1", "--format", "json", "--no-report")
    assert simulate(*words) == 0
    whole = json.loads(capsys.readouterr().out)
    pressed_at(2, "simulator.planning.sensitivity.demand", demand, monkeypatch)
    assert simulate(*words) == 130
    partial = json.loads(capsys.readouterr().out)
    assert partial["recommended"] == whole["recommended"] and partial["cliff"] == whole["cliff"]
    assert partial["sensitivity"] is None
    assert any(note.startswith("interrupted: the size was found") for note in partial["notes"])


def test_ctrl_c_in_a_rerun_is_no_comparison(folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folders["compare"]
    pressed_at(3, "simulator.planning.compare.observe", observe, monkeypatch)
    monkeypatch.setattr("simulator.planning.tasks.usable_processes", lambda jobs: 1)
    assert simulate("rerun", folder, "--out", tmp_path / "again") == 130


# ---- words


def test_every_word_of_every_page_is_translated(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[str] = set()
    chinese = translator("zh")
    copies = [copied(folders[name], tmp_path / name) for name in COMMANDS]
    monkeypatch.setattr("simulator.showing.words.translator", lambda _: listener(asked))
    for copy in copies:
        render_again(copy, "zh")
    missing = sorted(text for text in asked if chinese(text) == text)
    numbers = r"[\d.,\-– %<>\[\]]*|p[\d.]+|[\d.e+]+ \w+"
    names = (
        r"T[TP][FO]T p\d+|cu_seqlens|[\w. ]*_[\w. ]*|[A-Z]\w*/s|GHz|TFLOPS|contiguous|paged( - contiguous)?|engine\..*"
    )
    phrases = (
        r"workload\..*|latency\..*|kv[. ]mean.*|latency ttft.*|oom|preemption|OOM rate below .*|too_large / arrived"
    )
    plain = re.compile("|".join((numbers, names, phrases)))
    assert [text for text in missing if not plain.fullmatch(text)] == []


#: modules whose sentences are for readers, also those that no example above says
SPEAKING = (
    "planning/verdict.py",
    "showing/size_words.py",
    "showing/solve_document.py",
    "showing/trade_document.py",
    *(f"showing/pages/{name}.py" for name in ("compare", "compare_pictures", "kernel", "several", "shared", "size")),
    *(f"showing/pages/{name}.py" for name in ("size_pictures", "solve", "sweep", "run")),
)


def sentences(path: Path) -> Iterator[str]:
    """Texts of a module with two words or more, but for docstrings and pieces of f-strings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and isinstance(node.body[0], ast.Expr)
    }
    skipped |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in skipped:
            continue
        if len(re.findall(r"[A-Za-z]{2,}", node.value)) > 1 and " " in node.value:
            yield node.value


@pytest.mark.parametrize("name", SPEAKING)
def test_every_sentence_has_a_translation(name: str) -> None:
    chinese = translator("zh")
    found = list(sentences(ROOT / "simulator" / name))
    # Annotations in quotes, and names of files with a remark.
    code = re.compile(
        r".*(Figure \| None|summary\.json: |\| None).*|Mapping\[.*|cap.*_s.*|[a-z_]+(\[\])?\.[a-z_\[\], .]+|"
        r"oom_rate, .*"
    )
    missing = [text for text in found if chinese(text) == text and not code.fullmatch(text)]
    assert missing == []
