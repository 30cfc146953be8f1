"""HTML: answers and descriptions as a notebook shows them, in the words of all other outputs.

No scripts, no colours, nothing from elsewhere: the page's own theme decides how tables look. Every
text is escaped. The functions are registered with `planner.tables.html`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from planner.ask.answer import Answer
from planner.choose.plan import Plan
from planner.choose.simulation.bottlenecks import SPEEDUP
from planner.choose.simulation.step_simulation import Simulation
from planner.cost.estimate import Estimate
from planner.cost.parts import part
from planner.describe.base import Description, Quantity, shown
from planner.describe.configurations.configuration import Configuration
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import shorten
from planner.evidence.learning import Learned
from planner.show import training, words
from planner.show.answers import answer_table
from planner.show.catalogue.quantities import format_quantity, quantities
from planner.show.lessons import corrected
from planner.show.simulation import GAINS, STAGES, gains, simulation_lines, stages
from planner.sweeps import Swept
from planner.tables import html
from planner.training.answer import WholeTraining
from planner.units import counted, format_amount, format_bytes, format_count, format_seconds

__all__ = [
    "answer",
    "configuration",
    "description",
    "estimate",
    "html",
    "layout",
    "learned",
    "machine",
    "plan",
    "simulation",
    "swept",
]

_SHOWN = 8
_LONGEST = 160
_LEFT = "text-align:left;vertical-align:top"
_RIGHT = "text-align:right;vertical-align:top;white-space:nowrap"


def _page(*parts: str) -> str:
    return f'<div style="overflow-x:auto">{"".join(parts)}</div>'


def _line(text: str, strong: str = "") -> str:
    head = f"<strong>{escape(strong)}</strong> " if strong else ""
    return f'<div style="margin:.2em 0">{head}{escape(text)}</div>'


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A table; columns whose numbers are in `right` hold figures."""
    styles = [_RIGHT if number in set(right) else _LEFT for number in range(len(columns))]

    def row(cells: Sequence[str], tag: str) -> str:
        inner = (
            f'<{tag} style="{style}">{escape(str(cell))}</{tag}>'
            for cell, style in zip(cells, styles, strict=True)
        )
        return f"<tr>{''.join(inner)}</tr>"

    head = f"<thead>{row(columns, 'th')}</thead>" if any(columns) else ""
    body = "".join(row(cells, "td") for cells in rows)
    return f'<table style="margin:.2em 0">{head}<tbody>{body}</tbody></table>'


def _folded(title: str, inner: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inner}</details>"


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


@html.register(Plan)
def plan(value: Plan) -> str:
    """A plan: the verdict, the fastest layouts, and folded up what became of all others."""
    parts = [_line(f"{words.job(value)}."), _line(words.verdict(value))]
    if value.recommended is not None:
        amount, duration, hours = words.cost(value, value.recommended)
        said = f"{amount}: {duration}, {hours}. {words.queues(value, value.recommended)}"
        parts.append(_line(said.rstrip()))
    if value.training is not None:
        parts.append(whole_training(value.training))
    if value.ranked:
        columns = ("framework", "layout", "step", "MFU", "memory", "out of memory")
        rows = [
            (
                one.framework,
                str(one.layout),
                format_seconds(one.step_time_s),
                f"{100 * one.mfu:.1f} %",
                format_bytes(one.memory_bytes["total"]),
                words.probability(one.out_of_memory_probability),
            )
            for one in value.ranked[:_SHOWN]
        ]
        parts.append(_table(columns, rows, right=range(2, 6)))
    judged = words.strategies(value)
    if judged:
        table = _table(tuple(judged[0]), [tuple(row.values()) for row in judged], right=(2,))
        parts.append(_folded("Classic strategies", table))
    if value.notes:
        parts.append(_folded("Notes", _list(value.notes)))
    fell = _list(f"{d.reason}: {d.count:,}" for d in value.dropped)
    parts.append(_folded(f"{value.num_candidates:,} layouts evaluated; what was dropped", fell))
    return _page(*parts)


