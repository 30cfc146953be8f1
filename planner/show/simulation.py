"""Simulations as people read them: the step, its stages, and what would make it faster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.choose.simulation.bottlenecks import SPEEDUP
from planner.choose.simulation.step_simulation import Simulation
from planner.show.words import step_interval
from planner.tables import Block, Column, Line, Record, Table, page
from planner.units import counted, format_bytes, format_seconds

__all__ = ["simulation_page"]

_MAX_ROWS = 16
_MIN_GAIN = 0.0005
"""Share of the step below which a gain is not worth a line."""


@page.register
def simulation_page(simulation: Simulation) -> list[Block]:
    """Return the step's length and what sets it, its stages, and what to widen."""
    head, *lines = _sentences(simulation)
    stages = _stage_table(simulation)
    hidden = simulation.timeline.num_stages - len(stages.records)
    more = [Line(f"{hidden} stages between are left out")] if hidden else []
    gains = _gain_table(simulation)
    return [Line(head, "bold"), *map(Line, lines), stages, *more, gains]


def _sentences(simulation: Simulation) -> Iterator[str]:
    """Say what is simulated, how long it takes, and what sets its length."""
    layout, step_s = simulation.estimate.layout, simulation.makespan_s
    yield f"{layout} [{simulation.estimate.framework}]: {_length(simulation)}"
    yield f"{len(simulation.events):,} events on {counted(layout.pp, 'stage')}"
    if layout.pp > 1:
        by_stage = {f"stage {stage}": s for stage, s in simulation.critical_s("stage").items()}
        yield f"Critical path by stage: {_shares(by_stage, step_s)}"
    yield f"Critical path by stream: {_shares(simulation.critical_s('stream'), step_s)}"


def _length(simulation: Simulation) -> str:
    estimate = simulation.estimate
    closed_form = f"{estimate.step_time_s:.4g} s ({step_interval(estimate)})"
    length = f"step {simulation.makespan_s:.4g} s played; `planner estimate` has {closed_form}"
    if abs(simulation.difference) < 1e-9:
        return f"{length}, the same"
    comparative = "longer" if simulation.difference > 0 else "shorter"
    return f"{length}, played is {100 * abs(simulation.difference):.2g} % {comparative}"


def _shares(sums: Mapping[Any, float], step_s: float) -> str:
    """Write shares of a step by name; those below half a percent are summed up."""
    large = {name: seconds for name, seconds in sums.items() if seconds >= 0.005 * step_s}
    texts = [f"{name} {100 * seconds / step_s:.0f} %" for name, seconds in large.items()]
    rest = sum(sums.values()) - sum(large.values())
    if rest > 1e-3 * step_s:
        texts.append(f"others {100 * rest / step_s:.1f} %")
    return ", ".join(texts)


def _stage_table(simulation: Simulation) -> Table:
    """Return time and memory of every stage; of many stages the first and the last."""
    count = simulation.timeline.num_stages
    stages = list(range(count))
    if count > _MAX_ROWS:
        half = _MAX_ROWS // 2
        stages = [*range(half), *range(count - half, count)]
    columns = (
        Column("stage", "stage"),
        Column("busy_s", "busy", format_seconds),
        Column("idle_s", "idle", format_seconds),
        Column("idle_share", "idle of step", lambda share: f"{100 * share:.1f} %"),
        Column("states_bytes", "states", format_bytes),
        Column("activations_bytes", "most activations", format_bytes),
        Column("estimated_bytes", "estimated peak", format_bytes),
    )
    return Table(tuple(_stage_record(simulation, stage) for stage in stages), "Stages", columns)


def _stage_record(simulation: Simulation, stage: int) -> Record:
    idle_s, memory = simulation.idle_s[stage], simulation.memory[stage]
    step_s = simulation.makespan_s
    return {
        "stage": stage,
        "busy_s": step_s - idle_s,
        # what rounding leaves is none
        "idle_s": idle_s if idle_s > 1e-9 * step_s else 0.0,
        "idle_share": max(idle_s, 0.0) / step_s,
        "states_bytes": memory.states_bytes,
        "activations_bytes": max(memory.activations_bytes),
        "estimated_bytes": memory.estimated_bytes,
    }


def _gain_table(simulation: Simulation) -> Table:
    """Return what the step gains if one resource is faster, each simulated once more."""
    step_s = simulation.makespan_s
    records = (
        {
            "faster": bottleneck.name,
            "step_s": step_s - bottleneck.gain_s,
            "gain": bottleneck.gain_s / step_s,
        }
        for bottleneck in simulation.bottlenecks[:_MAX_ROWS]
        if bottleneck.gain_s >= _MIN_GAIN * step_s
    )
    columns = (
        Column("faster", "faster"),
        Column("step_s", "step", format_seconds),
        Column("gain", "gain", lambda gain: f"{100 * gain:.1f} %"),
    )
    title = f"What to widen: the step with one thing {100 * SPEEDUP:.0f} % faster"
    return Table(tuple(records), title, columns, folded=True)
