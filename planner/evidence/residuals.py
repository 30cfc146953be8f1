"""Residuals: measured over estimated for every scored run, written by `benchmarks/accuracy.py`."""

import csv
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PATH = Path(__file__).with_name("residuals.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """Ratios of one measured run to its estimate."""

    row: str
    source: str
    site: str
    """Machine name in the row."""
    seen: bool
    """True if a constant was fitted on the run."""
    step_time: float | None
    """Measured over estimated step time."""
    memory: float | None
    """Measured over estimated memory."""
    architecture: str = ""
    """Architecture of the devices."""
    framework: str = ""


_TEXTS = ("row", "source", "site", "architecture", "framework")


@functools.cache
def residuals() -> tuple[Residual, ...]:
    """Read the residuals of every scored run of this version."""
    with PATH.open(encoding="utf-8", newline="") as file:
        return tuple(
            Residual(
                **{name: cells[name] for name in _TEXTS},
                seen=cells["seen"] == "1",
                step_time=float(cells["step_time"]) if cells["step_time"] else None,
                memory=float(cells["memory"]) if cells["memory"] else None,
            )
            for cells in csv.DictReader(file)
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of step times, estimated / measured - 1, over a set of runs."""

    num_runs: int
    num_sources: int
    mape: float
    median: float
    bias: float


def summary(rows: Sequence[Residual]) -> Summary | None:
    """Summarize the step-time errors of runs; None if no run has a step time."""
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
