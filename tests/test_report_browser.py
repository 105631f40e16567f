"""Every page in a real browser, where one is installed: themes, a phone's width, the slider, printing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from answer_folders import COMMANDS, Folders
from browser import Tab, browser_tab, find_browser

from simulator.showing.plots import PICTURES

BROWSER = find_browser()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")


@pytest.fixture
def page(folders: Folders) -> Path:
    """The page of a run."""
    return folders["run"] / "report.html"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    assert BROWSER is not None
    with browser_tab(BROWSER, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("width", [390, 820, 1400])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", COMMANDS)
def test_every_page_fits_shows_its_pictures_and_complains_of_nothing(
    tab: Tab, folders: Folders, name: str, width: int, dark: bool
) -> None:
    tab.open(folders[name] / "report.html", width=width, dark=dark)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    shown = tab.evaluate(
        "[...document.querySelectorAll('figure > svg')].map((svg) => svg.getBoundingClientRect().height)"
    )
    assert len(shown) == len(list(folders[name].glob("*.svg")))
    assert min(shown) > 60
    # Pictures inside pictures (maps of cells) have their pixels, too.
    assert tab.evaluate("[...document.querySelectorAll('svg image')].every((one) => one.getBBox().width > 0)")
    assert tab.complaints == []


def test_a_theme_changes_page_and_pictures_and_keeps_them_readable(tab: Tab, page: Path) -> None:
    lightness = """(element, property) => {
        const [r, g, b] = getComputedStyle(element)[property].match(/\\d+/g).map(Number);
        return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255; }"""
    for dark in (False, True):
        tab.open(page, width=1000, dark=dark)
        ground = tab.evaluate(f"({lightness})(document.querySelector('figure'), 'backgroundColor')")
        word = tab.evaluate(f"({lightness})(document.querySelector('figure svg text'), 'fill')")
        body = tab.evaluate(f"({lightness})(document.body, 'color')")
        assert (ground < 0.3) == dark
        assert abs(word - ground) > 0.5
        assert abs(body - ground) > 0.5


def test_the_slider_moves_through_time(tab: Tab, page: Path) -> None:
    tab.open(page, width=390, dark=False)
    seen = []
    for step in (0, 100, 200):
        tab.evaluate(f"document.getElementById('instant').value = {step}")
        tab.evaluate("document.getElementById('instant').dispatchEvent(new Event('input'))")
        seen.append(tab.evaluate("document.getElementById('instant-text').textContent"))
    assert seen[0] == "t = 0.00 s"
    assert len(set(seen)) == 3
    strips = tab.evaluate("[...document.querySelectorAll('.slider output')].map((line) => line.textContent)")
    assert [strip.split(":")[0] for strip in strips] == ["contiguous", "paged"]
    strips = [strip.replace("\N{NO-BREAK SPACE}", " ") for strip in strips]
    assert all("held 0 %, requests 0" in strip for strip in strips), "at the end nobody holds memory"
    painted = tab.evaluate(
        "[...document.querySelectorAll('.slider canvas')].map((canvas) => canvas.width * canvas.height)"
    )
    assert min(painted) > 0


def test_a_line_over_each_map_follows_the_slider(tab: Tab, page: Path) -> None:
    tab.open(page, width=820, dark=False)
    place = """() => [...document.querySelectorAll('#pool_map .cursor')].map((line, index) => {
        const map = document.querySelectorAll('#pool_map image')[index].getBoundingClientRect();
        const at = line.getBoundingClientRect();
        return [(at.x - map.x) / map.width, (at.height - map.height) / map.height]; })"""
    ends = [run["simulated_s"] for run in json.loads((page.parent / "summary.json").read_text())["runs"]]
    for step in (0, 50, 200):
        tab.evaluate(f"document.getElementById('instant').value = {step}")
        tab.evaluate("document.getElementById('instant').dispatchEvent(new Event('input'))")
        found = tab.evaluate(f"({place})()")
        assert len(found) == 2
        for end_s, (along, taller) in zip(ends, found, strict=True):
            # The longer run says how long the slider is; a map ends where its own run does.
            assert along == pytest.approx(min(1, step / 200 * max(ends) / end_s), abs=0.02)
            assert abs(taller) < 0.05


def test_paper_has_the_pictures_in_the_order_of_the_page(tab: Tab, page: Path) -> None:
    tab.open(page, width=718, dark=False)
    tab.send("Emulation.setEmulatedMedia", media="print", features=[])
    tops = tab.evaluate(
        "[...document.querySelectorAll('figure')].map((one) => [one.getBoundingClientRect().top, one.id])"
    )
    drawn = {path.stem for path in page.parent.glob("*.svg")}
    assert [name for _, name in sorted(tops)] == [name for name in PICTURES if name in drawn]


@pytest.mark.parametrize("name", COMMANDS)
def test_folded_tables_open(tab: Tab, folders: Folders, name: str) -> None:
    tab.open(folders[name] / "report.html", width=390, dark=True)
    folded = tab.evaluate("document.querySelectorAll('details').length")
    assert folded >= 5
    tab.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    assert tab.evaluate("[...document.querySelectorAll('details table')].every((each) => each.rows.length > 1)")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_page_can_be_printed(tab: Tab, folders: Folders, name: str) -> None:
    tab.open(folders[name] / "report.html", width=1000, dark=True)
    tab.send("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.evaluate(
        "[...document.querySelectorAll('.slider')].every((one) => getComputedStyle(one).display == 'none')"
    )
    assert tab.evaluate(
        "[...document.querySelectorAll('.scroll')].every((one) => getComputedStyle(one).overflowY == 'visible')"
    )
    # As wide as what an A4 page can hold: nothing runs off the paper.
    tab.send("Emulation.setDeviceMetricsOverride", width=718, height=1000, deviceScaleFactor=1, mobile=False)
    assert tab.evaluate(
        "[...document.querySelectorAll('table')].every((one) => one.getBoundingClientRect().right <= 718)"
    )
    assert len(tab.send("Page.printToPDF")["data"]) > 20_000
