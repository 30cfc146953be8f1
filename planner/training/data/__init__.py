"""The input pipeline: time to deliver a batch, and the part of it that prefetch does not hide."""

from planner.training.data.loader_changes import Change, changes
from planner.training.data.input import InputTime, input_time

__all__ = ["Change", "InputTime", "changes", "input_time"]
