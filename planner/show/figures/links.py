"""Link figures: what the links inside a node and its network interfaces carry in one step."""

from __future__ import annotations

from collections.abc import Sequence

from planner.choose.anatomy import Axis
from planner.cost.network.wiring import group_rate, wiring
from planner.describe.machine import Machine
from planner.show.figures.frame import Drawing, bar_style, framed
from planner.show.figures.palette import label
from planner.units import GIB, format_bytes

__all__ = ["link_loads"]


def link_loads(axes: Sequence[Axis], machine: Machine, step_time_s: float) -> Drawing:
    """Bytes of one step by axis: each device's links inside the node, a node's interfaces.

    Beside each bar stands the part of the step for which the links are busy at their full rate.
    """
    inside = group_rate(wiring(machine.node), machine.node.num_devices, 1)
    between = machine.node_bytes_per_s if machine.network else float("inf")
    rows = {
        "inside the node, per device": ([a.traffic.inside_bytes for a in axes], inside),
        "network interfaces, per node": ([a.traffic.node_bytes for a in axes], between),
    }
    figure = framed(height=230, x="sent in one step [GiB]")
    for number, axis in enumerate(axes):
        figure.add_bar(
            y=list(rows),
            x=[carried[number] / GIB for carried, _ in rows.values()],
            name=label(axis.name),
            orientation="h",
            marker=bar_style(axis.name),
            customdata=[format_bytes(carried[number]) for carried, _ in rows.values()],
            hovertemplate="%{y}<br>" + label(axis.name) + ": %{customdata}<extra></extra>",
        )
    said = []
    longest = max(sum(carried) for carried, _ in rows.values())
    for name, (carried, rate) in rows.items():
        total = sum(carried)
        busy = f"{format_bytes(total)}, busy {100 * total / rate / step_time_s:.0f} % of the step"
        said.append(f"{name}: {busy}")
        figure.add_annotation(
            x=total / GIB, y=name, text=busy, showarrow=False, xanchor="left", xshift=6
        )
    figure.update_layout(barmode="stack", bargap=0.3)
    figure.update_yaxes(autorange="reversed")
    # space right of the bars for what they mean
    figure.update_xaxes(range=[0, 1.5 * longest / GIB or 1.0])
    return Drawing(figure, "Sent in one step; " + "; ".join(said) + ".")
