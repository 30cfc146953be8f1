"""Sweeps: thousands of questions answered on cores or on a cluster, as one table.

Every combination of the lists of a sweep is a question. A journal beside the table keeps the
answers, so that a sweep that was stopped goes on where it was.
"""

from planner.sweeps.runner import SweepResult, dry_run, sweep

Swept = SweepResult
"""The result by its earlier name."""

__all__ = ["SweepResult", "Swept", "dry_run", "sweep"]
