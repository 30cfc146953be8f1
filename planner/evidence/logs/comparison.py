"""Comparison of a real run's log with its estimate, and the parts that are most likely off.

The suspects are a heuristic: every part of the estimate has a relative uncertainty, and the
difference is shared out as independent errors of that size would share it. A part that alone would
need an implausible factor is marked. Phases that the log times itself (DeepSpeed's timers) are
compared first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.parts import MemoryKind, time_spread, unseen_parts
from planner.cost.shards.layouts import Layouts
from planner.evidence.logs.log_files import read_log
from planner.evidence.logs.log_job import Job, read_job
from planner.evidence.logs.steps import RunLog
from planner.units import format_bytes, format_seconds

__all__ = [
    "Comparison",
    "Figure",
    "Suspect",
    "compare",
    "compare_log",
]

_NOT_COUNTED = 0.03
"""Data loading, logging and stragglers, as a part of the step that no estimate holds."""
_NOT_COUNTED_NAME = "not estimated (data loading, logging, stragglers)"
_COMPUTING = ("forward", "backward", "recompute", "optimizer")
_IDLE = ("host_overhead", "pipeline_bubble", "offload")


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
    """A measured run beside its estimate."""

    log: RunLog
    job: Job
    estimate: Estimate
    step_time_s: float
    spread_s: tuple[float, float]
    """10th and 90th percentile of the measured step time."""
    figures: tuple[Figure, ...]
    interval_s: tuple[float, float]
    """90 % interval of the estimate [s]."""
    suspects: tuple[Suspect, ...]
    doubts: tuple[str, ...]
    """Reasons why log, layout and machine cannot be of one run."""

    @property
    def ratio(self) -> float:
        """Measured over estimated step time."""
        return self.step_time_s / self.estimate.step_time_s

    @property
    def inside(self) -> bool:
        """Whether the run lies in the estimate's interval."""
        return self.interval_s[0] <= self.step_time_s <= self.interval_s[1]


def compare_log(
    log: str | Path,
    machine: Any,
    layout: Any = None,
    columns: Mapping[str, str] | None = None,
    **options: Any,
) -> Comparison:
    """Compare a log file with its estimate; `options` are those of `log_job.read_job`."""
    run = read_log(log, columns)
    return compare(run, read_job(run, machine, layout, **options))


def compare(log: RunLog, job: Job) -> Comparison:
    """Compare a log with the estimate of its job."""
    estimate = estimate_layouts(job.scenario, Layouts.stack([job.layout]))[0]
    times = _step_times(log, job)
    median = float(np.median(times))
    low, high = (float(x) for x in np.percentile(times, (10, 90)))
    figures = _figures(log, job, estimate, median)
    doubts = _doubts(job, figures)
    return Comparison(
        log=log,
        job=job,
        estimate=estimate,
        step_time_s=median,
        spread_s=(low, high),
        figures=figures,
        interval_s=estimate.interval_step_time_s,
        suspects=() if doubts else _suspects(estimate, median - estimate.step_time_s),
        doubts=doubts,
    )


def _doubts(job: Job, figures: tuple[Figure, ...]) -> tuple[str, ...]:
    """List impossible figures: more operations than the peak, more memory than a device has."""
    measured = {figure.name: figure.measured for figure in figures}
    machine, world = job.scenario.machine, job.layout.world
    doubts = []
    if measured["mfu"] > 1:
        doubts.append(
            f"a step of {format_seconds(measured['step_time_s'])} would need "
            f"{measured['mfu']:.1f} times the peak of {world} devices of {machine.name}: the "
            "layout, batch, model or machine is not that of the log; state them"
        )
    limit = machine.device.memory_bytes.value
    for name in ("allocated_bytes", "reserved_bytes"):
        if measured.get(name, 0.0) > limit:
            doubts.append(
                f"the log states {format_bytes(measured[name])} of memory, more than the "
                f"{format_bytes(limit)} of a device of {machine.name}; name the machine it ran on"
            )
            break
    return tuple(doubts)


def _step_times(log: RunLog, job: Job) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Step times, printed or from the printed rates and the job's batch [s]."""
    workload, world = job.scenario.workload, job.layout.world
    printed = log.column("time_s")
    if printed.size:
        return printed
    tokens = workload.tokens_per_step
    for name, units in (
        ("tokens_per_s", tokens),
        ("tokens_per_s_per_device", tokens / world),
        ("samples_per_s", workload.global_batch),
        ("mean_samples_per_s", workload.global_batch),
    ):
        rates = log.column(name)
        if rates.size:
            return np.asarray(units / rates)
    return np.array([step.phases_s for step in log.steps])


def _figures(log: RunLog, job: Job, estimate: Estimate, step_s: float) -> tuple[Figure, ...]:
    world = job.layout.world
    tokens = job.scenario.workload.tokens_per_step
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
        peak = job.scenario.machine.peak(job.scenario.workload.base_precision)
        figures.append(Figure("flop_per_s_per_device", rate, estimate.mfu * peak))
    for name, estimated in _phases(log, estimate):
        figures.append(Figure(name, log.fact(name) or 0.0, estimated))
    return (*figures, *_memory(log, estimate))


def _phases(log: RunLog, estimate: Estimate) -> list[tuple[str, float]]:
    parts = {name: float(value) for name, value in estimate.step_time_parts_s.items()}
    estimated = {**_timers(parts), **_device_phases(parts)}
    return [(name, total) for name, total in estimated.items() if total > 0 and log.fact(name)]


def _timers(parts: Mapping[str, float]) -> dict[str, float]:
    """Parts as a framework's timers cut a step [s].

    What both passes share, waiting for the host and gathering parameters, is shared out by their
    computation; of tensor, context and expert parallelism either pass has half.
    """
    forward, backward = parts["forward"], parts["backward"] + parts["recompute"]
    share = forward / (forward + backward)
    common = parts["host_overhead"] + parts["parameter_gathering"]
    half = (parts["tensor_parallel"] + parts["context_parallel"] + parts["expert_parallel"]) / 2
    return {
        "forward_s": forward + half + share * common,
        "backward_s": backward + half + (1 - share) * common + parts["gradient_reduction"],
        "optimizer_s": parts["optimizer"] + parts["parameter_update_gathering"] + parts["offload"],
    }


def _device_phases(parts: Mapping[str, float]) -> dict[str, float]:
    """Parts as a profile of a device cuts a step [s]."""
    computing, idle = (sum(parts[name] for name in names) for names in (_COMPUTING, _IDLE))
    return {
        "computing_s": computing,
        "exposed_communication_s": sum(parts.values()) - computing - idle,
        "idle_s": idle,
    }


def _memory(log: RunLog, estimate: Estimate) -> list[Figure]:
    """Peak memory beside the parts that each way of measuring it sees."""
    parts = estimate.memory_bytes
    kinds: tuple[MemoryKind, ...] = ("allocated", "reserved")
    figures = []
    for kind in kinds:
        name = f"{kind}_bytes"
        measured = log.fact(name)
        estimated = parts["total"] - sum(parts[part] for part in unseen_parts(kind))
        if measured and estimated > 0:
            figures.append(Figure(name, measured, estimated))
    return figures


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
