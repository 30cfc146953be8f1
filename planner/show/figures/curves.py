"""Curve figures: answers against the varied quantity, as a curve with intervals or as bars."""

from itertools import pairwise
from typing import Any

from planner.ask.answer import Answer, Row, interval_names
from planner.errors import PlannerError
from planner.show.answers import column_text, column_title
from planner.show.figures import frame
from planner.show.figures.figure_registry import figure_of
from planner.show.figures.frame import Drawing
from planner.show.figures.palette import HUES

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


def answer_figure(answer: Answer) -> Drawing | None:
    """Draw the rows of an answer; None if a table shows them better."""
    if answer.question in _CURVES:
        return _curve(answer, *_CURVES[answer.question])
    return _gains(answer) if answer.question == "change" else None


@figure_of("answer")
def curve(answer: Answer) -> Drawing:
    """Rows of an answer of `planner.ask` against what it varies, such as nodes, or as bars."""
    if (drawing := answer_figure(answer)) is None:
        raise PlannerError(
            f"no figure shows this answer of {answer.question}; use answer.to_frame()"
        )
    return drawing


def _curve(answer: Answer, x: str, y: str) -> Drawing | None:
    rows = [row for row in answer.rows if row.get(y) is not None]
    if not rows:
        return None
    below, title = column_title(x), column_title(y)
    figure = frame.framed(height=350, x=below, y=title, legend=False)
    positions, values = [row[x] for row in rows], [row[y] for row in rows]
    interval = _interval(rows, y)
    frame.draw_curve(
        figure,
        positions,
        values,
        error_y=interval,
        customdata=[
            [column_text(y, row[y]), frame.plain(str(row.get("layout", "")))] for row in rows
        ],
        hovertemplate="%{x}: %{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    )
    # labels of close positions would overlap
    least = (max(positions) / min(positions)) ** (1 / _MOST_MARKS)
    apart = [b for a, b in pairwise([0, *sorted(positions)]) if b >= least * a]
    marks = apart if len(positions) <= _MOST_MARKS else frame.log_ticks(positions)
    frame.log_axis(figure.update_xaxes, marks, "{:,.0f}".format, tickangle=0)
    if y in _LOGARITHMIC:
        frame.log_axis(
            figure.update_yaxes, frame.log_ticks(values), lambda tick: column_text(y, tick)
        )
    elif y == "efficiency":
        figure.update_yaxes(rangemode="tozero", tickformat=".0%")
    points = ", ".join(f"{row[x]:,} {column_text(y, row[y])}" for row in rows)
    note = " The bars are 90 % intervals." if interval else ""
    return Drawing(figure, f"{frame.capital(title)} against {below}: {points}.{note}")


def _interval(rows: list[Row], name: str) -> dict[str, Any] | None:
    low, high = interval_names(name)
    if any(low not in row for row in rows):
        return None
    bounds = [(row[low], row[high]) for row in rows]
    return frame.interval_bars([row[name] for row in rows], bounds, color=HUES[0], thickness=1)


def _gains(answer: Answer) -> Drawing | None:
    rows = [row for row in answer.rows if row.get("gain")]
    rows = sorted(rows, key=lambda row: -abs(row["gain"]))[:_MOST_BARS]
    if not rows:
        return None
    rows.sort(key=lambda row: row["gain"])
    names, values = [frame.plain(row["change"]) for row in rows], [row["gain"] for row in rows]
    figure = frame.framed(height=90 + 34 * len(rows), x=column_title("gain"), legend=False, top=8)
    figure.add_bar(
        y=names,
        x=values,
        orientation="h",
        marker={"color": [HUES[0] if each > 0 else HUES[1] for each in values]},
        text=[column_text("gain", each) for each in values],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{text}<extra></extra>",
    )
    frame.named_rows(figure, names, width=24)
    most = 1.7 * max(map(abs, values))  # room for the numbers on a phone
    least = -most if values[0] < 0 else 0.0
    ends = [least, most if values[-1] > 0 else 0.15 * most]
    figure.update_xaxes(range=ends, tickformat="+.0%", tickangle=0, nticks=5)
    bars = ", ".join(f"{row['change']} {column_text('gain', row['gain'])}" for row in rows[::-1])
    return Drawing(figure, f"{frame.capital(column_title('gain'))}: {bars}.")
