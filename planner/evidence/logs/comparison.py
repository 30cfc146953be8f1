"""Comparison: a real run's log against its estimate, and what would explain the difference."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.parts import MemoryKind
from planner.cost.shards.layouts import Layouts
from planner.evidence.logs.diagnosis import Explanation, Measured, explanations, peak_bytes
from planner.evidence.logs.log_files import read_log
from planner.evidence.logs.log_job import ANOTHER_RUN, Job, read_job
from planner.evidence.logs.steps import RunLog
from planner.units import format_bytes, format_count, format_seconds

_TIMES = 2.0
"""Ratio from which a sentence counts times instead of percent."""
_KINDS: tuple[MemoryKind, ...] = ("reserved", "allocated")
_COMPUTING = ("forward", "backward", "recompute", "optimizer")
_IDLE = ("host_overhead", "pipeline_bubble", "offload")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the log with the estimated one."""

    name: str
    measured: float
    estimated: float

    @property
    def ratio(self) -> float:
        """Measured over estimated."""
        return self.measured / self.estimated


@dataclass(frozen=True, slots=True)
class Comparison:
    """A measured run with its estimate."""

    log: RunLog
    job: Job
    estimate: Estimate
    step_time_s: float
    spread_s: tuple[float, float]
    """10th and 90th percentile of the measured step time."""
    figures: tuple[Figure, ...]
    interval_s: tuple[float, float]
    """90 % interval of the estimate [s]."""
    doubts: tuple[str, ...]
    """Reasons why log, layout and machine cannot belong to one run."""
    measured: Measured
    explanations: tuple[Explanation, ...]
    """Changes of the job that would explain the difference, the closest first."""

    @property
    def ratio(self) -> float:
        """Measured over estimated step time."""
        return self.step_time_s / self.estimate.step_time_s

    @property
    def inside(self) -> bool:
        """True if the measured step time lies in the estimate's interval."""
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
    measured = _measured(log, job, estimate, median)
    return Comparison(
        log=log,
        job=job,
        estimate=estimate,
        step_time_s=median,
        spread_s=(low, high),
        figures=figures,
        interval_s=estimate.interval_step_time_s,
        doubts=doubts,
        measured=measured,
        explanations=explanations(job.scenario, job.layout, estimate, measured),
    )


def _measured(log: RunLog, job: Job, estimate: Estimate, step_s: float) -> Measured:
    rate, time_s, mfu = log.median("tokens_per_s"), log.median("time_s"), log.median("mfu")
    tokens = log.fact("tokens_per_step") or (rate or 0.0) * (time_s or 0.0)
    # the MFU of this run, if a step had the tokens of the job
    of_job = estimate.mfu * estimate.step_time_s / step_s
    by_mfu = (mfu or 0.0) / of_job * job.scenario.workload.tokens_per_step
    kind = next((kind for kind in _KINDS if log.fact(f"{kind}_bytes")), _KINDS[0])
    peak = log.fact(f"{kind}_bytes") or 0.0
    return Measured(step_s, peak, kind, tokens, int(log.fact("world") or 0), by_mfu)


def _doubts(job: Job, figures: tuple[Figure, ...]) -> tuple[str, ...]:
    """List impossible figures: more operations than the peak, more memory than a device has."""
    measured = {figure.name: figure.measured for figure in figures}
    machine, world = job.scenario.machine, job.layout.world
    doubts = []
    if measured.get("mfu", 0.0) > 1:
        doubts.append(
            f"a step of {format_seconds(measured['step_time_s'])} would need "
            f"{measured['mfu']:.1f} times the peak of {world} devices of {machine.name}: the "
            "layout, batch, model or machine differs from the log's; state them"
        )
    limit = machine.device.memory_bytes.value
    sizes = (measured.get(name, 0.0) for name in ("allocated_bytes", "reserved_bytes"))
    if size := next((size for size in sizes if size > limit), None):
        doubts.append(
            f"the log states {format_bytes(size)} of memory, more than the {format_bytes(limit)} "
            f"of a device of {machine.name}; name the machine it ran on"
        )
    return tuple(doubts)


def _step_times(log: RunLog, job: Job) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return step times, as printed or from the printed rates and the job's batch [s]."""
    printed = log.column("time_s")
    if printed.size:
        return printed
    workload = job.scenario.workload
    tokens, batch = workload.tokens_per_step, workload.global_batch
    of_rates = {
        "tokens_per_s": tokens,
        "tokens_per_s_per_device": tokens / job.layout.world,
        "samples_per_s": batch,
        "mean_samples_per_s": batch,
    }
    columns = ((units, log.column(name)) for name, units in of_rates.items())
    times = (np.asarray(units / rates) for units, rates in columns if rates.size)
    return next(times, log.column("phases_s"))


