"""The checks as a product: every family runs, ids are unique, failures are explained, the command says no with 3."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checked import checked
from typer.testing import CliRunner

import cli
from simulator import validation
from simulator.errors import InputError
from simulator.validating import pictures
from simulator.validating.check import Check, Source, spelled
from simulator.validating.measured_engine import load_logs, requests_at
from simulator.validating.page import page_text, write_page
from simulator.validating.startup import BlockPool
from simulator.validating.table import answer
from simulator.validation import FAMILIES, Report, validate

#: families whose checks take a few seconds together
QUICK = ("engines", "prefix", "scheduler", "hardware")
SOURCE = Source("engines", "made", "a test")


@pytest.mark.parametrize(
    "family", [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in FAMILIES if name not in QUICK)]
)
def test_every_check_of_a_quick_family_holds_or_says_why_not(family: str) -> None:
    report = checked(family)
    assert report.checks
    assert [check.id for check in report.failed if not check.note] == []


def test_ids_are_unique_and_begin_with_their_family() -> None:
    checks = [check for family in QUICK for check in checked(family).checks]
    assert len({check.id for check in checks}) == len(checks)
    assert all(check.id.startswith(f"{check.family}.") and check.source and check.what for check in checks)


def test_equal_means_equal_and_near_means_within_the_tolerance() -> None:
    assert SOURCE.exact("a", "x", expected=3, got=3).passed
    assert not SOURCE.exact("a", "x", expected=3, got=4).passed
    assert SOURCE.near("a", "x", expected=100.0, got=110.0, rel=0.1).passed
    assert not SOURCE.near("a", "x", expected=100.0, got=110.1, rel=0.1).passed
    assert SOURCE.near("a", "x", expected=1.56, got=1.565, within=0.005).passed
    assert not SOURCE.between("a", "x", low=1, high=2, got=2.001).passed
    assert not SOURCE.near("a", "x", expected=1.0, got=float("nan"), rel=0.5).passed


def test_a_mean_is_judged_by_its_own_standard_error() -> None:
    noise = np.random.default_rng(1).normal(5.0, 1.0, 2500)
    assert SOURCE.mean("a", "x", expected=5.0, samples=noise).passed
    assert not SOURCE.mean("a", "x", expected=5.2, samples=noise).passed
    assert SOURCE.mean("a", "x", expected=5.2, samples=noise, slack=0.3).passed


def test_values_are_spelled_for_people() -> None:
    assert [spelled(v) for v in (True, 1234567, 0.12345678, 1.5, "7 to 8", None)] == [
        "yes", "1,234,567", "0.123457", "1.5", "7 to 8", "",
    ]  # fmt: skip


def test_versions_of_one_engine_print_different_lines_for_one_pool() -> None:
    # 100 blocks of 16 for requests of 250 tokens: 16 blocks each.
    old, middle, new = (BlockPool(version=v, blocks=100, block_tokens=16) for v in ("0.6", "0.11", "0.33"))
    assert [pool.concurrency(250) for pool in (old, middle, new)] == [6.4, 6.25, 6.25]
    assert [pool.tokens(250) for pool in (old, middle, new)] == [1600, 1600, 1562]
    assert [pool.largest_model_len(9999) for pool in (old, middle, new)] == [1600, 1600, 1584]


def broken() -> Check:
    return replace(SOURCE.exact("broken", "x | y", expected=1, got=2), note="known")


def test_a_failure_is_named_in_the_answer_and_explained_on_the_page(tmp_path: Path) -> None:
    report = Report((SOURCE.exact("fine", "x", expected=1, got=1), broken()), long=False)
    assert answer(report.checks) == "1 of 2 checks hold; these do not: engines.made.broken."
    text = write_page(report, tmp_path).read_text()
    assert "- `engines.made.broken` (x | y): expected 1, got 2. known" in text
    assert r"x \| y" in text
    assert report.to_dict()["failed"] == 1


def test_the_page_of_the_same_checks_is_the_same(tmp_path: Path) -> None:
    report = Report(tuple(check for family in QUICK for check in checked(family).checks), long=False)
    assert page_text(report, {}) == page_text(report, {})
    assert all(f"## {FAMILIES[family][0]}" in page_text(report, {}) for family in QUICK)


def test_families_are_checked_in_the_order_of_the_list_whatever_the_order_asked_for() -> None:
    assert list(FAMILIES).index("engines") < list(FAMILIES).index("scheduler")
    both = validate(["scheduler", "engines"])
    assert both.checks == (*checked("engines").checks, *checked("scheduler").checks)


def test_an_unknown_family_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="'engine' is no family of checks"):
        validate(["engine"])


def test_the_command_prints_one_document_and_exits_with_3_for_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = CliRunner().invoke(cli.app, ["validate", "--family", "engines", "--format", "json", "-q"])
    assert found.exit_code == 0
    assert json.loads(found.stdout)["failed"] == 0

    monkeypatch.setattr(validation, "validate", lambda *_, **__: Report((broken(),), long=False))
    out = tmp_path / "checks.json"
    found = CliRunner().invoke(cli.app, ["validate", "--out", str(out)])
    assert found.exit_code == 3
    assert "engines.made.broken: known" in found.stdout
    assert json.loads(out.read_text())["checks"][0]["id"] == "engines.made.broken"


def test_the_log_of_the_measured_engine_is_what_its_source_says() -> None:
    # Its notes: 36,282 blocks, 171,150 prompt tokens, 351,000 to 365,000 outputs in a run, never above 256 running.
    for log in load_logs().values():
        seconds = np.diff(log.time_s)
        assert float(log.prompt_tokens_per_s[1:] @ seconds) == pytest.approx(171_150, abs=120)
        assert 351_000 <= float(log.output_tokens_per_s[1:] @ seconds) <= 365_000
        assert log.running.max() <= 256 and log.blocks.max() <= 36_282


def test_requests_of_the_measured_engine_have_its_means_and_its_arrivals_sped_up() -> None:
    slow, fast = requests_at(100), requests_at(1000)
    assert slow.prompt_tokens.mean() == pytest.approx(342.3, rel=0.01)
    # 352,548 outputs in the run that they are taken from, by the engine's own count; nobody may have more than 1,024.
    assert slow.output_tokens.mean() == pytest.approx(705.1, rel=0.005)
    assert slow.output_tokens.max() == 1024
    assert (np.diff(slow.arrival_ns) >= 0).all() and slow.arrival_ns[0] == 0
    assert fast.arrival_ns[-1] == pytest.approx(slow.arrival_ns[-1] / 10, abs=2)


def test_pictures_are_drawn_from_checks_that_name_a_curve() -> None:
    points = [
        SOURCE.near(str(x), "x", expected=float(x), got=x + 0.5, rel=1.0, curve="l2: read bandwidth", at=x / 10)
        for x in (1, 2, 3)
    ]
    drawn = pictures.draw([*points, broken()])
    assert list(drawn) == ["l2"]
    assert drawn == pictures.draw([*points, broken()])
    assert b"read bandwidth" in drawn["l2"][1]
