"""Differences: two estimates part by part; the parts sum to the difference of the totals."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from planner.choose.preferences import preferences
from planner.cost.estimate import Estimate
from planner.cost.parts import part
from planner.units import format_bytes, format_seconds

_NAMED_PARTS = 4
"""Most parts that a sentence names."""
_SMALL = 0.01
"""Share of a total below which a sentence does not name a part."""


class PartChange(NamedTuple):
    """A part of the step time or of memory in two estimates."""

    name: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """What the second estimate has more of this part."""
        return self.after - self.before

    @property
    def label(self) -> str:
        """Display name of the part."""
        return part(self.name).label


def largest_parts(estimate: Estimate, count: int = 3, least: float = 0.02) -> str:
    """Name the largest parts of the step time with their shares, those above the `least` share."""
    parts = sorted(estimate.step_time_parts_s.items(), key=lambda item: -item[1])[:count]
    return ", ".join(
        f"{part(name).label} {100 * seconds / estimate.step_time_s:.0f} %"
        for name, seconds in parts
        if seconds > least * estimate.step_time_s
    )


def equal_work(before: Estimate, after: Estimate) -> float:
    """Factor on the second step for as many tokens as the first one trains [1]."""
    first, second = (each.tokens_per_s * each.step_time_s for each in (before, after))
    return 1.0 if round(first) == round(second) else first / second


def time_changes(before: Estimate, after: Estimate) -> list[PartChange]:
    """Parts of two step times for as many tokens; they sum to the difference [s]."""
    scale = equal_work(before, after)
    return _changes(before.step_time_parts_s, after.step_time_parts_s, scale)


def memory_changes(before: Estimate, after: Estimate) -> list[PartChange]:
    """Parts of the device memory of two estimates; they sum to the difference [B]."""
    return _changes(before.memory_bytes, after.memory_bytes, 1.0)


def _changes(
    before: Mapping[str, float], after: Mapping[str, float], scale: float
) -> list[PartChange]:
    pairs = (PartChange(name, before[name], scale * after[name]) for name in before)
    return [each for each in pairs if each.name != "total" and (each.before or each.after)]


def difference_sentence(before: Estimate, after: Estimate, names: tuple[str, str]) -> str:
    """Say what a step of the second layout takes more or less than one of the first, by part."""
    times, memory = time_changes(before, after), memory_changes(before, after)
    equal = "" if equal_work(before, after) == 1 else " for as many tokens"
    return (
        f"{names[1]} against {names[0]}: step{equal} {_compared(times, format_seconds)}. "
        f"Memory {_compared(memory, format_bytes)}."
    )


def closeness(before: Estimate, after: Estimate) -> str:
    """Say whether step times for as many tokens are too close to rank; empty if far apart."""
    scale, (low, high) = equal_work(before, after), before.interval_step_time_s
    times = before.step_time_s, scale * after.step_time_s
    if max(times) <= (1 + preferences().tolerance) * min(times):
        return "The two step times are too close for estimates to rank."
    least, most = after.interval_step_time_s
    overlap = low <= scale * most and scale * least <= high
    return "Their 90 % intervals overlap." * overlap


def _compared(parts: list[PartChange], text: Callable[[float], str]) -> str:
    """State two totals, their difference and the largest changes; the rest is one sum."""
    before, after = sum(each.before for each in parts), sum(each.after for each in parts)
    if text(after) == text(before):
        return f"{text(after)} in both"
    least = _SMALL * max(before, after)
    largest = sorted(parts, key=lambda each: -abs(each.change))[:_NAMED_PARTS]
    named = [(each.change, each.label) for each in largest if abs(each.change) >= least]
    rest = after - before - sum(change for change, _ in named)
    named += [(rest, "others")] if abs(rest) >= least else []
    changes = ", ".join(f"{signed(change, text)} {label}" for change, label in named)
    percent = f"({100 * (after / before - 1):+.0f} %)"
    return f"{text(after)} against {text(before)} {percent}{': ' * bool(changes)}{changes}"


def signed(value: float, text: Callable[[float], str]) -> str:
    """Format an amount with its sign."""
    return f"{'-' if value < 0 else '+'}{text(abs(value))}"
