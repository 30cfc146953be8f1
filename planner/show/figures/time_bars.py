"""Time figures: where a step's seconds go, and how they scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.choose.plots import ScalePoint
from planner.cost.estimate import Estimate
from planner.show.figures.figure_registry import figure_of
from planner.show.figures.frame import (
    Drawing,
    Named,
    bar_style,
    check_word,
    fit_text,
    framed,
    log_ticks,
    named_rows,
    plain,
)
from planner.show.figures.palette import GREY, HUES, LIMIT, label
from planner.show.training import summary
from planner.training.whole_training import WholeTraining
from planner.units import counted, format_amount, format_seconds

__all__ = [
    "Stretch",
    "falling",
    "listed",
    "scaling",
    "time_bars",
    "waterfall",
    "whole_training",
]

_LEAST = 0.0005
# of the whole: shorter parts would be no more than a line
_UNITS = (("d", 86_400.0, 2 * 86_400.0), ("h", 3600.0, 7200.0), ("s", 1.0, 0.0))
"""Units of a waterfall's axis: name, seconds, and from how many seconds on it is taken."""


@figure_of("answer")
def waterfall(estimate: Estimate) -> Drawing:
    """Step time by part, each part starting where the one before ended.

    The range in which a measured step is expected is drawn at the total.
    """
    interval_s, total = estimate.interval_step_time_s, estimate.step_time_s
    shown = {k: v for k, v in estimate.step_time_parts_s.items() if v > _LEAST * total}
    parts = [Stretch(label(name), value, bar_style(name)) for name, value in shown.items()]
    figure = falling(parts, "step", total, interval_s, f"the line: {_range_text(interval_s)}")
    return Drawing(figure, f"A step takes {_total_text(total, interval_s)}: {listed(parts)}.")


@figure_of("answers")
def time_bars(estimates: Named) -> Drawing:
    """Step time by part, stacked."""
    figure = framed(height=230 + 46 * len(estimates), x="step time [s]")
    names = [plain(name) for name, _ in estimates][::-1]
    rows = [estimate for _, estimate in estimates][::-1]
    parts = dict.fromkeys(name for e in rows for name, v in e.step_time_parts_s.items() if v)
    for part in parts:
        values = [e.step_time_parts_s.get(part, 0.0) for e in rows]
        if max(values) < 0.001 * max(e.step_time_s for e in rows):
            continue
        figure.add_bar(
            y=names,
            x=values,
            name=label(part),
            orientation="h",
            marker=bar_style(part),
            customdata=[format_seconds(v) for v in values],
            hovertemplate="%{y}<br>" + label(part) + ": %{customdata}<extra></extra>",
        )
    for name, e in zip(names, rows, strict=True):
        figure.add_annotation(
            x=e.step_time_s,
            y=name,
            text=fit_text(format_seconds(e.step_time_s), e, "<br>"),
            showarrow=False,
            xanchor="left",
            align="left",
            xshift=4,
        )
    figure.update_xaxes(range=[0, 1.6 * max([e.step_time_s for e in rows], default=1.0)])
    figure.update_layout(barmode="stack", bargap=0.35)
    texts = "; ".join(
        f"{name} {fit_text(format_seconds(e.step_time_s), e)}" for name, e in estimates
    )
    return Drawing(figure, f"Step time: {texts}.")


@figure_of("answer")
def whole_training(training: WholeTraining) -> Drawing:
    """Time of a whole training by part, each part starting where the one before ended."""
    total = training.time
    parts = [
        Stretch(label(item.name), item.time_s.expected, bar_style(item.name))
        for item in training.parts
        if item.time_s.expected > _LEAST * total.expected
    ]
    below = "the line: 90 % of trainings"
    figure = falling(parts, "training", total.expected, (total.low, total.high), below)
    return Drawing(figure, f"{summary(training)} By part: {listed(parts)}.")


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
    sum_name: str,
    total_s: float,
    interval_s: tuple[float, float],
    below: str,
) -> Any:
    """Bars that start where the one before ended, and their sum with the range around it."""
    names = [*(part.label for part in parts), sum_name]
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
    _total_bar(figure, sum_name, total_s, interval_s, scale)
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1])
    named_rows(figure, names)
    # room for words right of the last bar, on a phone too
    figure.update_xaxes(range=[0, max(1.6 * total_s, 1.1 * interval_s[1]) / scale])
    return figure


def _total_bar(
    figure: Any, sum_name: str, total: float, interval_s: tuple[float, float], scale: float
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
        y=[sum_name],
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


_QUANTITIES = {
    "time": ("step time", format_seconds),
    "efficiency": ("tokens/s of a node, of the first [%]", "{:.0f} %".format),
    "node-hours": ("node-hours", format_amount),
}


@figure_of("answers")
def scaling(points: Sequence[ScalePoint], what: str = "time") -> Drawing:
    """`time`, `efficiency` or `node-hours` against the number of nodes."""
    check_word("what", what, _QUANTITIES)
    fitting = [point for point in points if point.step_time_s is not None]
    title, form = _QUANTITIES[what]
    figure = framed(height=350, x="nodes", y=title, legend=False)
    if not fitting:
        return Drawing(figure, "Nothing fits on any of these node counts.")
    first = fitting[0]
    values = [_scale_value(point, first, what) for point in fitting]
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
    texts = ", ".join(
        f"{counted(p.nodes, 'node')} {form(v)}" for p, v in zip(fitting, values, strict=True)
    )
    return Drawing(figure, f"{title[0].upper()}{title[1:]} against nodes: {texts}.")


def _scale_value(point: ScalePoint, first: ScalePoint, quantity: str) -> float:
    """Return step time, efficiency or node-hours of a point."""
    if quantity == "time":
        return point.step_time_s or 0.0
    return 100 * point.efficiency(first) if quantity == "efficiency" else point.node_hours


def _ideal(figure: Any, points: Sequence[ScalePoint], values: Sequence[float]) -> None:
    figure.add_scatter(
        x=[p.nodes for p in points],
        y=list(values),
        mode="lines",
        line={"color": GREY, "dash": "dot"},
        hoverinfo="skip",
    )
