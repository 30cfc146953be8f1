"""Command line: one module per group of commands, their shared options, and the program."""

from planner.cli.program import app, main
from planner.errors import FITS, NOTHING_FITS, WRONG_USE

__all__ = ["FITS", "NOTHING_FITS", "WRONG_USE", "app", "main"]
