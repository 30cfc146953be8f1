"""Palette: the colours and hatches of every part, told apart by colour-blind people.

Six hues of Okabe and Ito (2008, "Color universal design") that stand on white and on black;
where more than six things share a figure, hatches tell the second six from the first.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """How one part is drawn."""

    color: str
    pattern: str = ""


_INKS: dict[str, Ink] = {
    "weights": Ink(BLUE),
    "gradients": Ink(ORANGE),
    "optimizer_states": Ink(GREEN),
    "activations": Ink(PINK),
    "working_set": Ink(PINK, "/"),
    "logits_and_loss": Ink(SKY),
    "gathered_parameters": Ink(BLUE, "/"),
    "communication_buffers": Ink(ORANGE, "/"),
    "optimizer_temporaries": Ink(GREEN, "/"),
    "runtime_context": Ink(GREY),
    "allocator_reserve": Ink(GREY, "/"),
    "forward": Ink(BLUE),
    "backward": Ink(GREEN),
    "weight_gradient": Ink(GREEN, "/"),
    "recompute": Ink(SKY),
    "tensor_parallel": Ink(ORANGE),
    "context_parallel": Ink(ORANGE, "/"),
    "expert_parallel": Ink(ORANGE, "x"),
    "parameter_gathering": Ink(PINK),
    "pipeline_bubble": Ink(GREY),
    "pipeline_transfer": Ink(GREY, "/"),
    "gradient_reduction": Ink(PINK, "/"),
    "optimizer": Ink(BLUE, "/"),
    "parameter_update_gathering": Ink(PINK, "x"),
    "offload": Ink(RED, "/"),
    "communication": Ink(ORANGE),
    "tp": Ink(ORANGE),
    "cp": Ink(ORANGE, "/"),
    "ep": Ink(ORANGE, "x"),
    "dp": Ink(PINK),
    "pp": Ink(GREY),
}

_LABELS = {
    "logits_and_loss": "logits and loss",
    "runtime_context": "runtime (context, libraries)",
    "working_set": "working set (temporaries)",
    "tp": "tensor (tp)",
    "cp": "context (cp)",
    "ep": "expert (ep)",
    "dp": "data (dp)",
    "pp": "pipeline (pp)",
}


def ink(part: str) -> Ink:
    """How a part is drawn; parts that nobody named yet are grey.

    >>> ink("weights").color, ink("a part of tomorrow").color == GREY
    ('#0072B2', True)
    """
    return _INKS.get(part, Ink(GREY, "."))


def label(part: str) -> str:
    """A part's name for a reader.

    >>> label("pipeline_bubble")
    'pipeline bubble'
    """
    return _LABELS.get(part, part.replace("_", " "))
