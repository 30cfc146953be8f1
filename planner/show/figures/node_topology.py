"""Machine figures: the node's topology from its graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from planner.cost.network.wiring import build_graph
from planner.describe.machine import Machine
from planner.show.figures.figure_registry import figure_of
from planner.show.figures.frame import Drawing, framed
from planner.show.figures.palette import BLUE, GREEN, GREY, ORANGE, PINK
from planner.units import format_rate

__all__ = ["topology"]

_LINKS = {
    "fabric": (BLUE, "solid", 3),
    "nic": (ORANGE, "dash", 2),
    "network": (ORANGE, "solid", 3),
    "host": (GREY, "dot", 1),
}
_LINK_NAMES = {
    "fabric": "between devices",
    "nic": "device to its interface",
    "network": "interface to the network",
    "host": "device to the host",
}
_SYMBOLS = {
    "device": ("square", 34, BLUE),
    "nic": ("diamond", 26, ORANGE),
    "host": ("hexagon", 40, GREY),
    "switch": ("circle", 34, GREEN),
    "pcie": ("circle", 34, GREEN),
    "network": ("circle", 46, PINK),
}
_SHORT = {"device": "", "nic": "N", "switch": "sw", "pcie": "PCIe", "network": "net"}
_NAMES = {"nic": "network interface", "pcie": "PCIe"}
_CHIP = {
    "bgcolor": "rgba(60,60,60,0.85)",
    "borderpad": 2,
    "font": {"color": "#FFFFFF", "size": 10},
}
_MAX_LABELS = 4
# labels of more links than this hide each other; the legend and the pointer still tell


@figure_of("machine")
def topology(machine: Machine) -> Drawing:
    """One node and its way out: devices, interfaces, switch, host; links with their rates."""
    graph = build_graph(machine)
    places = _places(machine, list(graph.nodes))
    figure = framed(height=560)
    kinds: dict[tuple[str, float], list[tuple[Any, Any]]] = {}
    for a, b, data in graph.edges(data=True):
        kinds.setdefault((data["link"], data["bytes_per_s"]), []).append((a, b))
    for (kind, rate), edges in sorted(kinds.items(), key=lambda item: (item[0][0], -item[0][1])):
        _links(
            figure, kind, rate, edges, places, named=len(edges) <= _MAX_LABELS and kind != "host"
        )
    for kind in ("host", "network", "switch", "pcie", "nic", "device"):
        _vertices(figure, kind, places)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False, scaleanchor="x")
    figure.update_layout(hovermode="closest")
    links = "; ".join(
        f"{len(edges)} links {_LINK_NAMES[kind]} with {format_rate(rate)}"
        for (kind, rate), edges in sorted(kinds.items())
    )
    return Drawing(
        figure,
        f"One node of {machine.name}: {machine.node.num_devices} devices, "
        f"{machine.node.num_nics} network interfaces. Per direction: {links}.",
    )


def _places(machine: Machine, vertices: Sequence[Any]) -> dict[Any, tuple[float, float]]:
    """Devices on a circle, interfaces outside next to their devices, the network above."""
    count = machine.node.num_devices
    places: dict[Any, tuple[float, float]] = {}
    turn = [math.pi / 2 + 2 * math.pi * (i + 0.5) / count for i in range(count)]
    for vertex in vertices:
        if vertex[0] == "device":
            angle = turn[vertex[1]]
            places[vertex] = (1.5 * math.cos(angle), math.sin(angle))
        elif vertex[0] == "nic":
            # interfaces stand in a row above, in the order of the devices they serve
            order = _nic_order(machine, turn)
            rank, width = order.index(vertex[1]), max(len(order) - 1, 1)
            spread = min(0.8 * len(order), 2.2)
            places[vertex] = (spread * (2 * rank / width - 1) if len(order) > 1 else 0.0, 1.65)
    places[("host",)] = (0.0, -1.65)
    places[("switch",)] = places[("pcie",)] = (0.0, 0.0)
    places[("network",)] = (0.0, 2.35)
    return {vertex: places[vertex] for vertex in vertices}


def _nic_order(machine: Machine, turn: Sequence[float]) -> list[int]:
    owners: dict[int, list[float]] = {nic: [] for nic in range(machine.node.num_nics)}
    for device, nic in enumerate(machine.node.nic_of_device):
        owners[nic].append(math.cos(turn[device]))
    middle = {nic: sum(xs) / len(xs) if xs else 0.0 for nic, xs in owners.items()}
    return sorted(middle, key=lambda nic: (round(middle[nic], 6), nic))


def _links(
    figure: Any,
    kind: str,
    rate: float,
    edges: Sequence[tuple[Any, Any]],
    places: dict[Any, tuple[float, float]],
    named: bool,
) -> None:
    color, dash, width = _LINKS[kind]
    xs: list[float | None] = []
    ys: list[float | None] = []
    middles = []
    for a, b in edges:
        (x0, y0), (x1, y1) = places[a], places[b]
        xs += [x0, x1, None]
        ys += [y0, y1, None]
        middles.append((x0 + 0.38 * (x1 - x0), y0 + 0.38 * (y1 - y0)))
    text = format_rate(rate)
    figure.add_scatter(
        x=xs,
        y=ys,
        mode="lines",
        hoverinfo="skip",
        # many links of one kind are drawn thin, or they hide everything behind them
        line={"color": color, "dash": dash, "width": width if len(edges) <= 16 else 1},
        name=f"{_LINK_NAMES[kind]}: {text}",
        opacity=0.85 if len(edges) <= 16 else 0.5,
    )
    figure.add_scatter(
        x=[m[0] for m in middles],
        y=[m[1] for m in middles],
        showlegend=False,
        mode="markers",
        marker={"size": 7, "color": color},
        hovertext=[f"{_name(a)} - {_name(b)}: {text} per direction" for a, b in edges],
        hoverinfo="text",
    )
    for x, y in middles if named else []:
        figure.add_annotation(x=x, y=y, text=text, showarrow=False, **_CHIP)


def _name(vertex: Any) -> str:
    return " ".join(str(part) for part in vertex)


def _vertices(figure: Any, kind: str, places: dict[Any, tuple[float, float]]) -> None:
    mine = [vertex for vertex in places if vertex[0] == kind]
    if not mine:
        return
    symbol, size, color = _SYMBOLS[kind]
    short = _SHORT.get(kind, kind)
    figure.add_scatter(
        x=[places[v][0] for v in mine],
        y=[places[v][1] for v in mine],
        mode="markers+text",
        marker={
            "symbol": symbol,
            "size": size,
            "color": color,
            "line": {"color": "#FFFFFF", "width": 1},
        },
        text=[f"{short}{v[1]}" if len(v) > 1 else short for v in mine],
        textfont={"color": "#FFFFFF" if kind == "device" else "#000000", "size": 12},
        name=_NAMES.get(kind, kind),
        hovertext=[_name(v) for v in mine],
        hoverinfo="text",
    )