def _figures(log: RunLog, job: Job, estimate: Estimate, step_s: float) -> tuple[Figure, ...]:
    """Return the figures that the log states or its steps imply, with the estimated ones."""
    workload, world = job.scenario.workload, job.layout.world
    rate = log.median("tokens_per_s") or workload.tokens_per_step / step_s
    device_rate = log.median("tokens_per_s_per_device") or rate / world
    # the program's own MFU may use another peak and another count of operations
    mfu = estimate.mfu * estimate.step_time_s / step_s
    peak = job.scenario.machine.peak(workload.base_precision)
    parts = {name: float(value) for name, value in estimate.step_time_parts_s.items()}
    memory = {f"{kind}_bytes": peak_bytes(estimate, kind) for kind in _KINDS}
    phases = {**_timers(parts), **_device_phases(parts), **memory}
    rows = (
        ("step_time_s", step_s, estimate.step_time_s),
        ("tokens_per_s", rate, estimate.tokens_per_s),
        ("tokens_per_s_per_device", device_rate, estimate.tokens_per_s / world),
        ("mfu", mfu, estimate.mfu),
        ("mfu_printed", log.median("mfu"), estimate.mfu),
        ("flop_per_s_per_device", log.median("flop_per_s_per_device"), estimate.mfu * peak),
        *((name, log.fact(name), estimated) for name, estimated in phases.items()),
    )
    return tuple(Figure(name, a, b) for name, a, b in rows if a and b > 0)


def _timers(parts: Mapping[str, float]) -> dict[str, float]:
    """Group parts like a framework's timers [s]; passes share host time by their computation."""
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
    computing, idle = (sum(parts[name] for name in names) for names in (_COMPUTING, _IDLE))
    return {
        "computing_s": computing,
        "exposed_communication_s": sum(parts.values()) - computing - idle,
        "idle_s": idle,
    }


def comparison_dict(result: Comparison) -> dict[str, Any]:
    """Return a comparison as plain data."""
    log, job = result.log, result.job
    return {
        "log": log.source,
        "format": log.format,
        "num_steps": log.num_steps,
        "num_warmup": log.num_warmup,
        "num_slow": log.num_slow,
        "model": job.scenario.model.name,
        "machine": job.scenario.machine.name,
        "framework": job.scenario.framework.name,
        "layout": job.layout.model_dump(mode="json"),
        "workload": job.scenario.workload.model_dump(mode="json"),
        "step_time_s": result.step_time_s,
        "step_time_spread_s": list(result.spread_s),
        "estimated_step_time_s": result.estimate.step_time_s,
        "ratio": result.ratio,
        "interval_step_time_s": list(result.interval_s),
        "inside_interval": result.inside,
        "figures": [{**asdict(figure), "ratio": figure.ratio} for figure in result.figures],
        "doubts": list(result.doubts),
        "explanations": [each.sentence(result.measured) for each in result.explanations],
        "assumptions": list(job.assumptions),
        "notes": list(log.notes),
    }


def _format(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.startswith("mfu"):
        return f"{100 * value:.1f} %"
    is_time = name.endswith("_s") and "per" not in name
    return format_seconds(value) if is_time else format_count(value)


def comparison_rows(result: Comparison) -> list[dict[str, str]]:
    """Return every figure of a comparison, measured and estimated, as text."""
    return [
        {
            "figure": each.name,
            "measured": _format(each.name, each.measured),
            "estimated": _format(each.name, each.estimated),
            "ratio": f"{each.ratio:.3f}",
        }
        for each in result.figures
    ]


def comparison_text(result: Comparison) -> str:
    """Format a comparison as text."""
    log, job = result.log, result.job
    doubtful = [text for text in job.assumptions if text.endswith(ANOTHER_RUN)]
    lines = [f"doubt: {text}" for text in doubtful]
    lines += [
        f"{log.title} log: {log.num_steps} steps, {log.num_warmup} of warm-up dropped, "
        f"{log.num_slow} slow ones kept",
        f"{job.scenario.model.name} on {job.scenario.machine.name}, {job.layout}, "
        f"{job.scenario.framework.name}",
        f"{'':26}{'measured':>12}{'estimated':>12}{'ratio':>8}",
    ]
    for name, *cells, ratio in (row.values() for row in comparison_rows(result)):
        lines.append(f"{name:26}{'{:>12}{:>12}'.format(*cells)}{ratio:>8}")
    low, high = map(format_seconds, result.spread_s)
    lines.append(f"step time, 10th to 90th percentile: {low} to {high}")
    if result.doubts:
        lines += [f"impossible: {text}" for text in result.doubts]
    else:
        lines.append(verdict(result))
    changes = (each.sentence(result.measured) for each in result.explanations)
    lines += [f"would explain it: {text}" for text in changes]
    lines += [f"assumed: {text}" for text in job.assumptions if text not in doubtful]
    lines += [f"note: {text}" for text in log.notes]
    return "\n".join(lines)


def verdict(result: Comparison) -> str:
    """Say how far the run is from its estimate, and whether it lies in the interval."""
    percent = 100 * abs(result.ratio - 1)
    gap = f"the run took {percent:.1f} % {'longer' if result.ratio > 1 else 'less time'} than"
    if result.ratio >= _TIMES:
        gap = f"the run took {result.ratio:.1f} times as long as"
    gap += " estimated"
    low, high = (format_seconds(bound) for bound in result.interval_s)
    where = "inside" if result.inside else "outside"
    return f"{gap}; it lies {where} the estimate's interval, {low} to {high}"
