"""Emitters: configuration files and job scripts for one estimated layout of a plan."""

from planner.emitters.emitting import emit, emit_estimate

__all__ = ["emit", "emit_estimate"]
