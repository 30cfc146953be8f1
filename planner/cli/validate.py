"""Command line: `planner validate`, whose commands stand with the validation."""

from __future__ import annotations

import typer

from planner.validate.program import app as validate

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(validate, name="validate")
