"""Table: measured over estimated for every scored run, as `benchmarks/accuracy.py` wrote it.

Only ratios are kept, by the identifier of a row and its source: the measurements stay where they
were published.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np

__all__ = ["Residual", "Summary", "residuals", "summary", "write_table"]

_PATH = Path(__file__).with_name("residuals.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """How far one measured run is from its estimate."""

    row: str
    source: str
    run_class: str
    seen: bool
    """Whether a constant was fitted on it."""
    step_time: float | None
    """Measured over estimated step time."""
    memory: float | None
    """Measured over estimated memory."""
    memory_kind: str
    """How memory was measured; empty where it was not."""


def write_table(rows: Iterable[Residual]) -> None:
    """Replace the table that is shipped."""
    lines = sorted(rows, key=lambda row: (row.source, row.row))
    with _PATH.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Residual)])
        writer.writerows([_cell(value) for value in astuple(row)] for row in lines)


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else value


@functools.cache
def residuals() -> tuple[Residual, ...]:
    """Every scored run of this version."""

    def number(text: str) -> float | None:
        return float(text) if text else None

    with _PATH.open(encoding="utf-8", newline="") as file:
        return tuple(
            Residual(
                row=cells["row"],
                source=cells["source"],
                run_class=cells["run_class"],
                seen=cells["seen"] == "1",
                step_time=number(cells["step_time"]),
                memory=number(cells["memory"]),
                memory_kind=cells["memory_kind"],
            )
            for cells in csv.DictReader(file)
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """How far the estimates of some runs are from what was measured; signed ones are estimate
    over measurement, minus one."""

    num_runs: int
    num_sources: int
    mape: float
    median: float
    bias: float


def summary(rows: Sequence[Residual]) -> Summary | None:
    """Figures over the step times of some runs; None where none carries one."""
    timed = [(row.source, row.step_time) for row in rows if row.step_time]
    if not timed:
        return None
    errors = np.array([1 / ratio - 1 for _, ratio in timed])
    return Summary(
        len(timed),
        len({source for source, _ in timed}),
        float(np.mean(np.abs(errors))),
        float(np.median(np.abs(errors))),
        math.expm1(float(np.mean(np.log1p(errors)))),
    )
