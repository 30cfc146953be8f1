"""Bubble: how long pipelines idle and what they hold in flight, for any number of layouts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Float, Mask
from planner.cost.schedules.known import KNOWN
from planner.cost.shards.layouts import Layouts

__all__ = ["bubble_s", "chunks_in_flight", "in_flight", "interleaved", "runs_forward_ahead"]


def in_flight(layouts: Layouts, stage: ArrayLike) -> Float:
    """Micro-batches whose activations a stage holds at its peak [1].

    Counted: those of each schedule's own closed form. Left out: what receive buffers hold.
    method.md#pipeline.

    >>> float(in_flight(Layouts.broadcast(pp=4, grad_accumulation=8, schedule=2), 1))
    3.0
    """
    p, v, m = layouts.pp, layouts.vpp, layouts.num_microbatches
    first, *others = KNOWN.values()
    stage = np.asarray(stage)
    found = first.in_flight(p, v, m, stage)
    for schedule in others:
        if np.any(here := layouts.scheduled(schedule.name)):
            found = np.where(here, schedule.in_flight(p, v, m, stage), found)
    return np.where(layouts.piped, found, 1.0)


def chunks_in_flight(layouts: Layouts, stage: ArrayLike, layers: Float) -> Float:
    """Micro-batches of each chunk of a stage whose activations it holds at its peak [1].

    `layers` are those of each chunk; it and the result have the shape (chunks, ...). Counted: the
    schedule's order. Left out: what receive buffers hold. method.md#pipeline.

    >>> layouts = Layouts.broadcast(pp=4, vpp=2, grad_accumulation=8, schedule=3)
    >>> chunks_in_flight(layouts, 0, np.array([1.0, 2.0])).tolist()     # 11 passes
    [7.0, 4.0]
    """
    p, v, m, stage = layouts.pp, layouts.vpp, layouts.num_microbatches, np.asarray(stage)
    whole = np.zeros(np.shape(layers))
    whole[0] = in_flight(layouts, stage)
    for schedule in KNOWN.values():
        here = layouts.scheduled(schedule.name) & layouts.piped
        if schedule.of_chunks and np.any(here):
            whole = np.where(here, schedule.of_chunks(p, v, m, stage, layers), whole)
    return whole


def bubble_s(
    layouts: Layouts, slowest_s: Float, sum_s: Float, weight_s: Float, weights_s: Float
) -> Float:
    """Idle time of the slowest stage while the pipeline fills and drains [s].

    `slowest_s` and `sum_s` are the time of one micro-batch on the slowest stage and on all
    stages, `weight_s` and `weights_s` the weight gradients in them. Counted: with equal stages
    (p - 1)(t_f + t_b) / v (Narayanan et al. 2021, arXiv:2104.04473, section 2.2), less what a
    schedule does meanwhile. Left out: the optimizer.

    >>> from planner import Layout
    >>> layouts = Layouts.of(Layout(pp=4, schedule="1f1b", grad_accumulation=8))
    >>> one, four = np.asarray(1.0), np.asarray(4.0)
    >>> float(bubble_s(layouts, 3 * one, 12 * one, one, four))      # 3 * 3 s
    9.0
    """
    idle = np.maximum(sum_s - slowest_s, 0.0) / layouts.vpp
    found = idle
    for schedule in KNOWN.values():
        fills = schedule.fills_s(layouts.pp, layouts.num_microbatches, weight_s, weights_s)
        bubble = np.maximum(idle - fills, 0.0)
        found = np.where(layouts.scheduled(schedule.name), bubble, found)
    return found


def interleaved(layouts: Layouts) -> Mask:
    """Stages hold several chunks of the model."""
    return _any_of(layouts, [name for name, known in KNOWN.items() if known.interleaves])


def runs_forward_ahead(layouts: Layouts) -> Mask:
    """The last stage runs forward passes before its first backward pass."""
    return _any_of(layouts, [name for name, known in KNOWN.items() if known.runs_forward_ahead])


def _any_of(layouts: Layouts, names: list[str]) -> Mask:
    return np.any([layouts.scheduled(name) for name in names], axis=0)
