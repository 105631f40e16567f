"""The READMEs: English and Chinese in step, links that lead somewhere, commands and scenarios that exist."""

import re
from pathlib import Path

import pytest
import yaml

import cli
from simulator.loading.catalogue import scenario_names

ROOT = Path(__file__).parents[1]
ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
READMES = (ENGLISH, CHINESE)
PAGES = (*READMES, *(page for folder in ("docs", "reports") for page in sorted((ROOT / folder).glob("*.md"))))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MARKER = re.compile(r"<!-- output of: (.*?) -->\n```text\n")
LINK = re.compile(r"\]\(([^()\s]+)\)")


def blocks(page: Path, kind: str) -> list[str]:
    return [text for name, text in FENCE.findall(page.read_text(encoding="utf-8")) if name == kind]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def table_commands(page: Path) -> list[str]:
    cells = re.findall(r"^\| (`simulate .*?) \|", prose(page), re.MULTILINE)
    return [code for cell in cells for code in re.findall(r"`(simulate [^`]*)`", cell)]


def test_both_readmes_have_the_same_commands() -> None:
    assert blocks(ENGLISH, "sh") == blocks(CHINESE, "sh")
    markers = [MARKER.findall(page.read_text(encoding="utf-8")) for page in READMES]
    assert markers[0] == markers[1]
    assert len(markers[0]) == len(blocks(ENGLISH, "text"))
    assert table_commands(ENGLISH) == table_commands(CHINESE)
    inline = [set(re.findall(r"`(simulate [^`]*|--[^`]*)`", prose(page))) for page in READMES]
    assert inline[0] == inline[1]


def test_both_readmes_show_the_same_scenario_but_for_its_comments() -> None:
    scenarios = [list(map(yaml.safe_load, blocks(page, "yaml"))) for page in READMES]
    assert scenarios[0] == scenarios[1] != []


def test_both_readmes_show_the_same_output() -> None:
    assert blocks(ENGLISH, "text") == blocks(CHINESE, "text")


def test_both_readmes_have_the_same_structure() -> None:
    shapes = [re.findall(r"^(#+|!|- |\||```\w*)", page.read_text(encoding="utf-8"), re.MULTILINE) for page in READMES]
    assert shapes[0] == shapes[1]


def test_both_readmes_lead_to_the_same_pages() -> None:
    links = [LINK.findall(prose(page)) for page in READMES]
    assert [link for link in links[0] if "README" not in link] == [link for link in links[1] if "README" not in link]
    assert links[0].count("README.zh-CN.md") == links[1].count("README.md") == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_of_it(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def test_one_line_installs_and_runs_the_first_scenario() -> None:
    (line,) = blocks(ENGLISH, "sh")[0].splitlines()
    assert " && " in line
    scenario = line.split()[-1]
    assert (ROOT / scenario).is_file()


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.name)
def test_every_command_in_the_readme_is_one_of_the_program(page: Path) -> None:
    known = {command.name or command.callback.__name__ for command in cli.app.registered_commands if command.callback}
    text = page.read_text(encoding="utf-8")
    named = [command.split()[1] for command in re.findall(r"`(simulate [^`]*)`", text)]
    named += [command.split()[1] for command in MARKER.findall(text)]
    assert len(named) > 10
    for word in named:
        shipped = Path(word).stem in scenario_names()
        assert word in known or word == "SCENARIO" or word.startswith("--") or shipped, word


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.name)
def test_every_scenario_that_the_readme_names_is_shipped(page: Path) -> None:
    named = re.findall(r"\b(?:scenarios|reports|reports/reference)/(\w+)(?:\.yaml|/)", page.read_text(encoding="utf-8"))
    assert named
    assert set(named) - {"reference"} <= set(scenario_names())
