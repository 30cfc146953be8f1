"""Rows in the columns of a table of runs, as an adapter of one source writes them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from planner.evidence.runs.csv_runs import runs_from_text
from planner.evidence.runs.run import RefusedRun, Run


def runs_of(rows: Sequence[Mapping[str, object]], name: str) -> list[Run | RefusedRun]:
    """The runs of some rows with the same columns; `name` stands in messages."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return runs_from_text(text.getvalue(), name)
