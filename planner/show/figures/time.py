"""Time figures: where a step's seconds go, the pipeline's timeline, and scaling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from planner.cost.estimate import Estimate
from planner.cost.simulate import Event, Timeline
from planner.show.figures.frame import Drawing, bar_style, framed
from planner.show.figures.palette import HUES, LIMIT, label
from planner.units import format_seconds

__all__ = ["ScalePoint", "gantt", "scaling", "waterfall"]

_SHOWN_STAGES = 16
_KINDS = (
    "forward",
    "recompute",
    "backward",
    "weight_gradient",
    "pipeline_transfer",
    "communication",
)
_MAX_NUMBERS = 300


def waterfall(estimate: Estimate) -> Drawing:
    """Step time by part, each part starting where the one before ended.

    The range in which a measured step is expected is drawn at the total.
    """
    interval_s = estimate.interval_step_time_s
    parts = {
        k: v for k, v in estimate.step_time_parts_s.items() if v > 0.0005 * estimate.step_time_s
    }
    total = estimate.step_time_s
    names = [label(name) for name in parts]
    figure = framed(height=90 + 30 * (len(parts) + 1), x="time [s]", legend=False)
    start = 0.0
    for name, value in parts.items():
        figure.add_bar(
            y=[label(name)],
            x=[value],
            base=[start],
            orientation="h",
            marker=bar_style(name),
            text=[f"{format_seconds(value)}, {100 * value / total:.1f} %"],
            textposition="outside",
            cliponaxis=False,
            showlegend=False,
            hovertemplate=f"{label(name)}: {format_seconds(value)}<extra></extra>",
        )
        start += value
    _total_bar(figure, total, interval_s)
    figure.update_yaxes(categoryorder="array", categoryarray=[*names, "step"][::-1])
    figure.update_xaxes(range=[0, max(total, interval_s[1]) * 1.18])
    said = ", ".join(
        f"{label(n)} {format_seconds(v)}"
        for n, v in sorted(parts.items(), key=lambda item: -item[1])
    )
    return Drawing(figure, f"A step takes {_total_text(total, interval_s)}: {said}.")


def _total_bar(figure: Any, total: float, interval_s: tuple[float, float]) -> None:
    error = {
        "type": "data",
        "symmetric": False,
        "array": [interval_s[1] - total],
        "arrayminus": [total - interval_s[0]],
        "color": LIMIT,
        "thickness": 2,
    }
    figure.add_bar(
        y=["step"],
        x=[total],
        orientation="h",
        showlegend=False,
        error_x=error,
        marker={"color": "#A6A6A6"},
        insidetextfont={"color": "#000000"},
        text=[_total_text(total, interval_s)],
        textposition="inside",
        insidetextanchor="start",
    )


def _total_text(total: float, interval_s: tuple[float, float]) -> str:
    low, high = (format_seconds(value) for value in interval_s)
    return f"{format_seconds(total)} (90 % of runs: {low} to {high})"


def gantt(timeline: Timeline, title: str = "") -> Drawing:
    """What every stage does when: one row per stage, gaps are the bubble.

    A line under the rows follows the critical path.
    """
    figure = framed(
        height=150 + 26 * min(timeline.num_stages, _SHOWN_STAGES),
        x="time in the step [s]",
        y="stage",
    )
    rows = _sampled(timeline.num_stages)
    place = {stage: row for row, stage in enumerate(rows)}
    for kind in _KINDS:
        events = [e for e in timeline.events if e.kind == kind and e.stage in place]
        if not events:
            continue
        _passes(figure, kind, events, place)
    path = timeline.critical_path()
    _path_line(figure, path, place)
    figure.update_layout(barmode="overlay", uniformtext={"minsize": 8, "mode": "hide"})
    figure.update_yaxes(
        tickvals=list(place.values()),
        ticktext=[str(r) for r in rows],
        range=[len(rows) - 0.35, -0.5],
        showgrid=False,
    )
    figure.update_xaxes(range=[0, timeline.makespan_s])
    idle = timeline.idle_fraction
    return Drawing(
        figure,
        f"{title or 'Pipeline'}: {timeline.num_stages} stages, {timeline.num_micro_batches} "
        f"micro-batches, {format_seconds(timeline.makespan_s)}; stages are idle "
        f"{100 * idle:.1f} % of the time. {_path_text(path)}",
    )


def _path_line(figure: Any, path: Sequence[Event], place: dict[int, int]) -> None:
    """The critical path, below what stages compute and through what is on its way."""
    shown = [event for event in path if event.stage in place]
    heights = [place[e.stage] + (0.42 if e.kind == "communication" else 0.34) for e in shown]
    figure.add_scatter(
        x=[time for event in shown for time in (event.start_s, event.end_s)],
        y=[height for height in heights for _ in range(2)],
        mode="lines",
        line={"color": LIMIT, "width": 2},
        name="critical path",
        hoverinfo="skip",
    )


def _path_text(path: Sequence[Event]) -> str:
    """The stage that the critical path runs through longest, with what, and what else it holds."""
    computed = [event for event in path if event.kind != "communication"]
    stages = _sums((str(event.stage), event.duration_s) for event in computed)
    longest = next(iter(stages))
    kinds = _sums((e.kind, e.duration_s) for e in computed if str(e.stage) == longest)
    total = sum(event.duration_s for event in path)
    held = ", ".join(f"{label(kind)} {100 * part / total:.0f} %" for kind, part in kinds.items())
    others = [seconds for stage, seconds in stages.items() if stage != longest]
    parts = {
        f"on stage {longest} ({held})": stages[longest],
        f"on {len(others)} other stage{'s' * (len(others) > 1)}": sum(others),
        "in transfers": sum(e.duration_s for e in path if e.kind == "communication"),
    }
    said = [
        f"{100 * part / total:.0f} % {name}"
        for name, part in parts.items()
        if part >= 0.005 * total
    ]
    return f"Critical path: {', '.join(said)}."


def _sums(parts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Seconds by name, the largest first [s]."""
    sums: dict[str, float] = {}
    for name, seconds in parts:
        sums[name] = sums.get(name, 0.0) + seconds
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _passes(figure: Any, kind: str, events: Sequence[Event], place: dict[int, int]) -> None:
    """All passes of one kind; what is on its way has a thin row: it keeps no stage busy."""
    aside = kind == "communication"
    numbered = len(events) <= _MAX_NUMBERS and not aside
    figure.add_bar(
        y=[place[e.stage] + (0.42 if aside else 0.0) for e in events],
        width=0.14 if aside else 0.62,
        x=[e.end_s - e.start_s for e in events],
        base=[e.start_s for e in events],
        orientation="h",
        name=label(kind),
        marker=bar_style(kind),
        customdata=[(e.stage, e.micro_batch, e.chunk) for e in events],
        text=[str(e.micro_batch) for e in events] if numbered else None,
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        hovertemplate="stage %{customdata[0]}, micro-batch %{customdata[1]}, chunk "
        "%{customdata[2]}<br>" + label(kind) + ": %{x:.4g} s from %{base:.4g} s<extra></extra>",
    )


