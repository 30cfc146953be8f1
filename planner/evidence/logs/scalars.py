"""Scalars: figures by name, as loggers write them into tables and event files.

Loggers agree on a name and a number per step, not on the names: known ones are listed here, and a
user can say which column holds what. Where no time and no rate is written, the times at which
steps were written tell how long they took.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from planner.errors import UnknownNameError, shorten
from planner.evidence.logs.steps import LogError, RunLog, Source, Step, durations, summary

__all__ = ["FIGURES", "Row", "chosen_columns", "read_scalars"]

_MIB, _GIB = 2.0**20, 2.0**30


class Figure(NamedTuple):
    """A field of `Step`, and the factor that turns a written number into it."""

    field: str
    scale: float = 1.0


FIGURES: dict[str, Figure] = {
    "step": Figure("step"),
    "loss": Figure("loss"),
    "time_s": Figure("time_s"),
    "time_ms": Figure("time_s", 1e-3),
    "steps_per_s": Figure("steps_per_s"),
    "pass_time_s": Figure("pass_time_s"),
    "passes": Figure("passes"),
    "tokens_per_s": Figure("tokens_per_s"),
    "tokens_per_s_per_device": Figure("tokens_per_s_per_device"),
    "samples_per_s": Figure("samples_per_s"),
    "tflops_per_device": Figure("flop_per_s_per_device", 1e12),
    "mfu": Figure("mfu"),
    "mfu_percent": Figure("mfu", 0.01),
    "global_batch": Figure("global_batch"),
    "forward_ms": Figure("forward_s", 1e-3),
    "backward_ms": Figure("backward_s", 1e-3),
    "optimizer_ms": Figure("optimizer_s", 1e-3),
    "allocated_bytes": Figure("allocated_bytes"),
    "allocated_mib": Figure("allocated_bytes", _MIB),
    "allocated_gib": Figure("allocated_bytes", _GIB),
    "reserved_bytes": Figure("reserved_bytes"),
    "reserved_mib": Figure("reserved_bytes", _MIB),
    "reserved_gib": Figure("reserved_bytes", _GIB),
    "written_at_s": Figure("written_at_s"),
}
"""Figures that a column can hold; `written_at_s` is a clock."""

_COLUMN_NAMES: dict[str, str] = {
    "step": "step|global_step|iteration|trainer/global_step|_step",
    "loss": "loss|train_loss|lm loss|lm_loss|reduced_train_loss|loss/train/total|"
    "loss_metrics/global_avg_loss",
    "time_s": "time_s|dt|step_time|step_time_s|iteration-time|iteration_time|time_per_step|"
    "time_metrics/end_to_end(s)|train_step_timing in s",
    "time_ms": "time_per_iteration_ms|elapsed_time_per_iteration_ms|dt_ms|step_time_ms",
    "steps_per_s": "train_steps_per_second|steps_per_second|batches_per_sec|"
    "throughput/batches_per_sec",
    "pass_time_s": "iter_time",
    "passes": "iter",
    "tokens_per_s": "tokens_per_sec|tokens_per_second|throughput/tokens_per_sec|tps|"
    "train_tokens_per_second",
    "tokens_per_s_per_device": "throughput(tps)|wps|tps_per_gpu|tokens_per_second_per_gpu|"
    "tokens_per_sec_per_gpu|throughput/device/tokens_per_sec|device/items_per_sec",
    "samples_per_s": "samples_per_sec|throughput/samples_per_sec|train_samples_per_second",
    "tflops_per_device": "tflops|throughput|model_tflops_per_gpu|tflops_per_sec_per_gpu",
    "mfu": "mfu|throughput/device/mfu|device/mfu",
    "mfu_percent": "mfu(%)",
    "global_batch": "batch-size|global_batch_size",
    "forward_ms": "samples/elapsed_time_ms_forward",
    "backward_ms": "samples/elapsed_time_ms_backward",
    "optimizer_ms": "samples/elapsed_time_ms_step",
    "allocated_bytes": "mem-max-allocated-bytes",
    "allocated_gib": "peak_memory_alloc|memory/max_mem_allocated(gib)",
    "reserved_bytes": "mem-reserved-bytes",
    "reserved_gib": "memory/max_reserved(gib)|peak_memory_reserved",
    "written_at_s": "_timestamp|timestamp|wall_time|_runtime|time|elapsed",
}
"""Names that torchtitan, Megatron-LM, NeMo, nanotron, DeepSpeed, Composer, Lightning, LitGPT,
torchtune, Hugging Face and Weights & Biases write, in lower case and without `train/`."""

_FIGURE_OF = {name: figure for figure, names in _COLUMN_NAMES.items() for name in names.split("|")}
_PREFIX = re.compile(r"^(?:train|metrics|perf)[/|. ]+")


class Row(NamedTuple):
    """Figures that were written together, by their names in the log."""

    figures: Mapping[str, float]
    written_at_s: float = math.nan
    """Time of writing, by the logger's own clock."""


