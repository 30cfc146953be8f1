"""Proposal: one plan as a document of some A4 pages, for a request of compute time."""

import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from string import Template

from planner.choose.plan import Plan
from planner.choose.verdicts.answer_lines import answer_lines, place
from planner.choose.verdicts.layout_words import layout_words
from planner.describe.catalogue import load_machine
from planner.describe.framework.kernel_releases import architecture_of
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.emitters import emit
from planner.errors import PlannerError
from planner.evidence.residuals import residuals, summary
from planner.show import words
from planner.show.descriptions import quantity_table
from planner.show.first_screen import alternatives_table, brief_strategies_table
from planner.show.plan_report import estimate_tables
from planner.show.reports.svg_bars import stacked_bars
from planner.tables import html, html_table
from planner.units import counted, format_bytes, format_seconds

_LISTED = ("job.sh", ".args", ".toml", ".json", ".yaml")
"""Ends of the names of files that are printed in full, but `layout.json`."""


def report(plan: Plan, model: Model | None = None, machine: Machine | None = None) -> str:
    """Write a plan as an HTML document that prints on A4; it loads nothing from elsewhere."""
    machine = machine or load_machine(plan.machine)
    sections = {
        "Answer": _answer(plan),
        "Compute time": _plain(html(plan.training)) if plan.training else "",
        **_layouts(plan),
        "Classic strategies": html_table(brief_strategies_table(plan)),
        "Assumptions, and the measured runs behind the estimate": _assumptions(plan, machine),
        "Numbers of the machine, with their sources": _numbers(machine),
        "Files that run it": _files(plan, model, machine),
    }
    body = (f"<section><h2>{k}</h2>{text}</section>" for k, text in sections.items() if text)
    page = Template(Path(__file__).with_name("proposal.html").read_text(encoding="utf-8"))
    title = escape(f"{plan.model} on {place(plan)}")
    return page.substitute(title=title, body="".join(body))


def _answer(plan: Plan) -> str:
    """Write the lines of the answer, with the layout's code and the interval of its memory."""
    lines = [(line.label, line.plain) for line in answer_lines(plan)]
    if (best := plan.recommended) is not None:
        lines.append(("Layout", f"{layout_words(best.layout)} ({best.layout})"))
        lines.append(("Range", f"Memory: {words.memory_interval(best)}."))
    rows = (f"<tr><th>{escape(name)}</th><td>{_text(text)}</td></tr>" for name, text in lines)
    return f'<table class="facts">{"".join(rows)}</table>'


def _layouts(plan: Plan) -> dict[str, str]:
    """Draw step and memory of the recommended layout, and list others; empty if none fits."""
    if (best := plan.recommended) is None:
        return {}
    high_s, limit = best.interval_step_time_s[1], plan.device_memory_bytes
    total, high = format_seconds(best.step_time_s), f"90 %: up to {format_seconds(high_s)}"
    step = stacked_bars({"step": best.step_time_parts_s}, {"step": total}, high_s, high)
    fitting = {e.name: e.estimate for e in plan.strategies if e.estimate and e.fits}
    rows = {"recommended": best, **fitting}
    memory = {name: dict(estimate.memory_bytes) for name, estimate in rows.items()}
    totals = {name: format_bytes(parts.pop("total")) for name, parts in memory.items()}
    return {
        "Step time by part": step + html_table(estimate_tables(best)[0]),
        "Memory of a device by part": stacked_bars(
            memory, totals, limit, f"device: {format_bytes(limit)}"
        ),
        "Other layouts": html_table(alternatives_table(plan)),
    }


def _assumptions(plan: Plan, machine: Machine) -> str:
    notes = [words.queue_sentence(plan), words.size_sentence(plan), *plan.notes]
    if plan.recommended is not None:
        notes.append(_scores(architecture_of(machine.device), plan.recommended.framework))
    return _items(filter(None, notes))


def _scores(architecture: str, framework: str) -> str:
    rows = [r for r in residuals() if (r.architecture, r.framework) == (architecture, framework)]
    runs = f"of {framework} on devices of the architecture {architecture}"
    if (scores := summary([r for r in rows if not r.seen]) or summary(rows)) is None:
        return f"No measured run {runs}: the interval is wider for that."
    counts = f"{counted(scores.num_runs, 'run')} {runs} ({counted(scores.num_sources, 'source')})"
    errors = f"median error {100 * scores.median:.1f} %, bias {100 * scores.bias:+.1f} %"
    return f"Step times of {counts}, estimate over measurement: {errors}."


def _numbers(machine: Machine) -> str:
    numbers = quantity_table(machine)
    cited = "\n".join(row["source"] for row in numbers.records)
    sources = (f"{k}: {text}" for k, text in machine.sources.items() if f"{k}:" in cited)
    return f'<div class="small">{html_table(numbers)}{_items(sources)}</div>'


def _files(plan: Plan, model: Model | None, machine: Machine) -> str:
    try:
        files = emit(plan, model=model, machine=machine)
    except PlannerError as refusal:
        return f"<p>None: {_text(refusal.plain)}.</p>"
    texts = (
        f"<h3>{escape(name)}</h3><pre>{escape(text.strip())}</pre>"
        for name, text in files.items()
        if name.endswith(_LISTED) and name != "layout.json"
    )
    return f'<p>{escape(", ".join(files))}</p><div class="files">{"".join(texts)}</div>'


def _items(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(text)}</li>' for text in texts)}</ul>"


def _text(text: str) -> str:
    return escape(_plain(text))


def _plain(text: str) -> str:
    """Leave out options of the command line in brackets, and unfold what a notebook folds."""
    return re.sub(r" \(--[a-z-]+\)", "", text).replace("<details>", "<details open>")
