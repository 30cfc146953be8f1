"""Step lines: steps from the printed lines of training loops (`log_formats.toml`)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from planner.evidence.logs.steps import (
    LOG_FORMATS,
    UNITS,
    NoStepLineError,
    RunLog,
    Source,
    Step,
    durations,
    step_of,
    summary,
)

_NUMBER = r"([+-]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|-?inf)"
_PREFIX = r"\s?([KkMGBT]?)(?![A-Za-z])"
_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_MAX_LINE = 8_000
_MAX_STEPS = 2_000_000
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Pick:
    """Position of a figure in a line, and its factor to SI units."""

    pattern: re.Pattern[str]
    scale: float = 1.0
    prefixed: bool = False
    """True if a decimal prefix may follow the number, as in 43.2K."""

    @classmethod
    def of(cls, place: str | Mapping[str, Any]) -> Pick:
        """Read a pick of `log_formats.toml`."""
        fields: Mapping[str, Any] = {"after": place} if isinstance(place, str) else place
        scale, prefixed = UNITS[fields.get("unit", "")], fields.get("prefixed", False)
        if "match" in fields:
            return cls(re.compile(fields["match"]), scale)
        pattern = fields["after"] + r"\s*'?" + _NUMBER + _PREFIX * prefixed
        return cls(re.compile(pattern, re.IGNORECASE), scale, prefixed)

    def find(self, line: str) -> float | None:
        """Return the figure on a line, or None; thousands separators are dropped."""
        match = self.pattern.search(line)
        if match is None:
            return None
        value = float(match[1].replace(",", "")) * self.scale
        return value * _PREFIXES[(match[2] or "").upper()] if self.prefixed else value


@dataclass(frozen=True, slots=True)
class Format:
    """One framework's step line, with picks by figure."""

    source: Source
    words: tuple[str, ...]
    """Words that every step line contains."""
    line: re.Pattern[str]
    picks: dict[str, Pick]

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Format:
        """Read a format of `log_formats.toml`."""
        names = ("title", "framework", "note")
        source = Source(fields["name"], **{name: fields[name] for name in names if name in fields})
        picks = {name: Pick.of(place) for name, place in fields["figures"].items()}
        return cls(source, tuple(fields["words"]), re.compile(fields["line"]), picks)

    def matches(self, line: str) -> bool:
        """True if a line is a step line."""
        return all(word in line for word in self.words) and bool(self.line.search(line))


FORMATS = tuple(Format.of(fields) for fields in LOG_FORMATS["formats"])
"""Known formats, in order of preference."""
FACTS = tuple((fact["name"], fact["word"], Pick.of(fact)) for fact in LOG_FORMATS["facts"])
"""Facts: name, a lower-case word that the line contains, and the position of the figure."""


def lines_of(file: BinaryIO) -> Iterator[str]:
    """Yield the lines of a text file; progress bars are split at carriage returns."""
    # readline with a limit, so that a file without line ends cannot fill the memory
    while chunk := file.readline(1_000_000):
        yield from re.split(r"[\r\n]+", chunk.decode("utf-8", errors="replace"))


def read_lines(lines: Iterable[str], where: str) -> RunLog:
    """Read the step lines of a log. Raises NoStepLineError if no line has a known format."""
    steps_by_format: dict[str, list[Step]] = {each.source.format: [] for each in FORMATS}
    facts: dict[str, Counter[float]] = {name: Counter() for name, _, _ in FACTS}
    for raw in lines:
        line = _COLOUR.sub("", raw[: 2 * _MAX_LINE])[:_MAX_LINE]
        if line and not line.isspace():
            _note_facts(line, facts)
            _note_step(line, steps_by_format)
    timed = [f for f in FORMATS if np.isfinite(durations(steps_by_format[f.source.format])).any()]
    chosen = next(iter(timed or [f for f in FORMATS if steps_by_format[f.source.format]]), None)
    if chosen is None:
        titles = ", ".join(log_format.source.title for log_format in FORMATS)
        raise NoStepLineError(
            f"{where} holds no step line of a known format; known are {titles}, and tables, whose "
            "columns can be named"
        )
    return summary(chosen.source, steps_by_format[chosen.source.format], _settled(facts), where)


def _note_step(line: str, steps_by_format: dict[str, list[Step]]) -> None:
    log_format = next((each for each in FORMATS if each.matches(line)), None)
    if log_format and len(steps := steps_by_format[log_format.source.format]) < _MAX_STEPS:
        steps.append(step_of({name: pick.find(line) for name, pick in log_format.picks.items()}))


def _note_facts(line: str, facts: dict[str, Counter[float]]) -> None:
    lowered = line.lower()
    noted = set()
    for name, word, pick in FACTS:
        value = pick.find(line) if word in lowered and name not in noted else None
        if value is not None and math.isfinite(value) and value > 0:
            noted.add(name)
            if len(facts[name]) < 10_000:
                facts[name][value] += 1


def _settled(facts: dict[str, Counter[float]]) -> dict[str, float]:
    """Choose one value per fact: the largest for memory, else the most frequent."""
    return {
        name: max(seen, key=lambda value: (name.endswith("_bytes") or seen[value], value))
        for name, seen in facts.items()
        if seen
    }