@html.register(WholeTraining)
def whole_training(value: WholeTraining) -> str:
    """A whole training: how long, its parts, and folded up what is not counted."""
    rows = training.rows(value)
    table = _table(("part", "time", "share", "90 % between", "what it counts"), rows, right=(1, 2))
    notes = _folded("Notes", _list([f"{training.facts(value)}.", *value.notes]))
    return _page(_line(training.summary(value)), table, notes)


@html.register(Answer)
def answer(value: Answer) -> str:
    """The answer to a question: the sentence, what was looked at, and folded up how."""
    parts = [_line(value.verdict)]
    if value.rows:
        titles, rows = answer_table(value)
        figures = [n for n in range(len(titles)) if not any(r[n][:1].isalpha() for r in rows)]
        parts.append(_table(titles, rows, right=figures))
    return _page(*parts, _folded("Notes", _list(value.notes)))


@html.register(Estimate)
def estimate(value: Estimate) -> str:
    """An estimate: whether it fits, its step, and the parts of time and memory."""
    said = (
        f"{value.layout} [{value.framework}]: step {format_seconds(value.step_time_s)} "
        f"({words.interval(value)}), MFU {100 * value.mfu:.1f} %, "
        f"{format_amount(value.tokens_per_s)} {words.rate_unit(value)}/s"
    )
    kinds = (
        ("step time", value.step_time_parts_s, format_seconds),
        (f"memory per device, stage {value.worst_stage}", value.memory_bytes, format_bytes),
        ("memory per host", value.host_memory_bytes, format_bytes),
    )
    tables = []
    for title, parts, form in kinds:
        total = parts.get("total") or sum(parts.values())
        rows = [
            (part(name).label, form(size), f"{100 * size / total:.1f} %")
            for name, size in parts.items()
            if size and name != "total"
        ]
        tables.append(_table((title, form(total), ""), rows, right=(1, 2)))
    doubt = [_line(words.doubt(value))] if value.tight else []
    return _page(
        _line(said, f"{words.fits(value)}:"),
        *doubt,
        '<div style="display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start">',
        *tables,
        "</div>",
    )


@html.register(Simulation)
def simulation(value: Simulation) -> str:
    """A played step: its length and what sets it, its stages, and folded up what to widen."""
    wider = _table(GAINS, gains(value), right=(1, 2))
    return _page(
        *map(_line, simulation_lines(value)),
        _table(STAGES, stages(value), right=range(len(STAGES))),
        _folded(f"What to widen: the step with one thing {100 * SPEEDUP:.0f} % faster", wider),
    )


@html.register(Swept)
def swept(value: Swept) -> str:
    """A sweep: what became of its questions, and the first of their rows."""
    said = (
        f"{counted(value.num_questions, 'question')}: {counted(len(value.rows), 'row')}, "
        f"{value.num_fitting:,} fit, {value.num_refused:,} refused."
    )
    columns = ("model", "machine", "set", "nodes", "layout", "step", "refused")
    rows = [
        (
            row["model"],
            row["machine"],
            row["set"],
            "" if row["nodes"] is None else f"{row['nodes']:,}",
            row["layout"] or "",
            format_seconds(seconds) if (seconds := row.get("step_time_s")) else "",
            row["error"] or "",
        )
        for row in value.rows[:_SHOWN]
    ]
    return _page(_line(said), _table(columns, rows, right=(3, 5)))


@html.register(Learned)
def learned(value: Learned) -> str:
    """What runs taught: each beside its estimate."""
    rows = [
        (
            score.run.row_id,
            score.run.model.name,
            score.run.machine.name,
            str(score.run.layout),
            format_seconds(score.run.step_time_s) if score.run.step_time_s else "",
            format_seconds(score.estimate.step_time_s),
            "" if score.error is None else f"{100 * score.error:+.0f} %",
        )
        for score in value.scores
    ]
    columns = ("run", "model", "machine", "layout", "measured", "estimated", "error")
    refused = [f"{run.row_id}: {run.reason}" for run in value.refused]
    parts = [_line(f"Estimates are {corrected(value)}."), _table(columns, rows, right=(4, 5, 6))]
    if refused:
        parts.append(_folded(f"{counted(len(refused), 'run')} taught nothing", _list(refused)))
    return _page(*parts)


