"""Sweeps: thousands of questions answered on local cores or a cluster, as one table."""

from planner.sweeps.runner import SweepResult, dry_run, sweep

Swept = SweepResult
"""Earlier name of `SweepResult`."""

__all__ = ["SweepResult", "Swept", "dry_run", "sweep"]
