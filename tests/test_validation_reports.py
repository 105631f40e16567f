"""The list of public reports is complete: every row names checks that exist, or says why there is none."""

import re
from pathlib import Path

import pytest
from checked import checked

from simulator.validating import reports
from simulator.validation import FAMILIES

ROOT = Path(__file__).parent.parent
#: the reports that were collected, numbered as they were found; numbers that are missing had no figures
COLLECTED = """
1 2 3 4 5 7 8 10 11 13 14 15 17 19 20 20b 20c 23 24 25 26 27 28 29 30 32 34 35 36 37 38 39 40 41 42 43 44 45 47 48 49 50
51 52 53 55 56 57 60 61 64 65 67 68 69 70 71 73
"""
#: cases of engines' test suites: S sizing, A allocation, P prefix cache, C copy-on-write, W swap, Q scheduler
CASES = """
S1 S2 S4 S5 S7 S8 S10 S11 S13 S14 S16 S17 S19 S20 S22 S23
A1 A2 A4 A5 A7 A8 A10 A11 A13 A14 A16 A17 A19
P1 P2 P4 P5 P7 P8 P10 P11 P13 P14 P16 P17 P19 P20 P22 P23
C1 C2 C4 C5 C7 W1 W2 W4
Q1 Q2 Q4 Q5 Q7 Q8 Q10 Q11 Q13 Q14 Q16 Q17 Q19 Q20 Q22 Q23
"""


def shown_ids() -> list[str]:
    """The ids of docs/validation.md, in its order."""
    page = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`]+)` ", page, re.MULTILINE)


def test_every_collected_report_and_case_has_a_row() -> None:
    assert [row.row for row in reports.public_reports()] == COLLECTED.split()
    assert [row.row for row in reports.engine_tests()] == CASES.split()


def test_a_row_is_checked_or_says_why_not() -> None:
    for row in reports.public_reports():
        assert set(row.grade) <= set("ERDBT/"), row
        assert row.checks or row.not_checked, row
        if set(row.grade) & {"E", "R"}:
            assert row.checks, f"{row.row} is exact: it has to be a check"
    for row in reports.engine_tests():
        assert row.checks or row.tests, row


def test_rows_name_checks_that_exist() -> None:
    assert reports.unknown_checks(shown_ids()) == []
    assert reports.unknown_checks([]) != []


def test_rows_name_tests_that_exist() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    wanted = [name for row in reports.engine_tests() for name in row.tests]
    assert [name for name in wanted if f"def {name}(" not in source] == []


@pytest.mark.parametrize("family", ["engines", "prefix", "scheduler"])
def test_the_page_shows_the_checks_that_there_are(family: str) -> None:
    assert family in FAMILIES
    shown = [id_ for id_ in shown_ids() if id_.startswith(f"{family}.")]
    assert shown == [check.id for check in checked(family).checks], "simulate validate --write-docs"


def test_what_is_not_checked_is_said_by_name_and_reason() -> None:
    left_out = reports.not_checked()
    assert all(one.what and one.why for one in left_out)
    page = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    assert all(f"- **{one.what}**: {one.why}" in page for one in left_out)
    assert checked("scheduler").to_dict()["not_checked"] == reports.as_plain(left_out)