@html.register(Configuration)
def configuration(value: Configuration) -> str:
    """What configuration files say, and how they were read."""
    tables = {"layout": value.layout, "workload": value.workload, "model": value.shape}
    rows = [
        (kind, name, shown(found))
        for kind, table in tables.items()
        for name, found in table.items()
    ]
    head = _line(value.framework, f"{value.name} ({', '.join(value.kinds)}):")
    notes = [_folded("How they were read", _list(value.notes))] if value.notes else []
    return _page(head, _table(("", "field", "value"), rows), *notes)


@html.register(Description)
def description(value: Description) -> str:
    """A description: what of it is not as usual."""
    return _page(_line("", _title(value)), _table(("field", "value"), _fields(value)))


@html.register(Layout)
def layout(value: Layout) -> str:
    """A layout: its code, what that means, and its fields."""
    said = (
        f"{words.layout_words(value)}; {counted(value.world, 'rank')}, "
        f"{value.global_batch:,} sequences a step"
    )
    fields = _table(("field", "value"), _fields(value))
    return _page(_line(said, f"{value}:"), _folded("What is not as usual", fields))


@html.register(Model)
def model(value: Model) -> str:
    """A model: its parameters and its shapes."""
    said = f"{format_count(value.num_params)} parameters"
    return _page(_line(said, f"{value.name}:"), _table(("field", "value"), _fields(value)))


@html.register(Framework)
def framework(value: Framework) -> str:
    """A framework: its switches and its traits."""
    switches = [
        (f"+{name}" + "=VALUE" * bool(switch.takes), switch.does)
        for name, switch in value.switches.items()
    ]
    rows = [row for row in _fields(value) if not row[0].startswith("switch")]
    parts = [_line(value.title, f"{value.name}:")]
    if switches:
        parts.append(_folded("Switches", _table(("switch", "what it does"), switches)))
    return _page(*parts, _folded("Traits", _table(("field", "value"), rows)))


@html.register(Machine)
def machine(value: Machine) -> str:
    """A machine: what it has, its queues, and folded up every number with kind and source."""
    known = list(quantities(value))
    assumed = sum(quantity.kind == "assumed" for _, quantity in known)
    said = (
        f"{counted(value.num_nodes.value, 'node')} x "
        f"{counted(value.node.num_devices, 'device')} ({value.device.name}) = "
        f"{counted(value.num_devices, 'device')} with "
        f"{format_bytes(value.device.memory_bytes.value)} each"
    )
    rows = [(name, format_quantity(name, q.value), q.kind, q.source) for name, q in known]
    numbers = _table(("quantity", "value", "kind", "source"), rows, right=(1,))
    queues = [
        f"{queue.name}: {queue.min_nodes:,}-{queue.max_nodes:,} nodes, {queue.max_hours:g} h"
        for queue in value.scheduler.queues
    ]
    parts = [_line(value.title, f"{value.name}:"), _line(said)]
    parts.append(_folded(f"{len(known)} numbers, of which {assumed} are assumed", numbers))
    if queues:
        parts.append(_folded(counted(len(queues), "queue"), _list(queues)))
    if value.notes:
        parts.append(_folded("Notes", _list(value.notes)))
    return _page(*parts)


def _title(value: Description) -> str:
    name = str(getattr(value, "name", ""))
    return f"{type(value).__name__} {name}".rstrip()


def _fields(value: Description, prefix: str = "") -> list[tuple[str, str]]:
    """Names and values of what is not as usual, those inside with dotted names."""
    rows: list[tuple[str, str]] = []
    for name, field in type(value).model_fields.items():
        found = getattr(value, name)
        if found == field.default:
            continue
        key = f"{prefix}{name}"
        if isinstance(found, Quantity):
            rows.append((key, f"{format_quantity(key, found.value)} ({found.kind})"))
        elif isinstance(found, Description):
            rows += _fields(found, f"{key}.")
        else:
            rows.append((key, shorten(_text(found), _LONGEST)))
    return rows


def _text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ", ".join(_text(one) for one in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(one)}" for key, one in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
