"""Simulation: a played step in words and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planner.choose.simulation.bottlenecks import SPEEDUP
from planner.choose.simulation.step_simulation import Simulation
from planner.describe.machine import Machine
from planner.show.words import fate, interval
from planner.units import counted, format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["GAINS", "STAGES", "gains", "show_simulation", "simulation_lines", "stages"]

STAGES = ("stage", "busy", "idle", "idle of step", "states", "most activations", "estimated peak")
GAINS = ("faster", "step", "gain")
"""Columns of the tables."""
_MOST_ROWS = 16
_LEAST_GAIN = 0.0005
"""Share of the step below which a gain is not worth a line."""

Rows = Sequence[tuple[str, ...]]


def show_simulation(found: Simulation, machine: Machine, out: Console) -> None:
    """Print a played step: its length, what sets it, what each stage waits for, what to widen."""
    from rich.table import Table

    head, *lines = simulation_lines(found)
    out.print(head, style="bold", highlight=False, markup=False)
    if not found.estimate.fits:
        out.print(f"{fate(found.estimate, machine)}.", style="bold red", highlight=False)
    for line in lines:
        out.print(line, highlight=False, markup=False)
    for title, columns, rows in (
        ("Stages", STAGES, stages(found)),
        (
            f"What to widen: the step with one thing {100 * SPEEDUP:.0f} % faster",
            GAINS,
            gains(found),
        ),
    ):
        table = Table(box=None)
        for name in columns:
            table.add_column(name, justify="left" if name == GAINS[0] else "right")
        for row in rows:
            table.add_row(*row)
        if columns is STAGES and found.timeline.num_stages > len(rows):
            left = found.timeline.num_stages - len(rows)
            table.caption = f"{left} stages between are left out"
        out.print(f"\n{title}", highlight=False)
        out.print(table)


def simulation_lines(found: Simulation) -> Iterator[str]:
    """A played step in sentences: what it is, how long, and what sets its length."""
    layout, step = found.estimate.layout, found.makespan_s
    yield f"{layout} [{found.estimate.framework}]: {_length(found)}"
    yield f"{len(found.events):,} events on {counted(layout.pp, 'stage')}"
    if layout.pp > 1:
        by_stage = {f"stage {stage}": s for stage, s in found.critical_s("stage").items()}
        yield f"Critical path by stage: {_shares(by_stage, step)}"
    yield f"Critical path by stream: {_shares(found.critical_s('stream'), step)}"


def _length(found: Simulation) -> str:
    closed, step = found.estimate.step_time_s, found.makespan_s
    there = f"{closed:.4g} s ({interval(found.estimate)})"
    said = f"step {step:.4g} s played; `planner estimate` has {there}"
    if abs(found.difference) < 1e-9:
        return f"{said}, the same"
    way = "longer" if found.difference > 0 else "shorter"
    return f"{said}, played is {100 * abs(found.difference):.2g} % {way}"


def _shares(sums: Mapping[Any, float], step: float) -> str:
    """Named parts of a step, those of less than half a percent together."""
    large = {name: s for name, s in sums.items() if s >= 0.005 * step}
    said = [f"{name} {100 * seconds / step:.0f} %" for name, seconds in large.items()]
    rest = sum(sums.values()) - sum(large.values())
    return ", ".join([*said, f"others {100 * rest / step:.1f} %"] if rest > 1e-3 * step else said)


def stages(found: Simulation) -> Rows:
    """What each stage does of the step and holds; of many the first and the last."""
    count = found.timeline.num_stages
    shown = list(range(count))
    if count > _MOST_ROWS:
        half = _MOST_ROWS // 2
        shown = [*range(half), *range(count - half, count)]
    rows = []
    for stage in shown:
        idle, held = found.idle_s[stage], found.memory[stage]
        rows.append(
            (
                str(stage),
                format_seconds(found.makespan_s - idle),
                # what rounding leaves is none
                format_seconds(idle if idle > 1e-9 * found.makespan_s else 0.0),
                f"{100 * max(idle, 0.0) / found.makespan_s:.1f} %",
                format_bytes(held.states_bytes),
                format_bytes(max(held.activations_bytes)),
                format_bytes(held.estimated_bytes),
            )
        )
    return rows


def gains(found: Simulation) -> Rows:
    """What the step gains where one thing were faster, each played once more."""
    step, rows = found.makespan_s, []
    for one in found.bottlenecks[:_MOST_ROWS]:
        if one.gain_s >= _LEAST_GAIN * step:
            length, share = format_seconds(step - one.gain_s), 100 * one.gain_s / step
            rows.append((one.name, length, f"{share:.1f} %"))
    return rows
