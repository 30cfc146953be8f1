"""Rank figures: which rank sits where, coloured by its place on one axis."""

from __future__ import annotations

from planner.choose.anatomy import rank_axes
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.show.figures.frame import Drawing, framed
from planner.show.figures.palette import HUES

__all__ = ["rank_map"]

_MAX_NODES = 32
_MAX_WRITTEN = 192
# cells with words beyond this many are too small to read


def rank_map(layout: Layout, machine: Machine, axis: str) -> Drawing:
    """Nodes against devices; cells of one colour and number have the same index on `axis`.

    At most 32 nodes are drawn, from the first rank on.
    """
    per_node = machine.node.num_devices
    nodes = -(-layout.world // per_node)
    drawn = min(nodes, _MAX_NODES)
    across = nodes > per_node
    rows = [range(node * per_node, (node + 1) * per_node) for node in range(drawn)]
    names = [f"node {node}" for node in range(drawn)]
    devices = [str(i) for i in range(per_node)]
    if across:
        # many nodes stand side by side, one device below the other
        rows = [range(i, drawn * per_node, per_node) for i in range(per_node)]
    x, y = (names, devices) if across else (devices, names)
    figure = framed(
        height=150 + 30 * len(y),
        legend=False,
        x="" if across else "device in the node",
        y="device in the node" if across else "",
    )
    written = drawn * per_node <= _MAX_WRITTEN
    figure.add_heatmap(
        x=x,
        y=y,
        z=[[_shade(layout, rank, axis) for rank in row] for row in rows],
        text=[[_word(layout, rank, axis) for rank in row] for row in rows],
        customdata=[[_hover(layout, rank, per_node) for rank in row] for row in rows],
        zmin=0,
        zmax=len(HUES) - 1,
        texttemplate="%{text}" if written else None,
        textfont={"color": "#000000"},
        hovertemplate="%{customdata}<extra></extra>",
        colorscale=_scale(),
        showscale=False,
        xgap=2,
        ygap=2,
        opacity=0.9,
    )
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(type="category", showgrid=False, autorange="reversed")
    rest = f" (the first {drawn} of {nodes} nodes)" if drawn < nodes else ""
    return Drawing(
        figure,
        f"{layout.world} ranks on {nodes} nodes of {per_node} devices{rest}, coloured by their "
        f"index on the axis {axis} of size {getattr(layout, axis)}.",
    )


def _scale() -> list[list[object]]:
    count = len(HUES)
    steps: list[list[object]] = []
    for i, hue in enumerate(HUES):
        steps += [[i / count, hue], [(i + 1) / count, hue]]
    return steps


def _shade(layout: Layout, rank: int, axis: str) -> float | None:
    if rank >= layout.world:
        return None
    return float(rank_axes(layout, rank)[axis] % len(HUES))


def _word(layout: Layout, rank: int, axis: str) -> str:
    return f"{axis} {rank_axes(layout, rank)[axis]}" if rank < layout.world else ""


def _hover(layout: Layout, rank: int, per_node: int) -> str:
    node, device = divmod(rank, per_node)
    if rank >= layout.world:
        return f"node {node}, device {device}: idle"
    place = ", ".join(f"{name} {index}" for name, index in rank_axes(layout, rank).items())
    return f"rank {rank}: node {node}, device {device}<br>{place}"
