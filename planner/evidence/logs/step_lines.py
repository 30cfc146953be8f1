"""Step lines of training loops.

The format is recognised from the lines themselves. A log may come from anywhere, so nothing in it
is trusted: encoding, lengths and every number are checked.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import numpy as np

from planner.evidence.logs.formats import FACTS, FORMATS
from planner.evidence.logs.steps import LogError, RunLog, Step, durations, summary

__all__ = ["lines_of", "read_lines"]

_MAX_LINE = 8_000
_MAX_STEPS = 2_000_000
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def lines_of(file: BinaryIO) -> Iterator[str]:
    """Lines of a text file, progress bars split at carriage returns."""
    # readline with a limit, so that a file without line ends cannot fill the memory
    while chunk := file.readline(1_000_000):
        yield from re.split(r"[\r\n]+", chunk.decode("utf-8", errors="replace"))


def read_lines(lines: Iterable[str], where: str) -> RunLog:
    """Read the step lines of a log.

    Raises LogError where no line is one of a known format.
    """
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
        raise LogError(
            f"{where} holds no step line of a known format; known are {titles}, and tables, whose "
            "columns can be named"
        )
    return summary(chosen.source, steps_by_format[chosen.source.format], _settled(facts), where)


def _note_step(line: str, steps_by_format: dict[str, list[Step]]) -> None:
    for log_format in FORMATS:
        if log_format.matches(line):
            steps = steps_by_format[log_format.source.format]
            if len(steps) < _MAX_STEPS:
                figures = {name: pick.find(line) for name, pick in log_format.picks.items()}
                steps.append(Step.of(figures))
            return


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
    """Memory by its largest value, anything else by the one that is stated most often."""
    settled = {}
    for name, seen in facts.items():
        if seen and name.endswith("_bytes"):
            settled[name] = max(seen)
        elif seen:
            settled[name] = max(seen.items(), key=lambda item: (item[1], item[0]))[0]
    return settled
