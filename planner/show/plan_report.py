"""Plan report: plans and single estimates as printed by the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from planner.choose.plan import Plan
from planner.choose.preferences import preferences
from planner.choose.simulation.step_simulation import Simulation
from planner.choose.verdicts.strategy_verdicts import Verdict
from planner.cost.estimate import Estimate
from planner.cost.parts import part
from planner.describe.machine import Machine
from planner.show import words
from planner.show.terminal import print_notes, print_table, show
from planner.tables import Column, Record, Table
from planner.units import format_amount, format_bytes, format_seconds

_MAX_ROWS = 8
_FIT_STYLES = {"no": "red", "tight": "yellow", "yes": "green"}


def ranked_table(plan: Plan) -> Table:
    """Return the fastest layouts of a plan, one of each kind."""

    def risk_style(risk: float) -> str:
        return "yellow" if risk > preferences().risk else ""

    columns = (
        Column("framework", "framework"),
        Column("layout", "layout", min_width=24),
        Column("step_time_s", "step", format_seconds),
        Column("mfu", "MFU", lambda mfu: f"{100 * mfu:.1f} %"),
        Column("memory_bytes", "memory", format_bytes),
        Column("risk", "out of memory", words.percent_chance, style=risk_style),
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
    """Return the verdict on every classic strategy, and the cheapest change that makes it fit."""
    columns = (
        Column("strategy", "strategy"),
        Column("fits", "fits", style=lambda fits: _FIT_STYLES[fits]),
        Column("step_time_s", "step", format_seconds),
        Column("layout", "layout"),
        Column("why", "why"),
        Column("fix", "cheapest fix"),
    )
    return Table(tuple(map(_strategy, plan.strategies)), "Classic strategies", columns, folded=True)


def _strategy(verdict: Verdict) -> Record:
    estimate = verdict.estimate
    fitting = estimate if verdict.fits else None
    return {
        "strategy": verdict.name,
        "fits": "no" if fitting is None else "tight" if fitting.tight else "yes",
        "step_time_s": fitting and fitting.step_time_s,
        "layout": f"{estimate.layout} [{estimate.framework}]" if estimate else "",
        "why": verdict.why,
        "fix": verdict.fix,
    }


def estimate_tables(
    estimate: Estimate, device_limit_bytes: float = 0.0, host_limit_bytes: float = 0.0
) -> list[Table]:
    """Return the parts of an estimate's step time, device memory and host memory."""
    device, host = (
        f"{title} (of {format_bytes(limit)})" if limit else title
        for title, limit in (
            (f"Memory per device, stage {estimate.worst_stage}", device_limit_bytes),
            ("Memory per host", host_limit_bytes),
        )
    )
    return [
        _parts("Step time", estimate.step_time_parts_s, format_seconds),
        _parts(device, estimate.memory_bytes, format_bytes),
        _parts(host, estimate.host_memory_bytes, format_bytes),
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


_STYLES = {"Fits": "bold green", "Fits, but tight": "bold yellow", "Does not fit": "bold red"}


def show_plan(plan: Plan, out: Console, lessons: Sequence[str] = ()) -> None:
    """Print a plan: verdict, lessons from measured runs, ranked layouts, strategies, notes."""
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
    estimate, job = plan.recommended, words.job_sentence(plan)
    if estimate is None:
        lines = Text(f"Nothing fits: {job}.\n", style="bold red")
        return lines.append(f"{words.closest_strategy(plan)}\n", style="not bold default")
    fits = words.fit_word(estimate)
    headline = words.headline(plan)
    lines = Text(f"{fits}: {job}.\n", style=_STYLES[fits])
    for sentence, style in (
        (headline and f"{headline} --exact keeps to the job as asked.", "yellow"),
        (f"Recommended: {estimate.layout}  [{estimate.framework}]", "default"),
        (_figures(plan, estimate), "not bold default"),
        (f"  {words.tight_warning(estimate)}".rstrip(), "yellow"),
        (f"  {plan.scale_note}".rstrip(), "yellow"),
        (f"  {words.fastest_gain(plan)}".rstrip(), "not bold default"),
        (f"  {plan.files_note}".rstrip(), "not bold default"),
        (f"  {words.other_ways(plan)}".rstrip(), "not bold default"),
    ):
        if sentence:
            lines.append(f"{sentence}\n", style=style)
    return lines


def _figures(plan: Plan, estimate: Estimate) -> str:
    """Format the figures of the recommended layout in two lines."""
    device, host = estimate.memory_bytes["total"], estimate.host_memory_bytes["total"]
    step = (
        f"  step {format_seconds(estimate.step_time_s)} ({words.step_interval(estimate)})   "
        f"MFU {100 * estimate.mfu:.1f} %   "
        f"{format_amount(estimate.tokens_per_s)} {words.throughput_unit(estimate)}/s "
        f"({format_amount(estimate.tokens_per_s / plan.num_devices)} per device)   "
        f"{format_bytes(device)} per device, {format_bytes(host)} per host"
    )
    return f"{step}\n  {words.cost_sentence(plan, estimate)}"


def _reason(record: Record) -> str:
    """Format a strategy's layout, why it fits or not, and its cheapest fix."""
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
    """Print a simulated step, after a warning if the layout does not fit."""
    if not simulation.estimate.fits:
        shortage = words.fit_sentence(simulation.estimate, machine)
        out.print(f"{shortage}.", style="bold red", highlight=False)
    show(simulation, out)


def show_reading(
    estimate: Estimate, better: Estimate | None, notes: Iterable[str], out: Console
) -> None:
    """Print how configuration files were read, and the fastest layout of their framework."""
    lines = [f"- {note}" for note in notes]
    complete = "The files state everything; nothing was assumed."
    text = "\n".join(["How the files were read:", *lines]) if lines else complete
    out.print(Text(f"{text}\n{words.better_layout(estimate, better)}"), highlight=False)
