"""Candidate figures: the best layout per tp and pp, and memory against step time."""

import itertools
import math
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from planner.choose.plots import LayoutSpace
from planner.choose.verdicts.answer_lines import percent_chance, step_words
from planner.choose.verdicts.layout_words import degree_words, layout_words
from planner.cost.estimate import Estimate
from planner.show.figures.figure_registry import figure_of
from planner.show.figures.frame import (
    Drawing,
    draw_limit,
    framed,
    interval_bars,
    log_axis,
    log_ticks,
    plain,
)
from planner.show.figures.palette import GREY, HUES
from planner.units import GIB, counted, format_bytes, format_seconds

_SCALE = "Cividis_r"
_UNFIT = "#6E6E6E"
_LIGHT = 0.53
# part of the scale on which black has more contrast than white
_MAX_COLUMNS, _MAX_ROWS = 12, 14
# with more, cells are too small for text


@figure_of("answer")
def heatmap(space: LayoutSpace, device_limit_bytes: float) -> Drawing:
    """Fastest step by tp and pp, or the missing memory; pass the arguments that `plan` had."""
    figure = framed(height=430, x="tensor parallel (tp)", y="pipeline stages (pp)", legend=False)
    if not space.cells:
        return Drawing(figure, "No layout is legal for this job.")
    table = {(cell.layout.tp, cell.layout.pp): cell for cell in space.cells}
    tps, pps = (sorted(set(degrees)) for degrees in zip(*table, strict=True))
    shades = {place: _shade(cell) for place, cell in table.items()}
    fitting = [cell for cell in space.cells if cell.fits]

    def grid(value: Callable[[tuple[int, int]], Any]) -> list[list[Any]]:
        return [[value((tp, pp)) for tp in tps] for pp in pps]

    shared = {
        "x": [str(tp) for tp in tps],
        "y": [str(pp) for pp in pps],
        "hoverinfo": "skip",
        "xgap": 2,
        "ygap": 2,
    }
    scale = {"colorscale": _SCALE, "colorbar": _bar(fitting), "showscale": bool(fitting)}
    figure.add_heatmap(z=grid(shades.get), **scale, **shared)
    # grey for layouts that are legal but do not fit
    unfit = grid(lambda place: 1.0 if place in table and shades[place] is None else None)
    figure.add_heatmap(z=unfit, colorscale=[[0, _UNFIT], [1, _UNFIT]], showscale=False, **shared)
    is_written = len(tps) <= _MAX_COLUMNS and len(pps) <= _MAX_ROWS
    _write(figure, space.cells, device_limit_bytes, is_written)
    figure.update_xaxes(type="category", showgrid=False, categoryarray=shared["x"])
    figure.update_yaxes(type="category", showgrid=False, categoryarray=shared["y"])
    # all of a cell answers to the pointer
    figure.update_layout(height=140 + 34 * max(len(pps), 6), hovermode="closest", hoverdistance=80)
    if not fitting:
        return Drawing(figure, "No combination of tp and pp fits.")
    best = _fastest(fitting)
    return Drawing(
        figure,
        f"Fastest step by tp and pp; {len(fitting)} of {len(space.cells)} combinations fit. Best: "
        f"tp {best.layout.tp}, pp {best.layout.pp}, {format_seconds(best.step_time_s)}.",
    )


def _bar(fitting: Sequence[Estimate]) -> dict[str, Any]:
    times = log_ticks([cell.step_time_s for cell in fitting]) if fitting else []
    ticks = list(map(math.log10, times))
    texts = [format_seconds(10.0**tick) for tick in ticks]
    return {"title": {"text": "step"}, "thickness": 14, "tickvals": ticks, "ticktext": texts}


def _fastest(cells: Sequence[Estimate]) -> Estimate:
    return min(cells, key=lambda cell: (not cell.fits, cell.step_time_s))


def _shade(cell: Estimate) -> float | None:
    return math.log10(cell.step_time_s) if cell.fits else None


