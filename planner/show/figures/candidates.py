"""Candidate figures: the best layout per tp and pp, and memory against step time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from planner.choose.plots import Cell, LayoutSpace, Point
from planner.cost.estimate import Estimate
from planner.show.figures.figure_registry import figure_of
from planner.show.figures.frame import LIMIT_LINE, Drawing, framed, log_axis, log_ticks, plain
from planner.show.figures.palette import GREY, HUES, readable_on
from planner.units import GIB, format_bytes, format_seconds

_SCALE = "Cividis_r"
_UNFIT = "#6E6E6E"
_MAX_COLUMNS, _MAX_ROWS = 12, 14
# with more, cells are too small for text


@figure_of("answer")
def heatmap(space: LayoutSpace, device_limit_bytes: float) -> Drawing:
    """Fastest step by tp and pp, or the missing memory; pass the arguments that `plan` had."""
    figure = framed(height=430, x="tensor parallel (tp)", y="pipeline stages (pp)", legend=False)
    if not space.cells:
        return Drawing(figure, "No layout is legal for this job.")
    tps = sorted({cell.tp for cell in space.cells})
    pps = sorted({cell.pp for cell in space.cells})
    table = {(cell.tp, cell.pp): cell for cell in space.cells}
    shades = {place: _shade(cell) for place, cell in table.items()}
    fitting = [cell for cell in space.cells if math.isfinite(cell.step_time_s)]

    def grid(value: Callable[[tuple[int, int]], Any]) -> list[list[Any]]:
        return [[value((tp, pp)) for tp in tps] for pp in pps]

    shared = {
        "x": [str(tp) for tp in tps],
        "y": [str(pp) for pp in pps],
        "customdata": grid(lambda place: _hover(table.get(place), *place, device_limit_bytes)),
        "hovertemplate": "%{customdata}<extra></extra>",
        "hoverongaps": False,
        "xgap": 2,
        "ygap": 2,
    }
    scale = {"colorscale": _SCALE, "colorbar": _bar(fitting), "showscale": bool(fitting)}
    figure.add_heatmap(z=grid(shades.get), **scale, **shared)
    # grey for layouts that are legal but do not fit
    unfit = grid(lambda place: 1.0 if place in table and shades[place] is None else None)
    figure.add_heatmap(z=unfit, colorscale=[[0, _UNFIT], [1, _UNFIT]], showscale=False, **shared)
    if len(tps) <= _MAX_COLUMNS and len(pps) <= _MAX_ROWS:
        _write(figure, space.cells, device_limit_bytes)
    figure.update_xaxes(type="category", showgrid=False, categoryarray=shared["x"])
    figure.update_yaxes(type="category", showgrid=False, categoryarray=shared["y"])
    figure.update_layout(height=140 + 34 * max(len(pps), 6))
    if not fitting:
        return Drawing(figure, "No combination of tp and pp fits.")
    best = _fastest(fitting)
    return Drawing(
        figure,
        f"Fastest step by tp and pp; {len(fitting)} of {len(space.cells)} combinations fit. Best: "
        f"tp {best.tp}, pp {best.pp}, {format_seconds(best.step_time_s)}.",
    )


def _bar(fitting: Sequence[Cell]) -> dict[str, Any]:
    times = log_ticks([cell.step_time_s for cell in fitting]) if fitting else []
    ticks = list(map(math.log10, times))
    texts = [format_seconds(10.0**tick) for tick in ticks]
    return {"title": {"text": "step"}, "thickness": 14, "tickvals": ticks, "ticktext": texts}


def _fastest(cells: Sequence[Cell]) -> Cell:
    return min(cells, key=lambda cell: (cell.step_time_s, cell.tp, cell.pp))


def _shade(cell: Cell) -> float | None:
    return math.log10(cell.step_time_s) if math.isfinite(cell.step_time_s) else None


def _write(figure: Any, cells: Sequence[Cell], limit_bytes: float) -> None:
    """Write the text of every cell, in black or white for contrast; the fastest is bold."""
    from plotly.colors import sample_colorscale

    shades = [shade for cell in cells if (shade := _shade(cell)) is not None]
    low, high = min(shades, default=0.0), max(shades, default=0.0)
    best = _fastest(cells)
    texts, inks = [], []
    for cell in cells:
        shade, text = _shade(cell), _words(cell, limit_bytes).replace(" GiB", "<br>GiB")
        ground = _UNFIT
        if shade is not None:
            part = (shade - low) / (high - low) if high > low else 0.5
            ground = sample_colorscale(_SCALE, [part])[0]
        texts.append(f"<b>{text}</b>" if cell is best and shade is not None else text)
        inks.append(readable_on(ground))
    figure.add_scatter(
        x=[str(cell.tp) for cell in cells],
        y=[str(cell.pp) for cell in cells],
        mode="text",
        text=texts,
        textfont={"color": inks, "size": 11},
        hoverinfo="skip",
    )


def _words(cell: Cell, limit: float) -> str:
    if math.isfinite(cell.step_time_s):
        return format_seconds(cell.step_time_s)
    over = cell.memory_bytes - limit
    return f"+{over / GIB:,.0f} GiB" if over > 0 else "host"


def _hover(cell: Cell | None, tp: int, pp: int, limit: float) -> str:
    if cell is None:
        return f"tp {tp}, pp {pp}: not legal"
    return f"tp {tp}, pp {pp}: {_words(cell, limit)}<br>{plain(cell.text)}"


@figure_of("answer")
def pareto(
    space: LayoutSpace, device_limit_bytes: float, marked: Estimate | None = None
) -> Drawing:
    """Memory against step time of layouts, and the front; pass the arguments that `plan` had."""
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
    shown, star = [*space.cloud, *space.front], ""
    if marked is not None:
        point = _draw_star(figure, marked)
        shown.append(point)
        star = f" The star is {point.text}: {_place(point, ',')}."
    _log_axes(figure, shown, device_limit_bytes)
    front = "None of them fits."
    if space.front:
        left, right = _place(space.front[0], " at"), _place(space.front[-1], " at")
        front = f"The front of what fits runs from {left} to {right}."
    title = f"Memory against step time of {space.num_candidates:,} layouts."
    return Drawing(figure, f"{title} {front}{star}")


def _place(point: Point, between: str) -> str:
    return f"{format_bytes(point.memory_bytes)}{between} {format_seconds(point.step_time_s)}"


def _draw_star(figure: Any, estimate: Estimate) -> Point:
    """Draw an estimate as a star; return its point."""
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
    text = f"device limit {format_bytes(limit_bytes)}"
    figure.add_vline(x=limit, line=LIMIT_LINE, annotation_text=text)
    memory = log_ticks([limit, *(p.memory_bytes / GIB for p in shown)])
    log_axis(figure.update_xaxes, memory, "{:g}".format)
    log_axis(figure.update_yaxes, log_ticks([p.step_time_s for p in shown]), format_seconds)
    # on a log axis, plotly takes a line's position as is, but an annotation's as a logarithm
    figure.layout.annotations[-1].x = math.log10(limit)
