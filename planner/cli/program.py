"""Command line: the program and its commands; errors and progress go to standard error."""

from __future__ import annotations

import errno
import functools
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from planner.cli import settings
from planner.cli.exit_codes import FITS, INTERRUPTED, UNFORESEEN, WRONG_USE
from planner.errors import PlannerError, shorten

_LONGEST = 400
_PATIENCE_S = 5.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WORDS = {
    "Value error, ": "",
    "Input should be a valid integer, unable to parse string as an integer": (
        "write a whole number in full, such as 32768"
    ),
    "Input should be greater than or equal to": "must be at least",
    "Input should be less than or equal to": "must be at most",
    "Input should be a valid number, unable to parse string as a number": "write a number",
}
"""Phrases of the option parser's error messages, and their plain replacements."""

_MODULES = {
    "planner.cli.layouts": ["plan", "estimate", "simulate", "emit"],
    "planner.cli.sweep": ["sweep"],
    "planner.cli.app": ["app"],
    "planner.cli.catalogue": ["models", "machines", "frameworks", "datasets", "show"],
    "planner.cli.evidence": ["backtest", "calibrate", "collectives", "compare"],
    "planner.cli.ask": ["ask"],
    "planner.cli.settings": ["config"],
    "planner.validate.program": ["validate"],
}
_SUMMARIES = {
    "plan": "Search every layout: which strategy fits, how much memory, how long a step.",
    "estimate": "Estimate one layout: memory by part and stage, step time by part.",
    "simulate": (
        "Simulate one step of a layout event by event: waiting times, and what would speed it up."
    ),
    "sweep": (
        "Answer thousands of questions on cores or a cluster: models, machines, nodes, what-ifs."
    ),
    "app": "Open the explorer in a browser (extra `app`).",
    "models": "List the models of the catalogue.",
    "machines": "List the machines of the catalogue.",
    "frameworks": "List the frameworks of the catalogue and their switches (`-f fsdp2+compile`).",
    "datasets": "List the datasets of the catalogue (`planner ask data --dataset NAME`).",
    "show": (
        "Show everything known about a machine, a model, a framework, constants or preferences."
    ),
    "emit": "Write the files that run a layout: job script, framework configuration, README.",
    "backtest": "Score estimates against measured runs, every row; exit 3 if rows were refused.",
    "calibrate": "Calibrate a hardware profile, from measured runs or by measuring this machine.",
    "collectives": "Print collective times by algorithm, or score them against nccl-tests output.",
    "compare": (
        "Compare a log with its estimate; exit 3 if log and job cannot belong to the same run."
    ),
    "ask": "Answer a question with many plans: a sentence, a table, the reasons.",
    "config": "Show the settings in effect, the file of each, and where files are looked for.",
    "validate": "Check estimates with real torch.",
}

_WITH_STATE = ("sweep", "app", "calibrate", "validate")
"""Commands that have processes or a journal to end; the others end at once on Ctrl-C."""

_OWNER = "owner of signals"
"""Object of the context if this process runs the command line alone, as the program does."""

_MODULE_OF = {name: module for module, commands in _MODULES.items() for name in commands}
COMMANDS = {name: (_MODULE_OF[name], summary) for name, summary in _SUMMARIES.items()}
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
        if name in _WITH_STATE and ctx is not None and ctx.obj is _OWNER:
            signal.signal(signal.SIGINT, _interrupt)
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


def _interrupt(*_: object) -> NoReturn:
    """Raise KeyboardInterrupt; should an import or a library swallow it, end the program."""
    sys.unraisablehook = _end
    timer = threading.Timer(_PATIENCE_S, _end)
    timer.daemon = True
    timer.start()
    raise KeyboardInterrupt


def _end(*_: object) -> NoReturn:
    os.write(2, b"planner: interrupted\n")
    os._exit(INTERRUPTED)


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
    """Build the program as one command; cached."""
    return typer.main.get_command(app)


def _fail(message: str, code: int = WRONG_USE) -> NoReturn:
    print(f"planner: {message}", file=sys.stderr)
    sys.exit(code)


def _plain(message: str) -> str:
    """Reword an error message of the option parser."""
    for words, plain in _WORDS.items():
        message = message.replace(words, plain)
    return message


def _command_path(context: Any) -> str:
    """Return the command that an error is about, as the user types it."""
    words: list[str] = []
    while context is not None and context.parent is not None:
        words.insert(0, context.info_name)
        context = context.parent
    return " ".join(["planner", *words])


def main(arguments: list[str] | None = None, *, owns_signals: bool = False) -> NoReturn:
    """Run the command line and exit; no traceback reaches a user."""
    try:
        owner = _OWNER if owns_signals else None
        code = _command()(arguments, prog_name="planner", standalone_mode=False, obj=owner)
        sys.stdout.flush()
    except PlannerError as error:
        _fail(str(error))
    except typer.Abort:
        _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # the reader closed the pipe, which is not an error
        sys.stderr.close()
        sys.exit(FITS)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        # otherwise flushing the rest of the output at exit would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"the answer cannot be written: {error.strerror}; make room, or write it elsewhere")
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            message = error.format_message()
            if message.startswith("Usage:"):  # a command group without a command
                print(message, file=sys.stderr)
                sys.exit(WRONG_USE)
            command = _command_path(getattr(error, "ctx", None))
            _fail(f"{shorten(_plain(message), _LONGEST)} (`{command} --help` shows the options)")
        if os.environ.get("PLANNER_DEBUG"):
            raise
        cause = shorten(f"{type(error).__name__}: {error}", _LONGEST)
        _fail(
            f"this should not happen: {cause}; report it with the command that you ran, and what "
            "it prints with PLANNER_DEBUG=1",
            UNFORESEEN,
        )
    sys.exit(code if isinstance(code, int) else FITS)
