"""Candidate figures: the best layout per tp and pp, and memory against time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from planner.choose.plots import Cell, LayoutSpace, Point
from planner.cost.estimate import Estimate
from planner.show.figures.figure_registry import figure_of
from planner.show.figures.frame import Drawing, framed, log_ticks, plain
from planner.show.figures.palette import GREY, HUES, LIMIT, readable_on
from planner.units import GIB, format_bytes, format_seconds

__all__ = ["heatmap", "pareto"]

_SCALE = "Cividis_r"
_UNFIT = "#6E6E6E"
_MAX_COLUMNS, _MAX_ROWS = 12, 14
# cells of more are too small for words


@figure_of("answer")
def heatmap(space: LayoutSpace, device_limit_bytes: float) -> Drawing:
    """Fastest step for every tp and pp; where nothing fits, how much memory is missing.

    From a plan, all layouts are searched again: give what `plan` was given.
    """
    figure = framed(height=430, x="tensor parallel (tp)", y="pipeline stages (pp)", legend=False)
    if not space.cells:
        return Drawing(figure, "No layout is legal for this job.")
    tps = sorted({cell.tp for cell in space.cells})
    pps = sorted({cell.pp for cell in space.cells})
    table = {(cell.tp, cell.pp): cell for cell in space.cells}

    def by_cell(value: Callable[[Cell | None], Any]) -> list[list[Any]]:
        return [[value(table.get((tp, pp))) for tp in tps] for pp in pps]

    hover = [[_hover(table.get((tp, pp)), tp, pp, device_limit_bytes) for tp in tps] for pp in pps]
    shared = {
        "x": [str(tp) for tp in tps],
        "y": [str(pp) for pp in pps],
        "customdata": hover,
        "hovertemplate": "%{customdata}<extra></extra>",
        "hoverongaps": False,
        "xgap": 2,
        "ygap": 2,
    }
    figure.add_heatmap(
        z=by_cell(_shade),
        colorscale=_SCALE,
        colorbar=_bar(space),
        showscale=any(_shade(cell) is not None for cell in space.cells),
        **shared,
    )
    unfit = [[0, _UNFIT], [1, _UNFIT]]
    figure.add_heatmap(z=by_cell(_unfit), colorscale=unfit, showscale=False, **shared)
    if len(tps) <= _MAX_COLUMNS and len(pps) <= _MAX_ROWS:
        _write(figure, space, device_limit_bytes)
    figure.update_xaxes(type="category", showgrid=False, categoryarray=shared["x"])
    figure.update_yaxes(type="category", showgrid=False, categoryarray=shared["y"])
    figure.update_layout(height=140 + 34 * max(len(pps), 6))
    return Drawing(figure, _heatmap_alt(space))


def _write(figure: Any, space: LayoutSpace, limit_bytes: float) -> None:
    """Every cell's words once, black or white as its ground asks; the fastest is bold."""
    from plotly.colors import sample_colorscale

    shades = [shade for cell in space.cells if (shade := _shade(cell)) is not None]
    low, high = min(shades, default=0.0), max(shades, default=0.0)
    best = min(space.cells, key=lambda cell: (cell.step_time_s, cell.tp, cell.pp))
    texts, inks = [], []
    for cell in space.cells:
        shade, text = _shade(cell), _words(cell, limit_bytes)
        ground = _UNFIT
        if shade is not None:
            part = (shade - low) / (high - low) if high > low else 0.5
            ground = sample_colorscale(_SCALE, [part])[0]
        text = text.replace(" GiB", "<br>GiB")
        texts.append(f"<b>{text}</b>" if cell is best and shade is not None else text)
        inks.append(readable_on(ground))
    figure.add_scatter(
        x=[str(cell.tp) for cell in space.cells],
        y=[str(cell.pp) for cell in space.cells],
        mode="text",
        text=texts,
        textfont={"color": inks, "size": 11},
        hoverinfo="skip",
    )


def _heatmap_alt(space: LayoutSpace) -> str:
    fitting = [cell for cell in space.cells if math.isfinite(cell.step_time_s)]
    if not fitting:
        return "No combination of tp and pp fits."
    best = min(fitting, key=lambda cell: (cell.step_time_s, cell.tp, cell.pp))
    return (
        f"Fastest step by tp and pp; {len(fitting)} of {len(space.cells)} combinations fit. Best: "
        f"tp {best.tp}, pp {best.pp}, {format_seconds(best.step_time_s)}."
    )


def _bar(space: LayoutSpace) -> dict[str, Any]:
    ticks = _ticks(space)
    times = [format_seconds(10.0**tick) for tick in ticks]
    return {"title": {"text": "step"}, "thickness": 14, "tickvals": ticks, "ticktext": times}


