"""Put output, tables and pictures into docs/planner.md: ``python -m docs.refresh_planner [NAME]...``.

Everything takes some twenty minutes of a core; ``NAME`` is a word of the commands or the name of a table. A line
``<!-- output of: COMMAND -->`` is followed by a fenced block, which is replaced by what the command prints; it is run
beside the scenario that the page shows as ``chat.yaml``. A line ``<!-- table: NAME -->`` is followed by a table, which
is replaced by what ``TABLES[NAME]`` computes. Nothing in either is typed by hand.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from docs.planner_tables import TABLES
from docs.printed import ROOT, printed, without_ends
from docs.refresh_tables import TABLE

PAGE = ROOT / "docs" / "planner.md"
PICTURES = ROOT / "docs" / "img" / "planner"
OUTPUT = re.compile(r"(<!-- output of: (.*?) -->\n```text\n)(.*?)(```)", re.DOTALL)
SCENARIO = re.compile(r"`chat\.yaml`:\n\n```yaml\n(.*?)```", re.DOTALL)
#: what pytest says of a machine, which is another one next time
_TIMES = re.compile(r" in [\d.]+s.*")
#: pictures of the page: which command's folder has them, under which name
_PICTURES = {"size.svg": ("--pool-interval", "size_curve.svg"), "trade.svg": ("--solve", "trade.svg")}


def output_of(command: str, folder: Path) -> str:
    """What ``command`` prints in ``folder``; pictures are put in their places."""
    words = shlex.split(command)
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    if words[0] == "pytest":
        return _tests(words[1:])
    draws = [name for name, (word, _) in _PICTURES.items() if word in words and "chat.yaml" in words]
    reports = words[1] in ("run", "size") and "--no-report" not in words
    keep = ["--out", str(out)] if draws else ["--no-report"] if reports else []
    said = printed([*words[1:], *keep], folder)
    for name in draws:
        shutil.copy(out / _PICTURES[name][1], PICTURES / name)
    return said


def _tests(words: Sequence[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return without_ends(_TIMES.sub("", done.stdout))


def refreshed(text: str, wanted: Callable[[str], bool]) -> str:
    """The page with those blocks and tables replaced that are ``wanted``, by command or name."""
    scenario = SCENARIO.search(text)
    assert scenario is not None, "the page shows the scenario that its commands are about"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "chat.yaml").write_text(scenario[1], encoding="utf-8")

        def output(block: re.Match[str]) -> str:
            return block[1] + output_of(block[2], folder) + block[4] if wanted(block[2]) else block[0]

        text = OUTPUT.sub(output, text)
    return TABLE.sub(lambda block: block[1] + (TABLES[block[2]]() if wanted(block[2]) else block[3]), text)


def main(names: Sequence[str]) -> None:
    """Refresh the page, or what ``names`` name of it."""

    def wanted(what: str) -> bool:
        return not names or any(name in what.split() for name in names)

    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8"), wanted), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
