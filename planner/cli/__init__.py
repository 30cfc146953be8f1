"""Command line: one module per group of commands, their shared options, and the program."""

from planner.cli.exit_codes import FITS, NOTHING_FITS, WRONG_USE
from planner.cli.program import app, main

__all__ = ["FITS", "NOTHING_FITS", "WRONG_USE", "app", "main"]
