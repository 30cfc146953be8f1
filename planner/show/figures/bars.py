"""Bar figures: bytes and seconds by part, for strategies, stages, hosts, steps and trainings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from planner.choose.plan import Verdict
from planner.cost.estimate import Estimate
from planner.describe.machine import Machine
from planner.show.figures import frame
from planner.show.figures.figure_registry import figure_of
from planner.show.figures.frame import Drawing
from planner.show.figures.palette import LIMIT, label
from planner.show.training import summary
from planner.training.whole_training import WholeTraining
from planner.units import GIB, format_bytes, format_seconds

Named = Sequence[tuple[str, Estimate]]
"""Estimates to compare, with their names."""
Parts = Mapping[str, float]
_CUT = 1.3
# cut off bars beyond this multiple of the limit: DDP of a large model would dwarf the rest
_ROOM = 2.2
# width of the axis over the limit, to leave space for labels
_LEAST = 0.0005
# share of the whole below which a part would be only a line
_UNITS = (("d", 86_400.0, 2 * 86_400.0), ("h", 3600.0, 7200.0), ("s", 1.0, 0.0))
"""Units of a waterfall's axis: name, seconds, and the smallest total in seconds that uses it."""


def _parts(tables: Sequence[Parts]) -> list[str]:
    """Return the parts that are nonzero in any table, in the order of the tables."""
    names = dict.fromkeys(name for table in tables for name in table if name != "total")
    return [name for name in names if any(table.get(name, 0.0) > 0 for table in tables)]


@figure_of("answer")
def strategy_bars(strategies: Sequence[Verdict], machine: Machine) -> Drawing:
    """Memory per device of every classic strategy by part, whether it fits, and its step time."""
    limit = machine.device.memory_bytes.value
    estimated = [(entry, entry.estimate) for entry in strategies if entry.estimate is not None]
    # plotly draws the last row on top
    estimated.sort(key=lambda row: _order(*row), reverse=True)
    shown = [entry for entry, _ in estimated]
    tables = [estimate.memory_bytes for _, estimate in estimated]
    cut = any(table["total"] > _CUT * limit for table in tables)
    x = "memory per device [GiB]" + f"<br>// the bar is cut off at {_CUT} times the limit" * cut
    figure = frame.framed(height=180 + 34 * max(len(shown), 5), x=x)
    frame.stack_parts(figure, [entry.name for entry in shown], tables, _parts(tables))
    _clip(figure, _CUT * limit / GIB)
    for entry, table in zip(shown, tables, strict=True):
        _mark(figure, entry, table["total"], limit)
    frame.draw_limit(figure, limit, f"device limit {format_bytes(limit)}")
    figure.update_layout(bargap=0.3)
    figure.update_xaxes(range=[0, _ROOM * limit / GIB])
    rest = [entry for entry in strategies if entry.estimate is None]
    texts = "; ".join(f"{each.name}: {_strategy_text(each)}" for each in [*shown[::-1], *rest])
    head = f"Memory per device for each strategy against the limit of {format_bytes(limit)}."
    return Drawing(figure, f"{head} {texts}.")


def _order(entry: Verdict, estimate: Estimate) -> tuple[bool, float]:
    return not entry.fits, estimate.step_time_s if entry.fits else estimate.memory_bytes["total"]


def _clip(figure: Any, longest: float) -> None:
    """Cut stacked bars off at `longest`; their hover texts keep the whole values."""
    room: dict[str, float] = {}
    for trace in figure.data:
        trace.x = [
            min(x, room.get(name, longest)) for name, x in zip(trace.y, trace.x, strict=True)
        ]
        room |= {n: room.get(n, longest) - x for n, x in zip(trace.y, trace.x, strict=True)}


def _mark(figure: Any, entry: Verdict, total: float, limit: float) -> None:
    """Label a bar beside its end: fits and step time, or the excess memory."""
    figure.add_annotation(
        x=min(max(total, limit), _CUT * limit) / GIB,
        y=entry.name,
        showarrow=False,
        xanchor="left",
        xshift=6,
        text=_fate(entry, total, limit),
    )


