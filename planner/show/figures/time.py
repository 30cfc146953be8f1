"""Time figures: where a step's seconds go, and how they scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.cost.estimate import Estimate
from planner.show.figures.frame import (
    Drawing,
    bar_style,
    check_word,
    framed,
    log_ticks,
    named_rows,
)
from planner.show.figures.palette import GREY, HUES, LIMIT, label
from planner.show.training import summary
from planner.training.answer import WholeTraining
from planner.units import counted, format_amount, format_seconds

__all__ = [
    "ScalePoint",
    "Stretch",
    "above_one",
    "falling",
    "listed",
    "scaling",
    "waterfall",
    "whole_training",
]

_LEAST = 0.0005
# of the whole: shorter parts would be no more than a line
_UNITS = (("d", 86_400.0, 2 * 86_400.0), ("h", 3600.0, 7200.0), ("s", 1.0, 0.0))
"""Units of a waterfall's axis: name, seconds, and from how many seconds on it is taken."""


def waterfall(estimate: Estimate) -> Drawing:
    """Step time by part, each part starting where the one before ended.

    The range in which a measured step is expected is drawn at the total.
    """
    interval_s, total = estimate.interval_step_time_s, estimate.step_time_s
    shown = {k: v for k, v in estimate.step_time_parts_s.items() if v > _LEAST * total}
    parts = [Stretch(label(name), value, bar_style(name)) for name, value in shown.items()]
    figure = falling(parts, "step", total, interval_s, f"the line: {_range_text(interval_s)}")
    return Drawing(figure, f"A step takes {_total_text(total, interval_s)}: {listed(parts)}.")


def whole_training(found: WholeTraining) -> Drawing:
    """Time of a whole training by part, each part starting where the one before ended."""
    total = found.time
    parts = [
        Stretch(label(one.name), one.time_s.expected, bar_style(one.name))
        for one in found.parts
        if one.time_s.expected > _LEAST * total.expected
    ]
    below = "the line: 90 % of trainings"
    figure = falling(parts, "training", total.expected, (total.low, total.high), below)
    return Drawing(figure, f"{summary(found)} By part: {listed(parts)}.")


@dataclass(frozen=True, slots=True)
class Stretch:
    """A bar of a waterfall."""

    label: str
    seconds: float
    style: dict[str, Any]


def listed(parts: Sequence[Stretch]) -> str:
    """The bars in words, longest first."""
    ordered = sorted(parts, key=lambda part: -part.seconds)
    return ", ".join(f"{part.label} {format_seconds(part.seconds)}" for part in ordered)


def falling(
    parts: Sequence[Stretch],
    whole: str,
    total_s: float,
    interval_s: tuple[float, float],
    below: str,
) -> Any:
    """Bars that start where the one before ended, and their sum with the range around it."""
    names = [*(part.label for part in parts), whole]
    unit, scale = next((unit, scale) for unit, scale, least in _UNITS if total_s >= least)
    x = f"time [{unit}]<br>{below}"
    figure = framed(height=100 + 32 * len(names), x=x, legend=False, top=8)
    start = 0.0
    for part in parts:
        figure.add_bar(
            y=[part.label],
            x=[part.seconds / scale],
            base=[start / scale],
            orientation="h",
            marker=part.style,
            text=[f"{format_seconds(part.seconds)}, {100 * part.seconds / total_s:.1f} %"],
            textposition="outside",
            cliponaxis=False,
            showlegend=False,
            hovertemplate=f"{part.label}: {format_seconds(part.seconds)}<extra></extra>",
        )
        start += part.seconds
    _total_bar(figure, whole, total_s, interval_s, scale)
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1])
    named_rows(figure, names)
    # room for words right of the last bar, on a phone too
    figure.update_xaxes(range=[0, max(1.6 * total_s, 1.1 * interval_s[1]) / scale])
    return figure


