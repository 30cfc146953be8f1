"""Pipeline figures: one step, event by event: what stages do, and what they hold meanwhile.

A step of many micro-batches is drawn with its middle left out: the axis says so, and goes on with
the step's own time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from planner.choose.plots import PlayedStep
from planner.cost.schedules.timeline import ASIDE, Drawn, Event, Timeline
from planner.show.figures.figure_registry import figure_of
from planner.show.figures.frame import Drawing, bar_style, framed, plain
from planner.show.figures.palette import HUES, LIMIT, label
from planner.units import GIB, counted, format_bytes, format_seconds

__all__ = ["drawn_part", "gantt", "has_numbers", "memory_over_step"]

_SHOWN_STAGES = 16
_KINDS: tuple[Drawn, ...] = get_args(Drawn)
_MAX_NUMBERS = 300
_FEW_BARS, _MAX_BARS = 1200, 3000
# passes that are drawn: at least, and at most if the warm-up of a pipeline is long
_BREAK = 0.05
# width of the break over the width of the axis


Line = tuple[list[float | None], list[float | None]]
"""Places of a line on both axes; it is interrupted where they are None."""


@dataclass(frozen=True, slots=True)
class _Clock:
    """Axis of a step's time, which may leave out the middle of the step."""

    played: PlayedStep
    head_s: float
    """Time in the timeline up to which every event is drawn."""
    tail_s: float
    """Time in the timeline from which every event is drawn again."""

    @property
    def broken(self) -> bool:
        return self.tail_s > self.head_s

    @property
    def _ends(self) -> tuple[float, float]:
        """Times of the step between which nothing is drawn."""
        return self.head_s, self.played.instant_s(self.tail_s)

    @property
    def _wide(self) -> float:
        head, tail = self._ends
        return _BREAK * (head + self.played.step_s - tail)

    def x(self, step_time_s: float) -> float:
        """Position of a time of the step on the axis."""
        if not self.broken:
            return step_time_s
        head, tail = self._ends
        return step_time_s if step_time_s <= head else step_time_s - tail + head + self._wide

    def pieces(self, start_s: float, end_s: float) -> Iterator[tuple[float, float]]:
        """Yield the drawn parts of a span of the timeline, as positions on the axis."""
        if not self.broken:
            # a schedule that is played differs by a percent or two from the estimate's length
            stretch = self.played.step_s / self.played.played_s
            yield start_s * stretch, end_s * stretch
            return
        at = self.played.instant_s
        if start_s < self.head_s:
            yield start_s, min(end_s, self.head_s)
        if end_s > self.tail_s:
            yield self.x(at(max(start_s, self.tail_s))), self.x(at(end_s))

    def frame(self, figure: Any) -> None:
        """Set the range and ticks of the axis, and mark the part that is left out."""
        end = self.x(self.played.step_s)
        figure.update_xaxes(range=[0, end])
        if not self.broken:
            return
        head, tail = self._ends
        step = _nice((head + self.played.step_s - tail) / 8)
        marks = [i * step for i in range(int(head / step) + 1)]
        marks += [
            i * step for i in range(math.ceil(tail / step), int(self.played.step_s / step) + 1)
        ]
        figure.update_xaxes(
            tickvals=[self.x(mark) for mark in marks], ticktext=[f"{mark:g}" for mark in marks]
        )
        left, right = self.x(head), self.x(head) + self._wide
        figure.add_vrect(x0=left, x1=right, fillcolor="#8C8C8C", opacity=0.25, line_width=0)
        figure.add_annotation(
            x=(left + right) / 2,
            y=1,
            yref="paper",
            yanchor="bottom",
            showarrow=False,
            text=f"{format_seconds(tail - head)} not drawn",
        )


