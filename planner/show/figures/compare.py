"""Comparison figures: several estimates side by side, by part of time or of memory."""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.estimate import Estimate
from planner.show.figures.frame import Drawing, bar_style, framed, plain
from planner.show.figures.palette import LIMIT, label
from planner.units import GIB, format_bytes, format_seconds

__all__ = ["memory_bars", "time_bars"]

Named = Sequence[tuple[str, Estimate]]


def time_bars(answers: Named) -> Drawing:
    """Step time by part, stacked."""
    figure = framed(height=230 + 46 * len(answers), x="step time [s]")
    names = [plain(name) for name, _ in answers][::-1]
    estimates = [estimate for _, estimate in answers][::-1]
    parts = dict.fromkeys(name for e in estimates for name, v in e.step_time_parts_s.items() if v)
    for part in parts:
        values = [e.step_time_parts_s.get(part, 0.0) for e in estimates]
        if max(values) < 0.001 * max(e.step_time_s for e in estimates):
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
    for name, e in zip(names, estimates, strict=True):
        figure.add_annotation(
            x=e.step_time_s,
            y=name,
            text=_said(format_seconds(e.step_time_s), e, "<br>"),
            showarrow=False,
            xanchor="left",
            align="left",
            xshift=4,
        )
    figure.update_xaxes(range=[0, 1.6 * max([e.step_time_s for e in estimates], default=1.0)])
    figure.update_layout(barmode="stack", bargap=0.35)
    said = "; ".join(f"{name} {_said(format_seconds(e.step_time_s), e)}" for name, e in answers)
    return Drawing(figure, f"Step time: {said}.")


def _said(number: str, estimate: Estimate, between: str = " ") -> str:
    """A number of a layout, marked where that cannot run."""
    return number if estimate.fits else f"{number}{between}(does not fit)"


def memory_bars(answers: Named, limit_bytes: float) -> Drawing:
    """Memory per device by part, stacked, with the device's limit."""
    figure = framed(height=230 + 46 * len(answers), x="memory per device [GiB]")
    names = [plain(name) for name, _ in answers][::-1]
    tables = [estimate.memory_bytes for _, estimate in answers][::-1]
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
    for name, table, (_, e) in zip(names, tables, reversed(answers), strict=True):
        figure.add_annotation(
            x=max(table["total"], limit_bytes) / GIB,
            y=name,
            text=_said(format_bytes(table["total"]), e, "<br>"),
            showarrow=False,
            xanchor="left",
            align="left",
            xshift=4,
        )
    most = max([limit_bytes, *(t["total"] for t in tables)])
    figure.update_xaxes(range=[0, 1.7 * most / GIB])
    figure.add_vline(x=limit_bytes / GIB, line={"color": LIMIT, "width": 2, "dash": "dash"})
    figure.add_annotation(
        x=limit_bytes / GIB,
        y=1,
        yref="paper",
        yanchor="bottom",
        text=f"device limit {format_bytes(limit_bytes)}",
        showarrow=False,
    )
    figure.update_layout(barmode="stack", bargap=0.35)
    said = "; ".join(
        f"{name} {_said(format_bytes(e.memory_bytes['total']), e)}" for name, e in answers
    )
    return Drawing(figure, f"Memory per device of {format_bytes(limit_bytes)}: {said}.")
