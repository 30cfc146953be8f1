"""Collective figures: time against size by algorithm, and the data before and after."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from planner.cost.network.collective_table import ALGORITHMS, bus_factor, group_of
from planner.cost.network.collective_table import OPERATIONS as ESTIMATED
from planner.cost.network.topology import GroupView
from planner.describe.files import read_toml
from planner.describe.machine import Machine
from planner.errors import PlannerError
from planner.evidence.nccl_tests import Published, published_for
from planner.show.figures.figure_registry import figure_of
from planner.show.figures.frame import Drawing, check_word, framed, hued_steps, log_axis
from planner.show.figures.palette import GREY, HUES
from planner.units import counted, format_bytes, format_seconds

Timer = Callable[[GroupView, Any], Any]


def _timers(name: str) -> dict[str, Timer]:
    """Return an operation's algorithms for large buffers, and the library's choice."""
    timers = {
        algorithm.removesuffix(", Simple"): timer
        for algorithm, timer in ALGORITHMS[name].items()
        if not algorithm.endswith(" LL")
    }
    return {**timers, _CHOICE: ESTIMATED[name]} if len(timers) > 1 else timers


_CHOICE = "the library's choice"
_NAMES = {name.replace("_", "-"): name for name in ALGORITHMS}
"""Operations as nccl-tests names them."""

OPERATIONS = {word: _timers(name) for word, name in _NAMES.items()}
"""Operations with their modelled algorithms."""

_LETTERS = "ABCD"
_SIZES = 2.0 ** np.arange(3, 33)
_DASHES = ("dash", "dashdot", "dot", "longdash", "longdashdot")
_PICTURES = read_toml(Path(__file__).with_name("data_pictures.toml"))
"""Effect of every operation, and the data of four ranks before and after it."""


def ranks_of(machine: Machine, ranks: int | None, stride: int) -> int:
    """Number of ranks of a group: the given number, else all devices of two nodes [1]."""
    available, nodes = machine.num_devices, min(2, int(machine.num_nodes.value))
    count = machine.node.num_devices * nodes if ranks is None else ranks
    if not (isinstance(count, int) and isinstance(stride, int) and count >= 2 and stride >= 1):
        raise PlannerError(
            f"ranks = {count}, stride = {stride}: a collective needs at least 2 ranks and a "
            "stride of at least 1; give whole numbers"
        )
    if (count - 1) * stride >= available:
        devices = counted(available, "device")
        raise PlannerError(
            f"{count:,} ranks with stride {stride:,} exceed the {devices} of {machine.name}; use "
            "fewer ranks or a smaller stride"
        )
    return count


def algorithms_of(operation: str, group: GroupView) -> dict[str, Timer]:
    """Return the algorithms of an operation that are available on a group's machine."""
    return {
        name: timer
        for name, timer in OPERATIONS[operation].items()
        if np.isfinite(timer(group, 2.0**20))
    }


def _line(name: str, number: int) -> dict[str, Any]:
    dash = "solid" if name == _CHOICE else _DASHES[number]
    return {"color": HUES[number], "width": 2, "dash": dash}


@figure_of("machine")
def times(
    machine: Machine,
    operation: str = "all-reduce",
    ranks: int | None = None,
    stride: int = 1,
    size_bytes: float = 2.0**26,
) -> Drawing:
    """Time of a collective against its size, by algorithm, with measured points."""
    ranks = ranks_of(machine, ranks, stride)
    check_word("operation", operation, OPERATIONS)
    if not 0 < size_bytes < math.inf:
        raise PlannerError(f"size_bytes = {size_bytes:g} is no size; give more than 0 bytes")
    figure = framed(height=420, x="size of the full buffer", y="time")
    group, texts = group_of(machine, ranks, stride), []
    for number, (name, timer) in enumerate(algorithms_of(operation, group).items()):
        seconds = np.asarray(timer(group, _SIZES))
        pairs = zip(_SIZES, seconds, strict=True)
        figure.add_scatter(
            x=_SIZES,
            y=seconds,
            name=name,
            mode="lines",
            line=_line(name, number),
            customdata=[f"{format_bytes(s)}: {format_seconds(t)}" for s, t in pairs],
            hovertemplate=name + "<br>%{customdata}<extra></extra>",
        )
        texts.append(f"{name} {format_seconds(float(timer(group, size_bytes)))}")
    row = published(machine, operation, ranks, stride)
    if row is not None:
        _points(figure, row, row.times_s)
        texts.append(f"measured points from {format_bytes(row.sizes_bytes[0])} on")
    figure.add_vline(x=size_bytes, line={"color": GREY, "width": 1, "dash": "dot"})
    _log_sizes(figure)
    least = min(value for trace in figure.data for value in trace.y if value > 0)
    ticks = [10.0**e for e in range(math.floor(math.log10(least)), 3)]
    log_axis(figure.update_yaxes, ticks, format_seconds)
    return Drawing(
        figure,
        f"{operation} over {ranks} ranks of {machine.name}, {stride} apart; at "
        f"{format_bytes(size_bytes)}: " + ", ".join(texts) + ".",
    )


