"""Compare: a real run's log against its estimate, and which part is most likely off.

The blame is a heuristic and says so: every part of the estimate is given a relative
uncertainty, the difference is shared out as independent errors of that size would share it, and
a part whose share alone would need an implausible factor is marked. Where the log states the
time of a phase itself (DeepSpeed's timers), that is compared first.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.parts import MemoryKind, time_spread, unseen_parts
from planner.cost.shards.layouts import Layouts
from planner.evidence.logs.job import Job, read_job
from planner.evidence.logs.read import RunLog, read_log
from planner.units import format_bytes, format_count, format_seconds

__all__ = [
    "Comparison",
    "Figure",
    "Suspect",
    "compare",
    "compare_log",
    "comparison_dict",
    "comparison_text",
]

_NOT_COUNTED = 0.03
"""Data loading, logging and stragglers, as a part of the step that no estimate holds."""
_NOT_COUNTED_NAME = "not estimated (data loading, logging, stragglers)"
_PHASES = {
    "forward_s": ("forward", "tensor_parallel", "context_parallel", "expert_parallel"),
    "backward_s": ("backward", "recompute", "gradient_reduction"),
    "optimizer_s": ("optimizer", "parameter_update_gathering", "offload"),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the log beside the estimate's; ratio is measured over estimated."""

    name: str
    measured: float
    estimated: float

    @property
    def ratio(self) -> float:
        """Measured over estimated."""
        return self.measured / self.estimated


@dataclass(frozen=True, slots=True)
class Suspect:
    """A part that may explain the difference."""

    part: str
    share: float
    """Of the difference, if all parts err independently by their usual size."""
    factor: float | None
    """By what the part alone would have to be multiplied; None where it is no estimated part."""
    plausible: bool
    """Whether that factor lies between 1/3 and 3."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run beside its estimate."""

    log: RunLog
    job: Job
    estimate: Estimate
    step_time_s: float
    spread_s: tuple[float, float]
    """10th and 90th percentile of the measured step time."""
    figures: tuple[Figure, ...]
    interval_s: tuple[float, float]
    """Where the estimate expects the step time [s]."""
    suspects: tuple[Suspect, ...]

    @property
    def ratio(self) -> float:
        """Measured over estimated step time."""
        return self.step_time_s / self.estimate.step_time_s

    @property
    def inside(self) -> bool:
        """Whether the run lies in the estimate's interval."""
        return self.interval_s[0] <= self.step_time_s <= self.interval_s[1]


def compare_log(log: str | Path, machine: Any, layout: Any = None, **options: Any) -> Comparison:
    """The log at a path against its estimate; options as `planner.evidence.logs.job.read_job`."""
    run = read_log(log)
    return compare(run, read_job(run, machine, layout, **options))


def compare(log: RunLog, job: Job) -> Comparison:
    """A parsed log against the estimate of its job."""
    estimates = estimate_layouts(job.question, Layouts.stack([job.layout]))
    estimate = estimates[0]
    times = _step_times(log, job)
    median = float(np.median(times))
    low, high = (float(x) for x in np.percentile(times, (10, 90)))
    return Comparison(
        log,
        job,
        estimate,
        median,
        (low, high),
        _figures(log, job, estimate, median),
        estimate.interval_step_time_s,
        _suspects(estimate, median - estimate.step_time_s),
    )


def _step_times(log: RunLog, job: Job) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Step times, printed or from the printed rates and the job's batch [s]."""
    workload, world = job.question.workload, job.layout.world
    printed = log.column("time_s")
    if printed.size:
        return printed
    tokens = workload.tokens_per_step
    for name, amount in (
        ("tokens_per_s", tokens),
        ("tokens_per_s_per_device", tokens / world),
        ("samples_per_s", workload.global_batch),
        ("mean_samples_per_s", workload.global_batch),
    ):
        rates = log.column(name)
        if rates.size:
            return np.asarray(amount / rates)
    phases = np.array([[getattr(step, name) for name in _PHASES] for step in log.steps])
    return np.asarray(phases.sum(axis=1))


def _figures(log: RunLog, job: Job, estimate: Estimate, step_s: float) -> tuple[Figure, ...]:
    world = job.layout.world
    tokens = job.question.workload.tokens_per_step
    # the program's own MFU may use another peak and another count of operations
    model_flop = estimate.mfu * estimate.step_time_s
    figures = [
        Figure("step_time_s", step_s, estimate.step_time_s),
        Figure(
            "tokens_per_s", log.median("tokens_per_s") or tokens / step_s, estimate.tokens_per_s
        ),
        Figure(
            "tokens_per_s_per_device",
            log.median("tokens_per_s_per_device")
            or (log.median("tokens_per_s") or tokens / step_s) / world,
            estimate.tokens_per_s / world,
        ),
        Figure("mfu", model_flop / step_s, estimate.mfu),
    ]
    printed = log.median("mfu")
    if printed:
        figures.append(Figure("mfu_printed", printed, estimate.mfu))
    rate = log.median("flop_per_s_per_device")
    if rate:
        peak = job.question.machine.peak(job.question.workload.base_precision)
        figures.append(Figure("flop_per_s_per_device", rate, estimate.mfu * peak))
    for name, estimated in _phases(log, estimate):
        figures.append(Figure(name, log.fact(name) or 0.0, estimated))
    return (*figures, *_memory(log, estimate))


