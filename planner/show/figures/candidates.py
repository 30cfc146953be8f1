"""Candidate figures: the best layout per tp and pp, and memory against time."""

from __future__ import annotations

import math
from typing import Any

from planner.choose.space import Space
from planner.show.figures.frame import Drawing, framed, plain
from planner.show.figures.palette import GREY, HUES, LIMIT
from planner.units import GIB, format_bytes, format_seconds

__all__ = ["heatmap", "pareto"]

_PALE = [[0, "rgba(140,140,140,0.2)"], [1, "rgba(140,140,140,0.2)"]]


def heatmap(space: Space, limit_bytes: float) -> Drawing:
    """Fastest step for every tp and pp; where nothing fits, how much is too much."""
    figure = framed(height=430, x="tensor parallel (tp)", y="pipeline stages (pp)", legend=False)
    if not space.cells:
        return Drawing(figure, "No layout is legal for this job.")
    tps = sorted({cell.tp for cell in space.cells})
    pps = sorted({cell.pp for cell in space.cells})
    table = {(cell.tp, cell.pp): cell for cell in space.cells}
    shade, words, hover, rest = [], [], [], []
    small = len(tps) <= 12 and len(pps) <= 14
    for pp in pps:
        shade.append([_shade(table.get((tp, pp))) for tp in tps])
        words.append([_words(table.get((tp, pp)), limit_bytes) if small else "" for tp in tps])
        rest.append([_unfit(table.get((tp, pp))) for tp in tps])
        hover.append([_hover(table.get((tp, pp)), tp, pp, limit_bytes) for tp in tps])
    shared = {
        "x": [str(tp) for tp in tps],
        "y": [str(pp) for pp in pps],
        "text": words,
        "texttemplate": "%{text}",
        "customdata": hover,
        "hovertemplate": "%{customdata}<extra></extra>",
        "xgap": 2,
        "ygap": 2,
    }
    figure.add_heatmap(
        z=shade, hoverongaps=False, colorscale="Cividis_r", colorbar=_bar(space), **shared
    )
    figure.add_heatmap(
        z=rest, colorscale=_PALE, showscale=False, textfont={"color": GREY}, **shared
    )
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(type="category", showgrid=False)
    figure.update_layout(height=170 + 27 * max(len(pps), 6))
    return Drawing(figure, _heatmap_alt(space))


def _heatmap_alt(space: Space) -> str:
    fitting = [cell for cell in space.cells if math.isfinite(cell.step_time_s)]
    if not fitting:
        return "No combination of tp and pp fits."
    best = min(fitting, key=lambda cell: (cell.step_time_s, cell.tp, cell.pp))
    return (
        f"Fastest step by tp and pp; {len(fitting)} of {len(space.cells)} combinations fit. Best: "
        f"tp {best.tp}, pp {best.pp}, {format_seconds(best.step_time_s)}."
    )


def _bar(space: Space) -> dict[str, Any]:
    ticks = _ticks(space)
    times = [format_seconds(10.0**tick) for tick in ticks]
    return {"title": {"text": "step [s]"}, "tickvals": ticks, "ticktext": times}


def _shade(cell: object) -> float | None:
    time = getattr(cell, "step_time_s", math.inf)
    return math.log10(time) if math.isfinite(time) else None


def _unfit(cell: object) -> float | None:
    """A mark for layouts that are legal but do not fit."""
    return 1.0 if cell is not None and _shade(cell) is None else None


def _ticks(space: Space) -> list[float]:
    times = [math.log10(c.step_time_s) for c in space.cells if math.isfinite(c.step_time_s)]
    if not times:
        return []
    low, high = min(times), max(times)
    return [low + (high - low) * i / 4 for i in range(5)] if high > low else [low]


def _words(cell: object, limit: float) -> str:
    if cell is None:
        return ""
    time = getattr(cell, "step_time_s", math.inf)
    if math.isfinite(time):
        return format_seconds(time)
    over = getattr(cell, "memory_bytes", 0.0) - limit
    return f"+{over / GIB:.0f} GiB" if over > 0 else "host"


def _hover(cell: object, tp: int, pp: int, limit: float) -> str:
    if cell is None:
        return f"tp {tp}, pp {pp}: not legal"
    text = plain(getattr(cell, "text", ""))
    return f"tp {tp}, pp {pp}: {_words(cell, limit)}<br>{text}"


def pareto(space: Space, limit_bytes: float) -> Drawing:
    """Memory against step time, with the layouts that nothing beats in both."""
    figure = framed(height=430, x="memory per device [GiB]", y="step time [s]")
    if not space.front:
        return Drawing(figure, "No layout is legal for this job.")
    figure.add_scatter(
        x=[p.memory_bytes / GIB for p in space.cloud],
        y=[p.step_time_s for p in space.cloud],
        mode="markers",
        name="sample of all layouts",
        marker={"color": GREY, "size": 5, "opacity": 0.45, "symbol": "circle-open"},
        customdata=[plain(p.text) for p in space.cloud],
        hovertemplate="%{x:.1f} GiB, %{y:.3g} s<br>%{customdata}<extra></extra>",
    )
    figure.add_scatter(
        x=[p.memory_bytes / GIB for p in space.front],
        y=[p.step_time_s for p in space.front],
        mode="lines+markers",
        name="nothing is both smaller and faster",
        line={"color": HUES[0], "width": 2, "shape": "hv"},
        marker={"size": 9, "symbol": "diamond"},
        customdata=[plain(p.text) for p in space.front],
        hovertemplate="%{x:.1f} GiB, %{y:.3g} s<br>%{customdata}<extra></extra>",
    )
    figure.add_vline(
        x=limit_bytes / GIB,
        line={"color": LIMIT, "width": 2, "dash": "dash"},
        annotation_text=f"device limit {format_bytes(limit_bytes)}",
        annotation_font_color=LIMIT,
    )
    figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(type="log", dtick=1, minor={"showgrid": True, "dtick": "D1"})
    # on a log axis plotly wants a line's place as it is, but an annotation's as a logarithm
    figure.layout.annotations[-1].x = math.log10(limit_bytes / GIB)
    left, right = space.front[0], space.front[-1]
    return Drawing(
        figure,
        f"Memory against step time of {space.num_candidates} layouts. The front runs from "
        f"{format_bytes(left.memory_bytes)} at {format_seconds(left.step_time_s)} to "
        f"{format_bytes(right.memory_bytes)} at {format_seconds(right.step_time_s)}.",
    )
