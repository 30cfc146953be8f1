"""Point: what is recommended for a job on some nodes, as a row of a table and with its reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.ask.answer import Row
from planner.choose.job_search import JobCandidates
from planner.choose.preferences import preferences
from planner.choose.recommendation import likely_stalls
from planner.choose.search import Candidates, is_common, is_deep_pipeline
from planner.choose.verdicts.fixes import closest_to_fitting, shortage_sentence
from planner.cost.estimate import Estimate, timed
from planner.cost.parts import part
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.machine import Machine
from planner.describe.workload import Workload
from planner.training.steps import training_time
from planner.units import counted, format_amount, format_seconds

__all__ = [
    "DAY_S",
    "Point",
    "amount",
    "between",
    "estimate_row",
    "in_days",
    "largest_parts",
    "no_point",
    "on_nodes",
    "percent",
    "point_of",
]

DAY_S = 86400.0
_STEPS = 1000
# what node-hours are of where no tokens are asked, as everywhere


@dataclass(frozen=True, slots=True)
class Point:
    """A job on some nodes."""

    nodes: int
    machine: Machine
    workload: Workload
    """As it is answered: with the nearest batch where the one asked for has no layout."""
    best: Estimate | None
    """The recommended layout; None where nothing fits."""
    scenario: Scenario | None
    """What it answers."""
    reason: str
    """Why it is that one, or why there is none."""
    oddities: tuple[str, ...] = ()
    """Why nobody would run it."""

    @property
    def fits(self) -> bool:
        """Whether any layout fits."""
        return self.best is not None

    @property
    def safe(self) -> bool:
        """Whether the recommended layout runs out of memory as seldom as is taken."""
        return self.best is not None and self.best.out_of_memory_probability <= preferences().risk

    @property
    def sensible(self) -> bool:
        """Whether it is safe, and a layout that people run."""
        return self.safe and not self.oddities

    @property
    def seconds(self) -> float:
        """Time for all tokens, or of a thousand steps; endless where nothing fits [s]."""
        if self.best is None:
            return float("inf")
        return training_time(self.workload, self.best) or _STEPS * self.best.step_time_s

    @property
    def node_hours(self) -> float:
        """Node-hours of the same; endless where nothing fits."""
        return self.nodes * self.seconds / 3600

    def row(self) -> Row:
        """The record of a table."""
        place = {"nodes": self.nodes, "devices": self.nodes * self.machine.node.num_devices}
        if self.best is None:
            return {**place, "fits": False, "reason": self.reason}
        one = estimate_row(self.best)
        low, high = (end / self.best.step_time_s for end in self.best.interval_step_time_s)
        hours = {"node_hours": self.node_hours}
        hours |= {
            "node_hours_low": low * self.node_hours,
            "node_hours_high": high * self.node_hours,
        }
        if self.workload.all_tokens:
            days = self.seconds / DAY_S
            hours |= {"days": days, "days_low": low * days, "days_high": high * days}
        return {**place, "fits": True, **one, **hours, "reason": self.reason}

    def spoken(self) -> str:
        """Layout, step time and its interval, for a sentence."""
        assert self.best is not None
        return f"{self.best.layout} [{self.best.framework}], {between(self.best)}"


def estimate_row(one: Estimate) -> Row:
    """An estimate as columns of a record."""
    return {
        "framework": one.framework,
        "layout": str(one.layout),
        "step_time_s": one.step_time_s,
        "step_time_low_s": one.interval_step_time_s[0],
        "step_time_high_s": one.interval_step_time_s[1],
        "tokens_per_s": one.tokens_per_s,
        "mfu": one.mfu,
        "memory_bytes": one.memory_bytes["total"],
        "memory_low_bytes": one.interval_memory_bytes[0],
        "memory_high_bytes": one.interval_memory_bytes[1],
        "out_of_memory_probability": one.out_of_memory_probability,
    }


def between(one: Estimate) -> str:
    """A step time with its interval, for a sentence."""
    low, high = (format_seconds(end) for end in one.interval_step_time_s)
    return f"{format_seconds(one.step_time_s)} a step (90 % between {low} and {high})"


def largest_parts(one: Estimate, count: int = 3) -> str:
    """Where most of a step's time goes."""
    parts = sorted(one.step_time_parts_s.items(), key=lambda item: -item[1])[:count]
    return ", ".join(
        f"{part(name).label} {100 * seconds / one.step_time_s:.0f} %"
        for name, seconds in parts
        if seconds > 0.02 * one.step_time_s
    )


