"""Layout figures: placement of ranks, and traffic of links and interfaces in one step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.choose.plots import Axis, rank_axes
from planner.cost.network.wiring import group_rate, wiring
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.show.figures.figure_registry import figure_of
from planner.show.figures.frame import Drawing, bar_style, check_word, framed, hued_steps
from planner.show.figures.palette import HUES, label
from planner.units import GIB, counted, format_bytes

_MAX_NODES = 128
_MAX_TICKS = 10
# labelled nodes on the axis: more would overlap on a phone
_MAX_WRITTEN = 192
# with more cells, their text is too small to read


@dataclass(frozen=True, slots=True)
class _Grid:
    """Cells of a rank map: nodes against devices; many nodes go side by side."""

    layout: Layout
    per_node: int

    @property
    def nodes(self) -> int:
        return -(-self.layout.world // self.per_node)

    @property
    def drawn(self) -> int:
        return min(self.nodes, _MAX_NODES)

    @property
    def is_wide(self) -> bool:
        """True if nodes are columns and devices are rows."""
        return self.nodes > self.per_node

    @property
    def part(self) -> str:
        """Which nodes are drawn; empty if all are."""
        nodes = counted(self.nodes, "node")
        return f"the first {self.drawn} of {nodes}" if self.drawn < self.nodes else ""

    def axes(self) -> tuple[list[str], list[str]]:
        """Return the names of columns and rows."""
        nodes = [str(node) for node in range(self.drawn)]
        devices = [str(device) for device in range(self.per_node)]
        return (nodes, devices) if self.is_wide else (devices, nodes)

    def titles(self) -> tuple[str, str]:
        if not self.is_wide:
            return "device in the node", "node"
        return f"node ({self.part})" if self.part else "node", "device in the node"

    def rows(self) -> list[range]:
        """Return the ranks, row by row."""
        size = self.per_node
        if self.is_wide:
            return [range(device, self.drawn * size, size) for device in range(size)]
        return [range(node * size, (node + 1) * size) for node in range(self.drawn)]


@figure_of("answer")
def rank_map(layout: Layout, machine: Machine, axis: str = "tp") -> Drawing:
    """Map of ranks on up to 128 nodes; cells of one colour have the same index on `axis`."""
    check_word("axis", axis, ("dp", "tp", "pp", "cp", "ep"))
    grid = _Grid(layout, machine.node.num_devices)
    (columns, names), (x, y) = grid.axes(), grid.titles()
    figure = framed(height=150 + 30 * len(names), legend=False, x=x, y=y, top=8)
    colors = min(getattr(layout, axis), len(HUES))
    readable = grid.drawn * grid.per_node <= _MAX_WRITTEN
    figure.add_heatmap(
        x=columns,
        y=names,
        z=[[_shade(layout, rank, axis) for rank in row] for row in grid.rows()],
        text=[[_word(layout, rank, axis) for rank in row] for row in grid.rows()],
        customdata=[[_hover(layout, rank, grid.per_node) for rank in row] for row in grid.rows()],
        zmin=-0.5,
        zmax=colors - 0.5,
        texttemplate="%{text}" if readable else None,
        textfont={"color": "#000000"},
        hovertemplate="%{customdata}<extra></extra>",
        colorscale=hued_steps(HUES[:colors]),
        colorbar=_legend(layout, axis),
        xgap=2 if readable else 1,
        ygap=2 if readable else 1,
        opacity=0.9,
    )
    ticks = columns[:: -(-len(columns) // _MAX_TICKS)]
    figure.update_xaxes(type="category", showgrid=False, tickvals=ticks, tickangle=0)
    figure.update_yaxes(type="category", showgrid=False, autorange="reversed")
    part = f" ({grid.part} are drawn)" if grid.part else ""
    return Drawing(
        figure,
        f"{counted(layout.world, 'rank')} on {counted(grid.nodes, 'node')} of "
        f"{counted(grid.per_node, 'device')}{part}, coloured by their "
        f"index on the axis {axis} of size {getattr(layout, axis)}.",
    )


def _legend(layout: Layout, axis: str) -> dict[str, Any]:
    """Return the legend of the colours, which repeat if there are more indices than colours."""
    size, hues = getattr(layout, axis), len(HUES)
    shown = range(min(size, hues))
    more = [", ".join(str(i) for i in range(k, size, hues)) for k in shown]
    words = [text if len(text) <= 12 else f"{k}, {k + hues}, ..." for k, text in enumerate(more)]
    return {
        "title": {"text": label(axis)},
        "tickvals": list(shown),
        "ticktext": words,
        "thickness": 14,
        "outlinewidth": 0,
    }


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


@figure_of("answer")
def link_loads(axes: Sequence[Axis], machine: Machine, step_time_s: float) -> Drawing:
    """Bytes sent in one step by axis, and how long they keep a node's links and interfaces busy."""
    inside = group_rate(wiring(machine.node), machine.node.num_devices, 1)
    nodes = max((each.nodes for each in axes), default=1)
    between = machine.bytes_per_s_between(nodes) if machine.network else float("inf")
    inside_bytes = [each.traffic.inside_bytes for each in axes]
    node_bytes = [each.traffic.node_bytes for each in axes]
    rows = {
        "inside": ("links inside the node, per device", inside_bytes, inside),
        "network": ("network interfaces, per node", node_bytes, between),
    }
    figure = framed(height=270, x="sent in one step [GiB]", top=8)
    for number, axis in enumerate(axes):
        figure.add_bar(
            y=list(rows),
            x=[carried[number] / GIB for _, carried, _ in rows.values()],
            name=label(axis.name),
            orientation="h",
            marker=bar_style(axis.name),
            customdata=[[format_bytes(sizes[number]), name] for name, sizes, _ in rows.values()],
            hovertemplate=f"%{{customdata[1]}}<br>{label(axis.name)}: "
            "%{customdata[0]}<extra></extra>",
        )
    texts = []
    # labels are some pixels above the middle of their bar
    style = {"align": "left", "showarrow": False, "xanchor": "left", "yshift": 30}
    for row, (name, carried, rate) in rows.items():
        total = sum(carried)
        busy = f"{format_bytes(total)}, busy {100 * total / rate / step_time_s:.0f} % of the step"
        texts.append(f"{name}: {busy}")
        figure.add_annotation(x=0, y=row, text=f"{name}:<br>{busy}", **style)
    figure.update_layout(barmode="stack", bargap=0.7)
    figure.update_yaxes(range=[1.3, -0.8], showticklabels=False)
    figure.update_xaxes(rangemode="tozero")
    return Drawing(figure, "Sent in one step; " + "; ".join(texts) + ".")
