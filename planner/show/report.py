"""Report: plans, estimates and catalogue entries as text for a person."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, JustifyMethod, OverflowMethod
from rich.table import Table
from rich.text import Text

from planner.ask.answer import Answer
from planner.choose.plan import Plan
from planner.choose.preferences import preferences
from planner.choose.verdicts.strategy_verdicts import Verdict
from planner.cost.estimate import Estimate
from planner.cost.parts import part
from planner.describe.base import Description
from planner.describe.machine import Machine
from planner.show import training, words
from planner.show.answers import answer_table
from planner.show.catalogue.quantities import format_quantity, quantities
from planner.show.stacked import stacked
from planner.training.answer import WholeTraining
from planner.units import counted, format_amount, format_bytes, format_seconds

__all__ = [
    "console",
    "show_answer",
    "show_estimate",
    "show_machine",
    "show_notes",
    "show_plan",
    "show_reading",
    "show_training",
]

_SHOWN = 8
_PIPE_WIDTH = 160
_NARROW = 110
# below, texts beside the figures of ranked layouts are folded into too many lines
_WIDE = {"reason": 24, "layout": 16, "recommendation": 14, "measure next": 14}
"""Columns that are folded where there is little room, and their least width."""
_PADDING = 2
# blanks beside a column of a table without lines


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave a closed pipe to the caller; rich itself would exit with "nothing fits"."""
        raise BrokenPipeError


def console() -> Console:
    """Standard output: a terminal decides its width, a pipe gets room for wide tables."""
    return _Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def verdict(plan: Plan) -> Text:
    """The answer in a few lines."""
    found = plan.recommended
    if found is None:
        lines = Text(f"Nothing fits: {words.job(plan)}.\n", style="bold red")
        return lines.append(f"{words.nearest(plan)}\n", style="not bold default")
    lines = Text(f"{words.fits(found)}: {words.job(plan)}.\n", style=_STYLES[words.fits(found)])
    if instead := words.instead(plan):
        lines.append(f"{instead}\n", style="yellow")
    lines.append(f"Recommended: {found.layout}  [{found.framework}]\n", style="default")
    device, host = found.memory_bytes["total"], found.host_memory_bytes["total"]
    amount, duration, node_hours = words.cost(plan, found)
    lines.append(
        f"  step {format_seconds(found.step_time_s)} ({words.interval(found)})   "
        f"MFU {100 * found.mfu:.1f} %   "
        f"{format_amount(found.tokens_per_s)} {words.rate_unit(found)}/s "
        f"({format_amount(found.tokens_per_s / plan.num_devices)} per device)   "
        f"{format_bytes(device)} per device, {format_bytes(host)} per host\n"
        + f"  {amount}: {duration}, {node_hours}. {words.queues(plan, found)}".rstrip()
        + "\n",
        style="not bold default",
    )
    if found.tight:
        lines.append(f"  {words.doubt(found)}\n", style="yellow")
    for sentence in (words.beside_fastest(plan), words.other_batches(plan)):
        if sentence:
            lines.append(f"  {sentence}\n", style="not bold default")
    return lines


_STYLES = {"Fits": "bold green", "Fits, but tight": "bold yellow", "Does not fit": "bold red"}


_RANKED = ("framework", "layout", "step", "MFU", "memory", "out of memory", "slowest parts")


def _show_ranked(plan: Plan, out: Console) -> None:
    """Print the ranked layouts; in a narrow terminal their texts stand under their figures."""
    title = "Fastest layouts that fit, one of a kind"
    rows = [_ranked_row(estimate) for estimate in plan.ranked[:_SHOWN]]
    table = Table(title=title, title_justify="left", box=None)
    for column in _RANKED:
        texts = column in ("framework", "layout", "slowest parts")
        fold: OverflowMethod = "fold" if column in ("framework", "layout") else "ellipsis"
        table.add_column(column, justify="left" if texts else "right", overflow=fold)
    for row in rows:
        table.add_row(*row)
    wanted = out.measure(table, options=out.options.update(max_width=_PIPE_WIDTH)).maximum
    if out.width >= min(wanted, _NARROW):
        out.print(table)
        return
    titles = [column.removesuffix(" parts") for column in _RANKED]
    plain = [[cell.plain for cell in row] for row in rows]
    head, body = stacked(titles, plain, ("layout", "slowest"), out.width)
    out.print(Text(title, "italic"))
    out.print(Text("\n".join(head), "bold"))
    out.print(Text("\n".join(body)))


def _ranked_row(estimate: Estimate) -> list[Text]:
    return [
        Text(estimate.framework),
        Text(str(estimate.layout)),
        Text(format_seconds(estimate.step_time_s)),
        Text(f"{100 * estimate.mfu:.1f} %"),
        Text(format_bytes(estimate.memory_bytes["total"])),
        _risk(estimate),
        Text(_largest(estimate.step_time_parts_s, estimate.step_time_s)),
    ]


