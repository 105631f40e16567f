"""Tables of the pages that a command computes: each has a command, the quick ones are up to date, words stay."""

from pathlib import Path

import pytest

from docs import refresh_tables
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
