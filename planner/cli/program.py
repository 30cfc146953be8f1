"""Command line: the program, its commands and its exit codes.

Results go to standard output, progress and errors to standard error. Exit codes: 0 it fits,
1 nothing fits, 2 wrong use; 3 where rows of measurements were refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from planner.cli import app as explorer
from planner.cli import catalogue, emit, evidence, plan, validate
from planner.cli.options import FITS, WRONG_USE
from planner.errors import PlannerError

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Which parallelism strategy fits a model on a machine, how fast it is, and why.",
)
for _commands in (plan, explorer, catalogue, emit, evidence, validate):
    _commands.register(app)


def _fail(message: str) -> NoReturn:
    print(f"planner: {message}", file=sys.stderr)
    sys.exit(WRONG_USE)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; no traceback reaches a user."""
    run: Callable[..., Any] = typer.main.get_command(app)
    try:
        code = run(arguments, standalone_mode=False)
    except PlannerError as error:
        _fail(str(error))
    except typer.Abort:
        _fail("interrupted")
    except BrokenPipeError:
        # the reader of the pipe has what it wanted
        sys.stderr.close()
        sys.exit(FITS)
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            _fail(f"{error.format_message()} (`planner --help` shows the options)")
        raise
    sys.exit(code if isinstance(code, int) else FITS)