@figure_of("machine")
def bandwidth(
    machine: Machine, operation: str = "all-reduce", ranks: int | None = None, stride: int = 1
) -> Drawing:
    """Bus bandwidth of a collective, as nccl-tests defines it, against its size."""
    ranks = ranks_of(machine, ranks, stride)
    check_word("operation", operation, OPERATIONS)
    figure = framed(height=420, x="size of the full buffer", y="bus bandwidth [GB/s]")
    group, factor = group_of(machine, ranks, stride), bus_factor(_NAMES[operation], ranks)
    best = 0.0
    for number, (name, timer) in enumerate(algorithms_of(operation, group).items()):
        rate = factor * _SIZES / np.asarray(timer(group, _SIZES)) / 1e9
        best = max(best, float(rate.max()))
        line, text = _line(name, number), name + ": %{y:.3g} GB/s<extra></extra>"
        figure.add_scatter(x=_SIZES, y=rate, name=name, mode="lines", line=line, hovertemplate=text)
    row = published(machine, operation, ranks, stride)
    if row is not None:
        pairs = zip(row.sizes_bytes, row.times_s, strict=True)
        _points(figure, row, [factor * size / seconds / 1e9 for size, seconds in pairs])
    _log_sizes(figure)
    return Drawing(figure, f"Bus bandwidth of {operation}; the best reaches {best:.3g} GB/s.")


def published(machine: Machine, operation: str, ranks: int, stride: int) -> Published | None:
    """Return published times for a group of stride 1; None if there are none."""
    per_node = machine.node.num_devices
    return published_for(machine.name, operation, ranks, per_node) if stride == 1 else None


def _points(figure: Any, row: Published, values: Sequence[float]) -> None:
    figure.add_scatter(
        x=list(row.sizes_bytes),
        y=list(values),
        mode="markers",
        name=f"measured ({row.library})",
        marker={"symbol": "x", "size": 10, "color": HUES[5]},
        hovertemplate="measured: %{y:.4g} at %{x} B<extra></extra>",
    )


def _log_sizes(figure: Any) -> None:
    ticks = [2.0**e for e in (3, 10, 15, 20, 25, 30)]
    log_axis(figure.update_xaxes, ticks, lambda tick: format_bytes(tick).replace(".00", ""))


@figure_of()
def data_picture(operation: str = "all-reduce") -> Drawing:
    """Data of four ranks before and after an operation; a letter is the data's origin."""
    check_word("operation", operation, OPERATIONS)
    figure = framed(height=250, legend=False)
    figure.set_subplots(1, 2, subplot_titles=("before", "after"), horizontal_spacing=0.06)
    for place, moment in enumerate(("before", "after"), 1):
        table = [row.split(",") for row in _PICTURES[operation][moment]]
        figure.add_trace(_blocks(table), row=1, col=place)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_yaxes(visible=False, row=1, col=2)
    return Drawing(figure, f"{operation}: {_PICTURES[operation]['effect']}.")


def _blocks(table: list[list[str]]) -> dict[str, Any]:
    count = len(_LETTERS)
    return {
        "type": "heatmap",
        "z": [[_origin(cell) for cell in row] for row in table],
        "text": table,
        "texttemplate": "%{text}",
        "textfont": {"color": "#000000", "size": 11},
        "y": [f"rank {i}" for i in range(len(table))],
        "colorscale": hued_steps([*HUES[1 : count + 1], "#B8B8B8"]),
        "zmin": 0,
        "zmax": count,
        "showscale": False,
        "xgap": 3,
        "ygap": 3,
        "hoverinfo": "skip",
        "opacity": 0.85,
    }


def _origin(cell: str) -> float | None:
    if not cell:
        return None
    return float(len(_LETTERS) if cell.startswith("sum") else _LETTERS.index(cell[0]))