def _sampled(count: int) -> list[int]:
    """At most sixteen stages, the first and the last among them."""
    if count <= _SHOWN_STAGES:
        return list(range(count))
    return sorted({round(i * (count - 1) / (_SHOWN_STAGES - 1)) for i in range(_SHOWN_STAGES)})


@dataclass(frozen=True, slots=True)
class ScalePoint:
    """The best plan for a number of nodes."""

    nodes: int
    step_time_s: float | None
    """None where nothing fits."""
    tokens_per_s: float
    node_hours: float
    layout: str


def scaling(points: Sequence[ScalePoint], what: str) -> Drawing:
    """`time`, `efficiency` or `node-hours` against the number of nodes."""
    fitting = [point for point in points if point.step_time_s is not None]
    titles = {"time": "step time [s]", "efficiency": "efficiency [%]", "node-hours": "node-hours"}
    figure = framed(height=330, x="nodes", y=titles[what], legend=False)
    if not fitting:
        return Drawing(figure, "Nothing fits on any of these node counts.")
    first = fitting[0]
    rate = first.tokens_per_s / first.nodes
    values = [
        {
            "time": p.step_time_s or 0.0,
            "efficiency": 100 * p.tokens_per_s / p.nodes / rate,
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
        customdata=[p.layout for p in fitting],
        hovertemplate="%{x} nodes: %{y:.4g}<br>%{customdata}<extra></extra>",
    )
    if what == "time":
        figure.add_scatter(
            x=[p.nodes for p in fitting],
            y=[(first.step_time_s or 0.0) * first.nodes / p.nodes for p in fitting],
            mode="lines",
            line={"color": "#8C8C8C", "dash": "dot"},
            hoverinfo="skip",
        )
        figure.update_yaxes(type="log")
    else:
        figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(
        type="log", tickvals=[p.nodes for p in fitting], ticktext=[str(p.nodes) for p in fitting]
    )
    said = ", ".join(f"{p.nodes} nodes {v:.4g}" for p, v in zip(fitting, values, strict=True))
    return Drawing(figure, f"{titles[what]} against nodes: {said}.")
