"""Model: the largest of a family that fits some nodes, or is trained in some days."""

from __future__ import annotations

from typing import Annotated, Unpack

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, asked_of
from planner.ask.option import Nodes, Option, checked
from planner.ask.point import DAY_S, Point, in_days, on_nodes
from planner.describe.catalogue import load_model, names
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import UnknownNameError
from planner.units import counted, format_count

__all__ = ["families", "model"]


def families() -> dict[str, list[Model]]:
    """Models of the catalogue by family, smallest first."""
    found: dict[str, list[Model]] = {}
    for each in map(load_model, names("model")):
        found.setdefault(each.family, []).append(each)
    return {name: sorted(some, key=_size) for name, some in sorted(found.items())}


def _size(one: Model) -> tuple[int, str]:
    return one.num_params, one.name


@checked
def model(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: Nodes = 1,
    family: Annotated[
        str | None, Option("Family whose models are asked; the model's own where none is given.")
    ] = None,
    among: Annotated[
        tuple[str, ...], Option("A model to look at in place of a family (repeatable).")
    ] = (),
    days: Annotated[
        float | None, Option("Days in which it is to be trained.", above=0, metavar="DAYS")
    ] = None,
    **job: Unpack[JobFields],
) -> Answer:
    """The largest model of a family, or of some, that some nodes run as people would run it.

    Safe in memory, without offload or odd layouts, else with them. With `days` it must be trained
    on the workload's tokens in that time too, by the estimate. The models are the catalogue's of
    the same family, or those named.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> answer = planner.ask.model("gpt2", "polaris", workload=job)
    >>> [row["model"] for row in answer.rows]
    ['gpt2-xl', 'gpt2-large', 'gpt2-medium', 'gpt2']
    """
    asked = asked_of(model, machine, job)
    if days is not None:
        asked.needs_tokens("whether it is done in time")
    some = _some(asked, family, among)
    points = [(one, _on(asked, one, nodes)) for one in reversed(some)]
    able = [pair for pair in points if pair[1].safe and _in_time(pair[1], days)]
    best = next((pair for pair in able if pair[1].sensible), able[0] if able else None)
    what = f"the {counted(len(some), 'model')} named" if among else f"family {some[0].family}"
    return asked.answer(
        "model",
        _verdict(asked, what, points, best, nodes, days),
        [_row(*pair) for pair in points],
        found=best is not None,
        notes=["Fits means with a chance of at most 5 % to run out of memory."],
        nodes=nodes,
        family=family,
        among=list(among),
        days=days,
    )


def _some(asked: Asked, family: str | None, among: tuple[str, ...]) -> list[Model]:
    """The models that are asked about, smallest first."""
    if among:
        return sorted(map(load_model, dict.fromkeys(among)), key=_size)
    known = families()
    name = asked.model.family if family is None else family
    if name not in known:
        raise UnknownNameError("family", name, known, "`planner models` lists them with the models")
    mine = [asked.model] if name == asked.model.family else []
    others = [one for one in known[name] if one.name not in [each.name for each in mine]]
    return sorted([*mine, *others], key=_size)


def _on(asked: Asked, one: Model, nodes: int) -> Point:
    return asked.at(model=one).tried_on(nodes)


def _in_time(point: Point, days: float | None) -> bool:
    return days is None or point.seconds <= days * DAY_S


def _row(one: Model, point: Point) -> Row:
    return {"model": one.name, "num_params": one.num_params, **point.row()}


def _verdict(
    asked: Asked,
    what: str,
    points: list[tuple[Model, Point]],
    best: tuple[Model, Point] | None,
    nodes: int,
    days: float | None,
) -> str:
    where = f"{counted(nodes, 'node')} of {asked.machine.name}"
    if best is None:
        done = "" if days is None else f" and is trained in {in_days(days)}"
        one, point = points[-1]
        took = f"{point.spoken()}; {point.seconds / DAY_S:.3g} days" if point.fits else point.reason
        return f"No model of {what} fits {where}{done}: the smallest, {one.name}: {took}."
    one, point = best
    s = "s" * (nodes == 1)
    does = f"run{s}" if days is None else f"run{s} and train{s} in {in_days(days)}"
    odd = f" ({'; '.join(point.oddities)})" if point.oddities else ""
    said = (
        f"The largest of {what} that {on_nodes(point)} {does} is {one.name} "
        f"({format_count(one.num_params)} parameters){odd}: {point.spoken()}"
    )
    larger = [pair for pair in points if pair[0].num_params > one.num_params]
    if not larger:
        return f"{said}; there is no larger one."
    next_one, why = larger[-1]
    if why.fits:
        but = list(why.oddities)
        but += [f"it takes {why.seconds / DAY_S:.3g} days"] if days is not None else []
        return f"{said}. The next, {next_one.name}, fits, but: {'; '.join(but)}."
    return f"{said}. The next, {next_one.name}, does not fit: {why.reason}."
