"""Parts of a whole training's time, one record each."""

from __future__ import annotations

from planner.cost.parts import Part
from planner.errors import UnknownNameError

__all__ = ["PARTS", "part"]

_PARTS = (
    Part(
        name="start_up",
        title="start-up",
        hue="grey",
        meaning="every job of the row before its first step: processes, communicators, state, "
        "compilation",
    ),
    Part(
        name="staging",
        hue="grey",
        hatch="/",
        meaning="copying the dataset to the nodes' own disks, once a job",
    ),
    Part(name="steps", hue="blue", meaning="the optimizer steps, as long as the step's estimate"),
    Part(
        name="data",
        title="waiting for data",
        hue="orange",
        meaning="what the input pipeline takes longer than the steps beside which it runs",
    ),
    Part(name="evaluation", hue="green", meaning="forward passes and generated text between steps"),
    Part(
        name="checkpoints",
        hue="pink",
        meaning="what steps wait for while the state is written",
    ),
    Part(
        name="lost_work",
        hue="red",
        meaning="work since the last checkpoint, done again after failures and at the end of jobs",
    ),
    Part(
        name="restarts",
        title="recovery",
        hue="red",
        hatch="/",
        meaning="from a failure until steps go on: noticing it, starting again, loading the state",
    ),
)

PARTS = tuple(part.name for part in _PARTS)
"""In the order of every answer."""

_BY_NAME = {part.name: part for part in _PARTS}


def part(name: str) -> Part:
    """The record of a part; UnknownNameError where nobody wrote one.

    >>> part("restarts").label
    'recovery'
    """
    if name not in _BY_NAME:
        raise UnknownNameError("part", name, _BY_NAME, f"`{__name__}` has all {len(_BY_NAME)}")
    return _BY_NAME[name]