def _nice(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten.

    >>> _nice(0.3), _nice(7)
    (0.5, 10.0)
    """
    power = 10.0 ** math.floor(math.log10(value))
    return next(f * power for f in (1.0, 2.0, 5.0, 10.0) if f * power >= value * 0.999)


def _clock(played: PlayedStep) -> _Clock:
    """Return an axis of the whole step if it has few events, else of its beginning and its end.

    Both reach into the steady state, except in pipelines whose warm-up is very long.
    """
    timeline = played.timeline
    shown = set(_sampled(timeline))
    events = [e for e in timeline.events if e.stage in shown and e.stream == "compute"]
    if len(events) <= _FEW_BARS and timeline.num_micro_batches == played.micro_batches:
        return _Clock(played, played.played_s, played.played_s)
    ends = sorted(event.end_s for event in events)
    starts = sorted(event.start_s for event in events)
    min_index, max_index = (min(bars // 2, len(events) // 3) for bars in (_FEW_BARS, _MAX_BARS))
    first = [e for e in timeline.computed(0) if e.kind == "forward"]
    filled = min(e.start_s for e in timeline.computed(0) if e.task.kind != "forward")
    drained = max(e.end_s for e in first)
    head = min(max(ends[min_index], 1.1 * filled), ends[max_index], 0.9 * played.middle_s)
    left = played.played_s - drained
    tail = max(
        min(starts[-min_index], played.played_s - 1.1 * left),
        starts[-max_index],
        1.1 * played.middle_s,
    )
    return _Clock(played, head, tail)


def _sampled(timeline: Timeline) -> list[int]:
    """Choose up to sixteen stages to draw, up to eight if they have many chunks."""
    count = timeline.num_stages
    most = _SHOWN_STAGES if count * timeline.num_chunks <= 4 * _SHOWN_STAGES else _SHOWN_STAGES // 2
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def drawn_part(played: PlayedStep) -> str:
    """Say which stages and micro-batches are drawn; empty if all are."""
    clock, timeline = _clock(played), played.timeline
    shown, sentences = _sampled(timeline), []
    if len(shown) < timeline.num_stages:
        named = ", ".join(map(str, shown))
        sentences.append(f"{len(shown)} of {timeline.num_stages} stages are drawn: {named}.")
    if clock.broken:
        head, tail = clock._ends
        sentences.append(
            f"Of {played.micro_batches:,} micro-batches the first and the last are "
            f"drawn; the {format_seconds(tail - head)} between repeat themselves."
        )
    return " ".join(sentences)


@figure_of("answer")
def gantt(played: PlayedStep, title: str = "") -> Drawing:
    """Activity of every pipeline stage over time: one row per stage, gaps are idle.

    A line under the rows follows the critical path.
    """
    timeline, clock = played.timeline, _clock(played)
    rows = _sampled(timeline)
    place = {stage: row for row, stage in enumerate(rows)}
    figure = framed(height=170 + 26 * len(rows), x="time in the step [s]", y="stage")
    for kind in _KINDS:
        for hidden in (False, True):
            events = [e for e in timeline.events if (e.kind, e.hidden) == (kind, hidden)]
            events = [e for e in events if e.stage in place and e.duration_s > 0]
            if events:
                _draw_events(figure, kind, events, place, clock)
    path = timeline.critical_path()
    _path_line(figure, path, place, clock)
    figure.update_layout(barmode="overlay", uniformtext={"minsize": 8, "mode": "hide"})
    figure.update_yaxes(
        tickvals=list(place.values()),
        ticktext=[str(r) for r in rows],
        range=[len(rows) - 0.35, -0.5],
        showgrid=False,
    )
    clock.frame(figure)
    idle = 100 * played.idle_s / played.step_s
    sentences = [
        f"{title or 'Pipeline'}: {counted(timeline.num_stages, 'stage')}, "
        f"{played.micro_batches:,} micro-batch{'es' * (played.micro_batches != 1)}, "
        f"{format_seconds(played.step_s)}; the stage that works longest waits {idle:.1f} % of it.",
        drawn_part(played),
        _path_text(path),
    ]
    return Drawing(figure, " ".join(part for part in sentences if part))


def has_numbers(drawing: Drawing) -> bool:
    """Tell whether a drawn step has few enough passes to number them."""
    return any(trace.text is not None for trace in drawing.figure.data)


def _draw_events(
    figure: Any, kind: Drawn, events: Sequence[Event], place: dict[int, int], clock: _Clock
) -> None:
    """Draw all events of one kind; transfers and hidden events, which block no stage, are thin."""
    aside = not events[0].keeps_busy
    drawn = [(e, a, b) for e in events for a, b in clock.pieces(e.start_s, e.end_s)]
    computed = kind in ("forward", "backward", "weight_gradient")
    numbered = len(drawn) <= _MAX_NUMBERS and computed and not aside
    hidden = ", hidden" if events[0].hidden else ""
    longest = max((b - a for _, a, b in drawn), default=0.0)
    figure.add_bar(
        y=[place[e.stage] + (0.42 if aside else 0.0) for e, _, _ in drawn],
        width=0.14 if aside else 0.62,
        x=[b - a for _, a, b in drawn],
        base=[a for _, a, _ in drawn],
        orientation="h",
        name=label(kind) + hidden,
        # what is too short to be seen needs no entry
        showlegend=longest > 0.001 * clock.x(clock.played.step_s),
        marker=bar_style(kind),
        customdata=[(_event_text(e), format_seconds(e.duration_s)) for e, _, _ in drawn],
        text=[str(e.micro_batch) for e, _, _ in drawn] if numbered else None,
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        hovertemplate="%{customdata[0]}<br>"
        + label(kind)
        + hidden
        + ": %{customdata[1]}<extra></extra>",
    )


def _event_text(event: Event) -> str:
    if not event.in_passes:
        return f"stage {event.stage}, after its passes"
    return f"stage {event.stage}, micro-batch {event.micro_batch}, chunk {event.chunk}"


def _path_line(figure: Any, path: Sequence[Event], place: dict[int, int], clock: _Clock) -> None:
    """Draw the critical path below the computation of stages and through transfers."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    before = 0.0
    for event in path:
        if event.stage not in place:
            continue
        height = place[event.stage] + (0.42 if event.kind == ASIDE else 0.34)
        for start, end in clock.pieces(event.start_s, event.end_s):
            if clock.broken and before <= clock.x(clock.head_s) < start:
                xs.append(None)
                ys.append(None)
            xs += [start, end]
            ys += [height, height]
            before = end
    figure.add_scatter(
        x=xs,
        y=ys,
        mode="lines",
        line={"color": LIMIT, "width": 2},
        name="critical path",
        hoverinfo="skip",
    )


def _path_text(path: Sequence[Event]) -> str:
    """Say how long the critical path stays on its longest stage, on other stages, in transfers."""
    computed = [event for event in path if event.kind != ASIDE]
    stages = _sums((str(event.stage), event.duration_s) for event in computed)
    longest = next(iter(stages))
    kinds = _sums((e.kind, e.duration_s) for e in computed if str(e.stage) == longest)
    total = sum(event.duration_s for event in path)
    activities = ", ".join(
        f"{label(kind)} {100 * part / total:.0f} %" for kind, part in kinds.items()
    )
    other_stages = [seconds for stage, seconds in stages.items() if stage != longest]
    parts = {
        f"on stage {longest} ({activities})": stages[longest],
        f"on {len(other_stages)} other stage{'s' * (len(other_stages) > 1)}": sum(other_stages),
        "in transfers": sum(e.duration_s for e in path if e.kind == ASIDE),
    }
    texts = [
        f"{100 * part / total:.0f} % {name}"
        for name, part in parts.items()
        if part >= 0.005 * total
    ]
    return f"Critical path: {', '.join(texts)}."


def _sums(parts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Seconds by name, the largest first [s]."""
    sums: dict[str, float] = {}
    for name, seconds in parts:
        sums[name] = sums.get(name, 0.0) + seconds
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


@figure_of("answer")
def memory_over_step(
    played: PlayedStep, stages: Sequence[dict[str, float]], device_limit_bytes: float
) -> Drawing:
    """Memory of the first, the fullest and the last stage while one step runs.

    States stay, activations come and go.

    The activations of the estimate are those at the peak, so each micro-batch in flight is
    given an equal part of them.
    """
    figure = framed(
        height=340,
        x="time in the step [s]",
        y="memory per device [GiB]",
        legend=len(stages) > 1,
    )
    clock, last = _clock(played), len(stages) - 1
    peaks, highest = [], device_limit_bytes
    fullest = max(range(len(stages)), key=lambda stage: sum(stages[stage].values()))
    for number, stage in enumerate(sorted({0, fullest, last})):
        times, values = _stage_memory(played, stages[stage], stage)
        highest = max(highest, *values)
        peaks.append(f"stage {stage} {format_bytes(max(values))}")
        _draw_memory(figure, f"stage {stage}", number, _steps(times, values, clock))
    figure.add_hline(
        y=device_limit_bytes / GIB,
        line={"color": LIMIT, "width": 2, "dash": "dash"},
        annotation_text=f"device limit {format_bytes(device_limit_bytes)}",
        annotation_position="top right",
    )
    figure.update_yaxes(range=[0, 1.15 * highest / GIB])
    clock.frame(figure)
    sentences = [
        f"Memory per device over one step of {format_seconds(played.step_s)}; peaks: "
        + ", ".join(peaks)
        + f"; the limit is {format_bytes(device_limit_bytes)}.",
        drawn_part(played),
    ]
    return Drawing(figure, " ".join(part for part in sentences if part))


def _draw_memory(figure: Any, name: str, number: int, line: Line) -> None:
    """Draw the memory of a stage over time."""
    xs, ys = line
    dash = ("solid", "dash", "dot")[number]
    figure.add_scatter(
        x=xs,
        y=[None if value is None else value / GIB for value in ys],
        name=name,
        mode="lines",
        line={"shape": "hv", "color": HUES[number], "width": 2, "dash": dash},
        hovertemplate=plain(name) + ": %{y:.2f} GiB<extra></extra>",
    )


def _stage_memory(
    played: PlayedStep, parts: dict[str, float], stage: int
) -> tuple[list[float], list[float]]:
    """Times of the timeline, and the memory of a stage from each of them on [B]."""
    times, counts = played.timeline.in_flight(stage)
    each = parts.get("activations", 0.0) / max(max(counts), 1)
    rest = sum(value for name, value in parts.items() if name != "activations")
    return times, [rest + each * count for count in counts]


def _steps(times: Sequence[float], values: Sequence[float], clock: _Clock) -> Line:
    """Return the line of a stage on the axis, interrupted where the axis is."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    ends = [*times[1:], clock.played.played_s]
    for start, end, value in zip(times, ends, values, strict=True):
        for number, (left, right) in enumerate(clock.pieces(start, end)):
            after_break = clock.broken and xs and left > clock.x(clock.head_s)
            if after_break and (xs[-1] or 0.0) <= clock.x(clock.head_s) and not number:
                xs.append(None)
                ys.append(None)
            xs += [left, right]
            ys += [value, value]
    return [*xs, clock.x(clock.played.step_s)], [*ys, values[-1]]
