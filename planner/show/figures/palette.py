"""Palette: colours and hatches of every part, distinguishable with colour blindness.

Six hues of Okabe and Ito (2008, "Color universal design") that are visible on white and on black;
if a figure shows more than six things, hatches distinguish the second six from the first.
"""

import re
from dataclasses import dataclass

from planner.cost.parts import Hue, Part, part
from planner.training import whole_training as of_training

BLUE, ORANGE, GREEN, PINK, SKY, RED = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
)
HUES = (BLUE, ORANGE, GREEN, PINK, SKY, RED)
"""Hues in the order of use."""
GREY = "#8C8C8C"
"""Hue of parts that do not depend on the user's choices."""
LIMIT = RED
"""Hue of limits."""


@dataclass(frozen=True, slots=True)
class Ink:
    """Colour and hatch of one thing."""

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


def _channels(color: str) -> list[float]:
    if color.startswith("#"):
        return [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [float(part) / 255 for part in re.findall(r"[\d.]+", color)[:3]]


def _luminance(color: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in _channels(color)]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours, as WCAG 2 defines it."""
    light, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def readable_on(ground: str) -> str:
    """Return black or white, whichever has more contrast on a colour."""
    return max(("#000000", "#FFFFFF"), key=lambda ink: contrast(ink, ground))
