"""Mutations: structured changes of data and text, mild ones that stay plausible and harsh ones."""

from __future__ import annotations

import copy
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 8, 64, 1000, 65536, 10**6, 10**9, 2**31, 2**63, 10**20, -(2**63)),
    *(0.5, -0.5, 1e-9, 1e-300, 1e18, 1e300, math.inf, -math.inf, math.nan, 5e-324, -0.0),
)
TEXTS = (
    *("", " ", "x", "0", "-1", "nan", "inf", "1e400", "1.2.3", ".", "\0", "none", "..", "auto"),
    *("\u202e", "\u0661\u0662", "\xbd", "\U0001f600", "a\nb", "{{}}", "%s", "${HOME}", "x" * 5000),
)
OTHERS: tuple[Any, ...] = (True, False, None, [], {}, [1, "x", None], {"a": {"b": [1]}}, [[]])
_NUMBER = re.compile(r"(?<![\w.+-])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
_UNITS = {
    "ms": "s",
    "s": "ms",
    "GiB": "GB",
    "GB": "GiB",
    "MiB": "MB",
    "TFLOP/s": "GFLOP/s",
    "us": "ms",
    "Gb/s": "GB/s",
    "80GB": "80 GB",
    "64MiB": "64mib",
    "%": " %",
}
_NEST = 3000


def odd_value(rng: random.Random) -> Any:
    """Return a random number, text, or other value."""
    return copy.deepcopy(rng.choice(rng.choice((NUMBERS, NUMBERS, TEXTS, OTHERS))))


def odd_number(rng: random.Random) -> Any:
    """Return a number that may be absurd or near a limit."""
    if rng.random() < 0.5:
        return rng.choice(NUMBERS)
    return rng.choice((1, 1.0)) * 10 ** rng.randint(0, 12) * rng.randint(-2, 9)


def near(rng: random.Random, value: Any) -> Any:
    """Return a plausible value of the same type."""
    if isinstance(value, bool):
        return rng.choice((value, not value))
    if isinstance(value, int):
        return max(rng.choice((value * 2, value // 2, value, value + 1, value * 4)), 0)
    if isinstance(value, float):
        return value * rng.choice((0.5, 0.9, 1.0, 1.1, 2.0))
    if isinstance(value, str) and value:
        return rng.choice((value, value.upper(), value.lower(), f" {value}", f"{value} "))
    return value


# --- data: dictionaries and lists ---------------------------------------------------------------


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container in the data with each of its keys or indices."""
    items: Any = ()
    if isinstance(data, dict):
        items = list(data.items())
    elif isinstance(data, list):
        items = list(enumerate(data))
    for key, value in items:
        yield data, key
        yield from places(value)


def _mild_data(rng: random.Random, data: Any, holder: Any, key: Any) -> None:
    how = rng.random()
    if how < 0.7 or not isinstance(holder, dict):
        holder[key] = near(rng, holder[key])
    elif how < 0.85:
        items = list(holder.items())
        rng.shuffle(items)
        holder.clear()
        holder.update(items)
    else:
        del holder[key]


def _harsh_data(rng: random.Random, data: Any, holder: Any, key: Any) -> None:
    how = rng.random()
    if how < 0.15:
        del holder[key]
    elif how < 0.25 and isinstance(holder, dict):
        holder[rng.choice(TEXTS)] = odd_value(rng)
    elif how < 0.3:
        holder[key] = nested(rng.choice((3, 50, 300)), holder[key])
    elif how < 0.65 and isinstance(holder[key], int | float):
        holder[key] = odd_number(rng)
    elif how < 0.75 and isinstance(holder[key], int | float):
        holder[key] = str(holder[key])
    else:
        holder[key] = odd_value(rng)


def nested(depth: int, value: Any) -> Any:
    """Return a value inside `depth` lists."""
    for _ in range(depth):
        value = [value]
    return value


def changed(rng: random.Random, data: Any, mild: float) -> Any:
    """Return a copy with one to three values changed, all mildly with probability `mild`."""
    data = copy.deepcopy(data)
    is_mild = rng.random() < mild
    for _ in range(rng.choice((1, 1, 2, 3))):
        if found := list(places(data)):
            change = _mild_data if is_mild or rng.random() < 0.2 else _harsh_data
            change(rng, data, *rng.choice(found))
    return data


# --- text: lines, numbers, words ----------------------------------------------------------------

_Edit = Callable[[random.Random, str], str]


def _number(rng: random.Random, text: str) -> str:
    if not (found := list(_NUMBER.finditer(text))):
        return text
    at = rng.choice(found)
    value = float(at[0]) if re.search("[.eE]", at[0]) else int(at[0])
    return text[: at.start()] + str(near(rng, value)) + text[at.end() :]


def _odd_number(rng: random.Random, text: str) -> str:
    if not (found := list(_NUMBER.finditer(text))):
        return text
    at = rng.choice(found)
    return text[: at.start()] + str(odd_number(rng)) + text[at.end() :]


def _lines(change: Callable[[random.Random, list[str]], None]) -> _Edit:
    def edit(rng: random.Random, text: str) -> str:
        lines = text.split("\n")
        change(rng, lines)
        return "\n".join(lines)

    return edit


def _swap(rng: random.Random, lines: list[str]) -> None:
    at, to = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[at], lines[to] = lines[to], lines[at]


def _double(rng: random.Random, lines: list[str]) -> None:
    at = rng.randrange(len(lines))
    lines.insert(rng.choice((at, rng.randint(0, len(lines)))), lines[at])


def _drop(rng: random.Random, lines: list[str]) -> None:
    del lines[rng.randrange(len(lines))]


def _blank(rng: random.Random, lines: list[str]) -> None:
    lines.insert(rng.randint(0, len(lines)), rng.choice(("", "   ", "\t")))


def _endings(rng: random.Random, text: str) -> str:
    ends = rng.choice(("\r\n", "\r\n", " \n"))
    return rng.choice(("", "\ufeff")) + text.replace("\n", ends) + rng.choice(("", "\n\n"))


def _unit(rng: random.Random, text: str) -> str:
    found = [unit for unit in _UNITS if unit in text]
    unit = rng.choice(found) if found else ""
    return text.replace(unit, _UNITS[unit], rng.choice((1, -1))) if unit else text


def _word(rng: random.Random, text: str) -> str:
    words = re.split(r"(\s+|[=,:])", text)
    words[rng.randrange(len(words))] = str(odd_value(rng))
    return "".join(words)


def everywhere(rng: random.Random, text: str) -> str:
    """Replace one word wherever it stands, such as a key on all lines."""
    words = [word for word in re.split(r"[^\w./%-]+", text) if word]
    word = rng.choice(words) if words else ""
    return text.replace(word, str(odd_value(rng))[:200]) if word else text


def _cut(rng: random.Random, text: str) -> str:
    return text[: rng.randint(0, len(text))]


def _piece(rng: random.Random, text: str) -> str:
    at = rng.randint(0, len(text))
    end = min(at + rng.choice((0, 1, 3, 20, 200)), len(text))
    piece = rng.choice(
        (
            *(str(rng.choice(NUMBERS)), rng.choice(TEXTS), "", text[at:end] * 2),
            *("9" * rng.choice((20, 400, 5000)), '"', "'", "\n", "\r", ",", ";", "=", "{", "}"),
            *("[" * _NEST, "{a:" * _NEST, "(" * _NEST, "a." * _NEST, "\x1b[31m", "\ufeff", "-"),
            *(".", "e", "1_0", "\t", "%", "$(", "`", "\\", "<<EOT", "&a", "*a", "!!python/x"),
        )
    )
    return text[:at] + piece + text[end:]


_MILD: tuple[_Edit, ...] = (
    *(_number, _number, _number, _number, _lines(_swap), _lines(_double), _lines(_drop)),
    *(_lines(_blank), _endings, _unit),
)
_HARSH: tuple[_Edit, ...] = (
    *(_odd_number, _odd_number, _word, _word, everywhere, everywhere, _cut, _piece),
)


def edited(rng: random.Random, text: str, mild: float, noise: Sequence[str] = ()) -> str:
    """Return the text with one to three edits, all mild with probability `mild`.

    `noise` are lines that the reader should pass over.
    """
    is_mild = rng.random() < mild
    for _ in range(rng.choice((1, 1, 2, 3))):
        if noise and rng.random() < 0.15:
            lines = text.split("\n")
            lines.insert(rng.randint(0, len(lines)), rng.choice(noise))
            text = "\n".join(lines)
        else:
            text = rng.choice(_MILD if is_mild or rng.random() < 0.2 else _HARSH)(rng, text)
    return text


def encoded(rng: random.Random, text: str, mild: float) -> bytes:
    """Encode a text, rarely cut within a character or with bytes that are not UTF-8."""
    data = text.encode("utf-8", errors="replace")
    if rng.random() < 0.05 * (1 - mild):
        at = rng.randint(0, len(data))
        broken = (data[:at], b"\xff\xfe" + data, data[:at] + b"\x80" + data[at:], b"\0" + data)
        return rng.choice(broken)
    return data