def point_of(nodes: int, done: JobCandidates, best: Estimate | None) -> Point:
    """The point of a search that is done."""
    first = next(iter(done.by_framework.values())).scenario
    if best is None:
        reason = _in_the_way(done.by_framework.values())
        return no_point(nodes, first.machine, done.workload, reason)
    scenario = done.by_framework[best.framework].scenario
    odd = tuple(_oddities(scenario, best))
    reason = "; ".join([*odd, largest_parts(best)])
    if done.workload.global_batch != first.workload.global_batch:
        reason = f"batch {done.workload.global_batch:,}; {reason}"
    return Point(nodes, scenario.machine, done.workload, best, scenario, reason, odd)


def no_point(nodes: int, machine: Machine, workload: Workload, reason: str) -> Point:
    """The point where there is nothing to run."""
    return Point(nodes, machine, workload, None, None, reason)


def _oddities(scenario: Scenario, best: Estimate) -> Iterable[str]:
    """What of a layout people do only in need."""
    layout, layouts = best.layout, Layouts.stack([best.layout])
    if best.out_of_memory_probability > preferences().risk:
        yield f"out of memory with {100 * best.out_of_memory_probability:.0f} %"
    if layout.offload != "none":
        yield f"offload {layout.offload}"
    if is_deep_pipeline(scenario.model, layout.pp):
        yield f"a pipeline of {layout.pp} stages"
    if not is_common(scenario, layouts)[0]:
        cut = layout.tp > scenario.machine.wired_devices
        yield f"tp {layout.tp} leaves the node" if cut else f"cp {layout.cp} cuts sequences short"
    if likely_stalls(scenario, layouts)[0]:
        yield "runs like it stalled more often than not"


def _in_the_way(found: Iterable[Candidates]) -> str:
    """By how much what is nearest to fitting does not; or which rule leaves nothing."""
    closest = [(*closest_to_fitting(part), part.scenario) for part in found if len(part.footprints)]
    if closest:
        _, taken, scenario = min(closest, key=lambda each: each[0])
        one = timed(scenario, taken)[0]
        return f"{one.layout} [{one.framework}] {shortage_sentence(one, taken)}"
    dropped = [item for part in found for item in part.dropped.items()]
    why = max(dropped, key=lambda item: item[1])[0] if dropped else "no framework can run it here"
    return f"no legal layout: {why}"


def amount(workload: Workload) -> str:
    """What a duration is of."""
    if workload.all_tokens:
        return f"{format_amount(workload.all_tokens)} tokens"
    return f"{_STEPS:,} steps"


def in_days(days: float) -> str:
    """Days in words.

    >>> in_days(1), in_days(2.5)
    ('1 day', '2.5 days')
    """
    return f"{days:g} {'day' if days == 1 else 'days'}"


def percent(chance: float) -> str:
    """A chance in percent, none of them certain.

    >>> percent(0.0004), percent(0.47), percent(1.0)
    ('less than 1 %', '47 %', 'more than 99 %')
    """
    if 0.01 <= chance <= 0.99:
        return f"{100 * chance:.0f} %"
    return "less than 1 %" if chance < 0.01 else "more than 99 %"


def on_nodes(point: Point) -> str:
    """Where a point is, for a sentence."""
    return f"{counted(point.nodes, 'node')} of {point.machine.name}"
