"""Cheapest: the nodes on which a training takes the least node-hours, price or energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Unpack

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, Points, asked_of
from planner.ask.option import Option, checked
from planner.ask.point import Point, amount, in_days, on_nodes, percent
from planner.ask.resources.deadline import MOST_JOBS, MostJobs, admitted, finished, searched_all
from planner.ask.resources.nodes import MostNodes, up_to
from planner.choose.preferences import preferences
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import DescriptionError, LayoutError
from planner.units import counted, format_amount, joined, parse_power

__all__ = ["cheapest"]

_HALF = 0.5
_ROUNDS = 2
# refinements between the best count and its neighbours


@checked
def cheapest(
    model: str | Model,
    machine: str | Machine,
    *,
    days: Annotated[
        float | None,
        Option("Days in which it is to be done, at even odds.", above=0, metavar="DAYS"),
    ] = None,
    price_per_node_hour: Annotated[
        float | None, Option("Price of a node-hour, in a currency of yours.", least=0)
    ] = None,
    node_power: Annotated[
        str | None, Option("What a node draws while it trains, such as 2.5kW.", metavar="POWER")
    ] = None,
    most_jobs: MostJobs = MOST_JOBS,
    most_nodes: MostNodes = None,
    **job: Unpack[JobFields],
) -> Answer:
    """The number of nodes with the fewest node-hours, and what they cost or draw.

    Price and energy are node-hours times the user's own figures, so all three have one answer.
    With `days` only what is as likely done in time as not. Of a training on some tokens, nodes on
    which queues would cut it into more jobs in a row than `most_jobs` are not taken.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> asked = {"node_power": "2kW", "most_nodes": 2}
    >>> answer = planner.ask.cheapest("gpt2", "polaris", workload=job, **asked)
    >>> row = answer.rows[0]
    >>> round(row["energy_kWh"] / row["node_hours"], 9)
    2.0
    """
    asked = asked_of(model, machine, job)
    if days is not None:
        asked.needs_tokens("whether it is done in time")
    watts = _watts(node_power)
    limit = up_to(asked, most_nodes)
    counts, points = admitted(asked, limit), Points(asked)
    searched_all(points, counts)
    terms = _Terms(price_per_node_hour, watts, days, most_jobs)
    for _ in range(_ROUNDS):
        _refine(points, counts, terms)
    best = _best(points, terms)
    return asked.answer(
        "cheapest",
        _verdict(points, best, terms),
        [terms.row(point) for _, point in sorted(points.known.items())],
        found=best is not None,
        notes=_notes(asked, len(points.known), len(counts), most_jobs),
        days=days,
        price_per_node_hour=price_per_node_hour,
        node_power=node_power,
        most_jobs=most_jobs,
        most_nodes=most_nodes,
    )


def _notes(asked: Asked, tried: int, counts: int, most_jobs: int) -> list[str]:
    lines = [
        f"{tried} of {counted(counts, 'node count')} searched: doublings, and between the cheapest "
        "and its neighbours.",
        "Node-hours are of steps alone: no waiting, failures, checkpoints or evaluation.",
    ]
    if asked.workload.all_tokens:
        lines.append(
            f"At most {counted(most_jobs, 'job')} in a row are taken (most_jobs); days are with "
            "ten minutes for each to start."
        )
    return lines


@dataclass(frozen=True, slots=True)
class _Terms:
    """What the user says of a node-hour, and of when it is to be done."""

    price: float | None
    watts: float | None
    days: float | None
    most_jobs: int

    def row(self, point: Point) -> Row:
        """The record of a table."""
        run, hours = finished(point), point.node_hours
        whole = run is not None and bool(point.workload.all_tokens)
        row = run.row(self.days) if run is not None and whole else point.row()
        reason = row.pop("reason")
        if point.fits and self.price is not None:
            row["price"] = hours * self.price
        if point.fits and self.watts is not None:
            row["energy_kWh"] = hours * self.watts / 1000
        return {**row, "reason": reason}

    def take(self, point: Point) -> bool:
        """Whether it is done in time, in as many jobs as are taken."""
        run = finished(point)
        if run is None or (point.workload.all_tokens and run.slot.jobs > self.most_jobs):
            return False
        return self.days is None or run.late(self.days) <= _HALF


def _watts(power: str | None) -> float | None:
    """A power as a user writes it [W]."""
    try:
        return None if power is None else parse_power(power)
    except DescriptionError as error:
        raise LayoutError(f"node_power = {error}") from None


def _best(points: Points, terms: _Terms) -> Point | None:
    """The cheapest point that is taken; the one with fewer nodes of equals."""
    able = [point for point in points.fitting if terms.take(point)]
    safe = [point for point in able if point.safe] or able
    return min(safe, key=lambda point: (point.node_hours, point.nodes), default=None)


def _refine(points: Points, counts: Sequence[int], terms: _Terms) -> None:
    """Look half-way between the best count and those beside it that are known."""
    best = _best(points, terms)
    if best is None:
        return
    known = sorted(points.known)
    place = known.index(best.nodes)
    for other in known[max(place - 1, 0) : place + 2]:
        between = [n for n in counts if min(other, best.nodes) < n < max(other, best.nodes)]
        if between:
            points(between[len(between) // 2])


def _verdict(points: Points, best: Point | None, terms: _Terms) -> str:
    asked = points.asked
    if best is None:
        return _nothing(points, terms)
    row = terms.row(best)
    low, high = format_amount(row["node_hours_low"]), format_amount(row["node_hours_high"])
    said = (
        f"{amount(best.workload)} of {asked.model.name} take the fewest node-hours on "
        f"{on_nodes(best)}: {format_amount(best.node_hours)} (90 % between {low} and {high})"
    )
    said += f", a price of {format_amount(row['price'])}" if "price" in row else ""
    said += f", {format_amount(row['energy_kWh'])} kWh" if "energy_kWh" in row else ""
    if (run := finished(best)) is not None and best.workload.all_tokens:
        said += f", {run.jobs}"
        if terms.days is not None:
            said += f", late for {in_days(terms.days)} with {percent(run.late(terms.days))}"
    return f"{said}; {best.spoken()}.{_alike(points, best, terms)}"


def _alike(points: Points, best: Point, terms: _Terms) -> str:
    """Other numbers of nodes that cost about as much; empty where none that was looked at does."""
    near = [
        point
        for point in points.fitting
        if point is not best
        and terms.take(point)
        and (point.safe or not best.safe)
        and point.node_hours <= (1 + preferences().tolerance) * best.node_hours
    ]
    if not near:
        return ""
    one = len(near) == 1
    most = format_amount(max(point.node_hours for point in near))
    listed = joined(f"{point.nodes:,}" for point in near)
    percent = f"{100 * preferences().tolerance:.0f} %"
    return (
        f" {listed} {'nodes take' if not one or near[0].nodes > 1 else 'node takes'} "
        f"{'up to ' * (not one)}{most}, within {percent} of that, which "
        "estimates cannot tell apart."
    )


def _nothing(points: Points, terms: _Terms) -> str:
    """Why no number of nodes is taken."""
    asked = points.asked
    runs = [run for point in points.fitting if (run := finished(point))]
    if not runs:
        reason = points.known[max(points.known)].reason if points.known else "no queue admits any"
        return f"{asked.model.name} fits on no number of nodes of {asked.machine.name}: {reason}."
    able = [run for run in runs if run.slot.jobs <= terms.most_jobs]
    in_time = "" if terms.days is None else f" in {in_days(terms.days)}"
    if not able:
        fewest = min(runs, key=lambda run: run.slot.jobs)
        return (
            f"Nothing is done{in_time} in at most {counted(terms.most_jobs, 'job')} in a row: "
            f"the fewest are {fewest.slot.jobs:,}, on {on_nodes(fewest.point)}."
        )
    fastest = min(able, key=lambda run: run.days[0])
    return (
        f"Nothing is done{in_time}: the fastest, {on_nodes(fastest.point)}, takes "
        f"{fastest.days[0]:.3g} days (90 % between {fastest.days[1]:.3g} and "
        f"{fastest.days[2]:.3g}), {fastest.jobs}."
    )
