"""Logs: step time, tokens per second, MFU and memory out of what a real run printed.

The format is recognised from the lines themselves. Warm-up is dropped: see `steady`. A log may
come from anywhere, so nothing in it is trusted: size, encoding and every number are checked.
"""

from __future__ import annotations

import math
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.errors import CatalogueError, shorten
from planner.evidence.logs.formats import FACTS, FORMATS, Format

__all__ = ["LogError", "RunLog", "Step", "read_log", "read_log_text", "steady"]

_MAX_FILE_BYTES = 2_000_000_000
_MAX_LINE = 8_000
_MAX_STEPS = 2_000_000
_PROBE_BYTES = 65_536
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HINT = (
    "known are the step lines of wordplay/ezpz, nanoGPT, Megatron-LM, DeepSpeed, torchtitan, "
    "nanotron and the Hugging Face Trainer"
)


class LogError(CatalogueError):
    """A log that cannot be read or holds no usable step."""


@dataclass(frozen=True, slots=True)
class Step:
    """Figures of one step line; NaN where the line does not state them."""

    step: float = math.nan
    loss: float = math.nan
    time_s: float = math.nan
    tokens_per_s: float = math.nan
    tokens_per_s_per_device: float = math.nan
    samples_per_s: float = math.nan
    mean_samples_per_s: float = math.nan
    flop_per_s_per_device: float = math.nan
    mfu: float = math.nan
    global_batch: float = math.nan
    runtime_s: float = math.nan
    forward_s: float = math.nan
    backward_s: float = math.nan
    backward_reduce_s: float = math.nan
    optimizer_s: float = math.nan
    allocated_bytes: float = math.nan
    reserved_bytes: float = math.nan


@dataclass(frozen=True, slots=True)
class RunLog:
    """What a log states, warm-up dropped: medians over the steady steps."""

    source: str
    format: str
    title: str
    framework: str
    num_steps: int
    """Step lines with a usable time or rate."""
    num_warmup: int
    """Leading ones that were dropped."""
    num_slow: int
    """Later ones above 1.5 times the median: evaluations, checkpoints, stragglers."""
    steps: tuple[Step, ...]
    """The steady ones."""
    facts: dict[str, float]
    notes: tuple[str, ...]

    def column(self, name: str) -> NDArray[np.float64]:
        """The finite, positive values of a figure over the steady steps."""
        values = np.array([getattr(step, name) for step in self.steps], dtype=np.float64)
        finite: NDArray[np.float64] = values[np.isfinite(values) & (values > 0)]
        return finite

    def median(self, name: str) -> float | None:
        """Median of a figure; None where the log does not state it."""
        values = self.column(name)
        return float(np.median(values)) if values.size else None

    def fact(self, name: str) -> float | None:
        """A figure stated once or on step lines."""
        return self.facts.get(name, self.median(name) if name in Step.__slots__ else None)


def read_log(path: str | Path) -> RunLog:
    """What the log at `path` states. Raises LogError with a remedy where it states nothing."""
    place = Path(path).expanduser()
    return _parse(_lines(place), shorten(str(path)))


def read_log_text(text: str, source: str = "the log") -> RunLog:
    """As `read_log`, from text.

    >>> lines = [f"iter {i}: loss 2.1, time {t}ms, mfu 45.9%"
    ...          for i, t in enumerate((9000, 290, 285, 284, 286))]
    >>> round(read_log_text("\\n".join(lines)).median("time_s"), 4)
    0.2855
    """
    return _parse(iter(re.split(r"[\r\n]+", text)), source)


def _lines(path: Path) -> Iterator[str]:
    """Lines of a text file, progress bars split at carriage returns, colours removed."""
    where = shorten(str(path))
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            raise LogError(f"{where} is not a file; give the path of a log file")
        if state.st_size == 0:
            raise LogError(f"{where} is empty; give the log of a run that made some steps")
        if state.st_size > _MAX_FILE_BYTES:
            raise LogError(
                f"{where} has {state.st_size / 1e9:.1f} GB; logs above "
                f"{_MAX_FILE_BYTES / 1e9:.0f} GB are refused: cut out the lines of the steps"
            )
        with path.open("rb") as file:
            head = file.read(_PROBE_BYTES)
            if b"\0" in head or head[:2] == b"\x1f\x8b":
                raise LogError(f"{where} is binary, not text; unpack it, or save it as UTF-8 text")
            file.seek(0)
            yield from _cut(file)
    except OSError as error:
        raise LogError(f"cannot read {where}: {error.strerror}; check the path") from None


def _cut(file: object) -> Iterator[str]:
    # readline with a limit, so that a file without line ends cannot fill the memory
    readline = file.readline  # type: ignore[attr-defined]
    while chunk := readline(1_000_000):
        for line in chunk.decode("utf-8", errors="replace").split("\r"):
            yield line[:_MAX_LINE]


