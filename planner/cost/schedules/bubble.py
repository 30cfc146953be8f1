"""Bubble: how long pipelines idle and what they hold in flight, for any number of layouts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Float, Int, Mask
from planner.cost.schedules.registry import KNOWN
from planner.cost.schedules.schedule import Around, idle_s
from planner.cost.shards.layouts import Layouts

__all__ = [
    "bubble_s",
    "chunks_in_flight",
    "chunks_waiting",
    "defers_weight_gradients",
    "fewest_micro_batches",
    "in_flight",
    "interleaved",
    "runs_forward_ahead",
]


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


def chunks_waiting(layouts: Layouts, stage: ArrayLike, layers: Float) -> tuple[Float, Float]:
    """Passes of each chunk held when no forward pass follows, and those that wait for weights [1].

    Shapes as of `chunks_in_flight`. Counted: schedules whose weight gradients are passes of their
    own, when most wait; the second are a part of the first, whose other backward passes are done.
    Left out: other schedules, where none does. method.md#pipeline.

    >>> layouts = Layouts.broadcast(pp=4, vpp=2, grad_accumulation=8, schedule=5)
    >>> [held.tolist() for held in chunks_waiting(layouts, 3, np.array([1.0, 1.0]))]
    [[4.0, 3.0], [4.0, 3.0]]
    """
    p, v, m, stage = layouts.pp, layouts.vpp, layouts.num_microbatches, np.asarray(stage)
    held = waiting = np.zeros(np.shape(layers))
    for schedule in KNOWN.values():
        here = layouts.scheduled(schedule.name) & layouts.piped
        if schedule.waiting and np.any(here):
            found = schedule.waiting(p, v, m, stage, layers)
            held, waiting = np.where(here, found[0], held), np.where(here, found[1], waiting)
    return held, waiting


def bubble_s(layouts: Layouts, around: Around) -> Float:
    """Idle time of the slowest stage while the pipeline fills and drains [s].

    `around` is of the stages (..., S) of which one is the slowest. Counted: with equal stages
    (p - 1)(t_f + t_b) / v (Narayanan et al. 2021, arXiv:2104.04473, section 2.2), less what a
    schedule does meanwhile; the ways through unlike stages, where the schedule knows them. Left
    out: the optimizer. method.md#pipeline.

    >>> from planner.cost.schedules.schedule import Passes
    >>> layouts = Layouts.of(Layout(pp=4, schedule="1f1b", grad_accumulation=8))
    >>> one, before, four = (Passes(*(n * np.array([3.0, 1.0, 1.0])[:, None])) for n in (1, 3, 4))
    >>> every = Passes(*(part[0] for part in (four.total_s, four.forward_s, four.weight_s)))
    >>> nothing = one.less(one)
    >>> float(bubble_s(layouts, Around(np.array([3]), one, before, nothing, every)))    # 3 * 3 s
    9.0
    """
    shape = (layouts.pp, layouts.vpp, layouts.num_microbatches)
    slowest = around.own.at(np.argmax(around.own.total_s, axis=-1)[..., None])
    others = around.every.less(slowest)
    found = idle_s(*shape, slowest, others)
    for schedule in KNOWN.values():
        if not np.any(here := layouts.scheduled(schedule.name) & layouts.piped):
            continue
        if schedule.length_s is not None:
            length = schedule.length_s(*shape, around)
            bubble = length - layouts.num_microbatches * slowest.total_s
        else:
            bubble = schedule.bubble_s(*shape, slowest, others)
        found = np.where(here, np.maximum(bubble, 0.0), found)
    return found


def interleaved(layouts: Layouts) -> Mask:
    """Stages hold several chunks of the model, which go round them."""
    return _any_of(layouts, [name for name, known in KNOWN.items() if known.interleaves])


def runs_forward_ahead(layouts: Layouts) -> Mask:
    """The last stage runs forward passes before its first backward pass."""
    return _any_of(layouts, [name for name, known in KNOWN.items() if known.runs_forward_ahead])


def defers_weight_gradients(layouts: Layouts) -> Mask:
    """Weight gradients are passes of their own."""
    return _any_of(
        layouts, [name for name, known in KNOWN.items() if known.defers_weight_gradients]
    )


def fewest_micro_batches(layouts: Layouts) -> Int:
    """Micro-batches without which the schedule does not exist [1].

    Counted: two for each stage. Left out: multiples of the stages, which interleaving asks
    for. method.md#pipeline.

    >>> layouts = Layouts.broadcast(pp=4, vpp=2, schedule=6)
    >>> int(fewest_micro_batches(layouts))
    8
    """
    names = [name for name, known in KNOWN.items() if known.needs_two_rounds]
    return np.where(_any_of(layouts, names), 2 * layouts.pp, 1)


def _any_of(layouts: Layouts, names: list[str]) -> Mask:
    return np.any([layouts.scheduled(name) for name in names], axis=0)
