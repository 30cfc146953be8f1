"""Published runs: tables, completed with facts that sources state outside their rows."""

from __future__ import annotations

import csv
from collections.abc import Collection
from pathlib import Path

from canonical import PublishedRun, runs_of
from megatron_bridge import with_recipes
from narayanan import with_schedule

from planner.evidence.runs.run import RefusedRun


def published_runs(path: Path, without: Collection[str] = ()) -> list[PublishedRun | RefusedRun]:
    """Read every run of a table, with schedules and recipes that its source states elsewhere.

    Cells of the columns in `without` count as empty.
    """
    empty = dict.fromkeys(without, "")
    with path.open(encoding="utf-8", newline="") as file:
        rows = [{**row, **empty} for row in csv.DictReader(file)]
    runs = runs_of([with_schedule(row) for row in rows], path.name)
    return [with_recipes(run, row) for run, row in zip(runs, rows, strict=True)]
