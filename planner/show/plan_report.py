"""Reports: plans and single estimates as the command line prints them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from planner.choose.plan import Plan
from planner.choose.simulation.step_simulation import Simulation
from planner.cost.estimate import Estimate
from planner.describe.machine import Machine
from planner.show import words
from planner.show.plan_tables import estimate_tables, ranked_table, strategies_table
from planner.show.terminal import print_notes, print_table, show
from planner.tables import Column, Record
from planner.units import format_amount, format_bytes, format_seconds

__all__ = ["show_estimate", "show_plan", "show_reading", "show_simulation", "verdict"]

_STYLES = {"Fits": "bold green", "Fits, but tight": "bold yellow", "Does not fit": "bold red"}


def show_plan(plan: Plan, out: Console, lessons: Sequence[str] = ()) -> None:
    """Print a plan: verdict, lessons of runs, ranked layouts, classic strategies, notes."""
    out.print(verdict(plan))
    if lessons:
        print_notes(lessons, out)
        out.print()
    if plan.training is not None:
        show(plan.training, out)
        out.print()
    if plan.ranked:
        print_table(ranked_table(plan), out)
        out.print()
    strategies = strategies_table(plan)
    reasons = Column("", "why, and the cheapest change that makes it fit", _reason, min_width=24)
    print_table(replace(strategies, columns=(*strategies.columns[:3], reasons)), out)
    out.print()
    print_notes(plan.notes, out)
    dropped = ", ".join(f"{reason.reason} {reason.count:,}" for reason in plan.dropped)
    summary = f"\n{words.search_summary(plan)}. Dropped: {dropped or 'none'}."
    out.print(summary, style="dim", highlight=False)


def verdict(plan: Plan) -> Text:
    """Return the answer of a plan in a few lines."""
    estimate = plan.recommended
    if estimate is None:
        lines = Text(f"Nothing fits: {words.job_sentence(plan)}.\n", style="bold red")
        return lines.append(f"{words.closest_strategy(plan)}\n", style="not bold default")
    fits = words.fit_word(estimate)
    lines = Text(f"{fits}: {words.job_sentence(plan)}.\n", style=_STYLES[fits])
    if instead := words.other_batch_notice(plan):
        lines.append(f"{instead}\n", style="yellow")
    lines.append(f"Recommended: {estimate.layout}  [{estimate.framework}]\n", style="default")
    lines.append(_figures(plan, estimate), style="not bold default")
    if estimate.tight:
        lines.append(f"  {words.tight_warning(estimate)}\n", style="yellow")
    for sentence in (words.fastest_gain(plan), words.other_batches(plan)):
        if sentence:
            lines.append(f"  {sentence}\n", style="not bold default")
    return lines


def _figures(plan: Plan, estimate: Estimate) -> str:
    """Write the figures of the recommended layout in two lines."""
    device, host = estimate.memory_bytes["total"], estimate.host_memory_bytes["total"]
    amount, duration, node_hours = words.training_cost(plan, estimate)
    step = (
        f"  step {format_seconds(estimate.step_time_s)} ({words.step_interval(estimate)})   "
        f"MFU {100 * estimate.mfu:.1f} %   "
        f"{format_amount(estimate.tokens_per_s)} {words.throughput_unit(estimate)}/s "
        f"({format_amount(estimate.tokens_per_s / plan.num_devices)} per device)   "
        f"{format_bytes(device)} per device, {format_bytes(host)} per host"
    )
    cost = f"  {amount}: {duration}, {node_hours}. {words.queue_sentence(plan, estimate)}"
    return f"{step}\n{cost.rstrip()}\n"


def _reason(record: Record) -> str:
    """Write a strategy's layout, why it fits or not, and what would help."""
    layout = f"{record['layout']}: " if record["layout"] else ""
    return f"{layout}{record['why']}" + (f". Fix: {record['fix']}" if record["fix"] else "")


def show_estimate(
    estimate: Estimate, machine: Machine, stages: list[dict[str, float]], out: Console
) -> None:
    """Print one estimate: verdict, time by part, memory by part and by stage."""
    device, host = machine.device.memory_bytes.value, machine.node.host_memory_bytes.value
    head = Text(words.fit_sentence(estimate, machine), _STYLES[words.fit_word(estimate)])
    out.print(Text.assemble(head, f": {estimate.layout} [{estimate.framework}]"))
    out.print(words.step_figures(estimate), highlight=False)
    for table in estimate_tables(estimate, device, host):
        print_table(table, out)
    if len(stages) > 1:
        totals = ", ".join(f"{i}: {format_bytes(sum(s.values()))}" for i, s in enumerate(stages))
        out.print(f"Memory by stage: {totals}", highlight=False)


def show_simulation(simulation: Simulation, machine: Machine, out: Console) -> None:
    """Print a simulated step, and first whether it fits at all."""
    if not simulation.estimate.fits:
        shortage = words.fit_sentence(simulation.estimate, machine)
        out.print(f"{shortage}.", style="bold red", highlight=False)
    show(simulation, out)


def show_reading(
    estimate: Estimate, better: Estimate | None, notes: Iterable[str], out: Console
) -> None:
    """Print how configuration files were read, and what their framework can do instead."""
    lines = [f"- {note}" for note in notes]
    text = "\n".join(["How the files were read:", *lines]) if lines else "The files say it all."
    out.print(Text(f"{text}\n{words.better_layout(estimate, better)}"), highlight=False)
