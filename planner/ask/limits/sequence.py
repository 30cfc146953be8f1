"""Sequence: the longest that fits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Unpack

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, asked_of
from planner.ask.fewest import largest
from planner.ask.option import Nodes, Option, checked
from planner.ask.point import Point, on_nodes
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import LayoutError
from planner.units import counted

__all__ = ["sequence"]

_LONGEST = 4_194_304
# four times the longest contexts that models are trained for
_GRAIN = 1024


@checked
def sequence(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: Nodes = 1,
    grain: Annotated[
        int, Option("Tokens of which lengths are multiples.", least=1, most=1_000_000)
    ] = _GRAIN,
    **job: Unpack[JobFields],
) -> Answer:
    """The longest sequence that fits as one would run it, and that fits safely at all.

    The step has as many sequences as asked. Lengths are multiples of `grain`, up to 4 Mi tokens,
    bisected to a 64th. What the model was made for is said, no
    limit but where its positions are a table.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> planner.ask.sequence("gpt2", "polaris", workload=job).asked["longest"]["safe"]
    1024
    """
    asked = asked_of(model, machine, job)
    _check_grain(asked.model, grain)
    own = asked.workload.sequence_length
    lengths = _Lengths(asked, nodes, {own: asked.on(nodes)})
    start = max(own // grain, 1) * grain
    safe = largest(start, _LONGEST, grain, lambda length: lengths(length).safe)
    sensible = safe and largest(start, safe, grain, lambda length: lengths(length).sensible)
    # what holds need not hold for all shorter ones: a longer one may have been seen by the way
    safe = max((n for n, point in lengths.known.items() if point.safe), default=None)
    sensible = max((n for n, point in lengths.known.items() if point.sensible), default=None)
    rows = [_row(length, point) for length, point in sorted(lengths.known.items())]
    return asked.answer(
        "sequence",
        _verdict(asked, lengths, safe, sensible, grain),
        rows,
        found=safe is not None,
        notes=[
            *_made_for(asked.model, safe),
            f"{counted(len(rows), 'length')} searched: the {own:,} tokens asked for, and multiples "
            f"of {grain:,} by doubling and bisection; the batch stays at "
            f"{asked.workload.global_batch:,} sequences.",
        ],
        nodes=nodes,
        grain=grain,
        longest={"safe": safe, "sensible": sensible},
    )


def _check_grain(model: Model, grain: int) -> None:
    """Raise LayoutError where no multiple of a grain is a sequence of the model."""
    longest = model.longest_sequence
    if model.counts_samples:
        raise LayoutError(
            f"model = {model.name}: its samples are of one size and no sequences; ask for "
            "the largest batch instead"
        )
    if model.position == "learned" and longest and grain > longest:
        raise LayoutError(
            f"grain = {grain} exceeds the {longest} learned positions of {model.name}, so none of "
            f"its multiples is a sequence; use a grain of {longest} or less"
        )


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Points by the length of a sequence."""

    asked: Asked
    nodes: int
    known: dict[int, Point] = field(default_factory=dict)

    def __call__(self, length: int) -> Point:
        if length not in self.known:
            workload = self.asked.workload.replaced(sequence_length=length)
            self.known[length] = self.asked.at(workload=workload).tried_on(self.nodes)
        return self.known[length]


def _row(length: int, point: Point) -> Row:
    return {"sequence_length": length, **point.row()}


def _verdict(
    asked: Asked, lengths: _Lengths, safe: int | None, sensible: int | None, grain: int
) -> str:
    if safe is None:
        shortest = lengths(grain)
        return (
            f"{asked.model.name} is safe in memory with no sequence of a multiple of "
            f"{counted(grain, 'token')} on {on_nodes(shortest)}: {shortest.reason}."
        )
    best = lengths(sensible or safe)
    said = f"The longest sequence of {asked.model.name} on {on_nodes(best)} is "
    said += f"{best.workload.sequence_length:,} tokens"
    said += " or more" if best.workload.sequence_length + grain > _LONGEST else ""
    if safe < grain:
        # the one asked for alone was looked at below the grain
        return (
            f"{asked.model.name} is safe on {on_nodes(best)} with the {safe:,} tokens asked for, "
            f"and with no multiple of {grain:,}: {best.spoken()}. A smaller grain finds lengths "
            "between."
        )
    if sensible == safe:
        return f"{said}: {best.spoken()}."
    odd = f"{'; '.join(lengths(safe).oddities)}"
    if sensible is None:
        return f"{said}, and none as one would run it ({odd}): {best.spoken()}."
    return f"{said}: {best.spoken()}. Up to {safe:,} fit where one takes more ({odd})."


def _made_for(model: Model, safe: int | None) -> list[str]:
    longest = model.longest_sequence
    if not longest or safe is None or safe <= longest:
        return []
    return [f"{model.name} was made for sequences of at most {longest:,} tokens."]
