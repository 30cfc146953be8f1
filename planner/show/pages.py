"""Pages of results: what a notebook shows of plans, estimates, sweeps and lessons.

Importing this module registers what people read of every result and description.
"""

from __future__ import annotations

from planner.choose.plan import Plan
from planner.cost.estimate import Estimate
from planner.evidence.learning import Learned
from planner.evidence.scores import Score
from planner.show import answers, simulation, training, words
from planner.show.catalogue import descriptions
from planner.show.evidence.lessons import corrected
from planner.show.plan_tables import estimate_tables, ranked_table, strategies_table
from planner.sweeps import Swept
from planner.tables import Block, Column, Line, Notes, Record, Table, page
from planner.units import counted, format_seconds

__all__ = ["answers", "descriptions", "simulation"]

_MAX_ROWS = 8


@page.register
def plan_page(plan: Plan) -> list[Block]:
    """Return the verdict of a plan, its fastest layouts, and what became of all others."""
    blocks: list[Block] = [Line(f"{words.job_sentence(plan)}."), Line(words.plan_sentence(plan))]
    if plan.recommended is not None:
        amount, duration, hours = words.training_cost(plan, plan.recommended)
        queues = words.queue_sentence(plan, plan.recommended)
        blocks.append(Line(f"{amount}: {duration}, {hours}. {queues}".rstrip()))
    if plan.training is not None:
        blocks += training.training_page(plan.training)
    if plan.ranked:
        blocks.append(ranked_table(plan))
    dropped = tuple(f"{reason.reason}: {reason.count:,}" for reason in plan.dropped)
    return [
        *blocks,
        strategies_table(plan),
        Notes(plan.notes),
        Notes(dropped, f"{plan.num_candidates:,} layouts evaluated; what was dropped"),
    ]


@page.register
def estimate_page(estimate: Estimate) -> list[Block]:
    """Return whether a layout fits, its step, and the parts of time and memory."""
    figures = f"{estimate.layout} [{estimate.framework}]: {words.step_figures(estimate)}"
    doubt = [Line(words.tight_warning(estimate))] if estimate.tight else []
    return [Line(f"{words.fit_word(estimate)}: {figures}"), *doubt, *estimate_tables(estimate)]


@page.register
def sweep_page(swept: Swept) -> list[Block]:
    """Return counts of a sweep's questions, and the first of their rows."""
    counts = (
        f"{counted(swept.num_questions, 'question')}: {counted(len(swept.rows), 'row')}, "
        f"{swept.num_fitting:,} fit, {swept.num_refused:,} refused."
    )
    columns = (
        Column("model", "model"),
        Column("machine", "machine"),
        Column("set", "set"),
        Column("nodes", "nodes", "{:,}".format),
        Column("layout", "layout"),
        Column("step_time_s", "step", format_seconds),
        Column("error", "refused"),
    )
    return [Line(counts), Table(swept.rows[:_MAX_ROWS], columns=columns)]


@page.register
def learned_page(learned: Learned) -> list[Block]:
    """Return every measured run beside its estimate."""
    columns = (
        Column("run", "run"),
        Column("model", "model"),
        Column("machine", "machine"),
        Column("layout", "layout"),
        Column("measured_s", "measured", format_seconds),
        Column("estimated_s", "estimated", format_seconds),
        Column("error", "error", lambda error: f"{100 * error:+.0f} %"),
    )
    refused = tuple(f"{run.row_id}: {run.reason}" for run in learned.refused)
    return [
        Line(f"Estimates are {corrected(learned)}."),
        Table(tuple(map(_run, learned.scores)), columns=columns),
        Notes(refused, f"{counted(len(refused), 'run')} taught nothing"),
    ]


def _run(score: Score) -> Record:
    return {
        "run": score.run.row_id,
        "model": score.run.model.name,
        "machine": score.run.machine.name,
        "layout": str(score.run.layout),
        "measured_s": score.run.step_time_s or None,
        "estimated_s": score.estimate.step_time_s,
        "error": score.error,
    }