def _phases(log: RunLog, estimate: Estimate) -> list[tuple[str, float]]:
    parts = estimate.step_time_parts_s
    sums = [
        (name, sum(parts.get(part, 0.0) for part in members)) for name, members in _PHASES.items()
    ]
    return [(name, total) for name, total in sums if total > 0 and log.fact(name)]


def _memory(log: RunLog, estimate: Estimate) -> list[Figure]:
    """Peak memory beside the parts that each way of measuring it sees."""
    parts = estimate.memory_bytes
    kinds: tuple[MemoryKind, ...] = ("allocated", "reserved")
    found = []
    for kind in kinds:
        name = f"{kind}_bytes"
        measured = log.fact(name)
        estimated = parts["total"] - sum(parts[part] for part in unseen_parts(kind))
        if measured and estimated > 0:
            found.append(Figure(name, measured, estimated))
    return found


def _suspects(estimate: Estimate, difference_s: float) -> tuple[Suspect, ...]:
    """Parts by their share of the difference: (t u)^2 / sum (t u)^2 for errors of t u each."""
    parts = {name: value for name, value in estimate.step_time_parts_s.items() if value > 0}
    sizes = {name: value * time_spread(name) for name, value in parts.items()}
    if difference_s > 0:
        # what no estimate holds can only make a run slower
        sizes[_NOT_COUNTED_NAME] = _NOT_COUNTED * estimate.step_time_s
    total = sum(size * size for size in sizes.values())
    suspects = []
    for name, size in sizes.items():
        factor = (parts[name] + difference_s) / parts[name] if name in parts else None
        plausible = factor is None or 1 / 3 <= factor <= 3
        suspects.append(Suspect(name, size * size / total, factor, plausible))
    return tuple(sorted(suspects, key=lambda s: (not s.plausible, -s.share, s.part)))


# --- show ------------------------------------------------------------------------------------


def comparison_dict(result: Comparison) -> dict[str, Any]:
    """A comparison as plain data."""
    log, job = result.log, result.job
    return {
        "log": log.source,
        "format": log.format,
        "num_steps": log.num_steps,
        "num_warmup": log.num_warmup,
        "num_slow": log.num_slow,
        "model": job.question.model.name,
        "machine": job.question.machine.name,
        "framework": job.question.framework.name,
        "layout": job.layout.model_dump(mode="json"),
        "workload": job.question.workload.model_dump(mode="json"),
        "step_time_s": result.step_time_s,
        "step_time_spread_s": list(result.spread_s),
        "estimated_step_time_s": result.estimate.step_time_s,
        "ratio": result.ratio,
        "interval_step_time_s": list(result.interval_s),
        "inside_interval": result.inside,
        "figures": [{**asdict(figure), "ratio": figure.ratio} for figure in result.figures],
        "most_likely_off": [asdict(suspect) for suspect in result.suspects],
        "assumptions": list(job.assumptions),
        "notes": list(log.notes),
    }


def _format(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.startswith("mfu"):
        return f"{100 * value:.1f} %"
    return (
        format_seconds(value) if name.endswith("_s") and "per" not in name else format_count(value)
    )


def comparison_text(result: Comparison) -> str:
    """A comparison as lines to read."""
    log, job = result.log, result.job
    lines = [
        f"{log.title} log: {log.num_steps} steps, {log.num_warmup} of warm-up dropped, "
        f"{log.num_slow} slow ones kept",
        f"{job.question.model.name} on {job.question.machine.name}, {job.layout}, "
        f"{job.question.framework.name}",
        f"{'':26}{'measured':>12}{'estimated':>12}{'ratio':>8}",
    ]
    for figure in result.figures:
        lines.append(
            f"{figure.name:26}{_format(figure.name, figure.measured):>12}"
            f"{_format(figure.name, figure.estimated):>12}{figure.ratio:8.3f}"
        )
    lines.append(
        f"step time, 10th to 90th percentile: "
        f"{format_seconds(result.spread_s[0])} to {format_seconds(result.spread_s[1])}"
    )
    lines += [_verdict(result), _blame(result)]
    lines += [f"taken: {text}" for text in job.assumptions]
    lines += [f"note: {text}" for text in log.notes]
    return "\n".join(lines)


def _verdict(result: Comparison) -> str:
    gap = f"the run took {100 * abs(result.ratio - 1):.1f} % "
    gap += "longer than estimated" if result.ratio > 1 else "less time than estimated"
    low, high = (format_seconds(bound) for bound in result.interval_s)
    where = "inside" if result.inside else "outside"
    return f"{gap}; it lies {where} the estimate's interval, {low} to {high}"


def _blame(result: Comparison) -> str:
    """One sentence on the part most likely off, with the rule behind it."""
    first = result.suspects[0]
    text = f"most likely off: {first.part} ({100 * first.share:.0f} % of the difference"
    if first.factor is not None:
        text += f"; alone it would have to be x{first.factor:.2f}"
    return text + "), if every part errs independently by its usual size"