def _parse(lines: Iterator[str], source: str) -> RunLog:
    found: dict[str, list[Step]] = {fmt.name: [] for fmt in FORMATS}
    facts: dict[str, Counter[float]] = {name: Counter() for name in FACTS}
    for raw in lines:
        if not raw or raw.isspace():
            continue
        line = _COLOUR.sub("", raw)[:_MAX_LINE]
        _note_facts(line, facts)
        for fmt in FORMATS:
            if len(found[fmt.name]) < _MAX_STEPS and fmt.marks.search(line):
                found[fmt.name].append(_step(fmt, line))
                break
    chosen = next((fmt for fmt in FORMATS if np.isfinite(_durations(found[fmt.name])).any()), None)
    if chosen is None:
        marked = sum(map(len, found.values()))
        if marked:
            raise LogError(
                f"{source} has {marked} step lines but none with a finite, positive time or rate "
                "(nan or 0 throughout); give the log of a run that made real steps"
            )
        raise LogError(f"{source} holds no step line of a known format; {_HINT}")
    return _summary(chosen, found[chosen.name], _settled(facts), source)


def _note_facts(line: str, facts: dict[str, Counter[float]]) -> None:
    for name, picks in FACTS.items():
        for pick in picks:
            value = pick.find(line)
            if value is not None and math.isfinite(value) and value > 0:
                if len(facts[name]) < 10_000:
                    facts[name][value] += 1
                break


def _settled(facts: dict[str, Counter[float]]) -> dict[str, float]:
    """Memory by its largest value, anything else by the one that is stated most often."""
    settled = {}
    for name, seen in facts.items():
        if seen and name.endswith("_bytes"):
            settled[name] = max(seen)
        elif seen:
            settled[name] = max(seen.items(), key=lambda item: (item[1], item[0]))[0]
    return settled


def _step(fmt: Format, line: str) -> Step:
    values = {name: pick.find(line) for name, pick in fmt.picks.items()}
    return Step(**{name: value for name, value in values.items() if value is not None})


def _parts(step: Step) -> float:
    return step.forward_s + step.backward_s + step.optimizer_s


def _inverse(name: str) -> Callable[[Step], float]:
    return lambda step: 1 / rate if (rate := float(getattr(step, name))) > 0 else math.nan


_MEASURES: tuple[Callable[[Step], float], ...] = (
    lambda step: step.time_s,
    *map(
        _inverse, ("tokens_per_s_per_device", "tokens_per_s", "samples_per_s", "mean_samples_per_s")
    ),
    _parts,
)
"""What tells a slow step from a fast one, the most direct first: a time, or one over a rate."""


def _durations(steps: list[Step]) -> NDArray[np.float64]:
    """One measure of every step, NaN where a line does not state it."""
    for measure in _MEASURES:
        values = np.array([measure(step) for step in steps], dtype=float)
        values[~(np.isfinite(values) & (values > 0))] = math.nan
        if np.isfinite(values).any():
            return values
    return np.full(len(steps), math.nan)


def steady(durations: NDArray[np.float64]) -> int:
    """How many leading steps are warm-up.

    The first is always dropped where five or more exist (compilation, first allocations). After
    it, leading steps are dropped while they lie further from the median of the second half than
    four robust standard deviations and 5 %, up to half of all.

    >>> steady(np.array([9.0, 3.0, 1.0, 1.01, 1.0, 0.99, 1.0, 1.0]))
    2
    """
    count = durations.size
    if count < 3:
        return 0
    half = durations[count // 2 :]
    middle = float(np.median(half))
    deviation = 1.4826 * float(np.median(np.abs(half - middle)))
    reach = max(4 * deviation, 0.05 * middle)
    dropped = 1 if count >= 5 else 0
    while dropped < count // 2 and abs(durations[dropped] - middle) > reach:
        dropped += 1
    return dropped


def _phases(steps: list[Step]) -> dict[str, float]:
    """Medians of the phases that DeepSpeed prints on lines of their own, after the first."""
    timed = [step for step in steps if _parts(step) > 0][1:]
    names = ("forward_s", "backward_s", "backward_reduce_s", "optimizer_s")
    return {name: float(np.median([getattr(s, name) for s in timed])) for name in names if timed}


def _summary(fmt: Format, steps: list[Step], facts: dict[str, float], source: str) -> RunLog:
    measured = _durations(steps)
    usable = [step for step, value in zip(steps, measured, strict=True) if value > 0]
    durations = measured[measured > 0]
    facts = {**facts, **_phases(steps)}
    warmup = steady(durations)
    kept, rest = usable[warmup:], durations[warmup:]
    slow = int(np.sum(rest > 1.5 * np.median(rest)))
    notes = [fmt.note] if fmt.note else []
    without = sum(
        math.isnan(v) and math.isnan(_parts(s)) for s, v in zip(steps, measured, strict=True)
    )
    if without:
        notes.append(f"{without} step lines without a finite time were left out")
    if len(kept) < 5:
        notes.append(f"only {len(kept)} steady steps: the spread says little")
    finite = sum(math.isfinite(step.loss) for step in usable)
    if 0 < finite < len(usable):
        notes.append("the loss is not finite in some steps: times may not be those of training")
    return RunLog(
        source,
        fmt.name,
        fmt.title,
        fmt.framework,
        len(usable),
        warmup,
        slow,
        tuple(kept),
        facts,
        tuple(notes),
    )
