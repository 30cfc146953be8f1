"""Frame: the common base of figures: text alternative, axes, bars and escaping."""

import html
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import PlannerError, shorten
from planner.show.figures.palette import HUES, LIMIT, ink, label
from planner.units import GIB, either, format_bytes

LIMIT_LINE = {"color": LIMIT, "width": 2, "dash": "dash"}
"""Line style of a memory limit."""

Points = list[float | None]
"""Positions of a line on an axis; None interrupts the line."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure and its text alternative."""

    figure: Any
    """A plotly figure."""
    alt: str
    """Text alternative: the figure in words, with its numbers."""


def check_word(name: str, value: str, allowed: Iterable[str]) -> None:
    """Raise PlannerError if a word is not allowed."""
    words = list(allowed)
    if value not in words:
        raise PlannerError(f"{name} = {shorten(str(value))!r} is not known; use {either(words)}")


def plain(text: str) -> str:
    """Escape text for plotly, so that HTML tags in it are shown as they are."""
    return html.escape(text)


def bar_style(part: str) -> dict[str, Any]:
    """Return the colour and hatch of a part as a plotly marker."""
    chosen = ink(part)
    return {
        "color": chosen.color,
        "line": {"width": 0},
        "pattern": {
            "shape": chosen.pattern,
            "fillmode": "overlay",
            "fgcolor": "#FFFFFF",
            "fgopacity": 0.8,
            "size": 6,
            "solidity": 0.3,
        },
    }


def named_rows(figure: Any, names: Sequence[str], width: int = 16) -> None:
    """Label the rows of bars in lines of at most `width` letters, to leave space on a phone."""
    lines = [textwrap.wrap(name, width, break_long_words=False) for name in names]
    figure.update_yaxes(tickvals=list(names), ticktext=["<br>".join(line) for line in lines])


def framed(*, height: int, x: str = "", y: str = "", legend: bool = True, top: int = 28) -> Any:
    """Return an empty figure without background, with `top` pixels for text above the axes."""
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise PlannerError(
            f"figures need {error.name or 'plotly'}, which is not installed; run pip install "
            "'parallelism-planner[app]'"
        ) from None
    figure = go.Figure()
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 8, "t": top, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=legend,
        legend={
            "orientation": "h",
            "yref": "container",
            "y": 0,
            "yanchor": "bottom",
            "xref": "container",
            "x": 0,
            "font": {"size": 11},
            "title": {"text": ""},
            "traceorder": "normal",
        },
        hoverlabel={"align": "left"},
        font={"size": 13},
    )
    figure.update_xaxes(title={"text": x}, automargin=True, zeroline=False)
    figure.update_yaxes(title={"text": y}, automargin=True, zeroline=False)
    return figure


def stack_parts(
    figure: Any,
    names: Sequence[Any],
    tables: Sequence[Mapping[str, float]],
    parts: Iterable[str],
    *,
    unit: float = GIB,
    text: Callable[[float], str] = format_bytes,
    row: str = "%{y}",
    upright: bool = False,
) -> None:
    """Draw named tables as stacked bars, each part in its own colour."""
    for part in parts:
        values = [table.get(part, 0.0) for table in tables]
        sizes = [value / unit for value in values]
        places = {"x": names, "y": sizes} if upright else {"y": names, "x": sizes}
        figure.add_bar(
            **places,
            name=label(part),
            orientation=None if upright else "h",
            marker=bar_style(part),
            customdata=[text(value) for value in values],
            hovertemplate=f"{row}<br>{label(part)}: %{{customdata}}<extra></extra>",
        )
    figure.update_layout(barmode="stack")


def draw_device_limit(figure: Any, limit_bytes: float, **settings: Any) -> None:
    """Draw the memory limit of a device as a horizontal line."""
    figure.add_hline(
        y=limit_bytes / GIB,
        line=LIMIT_LINE,
        annotation_text=f"device limit {format_bytes(limit_bytes)}",
        **settings,
    )


def write_above(figure: Any, x: float, text: str, **settings: Any) -> None:
    """Write text above the axes."""
    figure.add_annotation(
        x=x, y=1, yref="paper", yanchor="bottom", showarrow=False, text=text, **settings
    )


def draw_limit(figure: Any, limit_bytes: float, text: str, side: str = "auto") -> None:
    """Draw a memory limit as a vertical line, with a text above it."""
    figure.add_vline(x=limit_bytes / GIB, line=LIMIT_LINE)
    write_above(figure, limit_bytes / GIB, text, xanchor=side)


def draw_curve(figure: Any, x: Sequence[Any], y: Sequence[float], **settings: Any) -> None:
    """Draw points and the line through them."""
    line, marker = {"color": HUES[0], "width": 2}, {"size": 9}
    figure.add_scatter(x=x, y=y, mode="lines+markers", line=line, marker=marker, **settings)


def interval_bars(
    values: Sequence[float], bounds: Iterable[tuple[float, float]], unit: float = 1.0, **style: Any
) -> dict[str, Any]:
    """Return plotly error bars from every value to the bounds of its interval."""
    pairs = list(zip(values, bounds, strict=True))
    above = [(high - value) / unit for value, (_, high) in pairs]
    below = [(value - low) / unit for value, (low, _) in pairs]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, **style}


def hued_steps(colors: Sequence[str]) -> list[list[object]]:
    """Return a colour scale with one equal step per colour."""
    count = len(colors)
    return [[end / count, hue] for i, hue in enumerate(colors) for end in (i, i + 1)]


def capital(text: str) -> str:
    """Capitalize the first letter of a text; the others stay unchanged."""
    return f"{text[0].upper()}{text[1:]}"


def log_axis(update: Any, ticks: Sequence[float], text: Callable[[Any], str], **more: Any) -> None:
    """Make an axis logarithmic; `update` is the figure's `update_xaxes` or `update_yaxes`."""
    update(type="log", tickvals=ticks, ticktext=[text(tick) for tick in ticks], **more)


def log_ticks(values: Sequence[float]) -> list[float]:
    """Return round tick values for a logarithmic axis, three to nine if possible."""
    low, high = min(values), max(values)
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high))
    for factors in ((1,), (1, 2, 5), range(1, 10)):
        ticks = [f * 10.0**e for e in range(first, last + 1) for f in factors]
        inside = [tick for tick in ticks if 0.9 * low <= tick <= 1.1 * high]
        if len(inside) >= 3:
            return inside if len(inside) <= 9 else inside[:: -(-len(inside) // 9)]
    step = 10.0 ** math.floor(math.log10(max(high - low, 0.01 * high)))
    step = step if (high - low) / step > 2 else step / 2
    start = math.floor(low / step)
    return [float(f"{i * step:.6g}") for i in range(start, math.ceil(high / step) + 1)]
