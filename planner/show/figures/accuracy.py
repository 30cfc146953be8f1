"""Accuracy figures: estimates against measurements."""

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from planner.evidence.logs.comparison import Comparison
from planner.evidence.residuals import Residual
from planner.evidence.scores import Score
from planner.show.figures import bars
from planner.show.figures.figure_registry import figure_of
from planner.show.figures.frame import Drawing, framed, interval_bars, log_axis, plain
from planner.show.figures.palette import GREY, HUES
from planner.units import format_seconds

_SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "star")


def _timed(scores: Sequence[Score]) -> list[Score]:
    return [score for score in scores if score.run.step_time_s is not None]


def _low_high(score: Score) -> tuple[float, float]:
    return score.interval_s or score.estimate.interval_step_time_s


@figure_of("learned")
def parity(scores: Sequence[Score]) -> Drawing:
    """Estimated against measured step time; the dashed line is equality."""
    figure = framed(height=460, x="measured step time [s]", y="estimated step time [s]")
    timed = _timed(scores)
    if not timed:
        return Drawing(figure, "No run carries a measured step time.")
    groups: dict[str, list[Score]] = {}
    for score in timed:
        groups.setdefault(score.run.machine_label, []).append(score)
    for number, (name, items) in enumerate(groups.items()):
        _group(figure, number, name, items)
    both = [v for s in timed for v in (s.run.step_time_s or 0, s.estimate.step_time_s)]
    ends, line = [min(both) * 0.8, max(both) * 1.25], {"color": GREY, "dash": "dash"}
    figure.add_scatter(x=ends, y=ends, mode="lines", name="equal", hoverinfo="skip", line=line)
    for update in (figure.update_xaxes, figure.update_yaxes):
        update(type="log", dtick=1)
    mape = float(np.mean([abs(s.error or 0) for s in timed]))
    inside = sum(_low_high(s)[0] <= (s.run.step_time_s or 0) <= _low_high(s)[1] for s in timed)
    return Drawing(
        figure,
        f"Estimated against measured step time of {len(timed)} runs: the mean absolute error is "
        f"{100 * mape:.1f} %; {inside} of {len(timed)} lie in their interval.",
    )


