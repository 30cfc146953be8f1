"""Emitters: configuration files and job scripts for one estimated layout of a plan."""

from planner.emitters.emitting import emit

__all__ = ["emit"]
