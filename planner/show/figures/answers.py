"""Answer figures: the rows of an answer as a curve with its interval, or as bars around zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.ask.answer import Answer, Row
from planner.show.answers import column_text, column_title
from planner.show.figures.frame import Drawing, framed, log_ticks, named_rows, plain
from planner.show.figures.palette import HUES

__all__ = ["answer_figure"]

_MOST_BARS = 12
_MOST_MARKS = 12
"""Largest number of values for which every value is labelled."""


@dataclass(frozen=True, slots=True)
class _Curve:
    """The columns of a curve."""

    x: str
    y: str
    log: bool = False


_CURVES = {
    "nodes": _Curve("nodes", "step_time_s", log=True),
    "deadline": _Curve("nodes", "days", log=True),
    "cheapest": _Curve("nodes", "node_hours"),
    "scaling": _Curve("nodes", "efficiency"),
    "sequence": _Curve("sequence_length", "step_time_s", log=True),
    "batch": _Curve("global_batch", "tokens_per_s_per_device"),
}
_BARS = {"change": ("change", "gain"), "sensitivity": ("fact", "step_elasticity")}


def answer_figure(answer: Answer) -> Drawing | None:
    """Draw the rows of an answer; None where a table shows them better."""
    if answer.question in _CURVES:
        return _curve(answer, _CURVES[answer.question])
    if answer.question in _BARS:
        return _bars(answer, *_BARS[answer.question])
    return None


def _curve(answer: Answer, columns: _Curve) -> Drawing | None:
    rows = [row for row in answer.rows if row.get(columns.y) is not None]
    if not rows:
        return None
    y, title = columns.y, column_title(columns.y)
    figure = framed(height=350, x=column_title(columns.x), y=title, legend=False)
    positions, values = [row[columns.x] for row in rows], [row[y] for row in rows]
    figure.add_scatter(
        x=positions,
        y=values,
        mode="lines+markers",
        line={"color": HUES[0], "width": 2},
        marker={"size": 9},
        error_y=_interval(rows, y),
        customdata=[[column_text(y, row[y]), plain(str(row.get("layout", "")))] for row in rows],
        hovertemplate="%{x}: %{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    )
    marks = positions if len(positions) <= _MOST_MARKS else log_ticks(positions)
    figure.update_xaxes(type="log", tickvals=marks, ticktext=[f"{mark:,.0f}" for mark in marks])
    ticks = log_ticks(values) if columns.log else None
    if ticks:
        texts = [column_text(y, tick) for tick in ticks]
        figure.update_yaxes(type="log", tickvals=ticks, ticktext=texts)
    elif y == "efficiency":
        figure.update_yaxes(rangemode="tozero", tickformat=".0%")
    points = ", ".join(f"{row[columns.x]:,} {column_text(y, row[y])}" for row in rows)
    interval = " The bars are 90 % intervals." if _interval(rows, y) else ""
    head = f"{title[0].upper()}{title[1:]} against {column_title(columns.x)}"
    return Drawing(figure, f"{head}: {points}.{interval}")


def _interval(rows: list[Row], name: str) -> dict[str, Any] | None:
    """Error bars of a column; None where the rows have no interval."""
    low, high = (
        f"{name.removesuffix('_s')}_{end}{'_s' * name.endswith('_s')}" for end in ("low", "high")
    )
    if any(low not in row for row in rows):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": [row[high] - row[name] for row in rows],
        "arrayminus": [row[name] - row[low] for row in rows],
        "color": HUES[0],
        "thickness": 1,
    }


def _bars(answer: Answer, name: str, value: str) -> Drawing | None:
    rows = [row for row in answer.rows if row.get(value)]
    rows = sorted(rows, key=lambda row: -abs(row[value]))[:_MOST_BARS]
    if not rows:
        return None
    rows.sort(key=lambda row: row[value])
    names = [plain(str(row[name])) for row in rows]
    figure = framed(height=90 + 34 * len(rows), x=column_title(value), legend=False, top=8)
    figure.add_bar(
        y=names,
        x=[row[value] for row in rows],
        orientation="h",
        marker={"color": [HUES[0] if row[value] > 0 else HUES[1] for row in rows]},
        text=[column_text(value, row[value]) for row in rows],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{text}<extra></extra>",
    )
    named_rows(figure, names, width=34)
    most = 1.35 * max(abs(row[value]) for row in rows)
    least = -most if any(row[value] < 0 for row in rows) else 0.0
    figure.update_xaxes(range=[least, most if any(row[value] > 0 for row in rows) else 0.15 * most])
    if value == "gain":
        figure.update_xaxes(tickformat="+.0%")
    bars = ", ".join(f"{row[name]} {column_text(value, row[value])}" for row in rows[::-1])
    head = column_title(value)
    return Drawing(figure, f"{head[0].upper()}{head[1:]}: {bars}.")
