"""Logs as texts: read without a file, by the readers that `log_files.read_log` chooses among."""

from __future__ import annotations

from collections.abc import Mapping

from planner.evidence.logs.scalars import is_table, read_table
from planner.evidence.logs.step_lines import read_lines
from planner.evidence.logs.steps import RunLog


def read_log_text(
    text: str, source: str = "the log", columns: Mapping[str, str] | None = None
) -> RunLog:
    """Read the text of a log."""
    lines = text.replace("\r", "\n").split("\n")
    if columns or is_table(text[:65_536]):
        return read_table(lines, source, columns or {})
    return read_lines(lines, source)
