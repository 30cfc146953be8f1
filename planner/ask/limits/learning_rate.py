"""Learning rate: what a larger batch makes of a learning rate, and what it gains."""

from __future__ import annotations

import math
from typing import Annotated, Unpack

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, asked_of
from planner.ask.option import Nodes, Option, checked
from planner.ask.point import Point, no_point
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import PlannerError
from planner.training.large_batch import (
    LINEAR,
    SQUARE_ROOT,
    more_samples,
    published,
    scaled_rate,
    warm_up_steps,
)

__all__ = ["learning_rate", "sizes"]

_LINEAR = ("sgd", "sgd-momentum")
"""Optimizers of the linear rule; others divide by the gradient's own size."""
_MOST = 8


@checked
def learning_rate(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: Nodes = 1,
    base_batch: Annotated[int, Option("A batch whose learning rate you know.", least=1)],
    base_rate: Annotated[float, Option("The learning rate that suits it.", above=0, most=1e6)],
    warmup_epochs: Annotated[
        float, Option("Epochs of warm-up, whatever the batch.", least=0, most=1000)
    ] = 5.0,
    critical_batch: Annotated[
        float | None, Option("Critical batch (noise scale) that you measured.", above=0)
    ] = None,
    **job: Unpack[JobFields],
) -> Answer:
    """The learning rate of the batch by the usual rules, its warm-up, and the speed that it brings.

    From a batch and a rate of your own. Batches in between are planned too: where tokens per second
    no longer grow, a larger one gains nothing. What a batch does to accuracy is not estimated:
    published trainings of the model are named.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=512, optimizer="sgd-momentum")
    >>> answer = planner.ask.learning_rate("gpt2", "polaris", base_batch=128, base_rate=0.1,
    ...                                    workload=job)
    >>> [row["linear_rate"] for row in answer.rows]
    [0.1, 0.2, 0.4]
    """
    asked = asked_of(model, machine, job)
    mine = asked.workload.global_batch
    points = {size: _with(asked, size, nodes) for size in sizes(base_batch, mine)}
    rates = {size: _rates(base_rate, base_batch, size) for size in points}
    warm = {size: _warm_up(asked, warmup_epochs, size) for size in points}
    rows = []
    for size, point in points.items():
        row: Row = {"global_batch": size, **rates[size], "warm_up_steps": warm[size]}
        if critical_batch is not None:
            row["samples_factor"] = float(more_samples(size, critical_batch))
        rows.append({**row, **point.row()})
    return asked.answer(
        "learning-rate",
        _verdict(asked, rates[mine], warm[mine], base_batch, base_rate, warmup_epochs),
        rows,
        found=points[mine].fits,
        notes=_notes(asked, warm[mine]),
        nodes=nodes,
        base_batch=base_batch,
        base_rate=base_rate,
        warmup_epochs=warmup_epochs,
        critical_batch=critical_batch,
    )


def sizes(base: int, batch: int) -> list[int]:
    """A batch, the one that its rate comes from, and doublings between them, eight at most [1].

    Counted: both ends. Left out: the smaller doublings of many. Definition.

    >>> sizes(256, 8192), sizes(64, 48), sizes(1, 1_000_000)[:3]
    ([256, 512, 1024, 2048, 4096, 8192], [48, 64], [1, 16384, 32768])
    """
    low, high = sorted((base, batch))
    between = [low * 2**power for power in range(1, math.ceil(math.log2(high / low)))]
    return sorted({low, *between[2 - _MOST :], high})


def _with(asked: Asked, size: int, nodes: int) -> Point:
    """What is recommended for another batch."""
    try:
        workload = asked.workload.replaced(global_batch=size, ramp="")
    except PlannerError as error:
        return no_point(nodes, asked.machine, asked.workload, error.plain)
    return asked.at(workload=workload).tried_on(nodes)


def _rates(base_rate: float, base_batch: int, size: int) -> dict[str, float]:
    return {
        "linear_rate": float(scaled_rate(base_rate, base_batch, size, LINEAR)),
        "square_root_rate": float(scaled_rate(base_rate, base_batch, size, SQUARE_ROOT)),
    }


def _warm_up(asked: Asked, epochs: float, size: int) -> int | None:
    """Steps of the warm-up; None where nobody says how many samples an epoch has."""
    samples = asked.workload.samples
    return int(warm_up_steps(samples, epochs, size)) if samples else None


def _verdict(
    asked: Asked,
    rates: dict[str, float],
    warm: int | None,
    base_batch: int,
    base_rate: float,
    epochs: float,
) -> str:
    optimizer = asked.workload.optimizer
    linear, root = rates["linear_rate"], rates["square_root_rate"]
    first, second = ("linear", linear), ("square-root", root)
    if optimizer not in _LINEAR:
        first, second = second, first
    said = (
        f"A rate of {base_rate:g} for a batch of {base_batch:,} becomes {first[1]:.3g} for "
        f"{asked.workload.global_batch:,} by the {first[0]} rule, the usual one with {optimizer}, "
        f"and {second[1]:.3g} by the {second[0]} rule"
    )
    if warm is None:
        return f"{said}."
    return f"{said}; it is reached over {warm:,} steps of warm-up ({epochs:g} epochs)."


def _notes(asked: Asked, warm: int | None) -> list[str]:
    """Where rules come from, where they end, and what was published of the model."""
    notes = [
        "Linear, of SGD: Goyal et al. 2017 (arXiv:1706.02677, section 2.1); square root, usual "
        "with Adam and LAMB: Krizhevsky 2014 (arXiv:1404.5997, section 5). Both are where tuning "
        "starts.",
        "No rule holds for every batch: how far more samples a step save steps differs widely "
        "between models and data (Shallue et al. 2018, arXiv:1811.03600), as far as the gradient's "
        "noise scale (McCandlish et al. 2018, arXiv:1812.06162).",
    ]
    if warm is None:
        notes.append("Set samples, of an epoch, for the steps of the warm-up.")
    notes += [
        f"{one.batch:,} with {one.model}: {one.outcome}; {one.optimizer} ({one.source})."
        for one in published()
        if one.model == asked.model.name
    ]
    return notes
