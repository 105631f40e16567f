"""What the command line prints, as pages show it."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def printed(words: Sequence[str], folder: Path = ROOT, *, codes: Sequence[int] = (0, 3)) -> str:
    """What ``simulate WORDS`` prints in ``folder``, on stderr if there is nothing on stdout.

    Asserts that it exits with one of ``codes``.
    """
    program = [sys.executable, str(ROOT / "cli.py"), *words]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in codes, done.stderr
    return without_ends(done.stdout or done.stderr)


def without_ends(text: str) -> str:
    """``text`` without blanks at the ends of lines and empty lines at either end, with a line end at its own."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"