def _fate(entry: Verdict, total: float, limit: float) -> str:
    if entry.fits and entry.estimate is not None:
        mark = "&#9888; tight" if entry.estimate.tight else "&#10003; fits"
        return f"{mark}, <b>{format_seconds(entry.estimate.step_time_s)}</b>"
    if total > limit:
        mark = "<b>//</b>" if total > _CUT * limit else "&#10007;"
        return f"{mark} +{format_bytes(total - limit)}"
    return "&#10007; host memory or disk"


def _strategy_text(entry: Verdict) -> str:
    if entry.estimate is None:
        return "no legal layout"
    total = format_bytes(entry.estimate.memory_bytes["total"])
    if not entry.fits:
        return f"{total}, does not fit"
    tight = "fits, but tight" if entry.estimate.tight else "fits"
    return f"{total}, {tight}, {format_seconds(entry.estimate.step_time_s)} per step"


@figure_of("answer")
def stage_bars(stages: Sequence[dict[str, float]], device_limit_bytes: float) -> Drawing:
    """Memory per device on every pipeline stage, stacked by part."""
    figure = frame.framed(height=400, x="pipeline stage", y="memory per device [GiB]")
    index = list(range(len(stages)))
    frame.stack_parts(figure, index, stages, _parts(stages), row="stage %{x}", upright=True)
    frame.draw_device_limit(figure, device_limit_bytes)
    figure.update_layout(bargap=0.25)
    figure.update_xaxes(dtick=max(1, len(stages) // 16))
    totals = [sum(stage.values()) for stage in stages]
    worst = max(index, key=lambda i: totals[i])
    return Drawing(
        figure,
        f"Memory per device on {len(stages)} pipeline stages; the fullest is stage {worst} with "
        f"{format_bytes(totals[worst])} of {format_bytes(device_limit_bytes)}.",
    )


@figure_of("answer")
def host_bars(estimate: Estimate, host_limit_bytes: float) -> Drawing:
    """Host memory per node by part."""
    figure = frame.framed(height=210, x="host memory per node [GiB]")
    limit = format_bytes(host_limit_bytes)
    table = estimate.host_memory_bytes
    frame.stack_parts(figure, ["host"], [table], _parts([table]))
    side = "right" if host_limit_bytes >= table["total"] else "center"
    frame.draw_limit(figure, host_limit_bytes, f"host memory {limit}", side)
    figure.update_yaxes(showticklabels=False)
    figure.update_xaxes(range=[0, 1.15 * max(host_limit_bytes, table["total"]) / GIB])
    return Drawing(figure, f"Host memory per node: {format_bytes(table['total'])} of {limit}.")


@figure_of("answers")
def memory_bars(estimates: Named, device_limit_bytes: float) -> Drawing:
    """Memory per device by part, stacked, with the device's limit."""
    tables = [estimate.memory_bytes for _, estimate in estimates]
    totals, limit = [table["total"] for table in tables], device_limit_bytes
    ends = [max(total, limit) / GIB for total in totals]
    title, parts = "memory per device [GiB]", _parts(tables[::-1])
    figure, texts = _compare(estimates, title, tables, parts, totals, ends, GIB, format_bytes)
    figure.update_xaxes(range=[0, 1.7 * max([limit, *totals]) / GIB])
    frame.draw_limit(figure, limit, f"device limit {format_bytes(limit)}")
    return Drawing(figure, f"Memory per device of {format_bytes(limit)}: {texts}.")


@figure_of("answers")
def time_bars(estimates: Named) -> Drawing:
    """Step time by part, stacked."""
    tables = [estimate.step_time_parts_s for _, estimate in estimates]
    totals = [estimate.step_time_s for _, estimate in estimates]
    least = 0.001 * max(totals, default=0.0)
    parts = [n for n in _parts(tables[::-1]) if max(t.get(n, 0.0) for t in tables) >= least]
    title = "step time [s]"
    figure, texts = _compare(estimates, title, tables, parts, totals, totals, 1.0, format_seconds)
    figure.update_xaxes(range=[0, 1.6 * max(totals, default=1.0)])
    return Drawing(figure, f"Step time: {texts}.")


def _compare(
    estimates: Named,
    title: str,
    tables: Sequence[Parts],
    parts: Iterable[str],
    totals: Sequence[float],
    ends: Sequence[float],
    unit: float,
    text: Callable[[float], str],
) -> tuple[Any, str]:
    """Stack bars of named estimates and label them with totals; also return the totals as text."""
    figure = frame.framed(height=230 + 62 * max(len(estimates), 2), x=title)
    names = [frame.plain(name) for name, _ in estimates][::-1]
    frame.stack_parts(figure, names, tables[::-1], parts, unit=unit, text=text)
    marks = ["" if estimate.fits else "(does not fit)" for _, estimate in estimates]
    rows = zip(names, totals[::-1], ends[::-1], marks[::-1], strict=True)
    for name, total, end, mark in rows:
        figure.add_annotation(
            x=end,
            y=name,
            text="<br>".join(filter(None, (text(total), mark))),
            showarrow=False,
            xanchor="left",
            align="left",
            xshift=4,
        )
    figure.update_layout(bargap=0.35)
    texts = "; ".join(
        f"{name} {text(total)} {mark}".rstrip()
        for (name, _), total, mark in zip(estimates, totals, marks, strict=True)
    )
    return figure, texts


@figure_of("answer")
def waterfall(estimate: Estimate) -> Drawing:
    """Step time by part as a waterfall; the total with its interval."""
    interval_s, total = estimate.interval_step_time_s, estimate.step_time_s
    low, high = map(format_seconds, interval_s)
    between = f"90 % of runs: {low} to {high}"
    figure, parts = _falling(
        estimate.step_time_parts_s.items(), "step", total, interval_s, f"the line: {between}"
    )
    return Drawing(figure, f"A step takes {format_seconds(total)} ({between}): {parts}.")


@figure_of("answer")
def whole_training(training: WholeTraining) -> Drawing:
    """Time of a whole training by part, as a waterfall; the total with its interval."""
    total = training.time
    items = [(item.name, item.time_s.expected) for item in training.parts]
    below = "the line: 90 % of trainings"
    figure, parts = _falling(items, "training", total.expected, (total.low, total.high), below)
    return Drawing(figure, f"{summary(training)} By part: {parts}.")


def _falling(
    items: Iterable[tuple[str, float]],
    sum_name: str,
    total_s: float,
    interval_s: tuple[float, float],
    below: str,
) -> tuple[Any, str]:
    """Draw bars that each start at the end of the previous one, and the total; also return text."""
    parts = [
        (label(name), seconds, format_seconds(seconds), frame.bar_style(name))
        for name, seconds in items
        if seconds > _LEAST * total_s
    ]
    names = [*(name for name, *_ in parts), sum_name]
    unit, scale = next((unit, scale) for unit, scale, least in _UNITS if total_s >= least)
    x = f"time [{unit}]<br>{below}"
    figure = frame.framed(height=100 + 32 * len(names), x=x, legend=False, top=8)
    start = 0.0
    for name, seconds, text, style in parts:
        figure.add_bar(
            y=[name],
            x=[seconds / scale],
            base=[start / scale],
            orientation="h",
            marker=style,
            text=[f"{text}, {100 * seconds / total_s:.1f} %"],
            textposition="outside",
            cliponaxis=False,
            showlegend=False,
            hovertemplate=f"{name}: {text}<extra></extra>",
        )
        start += seconds
    line = {"color": LIMIT, "thickness": 2}
    total_bar(figure, sum_name, total_s, interval_s, scale, "#A6A6A6", line)
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1])
    frame.named_rows(figure, names)
    # space for text right of the last bar, also on a phone
    figure.update_xaxes(range=[0, max(1.6 * total_s, 1.1 * interval_s[1]) / scale])
    longest_first = sorted(parts, key=lambda part: -part[1])
    return figure, ", ".join(f"{name} {text}" for name, _, text, _ in longest_first)


def total_bar(
    figure: Any,
    name: str,
    total: float,
    interval_s: tuple[float, float],
    scale: float,
    hue: str,
    line: Mapping[str, Any],
) -> None:
    """Draw the time of a step or a training as one bar, with a line for its interval."""
    figure.add_bar(
        y=[name],
        x=[total / scale],
        orientation="h",
        showlegend=False,
        error_x=frame.interval_bars([total], [interval_s], scale, **line),
        marker={"color": hue},
        insidetextfont={"color": "#000000"},
        text=[format_seconds(total)],
        textposition="inside",
        insidetextanchor="start",
        constraintext="none",
    )