def _write(figure: Any, cells: Sequence[Estimate], limit_bytes: float, is_written: bool) -> None:
    """Mark every cell for the pointer and write its text, in black or white for contrast."""
    shades = [shade for cell in cells if (shade := _shade(cell)) is not None]
    low, high = min(shades, default=0.0), max(shades, default=0.0)
    best = _fastest(cells)
    texts, inks = [], []
    for cell in cells:
        shade, text = _shade(cell), _cell_words(cell, limit_bytes).replace(" GiB", "<br>GiB")
        light = shade is not None and shade - low <= _LIGHT * (high - low)
        texts.append(f"<b>{text}</b>" if cell is best and shade is not None else text)
        inks.append("#000000" if light else "#FFFFFF")
    figure.add_scatter(
        x=[str(cell.layout.tp) for cell in cells],
        y=[str(cell.layout.pp) for cell in cells],
        mode="markers+text" if is_written else "markers",
        text=texts,
        textfont={"color": inks, "size": 11},
        marker={"size": 30, "symbol": "square", "opacity": 0},
        customdata=[_cell_hover(cell, limit_bytes) for cell in cells],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _cell_words(cell: Estimate, limit_bytes: float) -> str:
    """Return the step time of a layout, or the memory that it lacks."""
    if cell.fits:
        return format_seconds(cell.step_time_s)
    over = cell.memory_bytes["total"] - limit_bytes
    return f"+{over / GIB:,.0f} GiB" if over > 0 else "host"


def _cell_hover(cell: Estimate, limit_bytes: float) -> str:
    layout, words = cell.layout, _cell_words(cell, limit_bytes)
    return f"tp {layout.tp}, pp {layout.pp}: {words}<br>{plain(layout_words(layout, brief=True))}"


_UNFITTING = "does not fit"
_STRATEGIES: tuple[tuple[str, str, str], ...] = (
    (_UNFITTING, "circle-open", GREY),
    ("context", "cross", HUES[1]),
    ("tensor and pipeline", "triangle-down", HUES[5]),
    ("pipeline", "triangle-up", HUES[3]),
    ("tensor", "square", HUES[2]),
    ("ZeRO, FSDP", "diamond", HUES[4]),
    ("data parallel", "circle", HUES[0]),
)
"""Strategies with marker and colour, in the order of drawing: the simplest on top."""
_SLOWEST = 5.0
"""Longest step time on the axis, over that of the recommended layout or the star."""


def _strategy(estimate: Estimate) -> str:
    layout = estimate.layout
    if not estimate.fits:
        return _UNFITTING
    if layout.cp > 1:
        return "context"
    axes = [name for name, n in (("tensor", layout.tp), ("pipeline", layout.pp)) if n > 1]
    return " and ".join(axes) or ("ZeRO, FSDP" if layout.zero_stage else "data parallel")


@figure_of("answer")
def pareto(
    space: LayoutSpace,
    device_limit_bytes: float,
    marked: Estimate | None = None,
    chosen: Estimate | None = None,
) -> Drawing:
    """Memory against step time of layouts by strategy, the device limit, and the chosen layout."""
    figure = framed(height=440, x="memory per device [GiB]", y="step time (lower is faster)")
    shown = dots(space)
    if not shown:
        return Drawing(figure, "No layout is legal for this job.")
    star = chosen or marked
    slowest_s = _SLOWEST * (marked or star).step_time_s if star else math.inf
    drawn = {n: each for n, each in enumerate(shown) if each.step_time_s <= slowest_s}
    _draw_dots(figure, drawn, device_limit_bytes)
    if marked is not None and star != marked:
        _draw_star(figure, marked, "recommended", device_limit_bytes, symbol="star-open")
    if star is not None:
        role = "recommended" if star == marked else "chosen"
        _draw_star(figure, star, role, device_limit_bytes, symbol="star")
    _axes(figure, drawn.values(), (marked, star), device_limit_bytes)
    rest = ""
    if slower := len(shown) - len(drawn):
        rest = f"; {counted(slower, 'layout')} slower than {format_seconds(slowest_s)} not drawn"
        figure.layout.xaxis.title.text += rest.replace("; ", "<br>")
    figure.update_layout(legend={"traceorder": "reversed"})
    count = f"{space.num_fitting:,} of {space.num_candidates:,} layouts fit"
    text = f" The star: {'; '.join(_lines(star, device_limit_bytes))}." if star else ""
    return Drawing(figure, f"Memory against step time: {count}{rest}.{text}")


def dots(space: LayoutSpace) -> tuple[Estimate, ...]:
    """Return the layouts that `pareto` draws; the points of the figure hold their number."""
    layouts = (*space.choices, *space.front, *space.cloud)
    return tuple({(each.framework, each.layout): each for each in layouts}.values())


def _draw_dots(figure: Any, shown: Mapping[int, Estimate], limit_bytes: float) -> None:
    """Draw layouts, each strategy with its marker; the first of `customdata` is their number."""
    strategies = {number: _strategy(each) for number, each in shown.items()}
    for name, symbol, hue in _STRATEGIES:
        numbers = [number for number, strategy in strategies.items() if strategy == name]
        figure.add_scatter(
            x=[shown[number].memory_bytes["total"] / GIB for number in numbers],
            y=[shown[number].step_time_s for number in numbers],
            customdata=[[n, _hover(shown[n], limit_bytes)] for n in numbers],
            hovertemplate="%{customdata[1]}<extra></extra>",
            mode="markers",
            name=name,
            visible=bool(numbers),
            marker={"color": hue, "size": 8, "symbol": symbol, "opacity": 0.75},
        )


def _lines(estimate: Estimate, limit_bytes: float) -> tuple[str, str, str]:
    """Describe a layout in three lines: how, how fast, in how much memory."""
    used = f"{estimate.memory_bytes['total'] / GIB:.1f} of {limit_bytes / GIB:.1f} GiB"
    risk = percent_chance(estimate.out_of_memory_probability)
    how = layout_words(estimate.layout, brief=True)
    return (
        f"{how}, {estimate.framework}",
        step_words(estimate),
        f"{used}, out-of-memory risk {risk}",
    )


def _hover(estimate: Estimate, limit_bytes: float) -> str:
    lines = _lines(estimate, limit_bytes)
    # most lines need no break, and looking for one in hundreds of texts takes long
    broken = (textwrap.wrap(line, 44) if len(line) > 44 else (line,) for line in lines)
    return "<br>".join(map(plain, itertools.chain.from_iterable(broken)))


def _draw_star(
    figure: Any, estimate: Estimate, role: str, limit_bytes: float, *, symbol: str
) -> None:
    """Draw a layout as a star with its role; a filled one also has its intervals."""
    memory, step_s = estimate.memory_bytes["total"], estimate.step_time_s
    intervals: dict[str, Any] = {}
    line: dict[str, Any] = {"color": GREY, "thickness": 1.5}
    if symbol == "star":
        low, high = estimate.interval_memory_bytes
        intervals["error_x"] = interval_bars([memory], [(low, high)], GIB, **line)
        intervals["error_y"] = interval_bars([step_s], [estimate.interval_step_time_s], **line)
    side = "left" if memory > limit_bytes / 2 else "right"
    figure.add_scatter(
        x=[memory / GIB],
        y=[step_s],
        mode="markers+text",
        text=[f"<b>{role}</b>"],
        textposition=f"bottom {side}",
        name=f"{role}: {degree_words(estimate.layout)}",
        marker={
            "size": 19,
            "symbol": symbol,
            "color": HUES[1],
            "line": {"color": "#000", "width": 1},
        },
        hovertext=[_hover(estimate, limit_bytes)],
        hoverinfo="text",
        **intervals,
    )


def _axes(
    figure: Any, shown: Collection[Estimate], stars: Sequence[Estimate | None], limit_bytes: float
) -> None:
    """Draw the limit, and axes that hold the layouts and the intervals of the stars."""
    draw_limit(figure, limit_bytes, f"device limit {format_bytes(limit_bytes)}", "right")
    most = max(each.memory_bytes["total"] for each in shown)
    figure.update_xaxes(range=[0, 1.04 * max(most, limit_bytes) / GIB])
    times = [each.step_time_s for each in shown]
    times += [time_s for star in stars if star is not None for time_s in star.interval_step_time_s]
    log_axis(figure.update_yaxes, log_ticks(times), format_seconds)
    figure.update_yaxes(range=[math.log10(min(times) / 1.1), math.log10(max(times) * 1.1)])
