"""Curve figures: answers against the varied quantity, as a curve with intervals or as bars."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from planner.ask.answer import Answer, Row
from planner.choose.plots import ScalePoint
from planner.show.answers import column_text, column_title, interval_names
from planner.show.figures.figure_registry import figure_of
from planner.show.figures.frame import (
    Drawing,
    capital,
    check_word,
    draw_curve,
    framed,
    interval_bars,
    log_axis,
    log_ticks,
    named_rows,
    plain,
)
from planner.show.figures.palette import GREY, HUES
from planner.units import counted, format_amount, format_seconds

_MOST_BARS = _MOST_MARKS = 12
"""Largest number of bars, and of positions that all get an axis label."""


_CURVES = {
    "nodes": ("nodes", "step_time_s"),
    "deadline": ("nodes", "days"),
    "cheapest": ("nodes", "node_hours"),
    "scaling": ("nodes", "efficiency"),
    "sequence": ("sequence_length", "step_time_s"),
    "batch": ("global_batch", "tokens_per_s_per_device"),
}
_LOGARITHMIC = ("step_time_s", "days")
_BARS = {"change": ("change", "gain"), "sensitivity": ("fact", "step_elasticity")}


def answer_figure(answer: Answer) -> Drawing | None:
    """Draw the rows of an answer; None if a table shows them better."""
    if answer.question in _CURVES:
        return _curve(answer, *_CURVES[answer.question])
    if answer.question in _BARS:
        return _bars(answer, *_BARS[answer.question])
    return None


def _curve(answer: Answer, x: str, y: str) -> Drawing | None:
    rows = [row for row in answer.rows if row.get(y) is not None]
    if not rows:
        return None
    below, title = column_title(x), column_title(y)
    figure = framed(height=350, x=below, y=title, legend=False)
    positions, values = [row[x] for row in rows], [row[y] for row in rows]
    interval = _interval(rows, y)
    draw_curve(
        figure,
        positions,
        values,
        error_y=interval,
        customdata=[[column_text(y, row[y]), plain(str(row.get("layout", "")))] for row in rows],
        hovertemplate="%{x}: %{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    )
    # labels of close positions would overlap
    least = (max(positions) / min(positions)) ** (1 / _MOST_MARKS)
    apart = [b for a, b in pairwise([0, *sorted(positions)]) if b >= least * a]
    marks = apart if len(positions) <= _MOST_MARKS else log_ticks(positions)
    log_axis(figure.update_xaxes, marks, "{:,.0f}".format, tickangle=0)
    if y in _LOGARITHMIC:
        log_axis(figure.update_yaxes, log_ticks(values), lambda tick: column_text(y, tick))
    elif y == "efficiency":
        figure.update_yaxes(rangemode="tozero", tickformat=".0%")
    points = ", ".join(f"{row[x]:,} {column_text(y, row[y])}" for row in rows)
    note = " The bars are 90 % intervals." if interval else ""
    return Drawing(figure, f"{capital(title)} against {below}: {points}.{note}")


def _interval(rows: list[Row], name: str) -> dict[str, Any] | None:
    low, high = interval_names(name)
    if any(low not in row for row in rows):
        return None
    bounds = [(row[low], row[high]) for row in rows]
    return interval_bars([row[name] for row in rows], bounds, color=HUES[0], thickness=1)


def _bars(answer: Answer, name: str, value: str) -> Drawing | None:
    rows = [row for row in answer.rows if row.get(value)]
    rows = sorted(rows, key=lambda row: -abs(row[value]))[:_MOST_BARS]
    if not rows:
        return None
    rows.sort(key=lambda row: row[value])
    names, values = [plain(str(row[name])) for row in rows], [row[value] for row in rows]
    figure = framed(height=90 + 34 * len(rows), x=column_title(value), legend=False, top=8)
    figure.add_bar(
        y=names,
        x=values,
        orientation="h",
        marker={"color": [HUES[0] if each > 0 else HUES[1] for each in values]},
        text=[column_text(value, each) for each in values],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{text}<extra></extra>",
    )
    named_rows(figure, names, width=34)
    most = 1.35 * max(map(abs, values))
    least = -most if values[0] < 0 else 0.0
    figure.update_xaxes(range=[least, most if values[-1] > 0 else 0.15 * most])
    if value == "gain":
        figure.update_xaxes(tickformat="+.0%")
    bars = ", ".join(f"{row[name]} {column_text(value, row[value])}" for row in rows[::-1])
    return Drawing(figure, f"{capital(column_title(value))}: {bars}.")


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
    first, nodes = fitting[0], [point.nodes for point in fitting]
    values = [_scale_value(point, first, what) for point in fitting]
    words = [(counted(p.nodes, "node"), form(v)) for p, v in zip(fitting, values, strict=True)]
    draw_curve(
        figure,
        nodes,
        values,
        customdata=[[*pair, p.layout] for pair, p in zip(words, fitting, strict=True)],
        hovertemplate="%{customdata[0]}: %{customdata[1]}<br>%{customdata[2]}<extra></extra>",
    )
    ideal: list[float] = []
    if what == "time":
        ideal = [(first.step_time_s or 0.0) * first.nodes / count for count in nodes]
        log_axis(figure.update_yaxes, log_ticks([*values, *ideal]), form)
    else:
        ideal = [100.0] * len(nodes) if what == "efficiency" else []
        figure.update_yaxes(rangemode="tozero")
    if ideal:
        line = {"color": GREY, "dash": "dot"}
        figure.add_scatter(x=nodes, y=ideal, mode="lines", line=line, hoverinfo="skip")
    log_axis(figure.update_xaxes, nodes, "{:,}".format)
    texts = ", ".join(f"{count} {value}" for count, value in words)
    return Drawing(figure, f"{capital(title)} against nodes: {texts}.")


def _scale_value(point: ScalePoint, first: ScalePoint, quantity: str) -> float:
    if quantity == "time":
        return point.step_time_s or 0.0
    return 100 * point.efficiency(first) if quantity == "efficiency" else point.node_hours
