"""Tables of published runs, with what single sources state elsewhere than in their rows."""

from __future__ import annotations

import csv
from pathlib import Path

from canonical import PublishedRun, runs_of
from megatron_bridge import with_recipes
from narayanan import with_schedule
from source_labels import as_run, canonical_cells

from planner.evidence.runs.run import RefusedRun


def published_runs(path: Path) -> list[PublishedRun | RefusedRun]:
    """Read every run of a table: canonical cells, and the framework that each source configured."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    runs = runs_of([with_schedule(canonical_cells(row)) for row in rows], path.name)
    pairs = zip(runs, rows, strict=True)
    return [with_recipes(as_run(run, row), row) for run, row in pairs]
