"""Result folders: what is in them, that they repeat byte for byte, and that the page can be trusted and read."""

import hashlib
import html.parser
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scenario_text import VALID

import cli
from simulator.showing import output
from simulator.showing.page import two_columns, unbroken
from simulator.showing.pages.run import answer
from simulator.showing.plots import PICTURES
from simulator.showing.report_data import ReportData, RunData
from simulator.showing.report_rows import ROWS
from simulator.showing.words import translator

Run = Callable[..., tuple[int, str, str]]

#: text that would do harm if a page or a picture took it for markup
EVIL = "<script>alert(1)</script>$x_$"
SMALL = VALID.replace("name: small", "name: small & <b>bold<b>").replace(
    "  preset: llama-3.1-8b", f"  preset: llama-3.1-8b\n  name: '{EVIL}'"
)
SMALL = SMALL.replace("  - kind: contiguous\n", "  - kind: contiguous\n    kv_capacity_bytes: 600MiB\n")


@pytest.fixture
def simulate(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line in this process, in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(word) for word in words])
        captured = capsys.readouterr()
        return (ended.value.code if isinstance(ended.value.code, int) else 0), captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a small scenario with awkward names; read only."""
    base = tmp_path_factory.mktemp("results")
    (base / "small.yaml").write_text(SMALL)
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(base / "small.yaml"), "--out", str(base / "out"), "--perfetto", "--quiet"])
    assert ended.value.code == 0
    return base / "out"


@pytest.fixture
def few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw two pictures only, where a test is about other things: drawing is what takes the time."""
    kept = {name: PICTURES[name] for name in ("outcomes", "hbm_budget")}
    monkeypatch.setattr("simulator.showing.pages.run.PICTURES", kept)


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def files(folder: Path, *, but: tuple[str, ...] = ("timing.json",)) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in but}


