"""Scores: a measured run beside its estimate."""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.estimate import Estimate
from planner.evidence.runs.run import Run
from planner.tables import Record

__all__ = ["Interval", "Score"]

Interval = tuple[float, float]
"""Shortest and longest step time that is expected [s]."""


@dataclass(frozen=True, slots=True)
class Score:
    """One scored run beside its estimate."""

    run: Run
    estimate: Estimate
    estimated_memory_bytes: float
    """The parts that the measurement sees, summed [B]."""
    interval_s: Interval | None
    fits: bool
    """Whether it fits; where the row does not say what is recomputed, with any recompute."""

    @property
    def error(self) -> float | None:
        """Estimated over measured step time, minus one; None where no time was measured."""
        measured = self.run.step_time_s
        return None if measured is None else self.estimate.step_time_s / measured - 1

    def record(self) -> Record:
        """The run as one flat row: what was measured, how far the estimate is off, its own row."""
        run = self.run
        return {
            "run": run.row_id,
            "source": run.source,
            "model": run.model.name,
            "machine": run.machine.name,
            "measured_step_time_s": run.step_time_s,
            "step_time_error": self.error,
            "measured_memory_bytes": run.memory_bytes,
            "memory_error": self.memory_error,
            **self.estimate.record(),
        }

    @property
    def covered(self) -> bool:
        """Whether the interval holds the measured step time."""
        measured = self.run.step_time_s
        if measured is None or self.interval_s is None:
            return False
        return self.interval_s[0] <= measured <= self.interval_s[1]

    @property
    def memory_error(self) -> float | None:
        """Estimated over measured memory, minus one; None where none was measured."""
        measured = self.run.memory_bytes
        return None if measured is None else self.estimated_memory_bytes / measured - 1
