"""Command line: one module a group of commands, options they share, the program itself."""

from planner.cli.exit_codes import FITS, NOTHING_FITS, WRONG_USE
from planner.cli.program import app, main

__all__ = ["FITS", "NOTHING_FITS", "WRONG_USE", "app", "main"]
