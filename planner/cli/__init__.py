"""Command line: one module a group of commands, options they share, the program itself."""

from planner.cli.program import app, main

__all__ = ["app", "main"]
