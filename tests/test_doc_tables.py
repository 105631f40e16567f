"""Tables of the pages that a command computes: each has a command, the quick ones are up to date, words stay."""

from pathlib import Path

import pytest

from docs import refresh_planner, refresh_tables
from docs.refresh_tables import DOCS, PAGES, QUICK, TABLES, language_of, refresh, tables_in

MARKED = [(DOCS / page, name, text) for page in PAGES for name, text in tables_in(DOCS / page)]


def test_every_marked_table_can_be_computed_and_every_one_that_can_be_is_shown() -> None:
    assert {name for _, name, _ in MARKED} == set(TABLES)


def test_no_marker_stands_without_a_table() -> None:
    for page in PAGES:
        text = (DOCS / page).read_text(encoding="utf-8")
        assert text.count("<!-- table: ") == len(list(tables_in(DOCS / page))), page


@pytest.mark.parametrize("name", QUICK)
def test_a_table_that_needs_no_simulation_is_up_to_date(name: str) -> None:
    shown = [(page, text) for page, marked, text in MARKED if marked == name]
    assert shown
    for page, text in shown:
        assert text == TABLES[name](language_of(page)), f"python -m docs.refresh_tables {name}"


def test_both_languages_of_an_article_show_the_same_tables() -> None:
    english, chinese = ([name for name, _ in tables_in(DOCS / page)] for page in PAGES[1:])
    assert english == chinese


def test_a_refresh_replaces_only_what_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.zh-CN.md"
    page.write_text("before\n<!-- table: one -->\n| old |\n|---|\n| 1 |\n\n<!-- table: two -->\n| kept |\n\nafter\n")
    fakes = {"one": lambda language: f"| new {language} |\n", "two": lambda language: f"| {language}? |\n"}
    monkeypatch.setattr(refresh_tables, "TABLES", fakes)
    refresh(page, ["one"])
    assert page.read_text() == "before\n<!-- table: one -->\n| new zh |\n\n<!-- table: two -->\n| kept |\n\nafter\n"


# ---- docs/planner.md, which has a script of its own


PLANNER = refresh_planner.PAGE.read_text(encoding="utf-8")


def test_every_table_of_the_planner_s_page_is_computed_and_every_one_that_can_be_is_shown() -> None:
    shown = refresh_tables.TABLE.findall(PLANNER)
    assert sorted(name for _, name, _ in shown) == sorted(refresh_planner.TABLES)
    assert PLANNER.count("<!-- table: ") == len(shown)
    assert all(len(text.splitlines()) > 2 for *_, text in shown), "a table without rows"


def test_every_output_of_the_planner_s_page_is_a_command_s() -> None:
    shown = refresh_planner.OUTPUT.findall(PLANNER)
    assert PLANNER.count("<!-- output of: ") == PLANNER.count("```text") == len(shown)
    assert {command.split()[0] for _, command, *_ in shown} == {"simulate", "pytest"}
    assert all(text.strip() for *_, text, _ in shown), "a block without output"


def test_a_refresh_of_nothing_leaves_the_planner_s_page_as_it_is() -> None:
    assert refresh_planner.refreshed(PLANNER, lambda _: False) == PLANNER


def test_a_refresh_runs_the_scenario_that_the_planner_s_page_shows() -> None:
    page = PLANNER + "\n<!-- output of: simulate memory chat.yaml --format json -->\n```text\nold\n```\n"
    new = refresh_planner.refreshed(page, lambda what: what == "simulate memory chat.yaml --format json")
    assert new.startswith(PLANNER) and '"max_model_len": 8192' in new and "old\n```" not in new
