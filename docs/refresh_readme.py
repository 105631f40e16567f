"""Put real output into the READMEs: ``python -m docs.refresh_readme`` from the repository, with the package installed.

The picture comes from the same scenario. A line ``<!-- output of: simulate ... -->`` is followed by a fenced block,
which is replaced by what the command prints.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from docs.printed import ROOT, printed

BLOCK = re.compile(r"(<!-- output of: simulate (.*?) -->\n```text\n)(.*?)(```)", re.DOTALL)


def refreshed(text: str) -> str:
    return BLOCK.sub(lambda block: block[1] + printed(shlex.split(block[2]), codes=(0, 2, 3)) + block[4], text)


def refresh_picture() -> None:
    with tempfile.TemporaryDirectory() as folder:
        scenario = ROOT / "scenarios" / "llama70b_128k.yaml"
        command = [sys.executable, str(ROOT / "cli.py"), "run", str(scenario), "--quiet", "--out", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        target = ROOT / "docs" / "img" / "readme"
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(folder) / "memory_over_time.png", target)


if __name__ == "__main__":
    refresh_picture()
    for name in ("README.md", "README.zh-CN.md", "docs/allocators.md", "docs/model.md"):
        page = ROOT / name
        if page.is_file():
            page.write_text(refreshed(page.read_text()))
