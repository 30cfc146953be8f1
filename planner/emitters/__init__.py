"""Emitters: the files that run an answer, from one estimated layout of a plan.

A job script for the machine's scheduler, the configuration that the framework reads, the layout
for `planner compare`, and a README. Everything is text; `planner.emitters.folder` writes it.
"""

from planner.emitters.emitting import emit, emit_estimate

__all__ = ["emit", "emit_estimate"]
