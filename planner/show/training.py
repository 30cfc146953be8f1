"""Whole training: display of a training as a sentence, its costs, and the parts of its time."""

from planner.tables import Block, Column, Line, Notes, Table, page
from planner.training.whole_training import DAY_S, Amount, WholeTraining, part
from planner.units import counted, format_amount, format_bytes, format_seconds

_RARE_INTERRUPTIONS = 0.05
"""Expected number of interruptions below which none is mentioned."""


@page.register
def training_page(training: WholeTraining) -> list[Block]:
    """Return the summary, the parts and the notes of a whole training."""
    return [
        Line(summary(training), "bold"),
        training_table(training),
        Line(f"{facts(training)}."),
        Notes(training.notes),
    ]


def training_table(training: WholeTraining) -> Table:
    """Return the nonzero parts of a training's time, and their sum."""
    total = training.time
    records = (
        {"part": item.name, "time": item.time_s, "share": item.time_s.expected / total.expected}
        for item in training.parts
        if item.time_s.expected > 0
    )
    columns = (
        Column("part", "part", lambda name: part(name).label),
        Column("time", "time", lambda time: format_seconds(time.expected)),
        Column("share", "share", lambda share: f"{100 * share:.1f} %"),
        Column("time", "90 % between", _range),
        Column("part", "what it counts", lambda name: part(name).meaning, min_width=30),
    )
    sums = ("total", format_seconds(total.expected), "", _range(total), "")
    return Table(tuple(records), "Its time, by part", columns, sums)


def summary(training: WholeTraining) -> str:
    """State how long a training takes and what it costs."""
    steps_s = training.part_s("steps")
    rest = format_seconds(training.time.expected - steps_s)
    jobs = f", in {counted(training.jobs, 'job')} of {training.queue}" if training.jobs > 1 else ""
    return (
        f"The whole training takes {_duration(training.time)}: {counted(training.steps, 'step')} "
        f"{format_seconds(steps_s)}, all else {rest}{jobs}. It takes {', '.join(bill(training))}."
    )


def bill(training: WholeTraining) -> list[str]:
    """Format node-hours, energy, emissions and price with their ranges; omit unknown ones."""
    costs = training.bill
    lines = [amount(costs.node_hours, "node-hours")]
    if (energy := costs.energy_kwh) is not None:
        large = energy.expected >= 1e4
        lines.append(amount(energy.times(1e-3), "MWh") if large else amount(energy, "kWh"))
    if costs.carbon_kg is not None:
        lines.append(amount(costs.carbon_kg.times(1e-3), "t CO2e"))
    if costs.price is not None:
        lines.append(f"a price of {amount(costs.price, '')}".rstrip())
    return lines


def amount(value: Amount, unit: str) -> str:
    """Format a value with its range."""
    low, high = format_amount(value.low), format_amount(value.high)
    expected = f"{format_amount(value.expected)} {unit}".rstrip()
    return f"{expected} (90 % between {low} and {high})"


def _duration(value: Amount) -> str:
    """Format a duration; from two days on, in days."""
    if value.expected < 2 * DAY_S:
        return f"{format_seconds(value.expected)} (90 % between {_range(value)})"
    return amount(value.times(1 / DAY_S), "days")


def facts(training: WholeTraining) -> str:
    """State the number and size of checkpoints, and the expected number of interruptions."""
    checkpoints = counted(max(round(training.checkpoints), 1), "checkpoint")
    written = f"{checkpoints} of {format_bytes(training.checkpoint_bytes)}"
    if training.failures < _RARE_INTERRUPTIONS:
        return f"{written}; no interruption is to be expected"
    return f"{written}; {format_amount(training.failures)} interruptions are to be expected"


def _range(value: Amount) -> str:
    return f"{format_seconds(value.low)} and {format_seconds(value.high)}"
