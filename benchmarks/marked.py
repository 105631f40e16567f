"""Figures of a page that a script makes: the lines between ``<!-- figures: NAME -->`` and ``<!-- end -->``."""

import re
from pathlib import Path


def put(page: Path, name: str, text: str) -> None:
    """Let the figures ``name`` of ``page`` be ``text``. Raises ``LookupError`` when the page has no such place."""
    old = page.read_text(encoding="utf-8")
    place = re.compile(rf"(<!-- figures: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    new, found = place.subn(lambda match: f"{match[1]}{text}\n{match[2]}", old)
    if found != 1:
        raise LookupError(f"{page} has {found} places for the figures {name!r}")
    page.write_text(new, encoding="utf-8")
