"""SVG bars: stacked bars as small SVG pictures, drawn without plotly."""

from collections.abc import Mapping
from html import escape

from planner.show.figures.palette import LIMIT, ink, label

_WIDTH, _NAMES, _SPARE, _ROW = 720.0, 180.0, 150.0, 20
"""Width of a picture, of names and texts beside the bars, and height of a row [px]."""
_HATCHES = {"/": "M0 6L6 0", "\\": "M0 0L6 6", "x": "M0 6L6 0M0 0L6 6", ".": "M2 3H4"}


def stacked_bars(
    tables: Mapping[str, Mapping[str, float]],
    texts: Mapping[str, str],
    limit: float,
    limit_text: str,
) -> str:
    """Draw a bar a table, stacked by part, with its text; a line at the limit, and a legend."""
    room = (_WIDTH - _NAMES - _SPARE) / max(limit, *(sum(t.values()) for t in tables.values()))
    line, y = _NAMES + limit * room, _ROW
    items = [_text(line, 0, limit_text, "middle")]
    for name, parts in tables.items():
        x = _NAMES
        items.append(_text(x - 6, y, name, "end"))
        for part, size in parts.items():
            items.append(_bar(x, y, size * room, part))
            x += size * room
        items.append(_text(max(x, line) + 6, y, texts[name]))
        y += _ROW
    dashes = f'stroke="{LIMIT}" stroke-width="2" stroke-dasharray="5 3"'
    items.append(f'<path d="M{line:.1f} {_ROW - 4}V{y}" {dashes}/>')
    used = dict.fromkeys(part for parts in tables.values() for part in parts if parts[part])
    for number, part in enumerate(used):
        x, below = 240.0 * (number % 3), y + 6 + _ROW * (number // 3)
        items += [_bar(x, below, 14, part), _text(x + 20, below, label(part)), _hatch(part)]
    view = f"0 0 {_WIDTH:.0f} {y + 10 + _ROW * -(-len(used) // 3)}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view}" role="img">'
    return f"{head}{''.join(items)}</svg>"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y + 14}" text-anchor="{anchor}">{escape(text)}</text>'


def _bar(x: float, y: float, width: float, part: str) -> str:
    box = f'x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{_ROW - 5}"'
    hatch = f'<rect {box} fill="url(#{part})"/>' if ink(part).pattern else ""
    return f'<rect {box} fill="{ink(part).color}"/>{hatch}' if width else ""


def _hatch(part: str) -> str:
    path = f'<path d="{_HATCHES.get(ink(part).pattern, "")}" stroke="#FFFFFF"/>'
    return (
        f'<pattern id="{part}" width="6" height="6" patternUnits="userSpaceOnUse">{path}</pattern>'
    )
