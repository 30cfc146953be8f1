"""Machine figures: the node's topology from its graph."""

import math
from collections.abc import Sequence
from typing import Any

from planner.cost.network.wiring import build_graph
from planner.describe.machine import Machine
from planner.show.figures.figure_registry import figure_of
from planner.show.figures.frame import Drawing, framed
from planner.show.figures.palette import BLUE, GREEN, GREY, ORANGE, PINK
from planner.units import counted, format_rate

_LINKS = {
    "fabric": ("between devices", BLUE, "solid", 3),
    "nic": ("device to its interface", ORANGE, "dash", 2),
    "network": ("interface to the network", ORANGE, "solid", 3),
    "host": ("device to the host", GREY, "dot", 1),
}
"""Name, colour, dash and width of links, by kind."""
_VERTICES = {
    "host": ("host", "host", "hexagon", 40, GREY),
    "network": ("network", "net", "circle", 46, PINK),
    "switch": ("switch", "sw", "circle", 34, GREEN),
    "pcie": ("PCIe", "PCIe", "circle", 34, GREEN),
    "nic": ("network interface", "N", "diamond", 26, ORANGE),
    "device": ("device", "", "square", 34, BLUE),
}
"""Name, short name, symbol, size and colour of vertices, by kind, in the order they are drawn."""
_CHIP = {"bgcolor": "rgba(60,60,60,0.85)", "borderpad": 2, "font": {"color": "#FFFFFF", "size": 10}}
Place = tuple[float, float]
_MAX_LABELS = 4
# labels of more links would overlap; legend and hover texts remain


@figure_of("machine")
def topology(machine: Machine) -> Drawing:
    """Topology of a node: devices, network interfaces, switch, host, and links with their rates."""
    graph = build_graph(machine)
    places = _places(machine, list(graph.nodes))
    figure = framed(height=560)
    kinds: dict[tuple[str, float], list[tuple[Any, Any]]] = {}
    for a, b, data in graph.edges(data=True):
        kinds.setdefault((data["link"], data["bytes_per_s"]), []).append((a, b))
    for (kind, rate), edges in sorted(kinds.items(), key=lambda item: (item[0][0], -item[0][1])):
        _links(figure, kind, rate, [(a, b, places[a], places[b]) for a, b in edges])
    for kind in _VERTICES:
        _vertices(figure, kind, {vertex: at for vertex, at in places.items() if vertex[0] == kind})
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False, scaleanchor="x")
    figure.update_layout(hovermode="closest")
    links = "; ".join(
        f"{counted(len(edges), 'link')} {_LINKS[kind][0]} with {format_rate(rate)}"
        for (kind, rate), edges in sorted(kinds.items())
    )
    return Drawing(
        figure,
        f"One node of {machine.name}: {counted(machine.node.num_devices, 'device')}, "
        f"{counted(machine.node.num_nics, 'network interface')}. Per direction: {links}.",
    )


def _places(machine: Machine, vertices: Sequence[Any]) -> dict[Any, Place]:
    """Place devices on a circle, interfaces in a row above, the network on top, the host below."""
    count = machine.node.num_devices
    turn = [math.pi / 2 + 2 * math.pi * (i + 0.5) / count for i in range(count)]
    order = _nic_order(machine, turn)
    width, spread = max(len(order) - 1, 1), min(0.8 * len(order), 2.2)
    places: dict[Any, Place] = {
        ("host",): (0.0, -1.65),
        ("switch",): (0.0, 0.0),
        ("pcie",): (0.0, 0.0),
        ("network",): (0.0, 2.35),
    }
    for device, angle in enumerate(turn):
        places["device", device] = (1.5 * math.cos(angle), math.sin(angle))
    # interfaces are in a row above, in the order of the devices they serve
    for rank, nic in enumerate(order):
        places["nic", nic] = (spread * (2 * rank / width - 1) if len(order) > 1 else 0.0, 1.65)
    return {vertex: places[vertex] for vertex in vertices}


def _nic_order(machine: Machine, turn: Sequence[float]) -> list[int]:
    owners: dict[int, list[float]] = {nic: [] for nic in range(machine.node.num_nics)}
    for device, nic in enumerate(machine.node.nic_of_device):
        owners[nic].append(math.cos(turn[device]))
    middle = {nic: sum(xs) / len(xs) if xs else 0.0 for nic, xs in owners.items()}
    return sorted(middle, key=lambda nic: (round(middle[nic], 6), nic))


def _links(
    figure: Any, kind: str, rate: float, edges: Sequence[tuple[Any, Any, Place, Place]]
) -> None:
    """Draw the links of one kind and rate; an edge is two vertices and their positions."""
    name, color, dash, width = _LINKS[kind]
    middles = [(x0 + 0.38 * (x1 - x0), y0 + 0.38 * (y1 - y0)) for _, _, (x0, y0), (x1, y1) in edges]
    text = format_rate(rate)
    figure.add_scatter(
        x=[x for _, _, start, end in edges for x in (start[0], end[0], None)],
        y=[y for _, _, start, end in edges for y in (start[1], end[1], None)],
        mode="lines",
        hoverinfo="skip",
        # many links of one kind are thin, so that they do not hide everything behind them
        line={"color": color, "dash": dash, "width": width if len(edges) <= 16 else 1},
        name=f"{name}: {text}",
        opacity=0.85 if len(edges) <= 16 else 0.5,
    )
    figure.add_scatter(
        x=[m[0] for m in middles],
        y=[m[1] for m in middles],
        showlegend=False,
        mode="markers",
        marker={"size": 7, "color": color},
        hovertext=[f"{_name(a)} - {_name(b)}: {text} per direction" for a, b, _, _ in edges],
        hoverinfo="text",
    )
    if len(edges) <= _MAX_LABELS and kind != "host":
        for x, y in middles:
            figure.add_annotation(x=x, y=y, text=text, showarrow=False, **_CHIP)


def _name(vertex: Any) -> str:
    return " ".join(str(part) for part in vertex)


def _vertices(figure: Any, kind: str, places: dict[Any, Place]) -> None:
    if not places:
        return
    name, short, symbol, size, color = _VERTICES[kind]
    outline = {"color": "#FFFFFF", "width": 1}
    figure.add_scatter(
        x=[x for x, _ in places.values()],
        y=[y for _, y in places.values()],
        mode="markers+text",
        marker={"symbol": symbol, "size": size, "color": color, "line": outline},
        text=[f"{short}{v[1]}" if len(v) > 1 else short for v in places],
        textfont={"color": "#FFFFFF" if kind == "device" else "#000000", "size": 12},
        name=name,
        hovertext=list(map(_name, places)),
        hoverinfo="text",
    )