def _risk(estimate: Estimate) -> Text:
    """The probability to run out of memory, amber where it is no small one."""
    risk = estimate.out_of_memory_probability
    return Text(words.probability(risk), "yellow" if risk > preferences().risk else "")


def _largest(parts: dict[str, float], total: float, count: int = 3) -> str:
    ordered = sorted(parts.items(), key=lambda item: -item[1])[:count]
    return ", ".join(
        f"{part(name).label} {100 * value / total:.0f} %"
        for name, value in ordered
        if value > 0.005 * total
    )


def _strategies(plan: Plan) -> Table:
    table = Table(title="Classic strategies", title_justify="left", box=None)
    table.add_column("strategy", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("why, and the cheapest change that makes it fit", overflow="fold")
    for entry in plan.strategies:
        estimate = entry.estimate
        time = format_seconds(estimate.step_time_s) if estimate and entry.fits else "-"
        shape = f"{estimate.layout} [{estimate.framework}]: " if estimate else ""
        text = f"{shape}{entry.why}" + (f". Fix: {entry.fix}" if entry.fix else "")
        table.add_row(entry.name, _fate(entry), time, Text(text))
    return table


def _fate(entry: Verdict) -> Text:
    if not entry.fits:
        return Text("no", "red")
    tight = entry.estimate is not None and entry.estimate.tight
    return Text("tight", "yellow") if tight else Text("yes", "green")


def show_plan(plan: Plan, out: Console, learned: Sequence[str] = ()) -> None:
    """Print a plan: verdict, what runs taught, ranked table, classic strategies, notes."""
    out.print(verdict(plan))
    if learned:
        show_notes(learned, out)
        out.print()
    if plan.training is not None:
        show_training(plan.training, out)
        out.print()
    if plan.ranked:
        _show_ranked(plan, out)
        out.print()
    out.print(_strategies(plan))
    out.print()
    show_notes(plan.notes, out)
    fell = ", ".join(f"{d.reason} {d.count:,}" for d in plan.dropped)
    out.print(
        f"\n{words.decided(plan)}. Dropped: {fell or 'none'}.",
        style="dim",
        highlight=False,
    )


def show_notes(notes: Iterable[str], out: Console) -> None:
    """Print sentences beside an answer, one a line."""
    for note in notes:
        out.print(Text(f"- {note}"))


def show_training(found: WholeTraining, out: Console) -> None:
    """Print a whole training: the sentence, its parts, what is not counted."""
    out.print(Text(training.summary(found), "bold"))
    table = Table(title="Its time, by part", title_justify="left", box=None)
    for column in ("part", "time", "", "90 % between", "what it counts"):
        table.add_column(column, justify="left" if column[:1] in "pw" else "right")
    for row in training.rows(found):
        table.add_row(*map(Text, row))
    total = found.time
    whole = (format_seconds(total.expected), "", training.span(total))
    table.add_row("total", *whole, style="bold")
    out.print(table)
    out.print(f"{training.facts(found)}.", highlight=False)
    show_notes(found.notes, out)


def _parts(title: str, parts: dict[str, float], form: Any) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("part")
    table.add_column("", justify="right")
    table.add_column("", justify="right")
    total = parts.get("total") or sum(parts.values())
    for name, value in parts.items():
        if value and name != "total":
            table.add_row(part(name).label, form(value), f"{100 * value / total:.1f} %")
    table.add_row("total", form(total), "", style="bold")
    return table


def show_estimate(
    estimate: Estimate, machine: Machine, stages: list[dict[str, float]], out: Console
) -> None:
    """Print one estimate: verdict, time by part, memory by part and by stage."""
    limit = machine.device.memory_bytes.value
    room = machine.node.host_memory_bytes.value
    head = Text(words.fate(estimate, machine), _STYLES[words.fits(estimate)])
    out.print(Text.assemble(head, f": {estimate.layout} [{estimate.framework}]"))
    out.print(
        f"step {format_seconds(estimate.step_time_s)} ({words.interval(estimate)}), "
        f"MFU {100 * estimate.mfu:.1f} %, "
        f"{format_amount(estimate.tokens_per_s)} {words.rate_unit(estimate)}/s",
        highlight=False,
    )
    out.print(_parts("Step time", estimate.step_time_parts_s, format_seconds))
    out.print(
        _parts(
            f"Memory per device, stage {estimate.worst_stage} (of {format_bytes(limit)})",
            estimate.memory_bytes,
            format_bytes,
        )
    )
    out.print(
        _parts(
            f"Memory per host (of {format_bytes(room)})", estimate.host_memory_bytes, format_bytes
        )
    )
    if len(stages) > 1:
        totals = ", ".join(f"{i}: {format_bytes(sum(s.values()))}" for i, s in enumerate(stages))
        out.print(f"Memory by stage: {totals}", highlight=False)


def show_reading(
    estimate: Estimate, better: Estimate | None, notes: Iterable[str], out: Console
) -> None:
    """Print how configuration files were read, and what their framework can do instead."""
    lines = [f"- {note}" for note in notes]
    text = "\n".join(["How the files were read:", *lines]) if lines else "The files say it all."
    out.print(Text(f"{text}\n{words.alternative(estimate, better)}"), highlight=False)


_KIND_STYLE = {"assumed": "yellow", "measured": "green", "calibrated": "cyan", "datasheet": ""}


def quantity_table(description: Description) -> Table:
    """Every quantity of a description with its kind and source."""
    table = Table(box=None)
    for column in ("quantity", "value", "kind", "source"):
        table.add_column(column, overflow="fold", justify="right" if column == "value" else "left")
    for name, quantity in quantities(description):
        table.add_row(
            name,
            format_quantity(name, quantity.value),
            Text(quantity.kind, _KIND_STYLE[quantity.kind]),
            quantity.source,
        )
    return table


def show_constants(constants: dict[str, Description], out: Console) -> None:
    """Print the constants of the cost model, which belong to no machine, by who reads them."""
    for name, description in constants.items():
        out.print(f"{name}:", style="bold", highlight=False)
        out.print(quantity_table(description))
        out.print()


def show_machine(machine: Machine, out: Console) -> None:
    """Print a machine: every quantity with its kind and source, queues, doubts."""
    out.print(f"{machine.name}: {machine.title}", style="bold", highlight=False)
    out.print(
        f"{counted(machine.num_nodes.value, 'node')} x "
        f"{counted(machine.node.num_devices, 'device')} ({machine.device.name}) = "
        f"{counted(machine.num_devices, 'device')}",
        highlight=False,
    )
    if machine.evidence:
        out.print(f"measured runs: {machine.evidence}", highlight=False)
    table = quantity_table(machine)
    for network in machine.all_networks:
        curve = network.efficiency
        points = ", ".join(
            f"{f:.2f} at {n}" for n, f in zip(curve.num_nodes, curve.fraction, strict=True)
        )
        table.add_row(
            Text(f"network.efficiency by nodes {network.name}".rstrip()),
            points,
            Text(curve.kind, _KIND_STYLE[curve.kind]),
            curve.source,
        )
    out.print(table)
    for network in machine.all_networks if machine.networks else ():
        users = " and ".join(network.frameworks)
        users = users or ("all other jobs" if network is machine.network else "none unless asked")
        said = f"; {network.note}" if network.note else ""
        out.print(
            f"network {network.name} (--network {network.name}): {network.topology}; "
            f"used by {users}{said}",
            highlight=False,
        )
    for system in machine.file_systems:
        out.print(f"file system {system.name} ({system.kind})", highlight=False)
    for queue in machine.scheduler.queues:
        out.print(
            f"queue {queue.name}: {queue.min_nodes:,}-{queue.max_nodes:,} nodes, "
            f"{queue.max_hours:g} h" + (f" ({queue.note})" if queue.note else ""),
            highlight=False,
        )
    for name, text in machine.sources.items():
        out.print(f"source {name}: {text}", style="dim", highlight=False)
    for note in machine.notes:
        out.print(f"note: {note}", highlight=False)
    assumed = sum(q.kind == "assumed" for _, q in quantities(machine))
    out.print(f"{assumed} values are assumed: override them with --set", style="yellow")


def show_answer(answer: Answer, out: Console) -> None:
    """Print an answer: the sentence, the table, notes."""
    out.print(Text(answer.verdict, "bold green" if answer.found else "bold red"))
    if answer.rows:
        out.print()
        _show_table(*answer_table(answer), out)
        out.print()
    show_notes(answer.notes, out)


def _show_table(titles: list[str], rows: list[list[str]], out: Console) -> None:
    """Print a table of texts; what it has no room for stands under its rows."""
    widths = _widths(titles, rows, out.width - _PADDING * len(titles))
    if widths is None:
        head, body = stacked(titles, rows, tuple(_WIDE), out.width)
        out.print(Text("\n".join(head), "bold"))
        out.print(Text("\n".join(body)))
        return
    table = Table(box=None)
    for place, (title, width) in enumerate(zip(titles, widths, strict=True)):
        texts = any(row[place][:1].isalpha() for row in rows)
        justify: JustifyMethod = "left" if texts else "right"
        table.add_column(Text(title), justify=justify, overflow="fold", width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    out.print(table)


def _widths(titles: list[str], rows: list[list[str]], room: int) -> list[int] | None:
    """Widths of columns that share some room, None where it is too little.

    Long texts are folded, then titles between words; what is left goes to the narrowest text.
    """
    longest = [max(len(row[place]) for row in rows) for place in range(len(titles))]
    least = [min(_WIDE.get(*pair), pair[1]) for pair in zip(titles, longest, strict=True)]
    whole = [max(*pair) for pair in zip(least, map(len, titles), strict=True)]
    words = [max(most, *map(len, t.split())) for most, t in zip(least, titles, strict=True)]
    widths = whole if sum(whole) <= room else words
    for _ in range(room - sum(widths)):
        folded = [n for n, most in enumerate(longest) if widths[n] < most]
        if not folded:
            break
        widths[min(folded, key=lambda n: widths[n])] += 1
    return widths if sum(widths) <= room else None
