"""The input pipeline: time to deliver a batch, and the part of it that prefetch does not hide."""

from planner.training.data.input import InputTime, input_time
from planner.training.data.loader_changes import Change, changes

__all__ = ["Change", "InputTime", "changes", "input_time"]
