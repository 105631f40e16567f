"""The words of the report in other languages. English is the key; what has no translation stays English."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

LANGUAGES = ("en", "zh")
_FOLDER = Path(__file__).parents[1] / "templates"
_TAGS = {"en": "en", "zh": "zh-CN"}


def translator(language: str) -> Callable[[str], str]:
    """A function from an English text of the report to the same text in ``language``."""
    if language == "en":
        return str
    known = _dictionary(language)
    return lambda text: known.get(text, text)


def html_tag(language: str) -> str:
    """The value of the page's ``lang`` attribute."""
    return _TAGS[language]


@cache
def _dictionary(language: str) -> dict[str, str]:
    content: dict[str, str] = json.loads((_FOLDER / f"words.{language}.json").read_text(encoding="utf-8"))
    return content
