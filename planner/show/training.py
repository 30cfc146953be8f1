"""Training: the answer about a whole training in words, and the rows of its table."""

from __future__ import annotations

from planner.training.answer import DAY_S, Amount, WholeTraining
from planner.training.parts import part
from planner.units import counted, format_amount, format_bytes, format_seconds

__all__ = ["amount", "bill", "facts", "rows", "span", "summary"]

_RARE = 0.05
# of an interruption: below, none is spoken of


def summary(found: WholeTraining) -> str:
    """How long it takes and what it costs, in one sentence."""
    steps = found.part_s("steps")
    said = f"The whole training takes {_time(found.time)}: {counted(found.steps, 'step')} "
    said += f"{format_seconds(steps)}, all else {format_seconds(found.time.expected - steps)}"
    jobs = f", in {counted(found.jobs, 'job')} of {found.queue}" if found.jobs > 1 else ""
    return f"{said}{jobs}. It takes {', '.join(bill(found))}."


def bill(found: WholeTraining) -> list[str]:
    """Node-hours, energy, emissions and price, each with its range, as far as they are known."""
    taken = found.bill
    lines = [amount(taken.node_hours, "node-hours")]
    if taken.energy_kwh is not None:
        lines.append(_energy(taken.energy_kwh))
    if taken.carbon_kg is not None:
        lines.append(amount(taken.carbon_kg.times(1e-3), "t CO2e"))
    if taken.price is not None:
        lines.append(f"a price of {amount(taken.price, '')}".rstrip())
    return lines


def amount(value: Amount, unit: str) -> str:
    """A value with its range.

    >>> amount(Amount(1200.0, 1000.0, 1500.0), "kWh")
    '1,200 kWh (90 % between 1,000 and 1,500)'
    """
    low, high = format_amount(value.low), format_amount(value.high)
    said = f"{format_amount(value.expected)} {unit}".rstrip()
    return f"{said} (90 % between {low} and {high})"


def _energy(value: Amount) -> str:
    """In MWh where there are thousands of kWh."""
    return amount(value.times(1e-3), "MWh") if value.expected >= 1e4 else amount(value, "kWh")


def _time(value: Amount) -> str:
    if value.expected < 2 * DAY_S:
        low, high = format_seconds(value.low), format_seconds(value.high)
        return f"{format_seconds(value.expected)} (90 % between {low} and {high})"
    return amount(value.times(1 / DAY_S), "days")


def rows(found: WholeTraining) -> list[tuple[str, ...]]:
    """Part, time, share, range and what it counts, of every part that there is."""
    whole_s = found.time.expected
    return [
        (
            part(one.name).label,
            format_seconds(one.time_s.expected),
            f"{100 * one.time_s.expected / whole_s:.1f} %",
            span(one.time_s),
            part(one.name).meaning,
        )
        for one in found.parts
        if one.time_s.expected > 0
    ]


def facts(found: WholeTraining) -> str:
    """How many checkpoints of which size, and how many interruptions."""
    saved = f"{counted(max(round(found.checkpoints), 1), 'checkpoint')} of "
    saved += format_bytes(found.checkpoint_bytes)
    if found.failures < _RARE:
        return f"{saved}; an interruption is not to be expected"
    return f"{saved}; {format_amount(found.failures)} interruptions are to be expected"


def span(value: Amount) -> str:
    """Between which times a part lies."""
    return f"{format_seconds(value.low)} and {format_seconds(value.high)}"
