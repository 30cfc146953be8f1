"""First screen: the answer of a plan, its alternatives and the classic strategies, in short."""

import functools
import re
from collections.abc import Iterable
from textwrap import wrap
from typing import Any

from rich.console import Console
from rich.text import Text

from planner.choose.plan import Plan, Verdict
from planner.choose.preferences import preferences
from planner.choose.verdicts.answer_lines import NOTABLE, AnswerLine, percent_chance
from planner.cost.estimate import Estimate
from planner.cost.parts import part
from planner.show.terminal import print_table
from planner.tables import Column, Record, Table
from planner.units import GIB, format_seconds

_MAX_ALTERNATIVES = 5
_LABEL_WIDTH = 8
FIT_STYLES = {"no": "red", "tight": "yellow", "yes": "green"}
ANSWER_STYLES = {
    "Fits": "bold green",
    "Fits, but tight": "bold yellow",
    "Does not fit": "bold red",
    "Change": "bold yellow",
}

_DEGREES = (
    ("dp", "DP", 1),
    ("tp", "TP", 1),
    ("pp", "PP", 1),
    ("vpp", "VPP", 1),
    ("cp", "CP", 1),
    ("ep", "EP", 1),
    ("zero_stage", "ZeRO", 0),
    ("micro_batch", "micro", 0),
    ("recompute", "recompute", "none"),
    ("offload", "offload", "none"),
)
"""Fields of a layout that distinguish alternatives, their titles, and the values not shown."""


def print_tables(plan: Plan, out: Console) -> None:
    """Print the alternatives, the classic strategies, and what to do next."""
    if plan.ranked:
        print_table(alternatives_table(plan), out)
        out.print()
    print_table(brief_strategies_table(plan), out)
    out.print()
    name = re.escape(getattr(plan.recommended, "framework", "-"))
    no_files = re.compile(rf"No files can be written for (the recommended layout|{name}):")
    unwritable = any(map(no_files.match, plan.notes))
    emit = "planner emit (its files), " if plan.fits and not unwritable else ""
    why = " (why no files can be written)" if unwritable else ""
    network = ", --network" if plan.network_note else ""
    print_answer([AnswerLine("Next", f"{emit}planner plan --explain{why}{network}")], out)


def print_answer(lines: Iterable[AnswerLine], out: Console) -> None:
    """Print labelled lines; a long one continues below its text."""
    for line in lines:
        head = f"{line.label}: ".ljust(_LABEL_WIDTH)
        label = Text(head, ANSWER_STYLES.get(line.label, "bold"))
        texts = wrap(line.text, max(out.width - len(head), 20), break_on_hyphens=False)
        for number, text in enumerate(texts):
            out.print(Text.assemble(" " * len(head) if number else label, text))


def alternatives_table(plan: Plan) -> Table:
    """Return the recommended and the fastest layouts, a column for every degree that differs."""
    records = tuple(_alternative(each, plan) for each in plan.listed[: _MAX_ALTERNATIVES + 1])
    degrees = (
        Column(name, title, functools.partial(_unless, common))
        for name, title, common in _DEGREES
        if any(record[name] != common for record in records)
    )
    columns = (
        Column("role", "alternatives"),
        Column("framework", "framework"),
        *_size_columns(plan),
        Column("risk", "OOM [%]", _percent, style=risk_style),
        *degrees,
    )
    return Table(records, columns=columns)


def _alternative(estimate: Estimate, plan: Plan) -> Record:
    roles = ((plan.recommended, "recommended"), (plan.best, "fastest"))
    layout = estimate.layout
    partial = layout.recompute == "full" and layout.recompute_layers
    return {
        "role": next((role for each, role in roles if each == estimate), ""),
        "framework": estimate.framework,
        "step_time_s": estimate.step_time_s,
        "memory_bytes": estimate.memory_bytes["total"],
        "risk": estimate.out_of_memory_probability,
        **{name: getattr(layout, name) for name, _, _ in _DEGREES},
        "recompute": f"{partial} layers" if partial else layout.recompute,
    }


def _size_columns(plan: Plan) -> tuple[Column, Column]:
    """Return columns of step time and memory, with their units in the titles."""
    longest_s = max((each.step_time_s for each in plan.listed[:1]), default=1.0)

    def number(seconds: float) -> str:
        return format_seconds(seconds, like=longest_s).partition(" ")[0]

    return (
        Column("step_time_s", f"step [{format_seconds(longest_s).partition(' ')[2]}]", number),
        Column("memory_bytes", "memory [GiB]", lambda used: f"{used / GIB:,.1f}"),
    )


def _unless(common: Any, value: Any) -> str:
    return "-" if value == common else str(value)


def _percent(risk: float) -> str:
    return percent_chance(risk).removesuffix(" %").replace(" ", "")


def risk_style(risk: float) -> str:
    """Return the terminal style of an out-of-memory risk."""
    return "yellow" if risk > preferences().risk else ""


def brief_strategies_table(plan: Plan) -> Table:
    """Return each classic strategy in one line: fits, step, memory, and the one reason."""
    columns = (
        Column("strategy", "strategy"),
        Column("fits", "fits", style=lambda fits: FIT_STYLES[fits]),
        *_size_columns(plan),
        Column("reason", "", min_width=24),
    )
    records = (
        {
            "strategy": verdict.name,
            "fits": fit_of(verdict),
            "step_time_s": verdict.estimate.step_time_s if verdict.fits else None,
            "memory_bytes": verdict.estimate.memory_bytes["total"],
            "reason": _brief_reason(plan, verdict),
        }
        if verdict.estimate
        else {"strategy": verdict.name, "fits": "no", "reason": _brief_reason(plan, verdict)}
        for verdict in plan.strategies
    )
    return Table(tuple(records), columns=columns)


def fit_of(verdict: Verdict) -> str:
    """State whether a strategy fits, in one word."""
    if not verdict.fits or verdict.estimate is None:
        return "no"
    return "tight" if verdict.estimate.tight else "yes"


def _brief_reason(plan: Plan, verdict: Verdict) -> str:
    estimate, best = verdict.estimate, plan.recommended
    if estimate is None:
        return re.split("[;,(]", verdict.why.removeprefix("no legal layout: "))[0].strip()
    if not verdict.fits:
        over = (estimate.memory_bytes["total"] - plan.device_memory_bytes) / GIB
        largest = verdict.why.rpartition("; ")[2].partition(":")[0]
        return f"{over:,.1f} GiB too much: {largest}" if over > 0 else verdict.why.split(",")[0]
    if best is None or estimate == best:
        return "recommended" if best else ""
    loss = estimate.step_time_s / best.step_time_s - 1
    if abs(loss) < NOTABLE:
        return "as fast"
    if loss < 0:
        risk = percent_chance(estimate.out_of_memory_probability)
        return f"{-100 * loss:.0f} % faster, out-of-memory risk {risk}"
    parts = estimate.step_time_parts_s
    name = max(parts, key=lambda name: parts[name] - best.step_time_parts_s[name])
    return f"{100 * loss:.0f} % slower: {part(name).label}"
