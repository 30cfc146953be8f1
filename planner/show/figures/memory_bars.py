"""Memory figures: bytes per device by part, for strategies, stages and over a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.choose.verdicts.strategy_verdicts import Verdict
from planner.cost.estimate import Estimate
from planner.describe.machine import Machine
from planner.show.figures.figure_registry import figure_of
from planner.show.figures.frame import Drawing, Named, bar_style, fit_text, framed, plain
from planner.show.figures.palette import LIMIT, label
from planner.units import GIB, format_bytes, format_seconds

__all__ = ["host_bars", "memory_bars", "stage_bars", "strategy_bars"]

_CUT = 2.5
# bars beyond this multiple of the limit are cut off: DDP of a large model would hide the rest
_ROOM = 1.6
# space right of the bars for what they mean


def _parts(tables: Sequence[dict[str, float]]) -> list[str]:
    """Parts that any table has, in the order of the tables."""
    names = dict.fromkeys(name for table in tables for name in table if name != "total")
    return [name for name in names if any(table.get(name, 0.0) > 0 for table in tables)]


@figure_of("answer")
def strategy_bars(strategies: Sequence[Verdict], machine: Machine) -> Drawing:
    """Memory per device of every classic strategy, stacked by part, with the device's limit.

    Beside each bar stands whether it fits, and what a step takes.
    """
    shown = [entry for entry in strategies if entry.estimate is not None][::-1]
    limit = machine.device.memory_bytes.value
    names = [entry.name for entry in shown]
    tables = [entry.estimate.memory_bytes for entry in shown if entry.estimate]
    figure = framed(height=180 + 34 * max(len(shown), 5), x="memory per device [GiB]")
    edge = _CUT * limit
    for part in _parts(tables):
        figure.add_bar(
            y=names,
            x=[t.get(part, 0.0) / GIB for t in tables],
            name=label(part),
            orientation="h",
            marker=bar_style(part),
            customdata=[format_bytes(t.get(part, 0.0)) for t in tables],
            hovertemplate="%{y}<br>" + label(part) + ": %{customdata}<extra></extra>",
        )
    longest = max([limit, *(t["total"] for t in tables)])
    right = min(longest, edge) * _ROOM
    for entry, table in zip(shown, tables, strict=True):
        _mark(figure, entry, table["total"], limit, right)
    _draw_limit(figure, limit, f"device limit {format_bytes(limit)}")
    figure.update_layout(barmode="stack", bargap=0.3)
    figure.update_xaxes(range=[0, right / GIB])
    return Drawing(figure, _strategies_alt(strategies, limit))


def _draw_limit(figure: Any, limit_bytes: float, text: str, side: str = "auto") -> None:
    """Draw a limit of memory as a line, with a text above it."""
    figure.add_vline(x=limit_bytes / GIB, line={"color": LIMIT, "width": 2, "dash": "dash"})
    figure.add_annotation(
        x=limit_bytes / GIB,
        y=1,
        yref="paper",
        yanchor="bottom",
        xanchor=side,
        showarrow=False,
        text=text,
    )


def _mark(figure: Any, entry: Verdict, total: float, limit: float, right: float) -> None:
    """What a bar means, beside it: whether it fits and its step, or how much is too much."""
    text = _fate(entry, total, limit)
    cut = total > right / _ROOM
    figure.add_annotation(
        x=(right if cut else max(total, limit)) / GIB,
        y=entry.name,
        showarrow=False,
        xanchor="right" if cut else "left",
        xshift=-4 if cut else 6,
        text=text + (" &#8594;" if cut else ""),
        bgcolor="#333333" if cut else None,
        font={"color": "#FFFFFF"} if cut else {},
    )


def _fate(entry: Verdict, total: float, limit: float) -> str:
    if entry.fits and entry.estimate is not None:
        mark = "&#9888; tight" if entry.estimate.tight else "&#10003; fits"
        # a narrow screen cuts the end, which the axis tells as well
        return f"{mark}, <b>{format_seconds(entry.estimate.step_time_s)}</b>, {format_bytes(total)}"
    if total > limit:
        return f"&#10007; {format_bytes(total - limit)} over"
    return "&#10007; host memory or disk"


def _strategies_alt(strategies: Sequence[Verdict], limit: float) -> str:
    texts = []
    for entry in strategies:
        if entry.estimate is None:
            texts.append(f"{entry.name}: no legal layout")
            continue
        total = format_bytes(entry.estimate.memory_bytes["total"])
        fate = "does not fit"
        if entry.fits:
            tight = "fits, but tight" if entry.estimate.tight else "fits"
            fate = f"{tight}, {format_seconds(entry.estimate.step_time_s)} per step"
        texts.append(f"{entry.name}: {total}, {fate}")
    return (
        f"Memory per device for each strategy against the limit of {format_bytes(limit)}. "
        + "; ".join(texts)
        + "."
    )


@figure_of("answer")
def stage_bars(stages: Sequence[dict[str, float]], device_limit_bytes: float) -> Drawing:
    """Memory per device on every pipeline stage, stacked by part."""
    figure = framed(height=400, x="pipeline stage", y="memory per device [GiB]")
    index = list(range(len(stages)))
    for part in _parts(stages):
        figure.add_bar(
            x=index,
            y=[s.get(part, 0.0) / GIB for s in stages],
            name=label(part),
            marker=bar_style(part),
            customdata=[format_bytes(s.get(part, 0.0)) for s in stages],
            hovertemplate="stage %{x}<br>" + label(part) + ": %{customdata}<extra></extra>",
        )
    figure.add_hline(
        y=device_limit_bytes / GIB,
        line={"color": LIMIT, "width": 2, "dash": "dash"},
        annotation_text=f"device limit {format_bytes(device_limit_bytes)}",
    )
    figure.update_layout(barmode="stack", bargap=0.25)
    figure.update_xaxes(dtick=max(1, len(stages) // 16))
    totals = [sum(stage.values()) for stage in stages]
    worst = max(range(len(totals)), key=lambda i: totals[i])
    return Drawing(
        figure,
        f"Memory per device on {len(stages)} pipeline stages; the fullest is stage {worst} with "
        f"{format_bytes(totals[worst])} of {format_bytes(device_limit_bytes)}.",
    )


@figure_of("answer")
def host_bars(estimate: Estimate, host_limit_bytes: float) -> Drawing:
    """Host memory per node by part."""
    figure = framed(height=210, x="host memory per node [GiB]")
    limit = format_bytes(host_limit_bytes)
    table = estimate.host_memory_bytes
    for part in _parts([table]):
        figure.add_bar(
            y=["host"],
            x=[table[part] / GIB],
            name=label(part),
            orientation="h",
            marker=bar_style(part),
            hovertemplate=f"{label(part)}: {format_bytes(table[part])}<extra></extra>",
        )
    side = "right" if host_limit_bytes >= table["total"] else "center"
    _draw_limit(figure, host_limit_bytes, f"host memory {limit}", side)
    figure.update_layout(barmode="stack")
    figure.update_yaxes(showticklabels=False)
    return Drawing(
        figure,
        f"Host memory per node: {format_bytes(table['total'])} of {limit}.",
    )


@figure_of("answers")
def memory_bars(estimates: Named, device_limit_bytes: float) -> Drawing:
    """Memory per device by part, stacked, with the device's limit."""
    figure = framed(height=230 + 46 * len(estimates), x="memory per device [GiB]")
    names = [plain(name) for name, _ in estimates][::-1]
    tables = [estimate.memory_bytes for _, estimate in estimates][::-1]
    parts = dict.fromkeys(n for t in tables for n, v in t.items() if v and n != "total")
    for part in parts:
        figure.add_bar(
            y=names,
            x=[t[part] / GIB for t in tables],
            name=label(part),
            orientation="h",
            marker=bar_style(part),
            customdata=[format_bytes(t[part]) for t in tables],
            hovertemplate="%{y}<br>" + label(part) + ": %{customdata}<extra></extra>",
        )
    for name, table, (_, e) in zip(names, tables, reversed(estimates), strict=True):
        figure.add_annotation(
            x=max(table["total"], device_limit_bytes) / GIB,
            y=name,
            text=fit_text(format_bytes(table["total"]), e, "<br>"),
            showarrow=False,
            xanchor="left",
            align="left",
            xshift=4,
        )
    most = max([device_limit_bytes, *(t["total"] for t in tables)])
    figure.update_xaxes(range=[0, 1.7 * most / GIB])
    _draw_limit(figure, device_limit_bytes, f"device limit {format_bytes(device_limit_bytes)}")
    figure.update_layout(barmode="stack", bargap=0.35)
    texts = "; ".join(
        f"{name} {fit_text(format_bytes(e.memory_bytes['total']), e)}" for name, e in estimates
    )
    return Drawing(figure, f"Memory per device of {format_bytes(device_limit_bytes)}: {texts}.")
