"""Pipeline figures: one step, event by event, without the middle of a long step."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from planner.choose.plots import SimulatedStep
from planner.cost.schedules.timeline import ASYNC_TRANSFER, Event, EventKind, Timeline
from planner.show.figures.figure_registry import figure_of
from planner.show.figures.frame import (
    Drawing,
    Points,
    bar_style,
    draw_device_limit,
    framed,
    write_above,
)
from planner.show.figures.palette import GREY, HUES, LIMIT, label
from planner.units import GIB, counted, format_bytes, format_seconds

_SHOWN_STAGES = 16
_MAX_NUMBERS = 300
_FEW_BARS, _MAX_BARS = 1200, 3000
# passes to draw: at least, and at most if the warm-up of the pipeline is long
_BREAK = 0.05
# width of the break relative to the axis


@dataclass(frozen=True, slots=True)
class _Clock:
    """Time axis of a step, which may leave out the middle of the step."""

    simulated: SimulatedStep
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
        return self.head_s, self.simulated.instant_s(self.tail_s)

    @property
    def _wide(self) -> float:
        head, tail = self._ends
        return _BREAK * (head + self.simulated.step_s - tail)

    def x(self, step_time_s: float) -> float:
        """Return the position on the axis of a time in the step."""
        if not self.broken:
            return step_time_s
        head, tail = self._ends
        return step_time_s if step_time_s <= head else step_time_s - tail + head + self._wide

    def pieces(self, start_s: float, end_s: float) -> Iterator[tuple[float, float]]:
        """Yield the drawn parts of a span of the timeline, as positions on the axis."""
        if not self.broken:
            # the simulated schedule differs by a percent or two from the estimate's length
            stretch = self.simulated.step_s / self.simulated.timeline.makespan_s
            yield start_s * stretch, end_s * stretch
            return
        at = self.simulated.instant_s
        if start_s < self.head_s:
            yield start_s, min(end_s, self.head_s)
        if end_s > self.tail_s:
            yield self.x(at(max(start_s, self.tail_s))), self.x(at(end_s))

    def frame(self, figure: Any) -> None:
        """Set range and ticks of the axis, and mark the part that is left out."""
        end = self.x(self.simulated.step_s)
        figure.update_xaxes(range=[0, end])
        if not self.broken:
            return
        head, tail = self._ends
        step = _nice((head + self.simulated.step_s - tail) / 8)
        first, last = math.ceil(tail / step), int(self.simulated.step_s / step)
        marks = [i * step for i in (*range(int(head / step) + 1), *range(first, last + 1))]
        texts = [f"{mark:g}" for mark in marks]
        figure.update_xaxes(tickvals=[self.x(mark) for mark in marks], ticktext=texts)
        left, right = self.x(head), self.x(head) + self._wide
        figure.add_vrect(x0=left, x1=right, fillcolor=GREY, opacity=0.25, line_width=0)
        write_above(figure, (left + right) / 2, f"{format_seconds(tail - head)} not drawn")


def _nice(value: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(f * power for f in (1.0, 2.0, 5.0, 10.0) if f * power >= value * 0.999)


def _clock(simulated: SimulatedStep) -> _Clock:
    """Return an axis of the whole step if it has few events, else of its start and end."""
    timeline = simulated.timeline
    shown = set(_sampled(timeline))
    events = [e for e in timeline.events if e.stage in shown and e.stream == "compute"]
    if len(events) <= _FEW_BARS and timeline.num_micro_batches == simulated.micro_batches:
        return _Clock(simulated, simulated.timeline.makespan_s, simulated.timeline.makespan_s)
    ends, starts = sorted(e.end_s for e in events), sorted(e.start_s for e in events)
    min_index, max_index = (min(bars // 2, len(events) // 3) for bars in (_FEW_BARS, _MAX_BARS))
    filled = min(e.start_s for e in timeline.computed(0) if e.task.kind != "forward")
    head = min(max(ends[min_index], 1.1 * filled), ends[max_index], 0.9 * simulated.middle_s)
    left = simulated.timeline.makespan_s - max(
        e.end_s for e in timeline.computed(0) if e.kind == "forward"
    )
    tail = min(starts[-min_index], simulated.timeline.makespan_s - 1.1 * left)
    return _Clock(simulated, head, max(tail, starts[-max_index], 1.1 * simulated.middle_s))


def _sampled(timeline: Timeline) -> list[int]:
    """Choose up to sixteen stages to draw; up to eight if there are many chunks."""
    count = timeline.num_stages
    most = _SHOWN_STAGES if count * timeline.num_chunks <= 4 * _SHOWN_STAGES else _SHOWN_STAGES // 2
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def drawn_part(simulated: SimulatedStep) -> str:
    """State which stages and micro-batches are drawn; empty if all are."""
    clock, timeline = _clock(simulated), simulated.timeline
    shown, sentences = _sampled(timeline), []
    if len(shown) < timeline.num_stages:
        named = ", ".join(map(str, shown))
        sentences.append(f"{len(shown)} of {timeline.num_stages} stages are drawn: {named}.")
    if clock.broken:
        head, tail = clock._ends
        sentences.append(
            f"Of {simulated.micro_batches:,} micro-batches the first and the last are "
            f"drawn; the {format_seconds(tail - head)} between repeat themselves."
        )
    return " ".join(sentences)


@figure_of("answer")
def gantt(simulated: SimulatedStep, title: str = "") -> Drawing:
    """Activity of every pipeline stage over time; gaps are idle, the line is the critical path."""
    timeline, clock = simulated.timeline, _clock(simulated)
    rows = _sampled(timeline)
    place = {stage: row for row, stage in enumerate(rows)}
    figure = framed(height=170 + 26 * len(rows), x="time in the step [s]", y="stage")
    for kind in get_args(EventKind):
        for hidden in (False, True):
            events = [e for e in timeline.events if (e.kind, e.hidden) == (kind, hidden)]
            events = [e for e in events if e.stage in place and e.duration_s > 0]
            if events:
                _draw_events(figure, kind, events, place, clock)
    path = timeline.critical_path()
    # the path is drawn below the computation of stages and through transfers
    spans = [
        (e.start_s, e.end_s, place[e.stage] + (0.42 if e.kind == ASYNC_TRANSFER else 0.34))
        for e in path
        if e.stage in place
    ]
    xs, ys = _line(spans, clock)
    line, name = {"color": LIMIT, "width": 2}, "critical path"
    figure.add_scatter(x=xs, y=ys, mode="lines", line=line, name=name, hoverinfo="skip")
    figure.update_layout(barmode="overlay", uniformtext={"minsize": 8, "mode": "hide"})
    figure.update_yaxes(
        tickvals=list(place.values()),
        ticktext=[str(r) for r in rows],
        range=[len(rows) - 0.35, -0.5],
        showgrid=False,
    )
    clock.frame(figure)
    idle = 100 * simulated.idle_s / simulated.step_s
    sentences = (
        f"{title or 'Pipeline'}: {counted(timeline.num_stages, 'stage')}, "
        f"{simulated.micro_batches:,} micro-batch{'es' * (simulated.micro_batches != 1)}, "
        f"{format_seconds(simulated.step_s)}; the stage that works longest waits {idle:.1f} % of "
        "it.",
        drawn_part(simulated),
        _path_text(path),
    )
    return Drawing(figure, " ".join(filter(None, sentences)))


def has_numbers(drawing: Drawing) -> bool:
    """True if the passes of a drawn step are numbered."""
    return any(trace.text is not None for trace in drawing.figure.data)


def _draw_events(
    figure: Any, kind: EventKind, events: Sequence[Event], place: dict[int, int], clock: _Clock
) -> None:
    """Draw all events of one kind; transfers and hidden events, which do not block, are thin."""
    aside = not events[0].keeps_busy
    drawn = [(e, a, b) for e in events for a, b in clock.pieces(e.start_s, e.end_s)]
    computed = kind in ("forward", "backward", "weight_gradient")
    numbered = len(drawn) <= _MAX_NUMBERS and computed and not aside
    name = f"{label(kind)}{', hidden' if events[0].hidden else ''}"
    longest = max((b - a for _, a, b in drawn), default=0.0)
    figure.add_bar(
        y=[place[e.stage] + (0.42 if aside else 0.0) for e, _, _ in drawn],
        width=0.14 if aside else 0.62,
        x=[b - a for _, a, b in drawn],
        base=[a for _, a, _ in drawn],
        orientation="h",
        name=name,
        # events too short to be seen need no entry
        showlegend=longest > 0.001 * clock.x(clock.simulated.step_s),
        marker=bar_style(kind),
        customdata=[(_event_text(e), format_seconds(e.duration_s)) for e, _, _ in drawn],
        text=[str(e.micro_batch) for e, _, _ in drawn] if numbered else None,
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        hovertemplate=f"%{{customdata[0]}}<br>{name}: %{{customdata[1]}}<extra></extra>",
    )


def _event_text(event: Event) -> str:
    if not event.in_passes:
        return f"stage {event.stage}, after its passes"
    return f"stage {event.stage}, micro-batch {event.micro_batch}, chunk {event.chunk}"


def _line(
    spans: Iterable[tuple[float, float, float]], clock: _Clock, crossing: bool = False
) -> tuple[Points, Points]:
    """Return a line over spans, interrupted at the axis break; `crossing` lets a span cross it."""
    xs: Points = []
    ys: Points = []
    before, gap = 0.0, clock.x(clock.head_s)
    for start, end, height in spans:
        for number, (left, right) in enumerate(clock.pieces(start, end)):
            if clock.broken and before <= gap < left and not (crossing and number):
                xs.append(None)
                ys.append(None)
            xs += [left, right]
            ys += [height, height]
            before = right
    return xs, ys


def _path_text(path: Sequence[Event]) -> str:
    """State the shares of the critical path on its main stage, on other stages, in transfers."""
    computed = [event for event in path if event.kind != ASYNC_TRANSFER]
    stages = _sums((str(event.stage), event.duration_s) for event in computed)
    longest = next(iter(stages))
    kinds = _sums((e.kind, e.duration_s) for e in computed if str(e.stage) == longest)
    total = sum(event.duration_s for event in path)
    shares = ", ".join(f"{label(kind)} {100 * part / total:.0f} %" for kind, part in kinds.items())
    other_stages = [seconds for stage, seconds in stages.items() if stage != longest]
    parts = {
        f"on stage {longest} ({shares})": stages[longest],
        f"on {len(other_stages)} other stage{'s' * (len(other_stages) > 1)}": sum(other_stages),
        "in transfers": sum(e.duration_s for e in path if e.kind == ASYNC_TRANSFER),
    }
    large = {name: part / total for name, part in parts.items() if part >= 0.005 * total}
    return f"Critical path: {', '.join(f'{100 * x:.0f} % {name}' for name, x in large.items())}."


def _sums(parts: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name, seconds in parts:
        sums[name] = sums.get(name, 0.0) + seconds
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


@figure_of("answer")
def memory_over_step(
    simulated: SimulatedStep, stages: Sequence[dict[str, float]], device_limit_bytes: float
) -> Drawing:
    """Memory of the first, the fullest and the last stage over one step."""
    x, y = "time in the step [s]", "memory per device [GiB]"
    figure = framed(height=340, x=x, y=y, legend=len(stages) > 1)
    clock, peaks = _clock(simulated), {}
    fullest = max(range(len(stages)), key=lambda stage: sum(stages[stage].values()))
    for number, stage in enumerate(sorted({0, fullest, len(stages) - 1})):
        times, values = _stage_memory(simulated, stages[stage], stage)
        peaks[stage] = max(values)
        ends = [*times[1:], simulated.timeline.makespan_s]
        xs, ys = _line(zip(times, ends, values, strict=True), clock, crossing=True)
        dash = ("solid", "dash", "dot")[number]
        figure.add_scatter(
            x=[*xs, clock.x(simulated.step_s)],
            y=[None if value is None else value / GIB for value in (*ys, values[-1])],
            name=f"stage {stage}",
            mode="lines",
            line={"shape": "hv", "color": HUES[number], "width": 2, "dash": dash},
            hovertemplate=f"stage {stage}: %{{y:.2f}} GiB<extra></extra>",
        )
    draw_device_limit(figure, device_limit_bytes, annotation_position="top right")
    figure.update_yaxes(range=[0, 1.15 * max(device_limit_bytes, *peaks.values()) / GIB])
    clock.frame(figure)
    highest = ", ".join(f"stage {stage} {format_bytes(peak)}" for stage, peak in peaks.items())
    sentence = (
        f"Memory per device over one step of {format_seconds(simulated.step_s)}; peaks: {highest}; "
        f"the limit is {format_bytes(device_limit_bytes)}."
    )
    return Drawing(figure, f"{sentence} {drawn_part(simulated)}".rstrip())


def _stage_memory(
    simulated: SimulatedStep, parts: dict[str, float], stage: int
) -> tuple[list[float], list[float]]:
    """Return times of the timeline, and the memory of a stage from each time on [B]."""
    times, counts = simulated.timeline.in_flight(stage)
    # peak activations are divided equally over the micro-batches in flight
    each = parts.get("activations", 0.0) / max(max(counts), 1)
    rest = sum(value for name, value in parts.items() if name != "activations")
    return times, [rest + each * count for count in counts]
