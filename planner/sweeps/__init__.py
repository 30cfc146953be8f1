"""Sweeps: thousands of questions answered on local cores or a cluster, as one table.

Every combination of a sweep's lists is a question. A journal next to the table keeps the
answers, so that a stopped sweep resumes where it was.
"""

from planner.sweeps.runner import SweepResult, dry_run, sweep

Swept = SweepResult
"""Earlier name of `SweepResult`."""

__all__ = ["SweepResult", "Swept", "dry_run", "sweep"]
