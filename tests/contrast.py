"""Contrast of colours, as WCAG 2 defines it."""

from __future__ import annotations

import re

__all__ = ["contrast"]


def _channels(color: str) -> list[float]:
    if color.startswith("#"):
        return [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [float(part) / 255 for part in re.findall(r"[\d.]+", color)[:3]]


def _luminance(color: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in _channels(color)]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours, as WCAG 2 defines it."""
    light, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