def _total_bar(
    figure: Any, whole: str, total: float, interval_s: tuple[float, float], scale: float
) -> None:
    error = {
        "type": "data",
        "symmetric": False,
        "array": [(interval_s[1] - total) / scale],
        "arrayminus": [(total - interval_s[0]) / scale],
        "color": LIMIT,
        "thickness": 2,
    }
    figure.add_bar(
        y=[whole],
        x=[total / scale],
        orientation="h",
        showlegend=False,
        error_x=error,
        marker={"color": "#A6A6A6"},
        insidetextfont={"color": "#000000"},
        text=[format_seconds(total)],
        textposition="inside",
        insidetextanchor="start",
        constraintext="none",
    )


def _total_text(total: float, interval_s: tuple[float, float]) -> str:
    return f"{format_seconds(total)} ({_range_text(interval_s)})"


def _range_text(interval_s: tuple[float, float]) -> str:
    low, high = (format_seconds(value) for value in interval_s)
    return f"90 % of runs: {low} to {high}"


@dataclass(frozen=True, slots=True)
class ScalePoint:
    """The best plan for a number of nodes."""

    nodes: int
    step_time_s: float | None
    """None where nothing fits."""
    tokens_per_s: float
    node_hours: float
    layout: str


_WHATS = {
    "time": ("step time", format_seconds),
    "efficiency": ("tokens/s of a node, of the first [%]", "{:.0f} %".format),
    "node-hours": ("node-hours", format_amount),
}


def scaling(points: Sequence[ScalePoint], what: str) -> Drawing:
    """`time`, `efficiency` or `node-hours` against the number of nodes."""
    check_word("what", what, _WHATS)
    fitting = [point for point in points if point.step_time_s is not None]
    title, form = _WHATS[what]
    figure = framed(height=350, x="nodes", y=title, legend=False)
    if not fitting:
        return Drawing(figure, "Nothing fits on any of these node counts.")
    first = fitting[0]
    values = [
        {
            "time": p.step_time_s or 0.0,
            "efficiency": _efficiency(p, first),
            "node-hours": p.node_hours,
        }[what]
        for p in fitting
    ]
    figure.add_scatter(
        x=[p.nodes for p in fitting],
        y=values,
        mode="lines+markers",
        line={"color": HUES[0], "width": 2},
        marker={"size": 9},
        customdata=[
            [counted(p.nodes, "node"), form(v), p.layout]
            for p, v in zip(fitting, values, strict=True)
        ],
        hovertemplate="%{customdata[0]}: %{customdata[1]}<br>%{customdata[2]}<extra></extra>",
    )
    if what == "time":
        ideal = [(first.step_time_s or 0.0) * first.nodes / p.nodes for p in fitting]
        _ideal(figure, fitting, ideal)
        ticks = log_ticks([*values, *ideal])
        figure.update_yaxes(type="log", tickvals=ticks, ticktext=[form(tick) for tick in ticks])
    else:
        if what == "efficiency":
            _ideal(figure, fitting, [100.0] * len(fitting))
        figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(
        type="log", tickvals=[p.nodes for p in fitting], ticktext=[f"{p.nodes:,}" for p in fitting]
    )
    said = ", ".join(
        f"{counted(p.nodes, 'node')} {form(v)}" for p, v in zip(fitting, values, strict=True)
    )
    return Drawing(figure, f"{title[0].upper()}{title[1:]} against nodes: {said}.")


def _efficiency(point: ScalePoint, first: ScalePoint) -> float:
    return 100 * point.tokens_per_s / point.nodes / (first.tokens_per_s / first.nodes)


def _ideal(figure: Any, points: Sequence[ScalePoint], values: Sequence[float]) -> None:
    figure.add_scatter(
        x=[p.nodes for p in points],
        y=list(values),
        mode="lines",
        line={"color": GREY, "dash": "dot"},
        hoverinfo="skip",
    )


def above_one(points: Sequence[ScalePoint]) -> str:
    """Why more nodes can be more than proportionally faster, where they are."""
    fitting = [point for point in points if point.step_time_s is not None]
    if not any(_efficiency(point, fitting[0]) > 100.5 for point in fitting):
        return ""
    return (
        f"Above 100 %: on {counted(fitting[0].nodes, 'node')} memory is shortest, so that layout "
        "offloads, recomputes or shards more than is needed on more nodes."
    )
