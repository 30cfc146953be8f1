"""Largest batch: the largest micro-batch and the largest batch in one pass that fit."""

from __future__ import annotations

from typing import Unpack

import numpy as np

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, asked_of
from planner.ask.fewest import largest
from planner.ask.option import Nodes, checked
from planner.ask.point import Point, between, estimate_row, on_nodes
from planner.choose.legality import broken
from planner.choose.preferences import preferences
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout, Recompute
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import PlannerError

__all__ = ["largest_batch"]

_MOST = 4096
_WHOLE = {
    name: Layout.model_fields[name].default
    for name in ("recompute_layers", "recompute_every", "recompute_span", "recompute_modules")
}
"""Recompute of all that its mode names."""


@checked
def largest_batch(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: Nodes = 1,
    **job: Unpack[JobFields],
) -> Answer:
    """The largest micro-batch of the recommended layout that is safe in memory, by recompute.

    Degrees, sharding and framework stay; the batch is that of one pass of all replicas (one
    micro-batch each, with a pipeline as many as stages). Larger global batches always fit, by more
    micro-batches a step.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> answer = planner.ask.largest_batch("gpt2-xl", "polaris", workload=job)
    >>> sizes = [row["micro_batch"] for row in answer.rows]
    >>> sizes == sorted(sizes)                      # the more is computed again, the larger
    True
    """
    asked = asked_of(model, machine, job)
    point = asked.on(nodes)
    if point.best is None or point.scenario is None:
        verdict = f"{asked.model.name} fits on {on_nodes(point)} with no batch: {point.reason}."
        return asked.answer("largest-batch", verdict, [point.row()], found=False, nodes=nodes)
    rows, found = [], []
    for mode in point.scenario.framework.recompute:
        one = _largest(point, point.best.layout, mode)
        if one is not None:
            found.append(one)
            rows.append(_row(one, mode))
    fastest = max(found, key=lambda one: one.tokens_per_s, default=None)
    return asked.answer(
        "largest-batch",
        _verdict(asked, point, found, fastest),
        rows,
        found=bool(found),
        notes=[
            f"Degrees are those recommended for a batch of {point.workload.global_batch:,}: "
            f"{point.best.layout} [{point.best.framework}].",
            f"Safe: a chance of at most {100 * preferences().risk:.0f} % to run out of memory.",
        ],
        nodes=nodes,
    )


def _sized(scenario: Scenario, layout: Layout, size: int, mode: Recompute) -> Estimate | None:
    """A layout with another micro-batch in one pass; None where it is not allowed."""
    try:
        other = layout.replaced(
            **_WHOLE,
            recompute=mode,
            micro_batch=size,
            grad_accumulation=max(layout.pp, 1),
        )
        workload = scenario.workload.replaced(global_batch=other.global_batch, ramp="")
    except PlannerError:
        return None
    asked = Scenario(
        scenario.model, scenario.machine, workload, scenario.framework, scenario.experience
    )
    if any(True for _ in broken(asked, other)):
        return None
    return estimate_layouts(asked, Layouts.stack([other]))[0]


def _largest(point: Point, layout: Layout, mode: Recompute) -> Estimate | None:
    """The estimate with the largest micro-batch that is safe."""
    scenario = point.scenario
    assert scenario is not None

    def safe(size: int) -> bool:
        one = _sized(scenario, layout, size, mode)
        return one is not None and one.fits and one.out_of_memory_probability <= preferences().risk

    size = largest(layout.micro_batch, _MOST, 1, safe)
    return None if size is None else _sized(scenario, layout, size, mode)


def _row(one: Estimate, mode: Recompute) -> Row:
    layout = one.layout
    return {
        "recompute": mode,
        "micro_batch": layout.micro_batch,
        "global_batch": layout.global_batch,
        **estimate_row(one),
        "reason": "the largest micro-batch that is safe"
        if layout.micro_batch < _MOST
        else "no larger one was looked at",
    }


def _verdict(asked: Asked, point: Point, found: list[Estimate], fastest: Estimate | None) -> str:
    if fastest is None:
        return f"No micro-batch of {asked.model.name} is safe on {on_nodes(point)}: {point.reason}."
    most = found[int(np.argmax([one.layout.micro_batch for one in found]))]
    said = (
        f"The largest micro-batch of {asked.model.name} on {on_nodes(point)} is "
        f"{most.layout.micro_batch} with {most.layout.recompute} recompute, a global batch of "
        f"{most.layout.global_batch:,} in one pass: {most.layout} [{most.framework}], "
        f"{between(most)}"
    )
    if fastest is most:
        return f"{said}."
    return (
        f"{said}; {fastest.tokens_per_s / most.tokens_per_s - 1:.0%} more tokens/s are had with "
        f"{fastest.layout.recompute} recompute and {fastest.layout.micro_batch}."
    )
