"""Checkpoints: what a training saves, how often, by whom and to where."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from planner.describe.base import Description

__all__ = ["Checkpoints", "Contents", "Storage"]

Contents = Literal["states", "weights"]
Storage = Literal["file-system", "local-disk"]


class Checkpoints(Description):
    """What a training saves, and how."""

    contents: Contents = "states"
    """states: all that training goes on from, weights and the optimizer's states; weights: the
    weights alone, in the precision that computes."""
    full: bool = False
    """Whether one rank gathers and writes the whole of it (a full state dict), where ranks could
    each write what they own."""
    asynchronous: bool = False
    """Whether ranks only copy what they save to the host's memory, and write it while steps go
    on."""
    storage: Storage = "file-system"
    """What is written to while ranks wait: a shared file system, or the nodes' own disks."""
    file_system: str = Field(default="", max_length=100)
    """Shared file system; the machine's first of known rate where it is not said."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Part of the file system's rate that the job gets."""
    interval_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Work between two checkpoints; None: what loses least by Daly's formula [s]."""
    every_steps: int = Field(default=0, ge=0, le=10**9)
    """The same in steps, with all that comes between them; 0: as interval_s says."""

    @model_validator(mode="after")
    def _one_interval(self) -> Checkpoints:
        if self.interval_s is not None and self.every_steps:
            raise ValueError(
                f"interval_s = {self.interval_s:g} and every_steps = {self.every_steps} both say "
                "how often; give one of them"
            )
        return self
