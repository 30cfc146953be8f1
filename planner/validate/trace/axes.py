"""Axes: what the groups of ranks are called in which a step communicates."""

from __future__ import annotations

from planner.cost.network.groups import geometry
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout

__all__ = ["axis_of", "axis_of_kind"]

_NAMES = {
    "data": "dp",
    "shard": "dp_shard",
    "second_shard": "reshard",
    "replica": "dp_replicate",
    "context": "cp",
    "expert": "ep",
    "expert_shard": "edp",
    "tensor": "tp",
    "pipeline": "pp",
}
"""Kinds of groups, by the name that traces give them; equal groups have the first one's."""


def _places(layout: Layout) -> dict[str, tuple[int, int]]:
    """Size and stride of the groups of every kind."""
    # experts are whole where they are spread, as FSDP2 leaves them
    layouts = Layouts.of(layout if layout.ep == 1 else layout.replaced(etp=1))
    placements = {
        kind: (int(size), int(stride)) for kind, (size, stride) in geometry(layouts).items()
    }
    return {kind: placements[kind] for kind in _NAMES}


def axis_of(layout: Layout, size: int, stride: int) -> str:
    """Name of the axis along which the ranks of a group differ.

    >>> axis_of(Layout(dp=8, ep=4), 2, 4)
    'edp'
    """
    for kind, place in _places(layout).items():
        if place == (size, stride):
            return _NAMES[kind]
    return "world"


def axis_of_kind(layout: Layout, kind: str) -> str:
    """Name of the axis of a kind of groups.

    >>> axis_of_kind(Layout(dp=8, ep=8), "expert")      # the ranks of the data axis
    'dp'
    """
    return axis_of(layout, *_places(layout)[kind])
