"""Palette: the colours and hatches of every part, told apart by colour-blind people.

Six hues of Okabe and Ito (2008, "Color universal design") that stand on white and on black;
where more than six things share a figure, hatches tell the second six from the first.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.parts import Hue, part

__all__ = ["GREY", "HUES", "LIMIT", "Ink", "ink", "label"]

BLUE, ORANGE, GREEN, PINK, SKY, RED = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
)
HUES = (BLUE, ORANGE, GREEN, PINK, SKY, RED)
"""Hues in the order in which they are given out."""
GREY = "#8C8C8C"
"""What is there whatever the user does."""
LIMIT = RED
"""Limits and what exceeds them."""


@dataclass(frozen=True, slots=True)
class Ink:
    """How one thing is drawn."""

    color: str
    pattern: str = ""


_SHADES: dict[Hue, str] = {
    "blue": BLUE,
    "orange": ORANGE,
    "green": GREEN,
    "pink": PINK,
    "sky": SKY,
    "red": RED,
    "grey": GREY,
}


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What figures draw beside the parts of an estimate."""

    ink: Ink
    label: str


_OTHERS = {
    # what a simulated rank does, where that is no part of the estimate
    "weight_gradient": _Drawn(Ink(GREEN, "/"), "weight gradient"),
    "communication": _Drawn(Ink(ORANGE), "communication"),
    # parallel axes
    "tp": _Drawn(Ink(ORANGE), "tensor (tp)"),
    "cp": _Drawn(Ink(ORANGE, "/"), "context (cp)"),
    "ep": _Drawn(Ink(ORANGE, "x"), "expert (ep)"),
    "dp": _Drawn(Ink(PINK), "data (dp)"),
    "pp": _Drawn(Ink(GREY), "pipeline (pp)"),
}


def ink(name: str) -> Ink:
    """How a part of an estimate, an activity of a rank or an axis is drawn.

    >>> ink("weights").color
    '#0072B2'
    """
    if name in _OTHERS:
        return _OTHERS[name].ink
    record = part(name)
    return Ink(_SHADES[record.hue], record.hatch)


def label(name: str) -> str:
    """The same thing's name for a reader.

    >>> label("pipeline_bubble"), label("tp")
    ('pipeline bubble', 'tensor (tp)')
    """
    return _OTHERS[name].label if name in _OTHERS else part(name).label
