"""Report: a comparison as plain data and as lines to read."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from planner.evidence.logs.comparison import Comparison
from planner.units import format_bytes, format_count, format_seconds

__all__ = ["comparison_dict", "comparison_text"]


def comparison_dict(result: Comparison) -> dict[str, Any]:
    """A comparison as plain data."""
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


_USE = (
    "to correct estimates by this run: keep what --json prints as run.json, and give it to "
    "`planner plan ... --measured run.json`"
)


def comparison_text(result: Comparison) -> str:
    """A comparison as lines to read."""
    log, job = result.log, result.job
    lines = [
        f"{log.title} log: {log.num_steps} steps, {log.num_warmup} of warm-up dropped, "
        f"{log.num_slow} slow ones kept",
        f"{job.scenario.model.name} on {job.scenario.machine.name}, {job.layout}, "
        f"{job.scenario.framework.name}",
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
    if result.doubts:
        lines += [f"impossible: {text}" for text in result.doubts]
    else:
        lines += [_verdict(result), _blame(result)]
    lines += [f"taken: {text}" for text in job.assumptions]
    lines += [f"note: {text}" for text in log.notes]
    if not result.doubts:
        lines.append(_USE)
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
    if first.factor is not None and first.factor > 0:
        text += f"; alone it would have to be x{first.factor:.2f}"
    return text + "), if every part errs independently by its usual size"
