"""Report: tables for docs/reference/accuracy.md of everything but steps of language models.

Every other module of this folder has `rows()`, or `rows(data)` if it reads the folder of measured
runs. A row is a label, its unit, measured, estimated, and the source.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

__all__ = ["tables"]

Row = tuple[str, str, float, float, str]


def tables(data: Path) -> list[str]:
    """Make a table for every module, under its docstring's first line."""
    lines: list[str] = []
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem == "report":
            continue
        module = importlib.import_module(f"whole.{path.stem}")
        if not hasattr(module, "rows"):
            continue
        wants_data = bool(inspect.signature(module.rows).parameters)
        found = module.rows(data) if wants_data else module.rows()
        head = (module.__doc__ or path.stem).splitlines()[0]
        lines += ["", f"{head}", "", "| what | measured | estimated | error | source |"]
        lines += ["|---|---:|---:|---:|---|", *map(_line, found)]
    return lines


def _line(row: Row) -> str:
    what, unit, measured, estimated, source = row
    error = f"{100 * (estimated / measured - 1):+.1f} %" if measured else "-"
    named = "" if unit == "1" else unit
    values = " | ".join(f"{_plain(value)} {named}".rstrip() for value in (measured, estimated))
    return f"| {what} | {values} | {error} | {source} |".replace("\n", " ")


def _plain(value: float) -> str:
    """Format a number with four digits, or with all digits of a longer integer part.

    >>> _plain(16621.0), _plain(0.74058)
    ('16,621', '0.7406')
    """
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