def _shade(cell: Cell | None) -> float | None:
    time = math.inf if cell is None else cell.step_time_s
    return math.log10(time) if math.isfinite(time) else None


def _unfit(cell: Cell | None) -> float | None:
    """A mark for layouts that are legal but do not fit."""
    return 1.0 if cell is not None and _shade(cell) is None else None


def _ticks(space: LayoutSpace) -> list[float]:
    times = [c.step_time_s for c in space.cells if math.isfinite(c.step_time_s)]
    return [math.log10(tick) for tick in log_ticks(times)] if times else []


def _words(cell: Cell | None, limit: float) -> str:
    if cell is None:
        return ""
    if math.isfinite(cell.step_time_s):
        return format_seconds(cell.step_time_s)
    over = cell.memory_bytes - limit
    return f"+{over / GIB:,.0f} GiB" if over > 0 else "host"


def _hover(cell: Cell | None, tp: int, pp: int, limit: float) -> str:
    if cell is None:
        return f"tp {tp}, pp {pp}: not legal"
    text = plain(cell.text)
    return f"tp {tp}, pp {pp}: {_words(cell, limit)}<br>{text}"


@figure_of("answer")
def pareto(
    space: LayoutSpace, device_limit_bytes: float, marked: Estimate | None = None
) -> Drawing:
    """Memory against step time of all layouts, with the Pareto front of those that fit.

    `marked` is drawn as a star. From a plan, all layouts are searched again: give what `plan` was
    given.
    """
    figure = framed(height=460, x="memory per device [GiB]", y="step time")
    if not space.cloud:
        return Drawing(figure, "No layout is legal for this job.")
    figure.add_scatter(
        **_points(space.cloud),
        mode="markers",
        name="sample of all layouts",
        marker={"color": GREY, "size": 5, "opacity": 0.45, "symbol": "circle-open"},
    )
    figure.add_scatter(
        **_points(space.front),
        mode="lines+markers",
        name="fits, and nothing is both smaller and faster",
        line={"color": HUES[0], "width": 2, "shape": "hv"},
        marker={"size": 8, "symbol": "diamond"},
    )
    shown = [*space.cloud, *space.front]
    star = ""
    if marked is not None:
        shown.append(_draw_star(figure, marked))
        star = (
            f" The star is {shown[-1].text}: {format_bytes(shown[-1].memory_bytes)}, "
            f"{format_seconds(shown[-1].step_time_s)}."
        )
    _log_axes(figure, shown, device_limit_bytes)
    title = f"Memory against step time of {space.num_candidates:,} layouts."
    return Drawing(figure, f"{title} {_front_alt(space)}{star}")


def _draw_star(figure: Any, estimate: Estimate) -> Point:
    """Draw an estimate as a star, and return its point."""
    text = f"{estimate.layout} [{estimate.framework}]"
    point = Point(estimate.memory_bytes["total"], estimate.step_time_s, text)
    outline = {"color": "#000000", "width": 1}
    figure.add_scatter(
        **_points([point]),
        mode="markers",
        name="this layout",
        marker={"size": 17, "symbol": "star", "color": HUES[1], "line": outline},
    )
    return point


def _front_alt(space: LayoutSpace) -> str:
    if not space.front:
        return "None of them fits."
    left, right = space.front[0], space.front[-1]
    return (
        f"The front of what fits runs from {format_bytes(left.memory_bytes)} at "
        f"{format_seconds(left.step_time_s)} to {format_bytes(right.memory_bytes)} at "
        f"{format_seconds(right.step_time_s)}."
    )


def _points(points: Sequence[Point]) -> dict[str, Any]:
    return {
        "x": [p.memory_bytes / GIB for p in points],
        "y": [p.step_time_s for p in points],
        "customdata": [
            [format_bytes(p.memory_bytes), format_seconds(p.step_time_s), plain(p.text)]
            for p in points
        ],
        "hovertemplate": "%{customdata[0]}, %{customdata[1]}<br>%{customdata[2]}<extra></extra>",
    }


def _log_axes(figure: Any, shown: Sequence[Point], limit_bytes: float) -> None:
    limit = limit_bytes / GIB
    figure.add_vline(
        x=limit,
        line={"color": LIMIT, "width": 2, "dash": "dash"},
        annotation_text=f"device limit {format_bytes(limit_bytes)}",
    )
    ticks = log_ticks([limit, *(p.memory_bytes / GIB for p in shown)])
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    ticks = log_ticks([p.step_time_s for p in shown])
    figure.update_yaxes(
        type="log", tickvals=ticks, ticktext=[format_seconds(tick) for tick in ticks]
    )
    # on a log axis plotly wants a line's place as it is, but an annotation's as a logarithm
    figure.layout.annotations[-1].x = math.log10(limit)
