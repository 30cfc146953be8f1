"""Command line: the program and its commands; errors and progress go to standard error."""

import errno
import functools
import importlib
import os
import signal
import sys
import threading
import tomllib
from collections.abc import Callable
from importlib import resources
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from planner.cli import settings
from planner.errors import FITS, INTERRUPTED, UNFORESEEN, WRONG_USE, PlannerError, shorten

_LONGEST = 400
_PATIENCE_S = 5.0
_OLD_TYPERS = tuple(f"0.{minor}." for minor in range(19))
"""Versions of typer that misread options, some of them without an error."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WITH_STATE = ("sweep", "app", "calibrate", "validate")
"""Commands that have processes or a journal to end; the others end at once on Ctrl-C."""


def _read(name: str) -> dict[str, Any]:
    folder = resources.files("planner.cli.options")
    return tomllib.loads(folder.joinpath(name).read_text(encoding="utf-8"))


COMMANDS = {
    name: (table["module"], table["summary"]) for name, table in _read("commands.toml").items()
}
"""Commands in the order of the help: the module that registers each, and its summary."""


class CommandGroup(TyperGroup):
    """The group of all commands; each is loaded from its module when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        """Load a command by name; None if there is none."""
        if name not in COMMANDS:
            return None
        if name in _WITH_STATE and ctx is not None and ctx.obj is not None:
            signal.signal(signal.SIGINT, functools.partial(_interrupt, ctx.obj))
        application = typer.Typer(rich_markup_mode=None)
        importlib.import_module(COMMANDS[name][0]).register(application)
        return typer.main.get_group(application).get_command(ctx, name)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an interrupt that it does not report itself ends with a sentence."""
        settings.export()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _fail("interrupted", INTERRUPTED)
        except BrokenPipeError:  # click would exit with 1, "nothing fits"
            _end_unread()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write names and summaries without loading the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Which parallelism strategy fits a model on a machine, how fast it is, and why.",
)


def _interrupt(end: Callable[..., None], *_: object) -> NoReturn:
    """Raise KeyboardInterrupt; should an import or a library swallow it, end the program."""
    sys.unraisablehook = end
    timer = threading.Timer(_PATIENCE_S, end)
    timer.daemon = True
    timer.start()
    raise KeyboardInterrupt


def _print_version(is_given: bool) -> None:
    import importlib.metadata

    if is_given:
        print(f"planner {importlib.metadata.version('parallelism-planner')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the program itself."""


@functools.cache
def _command() -> Callable[..., Any]:
    return typer.main.get_command(app)


def _fail(message: str, code: int = WRONG_USE) -> NoReturn:
    print(f"planner: {message}", file=sys.stderr)
    sys.exit(code)


def _end_unread() -> NoReturn:
    """Exit: the reader closed the pipe, which is not an error; flushing would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(FITS)


def _plain(message: str) -> str:
    for words, plain in _read("phrases.toml").items():
        message = message.replace(words, plain)
    return message


def main(arguments: list[str] | None = None, *, end: Callable[..., None] | None = None) -> NoReturn:
    """Run the command line and exit; `end` ends a process of its own that is interrupted."""
    try:
        if typer.__version__.startswith(_OLD_TYPERS):
            raise ImportError(f"typer {typer.__version__} is too old")
        code = _command()(arguments, prog_name="planner", standalone_mode=False, obj=end)
        sys.stdout.flush()
    except PlannerError as error:
        _fail(str(error))
    except typer.Abort:
        _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _end_unread()
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            # otherwise flushing the rest of the output at exit would fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            _fail(f"the answer cannot be written: {error.strerror}; make room, or write elsewhere")
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            message = error.format_message()
            if message.startswith("Usage:"):  # a command group without a command
                print(message, file=sys.stderr)
                sys.exit(WRONG_USE)
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "planner"
            _fail(f"{shorten(_plain(message), _LONGEST)} (`{command} --help` shows the options)")
        if os.environ.get("PLANNER_DEBUG"):
            raise
        from planner.errors import package_fault

        if fault := package_fault():
            _fail(fault)
        cause = shorten(f"{type(error).__name__}: {error}", _LONGEST)
        _fail(
            f"this should not happen: {cause}; report it with the command that you ran, and what "
            "it prints with PLANNER_DEBUG=1",
            UNFORESEEN,
        )
    sys.exit(code if isinstance(code, int) else FITS)
