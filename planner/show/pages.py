"""Pages of results: plans, estimates, steps, sweeps and measured runs; import registers all."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.choose.plan import Plan
from planner.choose.simulation.step_simulation import SPEEDUP, Simulation
from planner.choose.verdicts.answer_lines import answer_lines, fit_word, step_interval
from planner.cost.estimate import Estimate
from planner.evidence.learning import Learned
from planner.show import answers, descriptions, training, words
from planner.show.first_screen import alternatives_table
from planner.show.measured_runs import corrected, runs_table
from planner.show.plan_report import estimate_tables, ranked_table, strategies_table
from planner.sweeps import Swept
from planner.tables import Block, Column, Line, Notes, Record, Table, page
from planner.units import counted, format_bytes, format_seconds

REGISTERING = (answers, descriptions)
"""Modules that register their own pages on import."""
_MAX_ROWS = 8


@page.register
def plan_page(plan: Plan) -> list[Block]:
    """Return the answer lines of a plan, its alternatives, strategies, and what is behind them."""
    blocks: list[Block] = [Line(f"{label}: {text}") for label, text in answer_lines(plan)]
    if plan.training is not None:
        blocks += training.training_page(plan.training)
    if plan.ranked:
        blocks += [alternatives_table(plan), replace(ranked_table(plan), folded=True)]
    dropped = tuple(f"{reason.reason}: {reason.count:,}" for reason in plan.dropped)
    return [
        *blocks,
        strategies_table(plan),
        Notes((words.queue_sentence(plan), words.size_sentence(plan), *plan.notes)),
        Notes(dropped, f"{plan.num_candidates:,} layouts evaluated; what was dropped"),
    ]


@page.register
def estimate_page(estimate: Estimate) -> list[Block]:
    """Return whether a layout fits, its step time, and the parts of time and memory."""
    figures = f"{estimate.layout} [{estimate.framework}]: {words.step_figures(estimate)}"
    doubt = [Line(f"{words.memory_interval(estimate)}.")] if estimate.tight else []
    return [Line(f"{fit_word(estimate)}: {figures}"), *doubt, *estimate_tables(estimate)]


@page.register
def sweep_page(swept: Swept) -> list[Block]:
    """Return counts of a sweep's questions, and its first rows."""
    counts = (
        f"{counted(swept.num_questions, 'question')}: {counted(len(swept.rows), 'row')}, "
        f"{swept.num_fitting:,} fit, {swept.num_refused:,} refused."
    )
    columns = (
        *(Column(name, name) for name in ("model", "machine", "set")),
        Column("nodes", "nodes", "{:,}".format),
        Column("layout", "layout"),
        Column("step_time_s", "step", format_seconds),
        Column("error", "refused"),
    )
    return [Line(counts), Table(swept.rows[:_MAX_ROWS], columns=columns)]


@page.register
def learned_page(learned: Learned) -> list[Block]:
    """Return every measured run with its estimate."""
    refused = tuple(f"{run.row_id}: {run.reason}" for run in learned.refused)
    return [
        Line(f"Estimates are {corrected(learned)}."),
        runs_table(learned.scores),
        Notes(refused, f"{counted(len(refused), 'run')} not used"),
    ]


_MAX_LINES = 16
_MIN_GAIN = 0.0005
"""Share of the step below which a gain is not worth a line."""


@page.register
def simulation_page(simulation: Simulation) -> list[Block]:
    """Return the length of a step and its critical path, the stages, and gains from speedups."""
    head, *lines = _sentences(simulation)
    stages = _stage_table(simulation)
    hidden = simulation.timeline.num_stages - len(stages.records)
    more = [Line(f"{hidden} stages between are left out")] if hidden else []
    return [Line(head, "bold"), *map(Line, lines), stages, *more, _gain_table(simulation)]


def _sentences(simulation: Simulation) -> Iterator[str]:
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
    """Format shares of a step by name; those below half a percent are added up."""
    large = {name: seconds for name, seconds in sums.items() if seconds >= 0.005 * step_s}
    texts = [f"{name} {100 * seconds / step_s:.0f} %" for name, seconds in large.items()]
    rest = sum(sums.values()) - sum(large.values())
    if rest > 1e-3 * step_s:
        texts.append(f"others {100 * rest / step_s:.1f} %")
    return ", ".join(texts)


def _stage_table(simulation: Simulation) -> Table:
    """Return time and memory of every stage; of many stages only the first and the last ones."""
    count = simulation.timeline.num_stages
    half = _MAX_LINES // 2
    middle = range(half, count - half) if count > _MAX_LINES else ()
    columns = (
        Column("stage", "stage"),
        Column("busy_s", "busy", format_seconds),
        Column("idle_s", "idle", format_seconds),
        Column("idle_share", "idle of step", lambda share: f"{100 * share:.1f} %"),
        Column("states_bytes", "states", format_bytes),
        Column("activations_bytes", "most activations", format_bytes),
        Column("estimated_bytes", "estimated peak", format_bytes),
    )
    stages = (stage for stage in range(count) if stage not in middle)
    return Table(tuple(_stage_record(simulation, stage) for stage in stages), "Stages", columns)


def _stage_record(simulation: Simulation, stage: int) -> Record:
    idle_s, memory = simulation.idle_s[stage], simulation.memory[stage]
    step_s = simulation.makespan_s
    return {
        "stage": stage,
        "busy_s": step_s - idle_s,
        # rounding errors count as zero
        "idle_s": idle_s if idle_s > 1e-9 * step_s else 0.0,
        "idle_share": max(idle_s, 0.0) / step_s,
        "states_bytes": memory.states_bytes,
        "activations_bytes": max(memory.activations_bytes),
        "estimated_bytes": memory.estimated_bytes,
    }


def _gain_table(simulation: Simulation) -> Table:
    """Return the step's gain if one resource is faster, each from a simulation of its own."""
    step_s = simulation.makespan_s
    records = (
        {"faster": each.name, "step_s": step_s - each.gain_s, "gain": each.gain_s / step_s}
        for each in simulation.bottlenecks[:_MAX_LINES]
        if each.gain_s >= _MIN_GAIN * step_s
    )
    columns = (
        Column("faster", "faster"),
        Column("step_s", "step", format_seconds),
        Column("gain", "gain", lambda gain: f"{100 * gain:.1f} %"),
    )
    title = f"What to widen: the step with one thing {100 * SPEEDUP:.0f} % faster"
    return Table(tuple(records), title, columns, folded=True)
