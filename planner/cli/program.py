"""Command line: the program, its commands and its exit codes.

Results go to standard output, progress and errors to standard error. Exit codes: 0 it fits,
1 nothing fits, 2 wrong use; 3 where rows of measurements were refused.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from planner.cli import app as explorer
from planner.cli import ask, catalogue, emit, evidence, plan, simulate, sweep
from planner.cli.options import FITS, WRONG_USE
from planner.errors import PlannerError, shorten
from planner.validate.program import app as validate

__all__ = ["app", "main"]

_LONGEST = 400
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WORDS = {
    "Value error, ": "",
    "Input should be a valid integer, unable to parse string as an integer": "write a whole number",
    "Input should be greater than or equal to": "must be at least",
    "Input should be less than or equal to": "must be at most",
    "Input should be a valid number, unable to parse string as a number": "write a number",
}
"""What the library that reads options says, and what it means."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Which parallelism strategy fits a model on a machine, how fast it is, and why.",
)
for _commands in (plan, ask, simulate, sweep, explorer, catalogue, emit, evidence):
    _commands.register(app)
# its commands stand with the validation
app.add_typer(validate, name="validate")


@functools.cache
def _command() -> Callable[..., Any]:
    """The commands with their options; put together once."""
    return typer.main.get_command(app)


def _fail(message: str) -> NoReturn:
    print(f"planner: {message}", file=sys.stderr)
    sys.exit(WRONG_USE)


def _plain(said: str) -> str:
    """A complaint of the options in the words of all others.

    >>> _plain("Invalid value for '--zero': Value error, 'x' is not one of 'a', 'b'.")
    "Invalid value for '--zero': 'x' is not one of 'a', 'b'."
    """
    for words, plain in _WORDS.items():
        said = said.replace(words, plain)
    return said


def _named(context: Any) -> str:
    """The command that a complaint is about, as it is typed."""
    words: list[str] = []
    while context is not None and context.parent is not None:
        words.insert(0, context.info_name)
        context = context.parent
    return " ".join(["planner", *words])


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; no traceback reaches a user."""
    try:
        code = _command()(arguments, standalone_mode=False)
        sys.stdout.flush()
    except PlannerError as error:
        _fail(str(error))
    except typer.Abort:
        _fail("interrupted")
    except BrokenPipeError:
        # the reader of the pipe has what it wanted
        sys.stderr.close()
        sys.exit(FITS)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        # what is still to be written would fail once more when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"the answer cannot be written: {error.strerror}; make room, or write it elsewhere")
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            said = error.format_message()
            if said.startswith("Usage:"):  # a group of commands without one
                print(said, file=sys.stderr)
                sys.exit(WRONG_USE)
            command = _named(getattr(error, "ctx", None))
            _fail(f"{shorten(_plain(said), _LONGEST)} (`{command} --help` shows the options)")
        raise
    sys.exit(code if isinstance(code, int) else FITS)
