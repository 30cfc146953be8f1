"""The input pipeline: how long a batch takes to arrive, and what of that no prefetch hides."""

from planner.training.data.advice import Change, changes
from planner.training.data.input import InputTime, input_time

__all__ = ["Change", "InputTime", "changes", "input_time"]
