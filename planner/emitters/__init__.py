"""Emitters: the files that run an answer, from one estimated layout of a plan."""

from planner.emitters.emitting import emit, emit_estimate

__all__ = ["emit", "emit_estimate"]