def _group(figure: Any, number: int, name: str, items: Sequence[Score]) -> None:
    values = [s.estimate.step_time_s for s in items]
    figure.add_scatter(
        x=[s.run.step_time_s for s in items],
        y=values,
        mode="markers",
        name=plain(name[:40]),
        marker={"color": HUES[number % 6], "symbol": _SYMBOLS[number // 6 % 6], "size": 9},
        error_y=interval_bars(values, map(_low_high, items), thickness=1, width=3),
        customdata=[
            [plain(s.run.row_id), plain(str(s.run.layout)), f"{100 * (s.error or 0):+.1f}"]
            for s in items
        ],
        hovertemplate="%{customdata[0]}: %{customdata[2]} %<br>%{customdata[1]}<br>"
        "measured %{x:.4g} s, estimated %{y:.4g} s<extra></extra>",
    )


@figure_of("learned")
def errors(scores: Sequence[Score]) -> Drawing:
    """Errors of all timed runs, the largest under-estimate first."""
    figure = framed(height=300, x="run", y="error of the estimate [%]", legend=False)
    timed = sorted(_timed(scores), key=lambda s: (s.error or 0.0, s.run.row_id))
    values = [100 * (s.error or 0.0) for s in timed]
    figure.add_bar(
        x=list(range(1, len(timed) + 1)),
        y=values,
        marker={"color": [HUES[0] if v >= 0 else HUES[5] for v in values]},
        customdata=[[plain(s.run.row_id), format_seconds(s.estimate.step_time_s)] for s in timed],
        hovertemplate="%{customdata[0]}: %{y:+.1f} % (estimate %{customdata[1]})<extra></extra>",
    )
    for level in (-10, 10):
        figure.add_hline(y=level, line={"color": GREY, "dash": "dot", "width": 1})
    if not values:
        return Drawing(figure, "No run carries a measured step time.")
    return Drawing(
        figure,
        f"Errors of {len(values)} runs range from {values[0]:+.1f} % to {values[-1]:+.1f} %; the "
        f"dotted lines are at 10 %.",
    )


def measured_step(comparison: Comparison) -> Drawing:
    """Estimated step time by part as a waterfall, and the measured step with its spread below."""
    drawing = bars.waterfall(comparison.estimate)
    figure, name, measured_s = drawing.figure, "measured", comparison.step_time_s
    scale = comparison.estimate.step_time_s / figure.data[-1].x[0]  # seconds of its unit
    bars.total_bar(figure, name, measured_s, comparison.spread_s, scale, HUES[1], {"color": GREY})
    rows = figure.layout.yaxis
    labels = [*rows.ticktext[:-1], "estimated", name]
    figure.update_yaxes(
        categoryarray=(name, *rows.categoryarray), tickvals=[*rows.tickvals, name], ticktext=labels
    )
    end = max(figure.layout.xaxis.range[1], 1.1 * comparison.spread_s[1] / scale)
    figure.update_xaxes(range=[0, end])
    figure.update_layout(height=figure.layout.height + 32)
    head = f"The run took {format_seconds(measured_s)} a step, {comparison.ratio:.2f} times this:"
    return Drawing(figure, f"{head} {drawing.alt[0].lower()}{drawing.alt[1:]}")


_MAX_SOURCES = 24
_RATIOS = (0.2, 0.5, 1.0, 2.0, 5.0, 20.0)


def spread(rows: Sequence[Residual], quantity: str) -> Drawing:
    """Measured over estimated `step_time` or `memory` of every run, by source."""
    points = [(row, ratio) for row in rows if (ratio := getattr(row, quantity))]
    sources = Counter(row.source for row, _ in points)
    ordered = sorted(sources, key=lambda name: (-sources[name], name))
    listed = ordered[: _MAX_SOURCES if len(ordered) > _MAX_SOURCES + 1 else len(ordered)]
    rest = f"{len(ordered) - len(listed)} other sources"
    names = [*listed, rest] if len(listed) < len(ordered) else listed
    place = {name: number for number, name in enumerate(names)}
    figure = framed(
        height=150 + 30 * len(names), x=f"measured / estimated {_NAMES[quantity]}", top=8
    )
    for seen, label, color, symbol in (
        (False, "not seen by any fit", HUES[0], "circle"),
        (True, "a constant was fitted on it", HUES[1], "x"),
    ):
        group = [(row, ratio) for row, ratio in points if row.seen is seen]
        figure.add_scatter(
            x=[ratio for _, ratio in group],
            y=[
                place.get(row.source, len(listed)) + 0.07 * (number % 9 - 4)
                for number, (row, _) in enumerate(group)
            ],
            mode="markers",
            name=f"{label} ({len(group):,})",
            marker={"color": color, "symbol": symbol, "size": 6, "opacity": 0.55},
            customdata=[[plain(row.row), plain(row.source), plain(row.site)] for row, _ in group],
            hovertemplate="%{customdata[0]}: %{x:.2f} x estimate<br>%{customdata[1]}<br>"
            "%{customdata[2]}<extra></extra>",
        )
    figure.add_vline(x=1.0, line={"color": GREY, "width": 2, "dash": "dash"})
    log_axis(figure.update_xaxes, _RATIOS, "{:g}".format, tickangle=0)
    figure.update_yaxes(
        tickvals=list(range(len(names))),
        ticktext=[_short(name) for name in names],
        range=[len(names) - 0.4, -0.6],
        showgrid=False,
    )
    return Drawing(figure, _spread_alt(points, sources, quantity))


_NAMES = {"step_time": "step time", "memory": "memory"}


def _short(name: str) -> str:
    lines = textwrap.wrap(name, 24, max_lines=2, placeholder=" ...")
    return "<br>".join(plain(line) for line in lines)


def _spread_alt(
    points: Sequence[tuple[Residual, float]], sources: Mapping[str, int], quantity: str
) -> str:
    unseen = sorted(abs(1 / ratio - 1) for row, ratio in points if not row.seen)
    if not unseen:
        return "No run is known that no fit has seen."
    return (
        f"Measured over estimated {_NAMES[quantity]} of {len(points):,} runs of {len(sources)} "
        f"sources. Of the {len(unseen):,} that no fit has seen half are estimated within "
        f"{100 * unseen[len(unseen) // 2]:.1f} %, nine in ten within "
        f"{100 * unseen[int(0.9 * len(unseen))]:.0f} %."
    )
