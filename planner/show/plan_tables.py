"""Tables of plans and estimates: ranked layouts, strategies, parts of time and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.choose.plan import Plan
from planner.choose.preferences import preferences
from planner.choose.verdicts.strategy_verdicts import Verdict
from planner.cost.estimate import Estimate
from planner.cost.parts import part
from planner.show import words
from planner.tables import Column, Record, Table
from planner.units import format_bytes, format_seconds

__all__ = ["estimate_tables", "ranked_table", "strategies_table"]

_MAX_ROWS = 8
_STYLES = {"no": "red", "tight": "yellow", "yes": "green"}


def ranked_table(plan: Plan) -> Table:
    """Return the fastest layouts of a plan, one of a kind."""
    columns = (
        Column("framework", "framework"),
        Column("layout", "layout", min_width=24),
        Column("step_time_s", "step", format_seconds),
        Column("mfu", "MFU", lambda mfu: f"{100 * mfu:.1f} %"),
        Column("memory_bytes", "memory", format_bytes),
        Column("risk", "out of memory", words.percent_chance, style=_risk_style),
        Column("parts", "slowest parts", min_width=24),
    )
    records = (
        {
            "framework": estimate.framework,
            "layout": str(estimate.layout),
            "step_time_s": estimate.step_time_s,
            "mfu": estimate.mfu,
            "memory_bytes": estimate.memory_bytes["total"],
            "risk": estimate.out_of_memory_probability,
            "parts": _slowest(estimate),
        }
        for estimate in plan.ranked[:_MAX_ROWS]
    )
    return Table(tuple(records), "Fastest layouts that fit, one of a kind", columns)


def _risk_style(risk: float) -> str:
    """Warn of a probability to run out of memory that is not small."""
    return "yellow" if risk > preferences().risk else ""


def _slowest(estimate: Estimate, count: int = 3) -> str:
    """Name the longest parts of a step with their shares."""
    total = estimate.step_time_s
    parts = sorted(estimate.step_time_parts_s.items(), key=lambda item: -item[1])[:count]
    return ", ".join(
        f"{part(name).label} {100 * seconds / total:.0f} %"
        for name, seconds in parts
        if seconds > 0.005 * total
    )


def strategies_table(plan: Plan) -> Table:
    """Return the verdict on every classic strategy, and what would help."""
    columns = (
        Column("strategy", "strategy"),
        Column("fits", "fits", style=lambda fits: _STYLES[fits]),
        Column("step_time_s", "step", format_seconds),
        Column("layout", "layout"),
        Column("why", "why"),
        Column("fix", "cheapest fix"),
    )
    return Table(tuple(map(_strategy, plan.strategies)), "Classic strategies", columns, folded=True)


def _strategy(verdict: Verdict) -> Record:
    estimate = verdict.estimate
    fits = "no"
    if verdict.fits and estimate is not None:
        fits = "tight" if estimate.tight else "yes"
    return {
        "strategy": verdict.name,
        "fits": fits,
        "step_time_s": estimate.step_time_s if estimate and verdict.fits else None,
        "layout": f"{estimate.layout} [{estimate.framework}]" if estimate else "",
        "why": verdict.why,
        "fix": verdict.fix,
    }


def estimate_tables(
    estimate: Estimate, device_limit_bytes: float = 0.0, host_limit_bytes: float = 0.0
) -> list[Table]:
    """Return the parts of an estimate's step time, device memory and host memory."""
    device, host = (
        f" (of {format_bytes(limit)})" if limit else ""
        for limit in (device_limit_bytes, host_limit_bytes)
    )
    return [
        _parts("Step time", estimate.step_time_parts_s, format_seconds),
        _parts(
            f"Memory per device, stage {estimate.worst_stage}{device}",
            estimate.memory_bytes,
            format_bytes,
        ),
        _parts(f"Memory per host{host}", estimate.host_memory_bytes, format_bytes),
    ]


def _parts(title: str, parts: Mapping[str, float], text: Callable[[float], str]) -> Table:
    """Return parts with their shares, and their sum."""
    total = parts.get("total") or sum(parts.values())
    records = tuple(
        {"part": part(name).label, "size": size, "share": size / total}
        for name, size in parts.items()
        if size and name != "total"
    )
    columns = (
        Column("part", "part"),
        Column("size", "", text),
        Column("share", "", lambda share: f"{100 * share:.1f} %"),
    )
    return Table(records, title, columns, ("total", text(total), ""))
