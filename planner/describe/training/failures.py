"""Failures: how often a training is interrupted, and what an interruption takes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from planner.describe.base import Description

__all__ = ["Failures"]

_Seconds = Annotated[float, Field(ge=0, le=1e7)]


class Failures(Description):
    """What interrupts a training; what is not stated is as published trainings had it."""

    per_device_hour: float | None = Field(default=None, ge=0, le=1)
    """Interruptions of the whole job per device and hour of it; None: what Llama 3 405B had."""
    detection_s: _Seconds | None = None
    """Until an interruption is noticed and the job is ended; None: the time after which torch gives
    up a collective [s]."""
    queue_s: _Seconds = 0.0
    """Until the nodes are there again: repair, spare nodes, waiting in the queue [s]."""
