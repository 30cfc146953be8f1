"""Tables of published runs, with what single sources state elsewhere than in their rows."""

from __future__ import annotations

import csv
from pathlib import Path

from canonical import runs_of
from megatron_bridge import with_recipes
from narayanan import with_schedule

from planner.evidence.runs.run import RefusedRun, Run


def published_runs(path: Path) -> list[Run | RefusedRun]:
    """Read every run of a table: Narayanan's schedules, and the recipes of Megatron-Bridge."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [with_schedule(row) for row in csv.DictReader(file)]
    runs = runs_of(rows, path.name)
    return [with_recipes(run, row) for run, row in zip(runs, rows, strict=True)]
