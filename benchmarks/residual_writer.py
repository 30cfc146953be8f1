"""Write the residuals that the package ships: planner/evidence/residuals/residuals.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np

from planner.evidence.residuals.residual_table import PATH, TRAITS, Residual


def write_table(rows: Iterable[Residual]) -> None:
    """Replace the table that the package ships."""
    lines = [_cells(row) for row in sorted(rows, key=lambda row: (row.source, row.row))]
    with PATH.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _cells(row: Residual) -> dict[str, object]:
    plain = {f.name: _cell(getattr(row, f.name)) for f in fields(row) if f.name != "traits"}
    traits = {name: _joined(getattr(row.traits, name)) for name in TRAITS}
    return {**plain, **traits}


def _joined(values: Any) -> str:
    return " ".join(str(_cell(value)) for value in np.ravel(values).tolist())


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else value
