"""Units: parse quantities that users write, format numbers; inside the package all are SI."""

import math
import re
from collections.abc import Iterable

from planner.errors import DescriptionError, shorten

GIB = 2.0**30
"""Bytes in a GiB."""

_POWER = re.compile(r"\s*([+-]?\d[\d_,.]*(?:[eE][+-]?\d+)?\s*[kKM]?)\s*[wW]?\s*", re.ASCII)
_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_SCALES = {**_PREFIXES, **_BINARY, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_QUANTITY = re.compile(
    r"\s*(?P<number>[+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|[+-]?inf)"
    r"\s*(?P<prefix>[KMGTPE]i|[kKMGTPEmun])??(?P<unit>B/s|B|b/s|FLOP/s|FLOPS|FLOP|s|h)?\s*$",
    re.IGNORECASE,
)


def parse_quantity(text: str) -> float:
    """Parse a number with an optional prefix and unit into SI units; raises DescriptionError."""
    match = _QUANTITY.match(text)
    if match is None or match["prefix"] == "e":  # an exponent without digits
        raise DescriptionError(
            f"{shorten(text)!r} is not a quantity; write a number with an optional unit, "
            "such as 40GiB, 1.6TB/s, 312TFLOP/s or 2e12"
        )
    value = float(match["number"].replace(",", "").replace("_", ""))
    prefix, unit = match["prefix"] or "", match["unit"] or ""
    value *= _SCALES[_proper(prefix, unit)]
    if unit == "b/s":
        value /= 8
    elif unit == "h":
        value *= 3600
    if not math.isfinite(value):
        raise DescriptionError(f"{shorten(text)!r} is not finite; write a finite number")
    return value


def parse_power(text: str) -> float:
    """Parse a power such as `2.5 kW` [W]. Raises DescriptionError unless it is above 0."""
    match = _POWER.fullmatch(text)
    watts = parse_quantity(match[1]) if match else 0.0
    if watts <= 0:
        raise DescriptionError(f"{shorten(text)!r} is no power above 0 W; write for example 2.5kW")
    return watts


def _proper(prefix: str, unit: str) -> str:
    """Return a prefix in SI capitalisation; accepts 40gb, 1.6tb/s and 312tflops."""
    if len(prefix) == 2:
        return prefix[0].upper() + "i"
    if prefix in _SCALES and not (prefix == "m" and unit.lower().startswith(("b", "flop"))):
        return prefix
    return prefix.lower() if prefix in "UN" else prefix.upper()


def format_bytes(value: float) -> str:
    """Format bytes with a binary prefix, KiB to PiB, and two decimals."""
    units = (("PiB", 2.0**50), ("TiB", 2.0**40))
    for unit, scale in (*units, ("GiB", GIB), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if abs(value) >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value:.0f} B"


def format_rate(value: float, unit: str = "B/s") -> str:
    """Format a rate with a decimal prefix and three significant digits."""
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{_three(value / scale)} {prefix}{unit}"
    return f"{_three(value)} {unit}"


def format_count(value: float) -> str:
    """Format a count with a decimal prefix, as is usual for parameters and tokens (B: 1e9)."""
    for prefix, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{_three(value / scale)} {prefix}"
    return _three(value)


def format_amount(value: float) -> str:
    """Format an estimated amount, such as node-hours, with three significant digits."""
    if abs(value) >= 1e6:
        return format_count(value)
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else _three(value)


def counted(number: float, thing: str) -> str:
    """Format a whole number with its noun, in the singular for 1."""
    plural = "es" if thing.endswith("ch") else "s"
    return f"{number:,.0f} {thing}{'' if number == 1 else plural}"


def either(words: Iterable[str]) -> str:
    """Join alternatives with commas and a final `or`."""
    return joined(words, "or")


def joined(words: Iterable[str], by: str = "and") -> str:
    """Join words with commas and a final conjunction, by default `and`."""
    *first, last = words
    return f"{', '.join(first)} {by} {last}" if first else last


def parse_places(text: str, count: int) -> tuple[int, ...]:
    """Parse indices of a list of `count` entries. Raises DescriptionError for any other text."""
    places: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal() and len(part) < 20):
            places = []
            break
        # a huge range is not expanded beyond the list
        places += range(int(first), min(int(last or first), count) + 1)
    if not places or max(places) >= count:
        raise DescriptionError(
            f"{shorten(text)!r} names no entries of a list of {count}; write their places, counted "
            f"from 0 to {count - 1}, such as 0 or 0-{count - 1}"
        )
    return tuple(places)


def _three(value: float) -> str:
    """Format three significant digits; without an exponent from 1e-4 up to 1e6."""
    return f"{float(f'{value:.3g}'):g}"


_DURATIONS = (
    ("ns", 1e-9, 1e3),
    ("us", 1e-6, 1e3),
    ("ms", 1e-3, 1e3),
    ("s", 1.0, 1e3),
    ("min", 60.0, 120.0),
    ("h", 3600.0, 48.0),
    ("d", 86400.0, 1000.0),
    ("years", 365.25 * 86400.0, float("inf")),
)
# unit, its length in seconds, and the count from which the next unit is used


def format_seconds(value: float, like: float | None = None) -> str:
    """Format a duration in a readable unit, ns to years, or in the unit of another duration."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f} s"
    size = abs(value if like is None else like)
    unit, scale, _ = next(d for d in _DURATIONS if float(f"{size / d[1]:.3g}") < d[2])
    return f"{_three(value / scale)} {unit}"
