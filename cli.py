"""Command line of the simulator: commands, options, exit codes. No modelling happens here.

Results go to stdout, progress and warnings to stderr. Exit codes: 0 done, 1 internal error (a bug), 2 bad input,
3 the answer is no, 130 interrupted. Each command imports what it needs when it runs, so that ``--help`` is quick.
"""

import errno
import gc
import sys
from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from simulator.commands import catalogues, devices, plans, proofs, runs
from simulator.commands.common import INTERRUPTED, drop_stdout, say


class _Commands(TyperGroup):
    """Turns bad input into exit code 2 and an interrupt into 130, for every command; who stops reading is done."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().make_context(*arguments, **options)  # prints the help text
        except BrokenPipeError:
            drop_stdout()
            raise typer.Exit from None

    def invoke(self, ctx: Any) -> Any:
        from simulator.errors import InputError

        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            drop_stdout()
            raise typer.Exit from None
        except InputError as error:
            say(str(error))
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="simulate",
    cls=_Commands,
    help="Simulate KV-cache memory of LLM serving on Ascend NPUs: how often requests run out of memory, why, and "
    "what would help. `simulate SCENARIO` is short for `simulate run SCENARIO`.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from simulator import core
        from simulator.version import version

        typer.echo(f"ascend-kv-sim {version()}, core: {core}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command()(runs.run)
app.command()(runs.explain)
app.command()(runs.rerun)
app.command()(runs.report)
app.command()(devices.memory)
app.command()(devices.kernel)
app.command()(devices.calibrate)
app.command()(plans.compare)
app.command()(plans.size)
app.command()(plans.sweep)
app.command()(plans.export)
app.command(name="cache-curve")(plans.cache_curve)
app.command()(proofs.claims)
app.command()(proofs.validate)
app.command(name="list")(catalogues.list_)
app.command()(catalogues.init)
app.command()(catalogues.schema)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``simulate``; never returns, exits with one of the codes above."""
    try:
        _run(list(sys.argv[1:] if arguments is None else arguments))
    finally:
        if arguments is None:
            gc.freeze()  # Python ends by looking for garbage in all that it is about to throw away


def _run(words: list[str]) -> None:
    from simulator.errors import InputError

    _start_lightly()
    _open_streams()
    try:
        try:
            asked = with_command(words, command_names())
            _only(asked)(args=asked, prog_name="simulate")
        finally:
            sys.stdout.flush()
    except InputError as error:
        say(str(error))
        sys.exit(2)
    except BrokenPipeError:
        drop_stdout()
        sys.exit(0)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            say(f"{error.filename or 'the output'}: cannot be written: {error.strerror}")
            drop_stdout()
            sys.exit(2)
        import traceback

        traceback.print_exc()
        say("internal error: this is a bug in ascend-kv-sim, not in your input; please report the lines above")
        sys.exit(1)


def _start_lightly() -> None:
    """Spare a short run what costs it most of its start.

    The first objects are the program's own and all stay: there is no garbage among them to look for. No plug-in of
    pydantic's has a say in what a scenario means; looking for some means reading what every installed package offers.
    """
    import os

    if _collect_as_usual not in gc.callbacks:
        gc.callbacks.append(_collect_as_usual)
        gc.set_threshold(_OBJECTS_AT_START)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")


def _collect_as_usual(phase: str, info: object) -> None:
    """Called at the first collection of garbage."""
    gc.set_threshold(_OBJECTS_THEN)
    gc.callbacks.remove(_collect_as_usual)


def _only(words: Sequence[str]) -> typer.Typer:
    """``app`` with nothing but the command that is asked for: typer looks at every option of every command it has."""
    names = command_names()
    if not words or words[0] not in names:
        return app
    alone = copy(app)
    alone.registered_commands = [app.registered_commands[names.index(words[0])]]
    return alone


def _open_streams() -> None:
    """Python has no stdout or stderr when the shell has closed it; what is printed then goes nowhere."""
    import os

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the end


def command_names() -> tuple[str, ...]:
    """The commands, in the order of the help text."""
    return tuple(str(command.name or getattr(command.callback, "__name__", "")) for command in app.registered_commands)


def with_command(words: Sequence[str], commands: Sequence[str]) -> list[str]:
    """``words`` with ``run`` in front when they start with a scenario or an option of ``run``.

    Raises ``InputError`` for a first word that is neither a command nor a file nor a shipped scenario, and for an
    empty ``--out``, which would be this folder.
    """
    from simulator.errors import InputError, Problem, nearest_name, printable

    if not words or words[0] in _GROUP_OPTIONS:
        return list(words)
    if any(pair == ("--out", "") for pair in pairwise(words)) or "--out=" in words:
        raise InputError([Problem(option="--out", message="is empty: name a folder or a file, '.' for this folder")])
    if words[0] in commands:
        return list(words)
    first = words[0]
    if first.startswith("-") or _names_scenario(first):
        return ["run", *words]
    from simulator.loading.catalogue import scenario_names

    shipped = scenario_names()
    message = f"{printable(first)!r} is no command, no file and no shipped scenario"
    nearest = nearest_name(first, [*commands, *shipped])
    raise InputError([Problem(message=message, nearest=nearest, allowed=(*commands, *shipped))])


#: a full disk, quota or device is no bug of ours
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS)
#: new containers before garbage is looked for: more than a small run makes at first, then as many as Python has it
_OBJECTS_AT_START, _OBJECTS_THEN = 200_000, gc.get_threshold()[0]
_GROUP_OPTIONS = ("--help", "-h", "--version", "--install-completion", "--show-completion")


def _names_scenario(word: str) -> bool:
    if word.endswith((".yaml", ".yml")) or "/" in word:
        return True
    from simulator.loading.catalogue import is_scenario

    return is_scenario(word)


if __name__ == "__main__":
    main()
