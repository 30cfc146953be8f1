"""Canonical rows: runs of one source, converted to the columns of a table of runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from planner.evidence.runs.run import RefusedRun, Run
from planner.evidence.runs.run_files import runs_from_text


@dataclass(frozen=True, slots=True)
class PublishedRun(Run):
    """A run of a published table."""

    reliability: str = ""
    """The table's rating of the row: high, medium or low; empty if it has none."""


def runs_of(rows: Sequence[Mapping[str, object]], name: str) -> list[PublishedRun | RefusedRun]:
    """Read runs from rows with equal columns; `name` identifies the table in messages."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    runs = runs_from_text(text.getvalue(), name)
    return [_published(run, row) for run, row in zip(runs, rows, strict=True)]


def _published(run: Run | RefusedRun, row: Mapping[str, object]) -> PublishedRun | RefusedRun:
    if isinstance(run, RefusedRun):
        return run
    of_run = {field.name: getattr(run, field.name) for field in fields(run)}
    return PublishedRun(**of_run, reliability=str(row.get("reliability", "")).lower())
