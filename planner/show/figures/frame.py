"""Frame: what every figure shares: a figure with its text alternative, axes, escaping."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from planner.show.figures.palette import ink

__all__ = ["Drawing", "bar_style", "framed", "plain"]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure and the sentence that stands in for it where it cannot be seen."""

    figure: Any
    """A plotly figure."""
    alt: str
    """What the figure says, with its numbers."""


def plain(text: str) -> str:
    """Text that plotly shows as it is: its few HTML tags are taken out of force.

    >>> plain("<a href='x'>b</a>")
    '&lt;a href=&#x27;x&#x27;&gt;b&lt;/a&gt;'
    """
    return html.escape(text)


def bar_style(part: str) -> dict[str, Any]:
    """Colour and hatch of a part as plotly's marker."""
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


def framed(*, height: int, x: str = "", y: str = "", legend: bool = True) -> Any:
    """An empty figure on a clear ground; colours of text and grid come from the page's theme."""
    figure = go.Figure()
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 8, "t": 28, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=legend,
        legend={
            "orientation": "h",
            "yref": "container",
            "y": 0,
            "yanchor": "bottom",
            "x": 0,
            "title": {"text": ""},
            "traceorder": "normal",
        },
        hoverlabel={"align": "left"},
        font={"size": 13},
    )
    figure.update_xaxes(title={"text": x}, automargin=True, zeroline=False)
    figure.update_yaxes(title={"text": y}, automargin=True, zeroline=False)
    return figure