class Page(html.parser.HTMLParser):
    """Names of all elements and attributes, and the text of a page, outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if not self.elements or self.elements[-1] not in ("script", "style"):
            self.text.append(data.replace("\N{NO-BREAK SPACE}", " "))


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


# ---- the folder


@pytest.mark.usefixtures("few_pictures")
def test_a_run_writes_its_folder_below_reports_and_says_where(simulate: Run, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(VALID)
    code, _, err = simulate("run", "x.yaml")
    assert code == 0
    assert err == "report: reports/small/report.html\n"
    assert (tmp_path / "reports" / "small" / "report.html").is_file()


def test_no_report_writes_nothing(simulate: Run, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(VALID)
    code, _, err = simulate("run", "x.yaml", "--no-report")
    assert (code, err) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["x.yaml"]
    code, out, err = simulate("run", "x.yaml", "--no-report", "--out", "here")
    assert (code, out) == (2, "")
    assert "--no-report" in err


@pytest.mark.parametrize(("name", "expected"), [("a b", "a b"), ("..", "scenario"), (".x.", "x"), (".", "scenario")])
def test_no_scenario_name_leads_out_of_the_reports_folder(name: str, expected: str) -> None:
    assert output.default_folder(name) == Path("reports") / expected


def test_the_manifest_has_the_hash_of_every_file_but_the_timing(folder: Path) -> None:
    manifest = read(folder / "manifest.json")
    found = {
        name: hashlib.sha256(content).hexdigest() for name, content in files(folder).items() if name != "manifest.json"
    }
    assert manifest["outputs"] == found
    assert {"summary.json", "requests.parquet", "report.html", "memory_over_time.svg", "trace.json.gz"} <= found.keys()
    assert set(manifest["not_hashed"]) == {"timing.json", "manifest.json"}
    assert manifest["scenario"] == read(folder / "summary.json")["scenario"]


def test_wall_times_are_in_the_timing_file_alone(folder: Path) -> None:
    assert [run["wall_s"] > 0 for run in read(folder / "timing.json")["runs"]] == [True, True]
    assert all(b"wall_s" not in content for content in files(folder).values())


@pytest.mark.usefixtures("few_pictures")
def test_equal_runs_have_equal_bytes(simulate: Run, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(VALID)
    for out in ("one", "two"):
        assert simulate("run", "x.yaml", "--out", out, "--replications", "2")[0] == 0
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_the_tables_have_the_rows_of_every_allocator(folder: Path) -> None:
    requests = pd.read_parquet(folder / "requests.parquet")
    runs = read(folder / "summary.json")["runs"]
    for run in runs:
        counts = requests[requests["allocator"] == run["label"]]["outcome"].value_counts()
        expected = {name: count for name, count in run["requests"].items() if name != "arrived" and count}
        assert counts[counts > 0].to_dict() == expected
    timeline = pd.read_parquet(folder / "timeline.parquet")
    parts = timeline["used_bytes"] + timeline["reserved_bytes"] + timeline["internal_bytes"]
    assert (parts == timeline["allocated_bytes"]).all()


@pytest.mark.usefixtures("few_pictures")
def test_files_of_an_earlier_run_do_not_stay(simulate: Run, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(VALID)
    simulate("run", "x.yaml", "--out", "out", "--perfetto")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    simulate("run", "x.yaml", "--out", "out")
    assert not (tmp_path / "out" / "trace.json.gz").exists()
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


# ---- again


def test_rerun_gives_the_same_bytes_and_puts_back_what_was_lost(simulate: Run, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    before = files(folder, but=())
    for name, content in before.items():
        (copy / name).write_bytes(content)
    (copy / "requests.parquet").unlink()
    (copy / "report.html").write_text("changed")
    code, out, _ = simulate("rerun", copy)
    assert (code, out) == (0, f"{copy}: the same, byte for byte\n")
    assert files(copy, but=()) == before


def test_rerun_says_no_when_a_byte_differs(simulate: Run, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    manifest = read(folder / "manifest.json")
    manifest["outputs"]["summary.json"] = "0" * 64
    manifest["environment"]["numpy"] = "0.1"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    code, out, _ = simulate("rerun", copy)
    assert code == 3
    assert "summary.json" in out
    assert "numpy 0.1 then" in out
    assert [path.name for path in copy.iterdir()] == ["manifest.json"]


@pytest.mark.usefixtures("few_pictures")
def test_rerun_refuses_an_input_that_has_changed(simulate: Run, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    trace = tmp_path / "in" / "mine.csv"
    trace.write_text("arrived_at,prompt_tokens,output_tokens\n0,100,5\n1,200,6\n")
    arrivals = "  arrivals: {process: trace, path: mine.csv}\n"
    text = re.sub(r"  arrivals:.*?(?=engine:)", arrivals, VALID, flags=re.DOTALL)
    (tmp_path / "in" / "x.yaml").write_text(text)
    assert simulate("run", "in/x.yaml", "--out", "out")[0] == 0
    assert simulate("rerun", "out", "--out", "again")[0] == 0
    assert files(tmp_path / "again") == files(tmp_path / "out")
    trace.write_text("arrived_at,prompt_tokens,output_tokens\n0,100,5\n1,200,7\n")
    code, out, err = simulate("rerun", "out")
    assert (code, out) == (2, "")
    assert "mine.csv: has changed since" in err


def test_report_refuses_tables_that_were_changed(simulate: Run, folder: Path, tmp_path: Path) -> None:
    for name, content in files(folder, but=()).items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "timeline.parquet").unlink()
    for words in (["report", tmp_path], ["report", tmp_path, folder, "--out", tmp_path / "both"]):
        code, out, err = simulate(*words)
        assert (code, out) == (2, "")
        assert "summary.json: is missing or was changed" in err
        assert "timeline.parquet: is missing" in err


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"options": {}, "command": 1, "base_dir": null, "inputs": []}'])
def test_a_broken_manifest_is_bad_input(simulate: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    code, out, err = simulate("rerun", tmp_path)
    assert (code, out) == (2, "")
    assert "manifest.json" in err
    assert "Traceback" not in err


def test_report_makes_the_same_page_from_the_tables(simulate: Run, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name, content in files(folder, but=()).items():
        (copy / name).write_bytes(content)
    (copy / "report.html").unlink()
    assert simulate("report", copy)[0] == 0
    assert files(copy) == files(folder)
    assert simulate("report", copy, "--lang", "zh")[0] == 0
    assert '<html lang="zh-CN">' in (copy / "report.html").read_text(encoding="utf-8")
    assert (copy / "outcomes.png").read_bytes() == (folder / "outcomes.png").read_bytes()


@pytest.mark.usefixtures("few_pictures")
def test_report_compares_folders_side_by_side(simulate: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(VALID)
    simulate("run", "x.yaml", "--out", "other", "--allocator", "paged")
    code, _, err = simulate("report", folder, "other", "--out", "both")
    assert (code, err) == (0, "report: both/report.html\n")
    text = "".join(Page((tmp_path / "both" / "report.html").read_text(encoding="utf-8")).text)
    for name in ("out: contiguous", "out: paged", "other: paged"):
        assert name in text
    assert simulate("report", "other", "other", "--out", "both")[0] == 2
    assert simulate("report", "nowhere", "--out", "both")[0] == 2


# ---- the page


def test_the_page_needs_nothing_from_elsewhere(page: Page) -> None:
    assert not {"link", "iframe", "object", "embed", "base", "form"} & set(page.elements)
    for name, value in page.attributes:
        assert not name.startswith("on"), f"{name}={value!r}"
        if name in ("src", "href", "xlink:href", "action"):
            assert value.startswith(("#", "data:image/png;base64,")), value[:80]
    (policy,) = [value for _, value in page.attributes if value.startswith("default-src")]
    assert policy.startswith("default-src 'none';")


def test_what_a_user_wrote_is_text(page: Page, folder: Path) -> None:
    # The two scripts of the page itself: its data and its code.
    assert page.elements.count("script") == 2
    assert "b" not in page.elements
    text = "".join(page.text)
    assert EVIL in text
    assert "small & <b>bold<b>" in text
    assert b"<script" not in (folder / "hbm_budget.svg").read_bytes()


def test_ids_are_unique_and_references_lead_somewhere(page: Page) -> None:
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    targets = [value[1:] for name, value in page.attributes if name == "xlink:href" and value.startswith("#")]
    assert targets
    assert set(targets) <= set(ids)


def test_the_answer_comes_first_in_words(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    body = text[text.index("<body>") :].replace("\N{NO-BREAK SPACE}", " ")
    (contiguous, _) = read(folder / "summary.json")["runs"]
    assert contiguous["oom_rate"] > 0, "the scenario of this test should lose requests under one allocator"
    assert body.index("Fewest requests run out of memory under paged (0 %)") < body.index("<table")


def test_allocators_that_lose_the_same_are_told_apart_by_their_first_tokens() -> None:
    def lossless(name: str, wait_s: float | None) -> RunData:
        requests = {"arrived": 10, "completed": 10, "oom_admission": 0, "oom_decode": 0, "too_large": 0}
        summary = {"label": name, "oom_rate": 0.0, "requests": requests, "preemptions": 0}
        summary |= {"oom_events": {"capacity": 0, "fragmentation": 0}, "latency": {"ttft_s": {"p95": wait_s}}}
        return RunData(name, summary, {}, {}, {}, {})

    def lead(*runs: RunData) -> str:
        return answer(ReportData("t", "", (), runs))[0]

    nobody = "No request runs out of memory under any of them."
    told = f"{nobody} The first token comes soonest under b (TTFT p95 1 s), latest under a (2 s)."
    assert lead(lossless("a", 2.0), lossless("b", 1.0)) == told
    assert lead(lossless("a", 2.0), lossless("b", 2.0)) == nobody
    assert lead(lossless("a", 2.0), lossless("b", None)) == nobody


def test_allocators_without_a_panel_are_told(simulate: Run, tmp_path: Path) -> None:
    many = "".join(f"  - {{kind: paged, label: p{place}, page_size: 16}}\n" for place in range(9))
    text = re.sub(r"allocators:\n.*", f"allocators:\n{many}", VALID, flags=re.DOTALL)
    (tmp_path / "x.yaml").write_text(text)
    assert simulate("run", "x.yaml", "--out", "out")[0] == 0
    html = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Pictures over time show the first 8 of 9." in html


def test_every_figure_of_the_table_has_its_formula_and_its_place_in_the_summary(folder: Path) -> None:
    (run, _) = read(folder / "summary.json")["runs"]
    for row in ROWS:
        assert row.formula
        if row.source.startswith("kv.compaction."):
            continue  # only an allocator that compacts has these
        for place in row.source.split(", "):
            value: Any = run
            for key in place.split("."):
                assert key in value, f"{row.name}: {place}"
                value = value[key]


def test_a_number_and_its_unit_stay_together() -> None:
    there = "\N{NO-BREAK SPACE}"
    assert unbroken("0 % of 2,000 requests in 8.19 s") == f"0{there}% of 2,000 requests in 8.19{there}s"
    assert unbroken("1 min, 3 hosts, 20 GiB") == f"1{there}min, 3 hosts, 20{there}GiB"


def test_device_figures_come_with_source_and_confidence(page: Page, folder: Path) -> None:
    text = "".join(page.text)
    for figure in read(folder / "basis.json")["device"]["figures"]:
        assert figure["name"] in text
        assert figure["source"] in text
        assert figure["confidence"] in ("vendor", "measured", "assumed")


def test_the_budget_of_the_page_adds_up_to_the_device(folder: Path) -> None:
    from simulator.showing.plots.budget import budget_parts

    memory = read(folder / "basis.json")["memory"]
    assert sum(budget_parts(memory).values()) == memory["hbm_bytes"]


def listener(asked: set[str]) -> Callable[[str], str]:
    """In place of a translator: it changes nothing and notes what it was asked for."""

    def words(text: str) -> str:
        asked.add(text)
        return text

    return words


def test_every_word_of_the_page_is_translated(simulate: Run, tmp_path: Path) -> None:
    asked: set[str] = set()
    chinese = translator("zh")
    (tmp_path / "x.yaml").write_text(VALID)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simulator.showing.words.translator", lambda _: listener(asked))
        assert simulate("run", "x.yaml", "--out", "out")[0] == 0
    figures = {"hbm_bytes", "contiguous", "paged"}
    plain = re.compile(r"[\d.,\-]*|p[\d.]+|TTFT.*|TPOT.*|[\d.e+]+ \w+|" + "|".join(figures) + r"|\w+_\w+")
    missing = sorted(text for text in asked if chinese(text) == text and not plain.fullmatch(text))
    same_anywhere = {"max_pages x page_size", "too_large / arrived", "GB/s", "GHz", "TFLOPS"}
    assert set(missing) <= same_anywhere, "formulas of keys, and units"


def test_pictures_fill_two_columns_evenly_and_in_order() -> None:
    pictures = [{"position": position, "height": height} for position, height in enumerate((3.0, 5.0, 3.0, 4.0, 1.0))]
    left, right = two_columns(pictures)
    assert [one["position"] for one in left] == [0, 2, 4]
    assert [one["position"] for one in right] == [1, 3]
