"""Sweeps: thousands of questions asked on cores or on a cluster, their answers as one table.

A sweep is stated as lists of which every combination is a question. What was answered is kept in a
journal beside the table, so that a sweep that was stopped goes on where it was.
"""

from planner.sweeps.sweeping import Swept, dry_run, sweep

__all__ = ["Swept", "dry_run", "sweep"]
