"""Palette: hatches and colour-blind hues (Okabe and Ito 2008) of every part."""

from dataclasses import dataclass
from typing import get_args

from planner.cost.parts import Hue, Part, part
from planner.training import whole_training as of_training

HUES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Hues in the order of use."""
BLUE, ORANGE, GREEN, PINK, SKY, RED = HUES
GREY = "#8C8C8C"
"""Hue of parts that do not depend on the user's choices."""
LIMIT = RED
"""Hue of limits."""


@dataclass(frozen=True, slots=True)
class Ink:
    """Colour and hatch of one thing."""

    color: str
    pattern: str = ""


_SHADES: dict[Hue, str] = dict(zip(get_args(Hue), (*HUES, GREY), strict=True))


_ACTIVITIES = {
    "weight_gradient": (Ink(GREEN, "/"), "weight gradient"),
    "communication": (Ink(ORANGE), "communication"),
    "tp": (Ink(ORANGE), "tensor (tp)"),
    "cp": (Ink(ORANGE, "/"), "context (cp)"),
    "ep": (Ink(ORANGE, "x"), "expert (ep)"),
    "dp": (Ink(PINK), "data (dp)"),
    "pp": (Ink(GREY), "pipeline (pp)"),
}
"""Activities of a simulated rank and parallel axes, which are not parts of an estimate."""


def ink(name: str) -> Ink:
    """Return colour and hatch of a part of an estimate, an activity of a rank or an axis."""
    if name in _ACTIVITIES:
        return _ACTIVITIES[name][0]
    record = _record(name)
    return Ink(_SHADES[record.hue], record.hatch)


def _record(name: str) -> Part:
    return of_training.part(name) if name in of_training.PARTS else part(name)


def label(name: str) -> str:
    """Return the display name of a part, an activity or an axis."""
    return _ACTIVITIES[name][1] if name in _ACTIVITIES else _record(name).label