def chosen_columns(assignments: Sequence[str]) -> dict[str, str]:
    """Columns by the figure they hold, from words such as `time_s=dt`.

    >>> chosen_columns(["time_s=dt", "loss = train loss"])
    {'time_s': 'dt', 'loss': 'train loss'}
    """
    columns = {}
    for words in assignments:
        figure, _, column = (part.strip() for part in words.partition("="))
        if not column:
            raise LogError(f"column {shorten(words)!r} must be FIGURE=COLUMN, such as time_s=dt")
        if figure not in FIGURES:
            raise UnknownNameError("figure", figure, FIGURES, f"known are {', '.join(FIGURES)}")
        columns[figure] = column
    return columns


def read_scalars(
    rows: Iterable[Row], source: Source, where: str, columns: Mapping[str, str] | None = None
) -> RunLog:
    """Read a run from named figures.

    Raises LogError where no column holds a time, a rate or a clock, and names the columns.
    """
    all_rows = list(rows)
    named = _named(all_rows, columns or {}, where)
    steps = [_step(row, named) for row in all_rows]
    notes = ""
    if not (durations(steps) > 0).any():
        clock = [_clock(row, named) for row in all_rows]
        steps = _timed(steps, clock)
        notes = "step times are differences of the times at which steps were written"
    if not (durations(steps) > 0).any():
        names = sorted({name for row in all_rows for name in row.figures})
        listed = ", ".join(names[:20]) or "no column of numbers"
        raise LogError(
            f"{where} holds no time and no rate of steps under a known name; say which column "
            f"does, as in --column time_s=NAME: it has {listed}"
        )
    joined = "; ".join(text for text in (source.note, notes) if text)
    return summary(replace(source, note=joined), steps, _peaks(steps), where)


def _named(rows: Sequence[Row], columns: Mapping[str, str], where: str) -> dict[str, str]:
    """The figure of every column that is read, by the column's name."""
    names = {name: None for row in rows for name in row.figures}
    named = {name: figure for name in names if (figure := _FIGURE_OF.get(_plain(name)))}
    for figure, column in columns.items():
        if column not in names:
            listed = f"{where} has {', '.join(list(names)[:20]) or 'none with numbers'}"
            raise UnknownNameError("column", column, names, listed)
        named = {name: had for name, had in named.items() if had != figure}
        named[column] = figure
    return named


def _plain(name: str) -> str:
    return _PREFIX.sub("", name.strip().lower())


def _step(row: Row, named: Mapping[str, str]) -> Step:
    figures: dict[str, float | None] = {}
    for name, value in row.figures.items():
        field, scale = FIGURES.get(named.get(name, ""), Figure(""))
        if field and field != "written_at_s" and math.isfinite(value):
            figures.setdefault(field, value * scale)
    return Step.of(figures)


def _clock(row: Row, named: Mapping[str, str]) -> float:
    for name, value in row.figures.items():
        if named.get(name) == "written_at_s":
            return value
    return row.written_at_s


def _timed(steps: Sequence[Step], clock: Sequence[float]) -> list[Step]:
    """Steps with the time since the one before, where both were counted and dated."""
    dated = [
        (step, time)
        for step, time in zip(steps, clock, strict=True)
        if math.isfinite(step.step) and math.isfinite(time)
    ]
    timed = []
    for (before, then), (step, now) in itertools.pairwise(dated):
        count, elapsed = step.step - before.step, now - then
        if count > 0 and elapsed > 0:
            timed.append(replace(step, time_s=elapsed / count))
    return timed


def _peaks(steps: Sequence[Step]) -> dict[str, float]:
    """The largest memory that any step states."""
    peaks = {}
    for name in ("allocated_bytes", "reserved_bytes"):
        values = [value for step in steps if math.isfinite(value := getattr(step, name))]
        if values and max(values) > 0:
            peaks[name] = max(values)
    return peaks
