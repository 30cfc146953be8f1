"""Steps: the steps of a log in the form all readers share; `summary` drops the warm-up."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.describe.files import read_toml
from planner.errors import CatalogueError

LOG_FORMATS = read_toml(Path(__file__).with_name("log_formats.toml"))
"""Formats of step lines, facts and columns of common frameworks."""
UNITS = {"": 1.0, "ms": 1e-3, "%": 0.01, "TFLOP/s": 1e12, "MiB": 2.0**20, "GiB": 2.0**30, "GB": 1e9}
"""Factors to SI units."""


class LogError(CatalogueError):
    """A log that cannot be read or holds no usable step."""


class NoStepLineError(LogError):
    """A text without a step line of a known format."""


class UnnamedColumnsError(LogError):
    """A table whose columns have unknown names."""

    def __init__(self, message: str, columns: Sequence[str]) -> None:
        super().__init__(message)
        self.columns = tuple(columns)


Step = dict[str, float]
"""Figures of one step, as `log_formats.toml` names them, without those not in the log."""


def step_of(figures: Mapping[str, float | None]) -> Step:
    """Make a step from figures; a time per micro-batch or a rate of steps gives its time."""
    step = {name: value for name, value in figures.items() if value is not None}
    if "time_s" not in step and step.get("steps_per_s", 0.0) > 0:
        step["time_s"] = 1 / step["steps_per_s"]
    elif "time_s" not in step and "pass_time_s" in step and step.get("step", 0.0) > 0:
        step["time_s"] = step["pass_time_s"] * round(step.get("passes", 1) / step["step"])
    phases = [step.get(name, math.nan) for name in ("forward_s", "backward_s", "optimizer_s")]
    return {**step, "phases_s": sum(phases)}


def values_of(steps: Sequence[Step], name: str) -> NDArray[np.float64]:
    """Return a figure of every step; NaN where it is not stated."""
    return np.array([step.get(name, math.nan) for step in steps], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Source:
    """The program that wrote a log."""

    format: str
    """Key of the format in the answers."""
    title: str
    framework: str = ""
    """Catalogue name of the framework that writes it; empty: any."""
    note: str = ""
    """Warning about its figures."""


@dataclass(frozen=True, slots=True)
class RunLog:
    """Contents of a log without warm-up: its steady steps and facts."""

    source: str
    format: str
    title: str
    framework: str
    num_steps: int
    """Steps with a usable time or rate."""
    num_warmup: int
    """Leading steps that were dropped as warm-up."""
    num_slow: int
    """Later steps above 1.5 times the median: evaluations, checkpoints, stragglers."""
    steps: tuple[Step, ...]
    facts: dict[str, float]
    notes: tuple[str, ...]
    columns: tuple[str, ...] = ()
    """Names of its columns or scalars; empty for step lines."""

    def column(self, name: str) -> NDArray[np.float64]:
        """Return the finite, positive values of a figure over the steady steps."""
        values = values_of(self.steps, name)
        finite: NDArray[np.float64] = values[np.isfinite(values) & (values > 0)]
        return finite

    def median(self, name: str) -> float | None:
        """Return the median of a figure; None if the log does not state it."""
        values = self.column(name)
        return float(np.median(values)) if values.size else None

    def fact(self, name: str) -> float | None:
        """Return a figure that is stated once, else its median over the steps."""
        return self.facts.get(name, self.median(name))


_RATES = ("tokens_per_s_per_device", "tokens_per_s", "samples_per_s", "mean_samples_per_s")


def durations(steps: Sequence[Step]) -> NDArray[np.float64]:
    """Return step durations, up to a factor, by the most direct measure: time, 1 / rate, phases."""
    for name in ("time_s", *_RATES, "phases_s"):
        values = values_of(steps, name)
        if name in _RATES:
            values = np.array([1 / rate if rate > 0 else math.nan for rate in values.tolist()])
        values[~(np.isfinite(values) & (values > 0))] = math.nan
        if np.isfinite(values).any():
            return values
    return np.full(len(steps), math.nan)


def steady(durations: NDArray[np.float64]) -> int:
    """Count leading warm-up steps: the first of five or more, then outliers, up to half of all."""
    count = durations.size
    if count < 3:
        return int(count == 2 and durations[0] > 1.5 * durations[1])
    half = durations[count // 2 :]
    middle = float(np.median(half))
    deviation = 1.4826 * float(np.median(np.abs(half - middle)))
    reach = max(4 * deviation, 0.05 * middle)
    dropped = 1 if count >= 5 else 0
    while dropped < count // 2 and abs(durations[dropped] - middle) > reach:
        dropped += 1
    return dropped


def _phases(steps: Sequence[Step]) -> dict[str, float]:
    """Return medians of the phases that DeepSpeed prints on separate lines, without the first."""
    timed = [step for step in steps if step["phases_s"] > 0][1:]
    names = ("forward_s", "backward_s", "backward_reduce_s", "optimizer_s")
    medians = {name: float(np.median(values_of(timed, name))) for name in names if timed}
    return {name: value for name, value in medians.items() if math.isfinite(value)}


def summary(
    source: Source, steps: Sequence[Step], facts: Mapping[str, float], where: str
) -> RunLog:
    """Summarize the steps after warm-up. Raises LogError without any finite, positive time."""
    measured = durations(steps)
    usable = [step for step, value in zip(steps, measured, strict=True) if value > 0]
    if not usable:
        raise LogError(
            f"{where} has {len(steps)} step lines but none with a finite, positive time or rate "
            "(nan or 0 throughout); give the log of a run that made real steps"
        )
    times = measured[measured > 0]
    if len(usable) == 1 and usable[0].get("step") in (0, 1):
        raise LogError(
            f"{where} holds only the first iteration, whose time is warm-up; give a log of more"
        )
    warmup = steady(times)
    steady_steps, rest = usable[warmup:], times[warmup:]
    notes = [source.note] if source.note else []
    if num_untimed := int(np.sum(np.isnan(measured) & np.isnan(values_of(steps, "phases_s")))):
        notes.append(f"{num_untimed} step lines without a finite time were left out")
    if len(steady_steps) < 5:
        notes.append(f"only {len(steady_steps)} steady steps: the spread is uncertain")
    finite = int(np.isfinite(values_of(usable, "loss")).sum())
    if 0 < finite < len(usable):
        notes.append("the loss is not finite in some steps: times may not be those of training")
    return RunLog(
        source=where,
        format=source.format,
        title=source.title,
        framework=source.framework,
        num_steps=len(usable),
        num_warmup=warmup,
        num_slow=int(np.sum(rest > 1.5 * np.median(rest))),
        steps=tuple(steady_steps),
        facts={**facts, **_phases(steps)},
        notes=tuple(notes),
    )
