"""What is piped looks like what a terminal shows: rich, on a console of unlimited width, is the second opinion."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table as RichTable

from simulator.showing.outlet import Table, outlet, plain_lines

WORDS = st.text(st.sampled_from("ab 1,%µ–页池é"), max_size=12).map(str.strip)
CELLS = WORDS | st.lists(WORDS.filter(bool), min_size=2, max_size=2).map("\n".join)


def tables(columns: int) -> st.SearchStrategy[Table]:
    headings = st.lists(WORDS, min_size=columns, max_size=columns)
    rows = st.lists(st.lists(CELLS, min_size=columns, max_size=columns), max_size=4)
    return st.builds(Table, headings, rows, st.booleans()).filter(_says_something)


def _says_something(table: Table) -> bool:
    return any(cell for row in (table.headings, *table.rows) for cell in row)


def by_rich(table: Table) -> str:
    shown = RichTable(box=None, pad_edge=False)
    for place, heading in enumerate(table.headings):
        shown.add_column(heading, justify="right" if table.right and place else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*row)
    stream = io.StringIO()
    Console(file=stream, width=10_000, highlight=False, markup=False, emoji=False).print(shown)
    return stream.getvalue()


@given(st.integers(1, 4).flatmap(tables))
def test_a_piped_table_has_the_bytes_that_a_wide_enough_terminal_would_show(table: Table) -> None:
    assert "".join(line + "\n" for line in plain_lines(table)) == by_rich(table)


def test_a_cell_wider_than_any_terminal_stays_whole_in_a_pipe() -> None:
    assert list(plain_lines(Table(["a"], [["x" * 5000]])))[1] == "x" * 5000


def test_what_would_make_a_terminal_act_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    outlet().line("a\x07b\x08c\rd\te")
    assert capsys.readouterr().out == "abcd    e\n"


def test_a_table_is_refused_whose_rows_differ_in_length() -> None:
    with pytest.raises(ValueError, match="zip"):
        list(plain_lines(Table(["a", "b"], [["x"]])))
