"""Plan report: plans and single estimates as printed by the command line."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from rich.console import Console
from rich.text import Text

from planner.choose.plan import Plan, Verdict
from planner.choose.simulation.step_simulation import Simulation
from planner.choose.verdicts.answer_lines import answer_lines, fit_word, other_ways, percent_chance
from planner.choose.verdicts.differences import largest_parts
from planner.choose.verdicts.layout_words import CODE
from planner.cost.estimate import Estimate
from planner.cost.parts import part
from planner.describe.machine import Machine
from planner.show import first_screen, words
from planner.show.terminal import print_notes, print_table, show
from planner.tables import Column, Record, Table
from planner.units import format_bytes, format_seconds

_MAX_ROWS = 8

Detail = Literal["lines", "screen", "all"]
"""How much of a plan is printed."""


def ranked_table(plan: Plan) -> Table:
    """Return the fastest layouts of a plan, one of each kind."""
    columns = (
        Column("framework", "framework"),
        Column("layout", "layout", min_width=24),
        Column("step_time_s", "step", format_seconds),
        Column("mfu", "MFU", lambda mfu: f"{100 * mfu:.1f} %"),
        Column("memory_bytes", "memory", format_bytes),
        Column("risk", "out of memory", percent_chance, style=first_screen.risk_style),
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
            "parts": largest_parts(estimate, least=0.005),
        }
        for estimate in plan.ranked[:_MAX_ROWS]
    )
    return Table(tuple(records), "Fastest layouts that fit, one of a kind", columns)


def strategies_table(plan: Plan) -> Table:
    """Return the verdict on every classic strategy, and the cheapest change that makes it fit."""
    columns = (
        Column("strategy", "strategy"),
        Column("fits", "fits", style=lambda fits: first_screen.FIT_STYLES[fits]),
        Column("step_time_s", "step", format_seconds),
        Column("layout", "layout"),
        Column("why", "why"),
        Column("fix", "cheapest fix"),
    )
    return Table(tuple(map(_strategy, plan.strategies)), "Classic strategies", columns, folded=True)


def _strategy(verdict: Verdict) -> Record:
    estimate = verdict.estimate
    return {
        "strategy": verdict.name,
        "fits": first_screen.fit_of(verdict),
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


def show_plan(
    plan: Plan, out: Console, lessons: Sequence[str] = (), detail: Detail = "screen"
) -> None:
    """Print a plan: the answer's lines, one screen with alternatives and strategies, or all."""
    first_screen.print_answer(answer_lines(plan), out)
    print_notes(lessons, out)
    if detail == "lines":
        return
    out.print()
    if detail == "all":
        _show_explanation(plan, out)
    else:
        first_screen.print_tables(plan, out)


def _show_explanation(plan: Plan, out: Console) -> None:
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
    more = (other_ways(plan), words.queue_sentence(plan), words.size_sentence(plan))
    print_notes([*filter(None, more), *plan.notes], out)
    legend = Table(
        tuple({"code": code, "meaning": meaning} for code, meaning in CODE.items()),
        "\nCode of layouts",
        (Column("code", "code"), Column("meaning", "meaning", min_width=30)),
    )
    print_table(legend, out)
    dropped = ", ".join(f"{reason.reason} {reason.count:,}" for reason in plan.dropped)
    summary = f"\n{words.search_summary(plan)}. Dropped: {dropped or 'none'}."
    out.print(summary, style="dim", highlight=False)


def _reason(record: Record) -> str:
    layout = f"{record['layout']}: " if record["layout"] else ""
    return f"{layout}{record['why']}" + (f". Fix: {record['fix']}" if record["fix"] else "")


def show_estimate(
    estimate: Estimate, machine: Machine, stages: list[dict[str, float]], out: Console
) -> None:
    """Print one estimate: verdict, time by part, memory by part and by stage."""
    device, host = machine.device.memory_bytes.value, machine.node.host_memory_bytes.value
    head = Text(
        words.fit_sentence(estimate, machine), first_screen.ANSWER_STYLES[fit_word(estimate)]
    )
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
