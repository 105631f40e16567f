"""The page for people: one HTML file with everything in it, made from a results folder.

``showing/pages`` has what each kind of page says, ``showing/page.py`` what they share.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.errors import InputError, Problem
from simulator.showing import words
from simulator.showing.manifest import NAME, RUN, kind_of, read_json
from simulator.showing.page import Page, Translate, write_page

if TYPE_CHECKING:
    from simulator.showing.answer_folder import AnswerData
    from simulator.showing.manifest import Outputs


def write_report(folder: Path, outputs: "Outputs", *, command: str, language: str = "en") -> None:
    """Draw the pictures of the run in ``folder`` and write its ``report.html``. Raises ``InputError``."""
    from simulator.showing.pages.run import run_page
    from simulator.showing.report_data import read_folder

    write_page(run_page(read_folder(folder, command=command), words.translator(language)), outputs, language)


def write_answer_report(folder: Path, outputs: "Outputs", *, command: str, language: str = "en") -> None:
    """Draw the pictures of the answer in ``folder`` and write its ``report.html``. Raises ``InputError``."""
    from simulator.showing.answer_folder import read_answer

    data = read_answer(folder, folder.name, command=command)
    write_page(answer_page([data], words.translator(language)), outputs, language)


def write_comparison(folders: Sequence[Path], outputs: "Outputs", *, language: str = "en") -> None:
    """One page for several results folders of one kind, side by side. Raises ``InputError``."""
    from simulator.showing.report_data import distinct_names, read_folders

    translate = words.translator(language)
    kinds = {folder: kind_of(read_json(folder / NAME)) for folder in folders}
    if len(set(kinds.values())) > 1:
        found = ", ".join(f"{folder} is of `simulate {kind}`" for folder, kind in kinds.items())
        raise InputError([Problem(message=f"folders of different commands do not fit on one page: {found}")])
    if kinds[folders[0]] == RUN:
        from simulator.showing.pages.run import run_page

        write_page(run_page(read_folders(tuple(folders)), translate), outputs, language)
        return
    from simulator.showing.answer_folder import read_answer

    names = distinct_names(tuple(folders))
    answers = [read_answer(folder, name) for folder, name in zip(folders, names, strict=True)]
    write_page(answer_page(answers, translate), outputs, language)


def answer_page(answers: "Sequence[AnswerData]", translate: Translate) -> Page:
    """The page of one answer of the planner, or of several of one kind. Raises ``InputError``."""
    from simulator.showing.pages.compare import compare_page
    from simulator.showing.pages.kernel import kernel_page
    from simulator.showing.pages.several import side_by_side
    from simulator.showing.pages.size import size_page
    from simulator.showing.pages.sweep import sweep_page

    pages = {"compare": compare_page, "kernel": kernel_page, "size": size_page, "sweep": sweep_page}
    make = pages.get(answers[0].kind)
    if make is None:
        message = f"was written by an unknown command, {answers[0].kind!r}"
        raise InputError([Problem(file=str(answers[0].folder), message=message)])
    made = [make(one, translate) for one in answers]
    return made[0] if len(made) == 1 else side_by_side(answers, made)
