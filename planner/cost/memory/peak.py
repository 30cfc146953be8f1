"""Peak: bytes per rank by part, at every pipeline stage, at the worst moment of a step.

The parts reported are those alive at the worst of `MOMENTS`, so they add up to the total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from planner.cost.arrays import Float, Int
from planner.cost.memory.moments import MOMENTS, Alive, Worksheet, optimizer_temporaries
from planner.cost.parts import DEVICE_PARTS, recorded
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages

__all__ = ["communicators", "device_memory"]


def device_memory(stages: Stages) -> tuple[dict[str, Float], Int]:
    """Bytes per rank of pipeline stages, by part, at the peak, and which of MOMENTS that is [B].

    Counted: everything in DEVICE_PARTS. Left out: memory of other jobs on the device.
    method.md#memory-per-device.

    >>> from planner import Layout, Workload, load_framework, load_model, load_machine
    >>> from planner.cost.question import Question
    >>> model, machine = load_model("gpt2-xl"), load_machine("polaris")
    >>> job = Question(model, machine, Workload(), load_framework("megatron-lm"))
    >>> parts, moment = device_memory(Stages.every(job, Layout()))
    >>> parts["optimizer_states"].item() / model.num_params, tuple(MOMENTS)[moment.item()]
    (12.0, 'loss')
    """
    machine, buffers = stages.question.machine, stages.question.framework.buffers
    sheet = Worksheet.of(stages)
    alive = [_parts(moment(sheet)) for moment in MOMENTS.values()]
    totals = np.broadcast_arrays(*[np.asarray(sum(parts.values())) for parts in alive])
    peak = np.argmax(totals, axis=0)
    found = {"optimizer_states": sheet.resident.optimizer_states + np.zeros(peak.shape)}
    for name in alive[0]:
        found[name] = np.choose(peak, [parts[name] for parts in alive])
    allocated = np.asarray(sum(found.values()))
    found["runtime_context"] = _context_bytes(stages) + np.zeros_like(allocated)
    found["allocator_reserve"] = buffers.allocator_fraction.value * allocated
    if buffers.keeps_temporaries:
        room = machine.device.memory_bytes.value - sum(found.values())
        apart = found["optimizer_states"] + _apart(stages, totals) - allocated
        found["allocator_reserve"] += np.clip(apart, 0.0, np.maximum(room, 0.0))
    return recorded(found, DEVICE_PARTS), peak


def _apart(stages: Stages, totals: Sequence[Float]) -> Float:
    """What is alive before the optimizer's step, and the temporaries of that beside it.

    What activations leave behind is too small for them: the allocator takes more while there is
    room, and gives the small pieces back when there is none.
    """
    before = [size for name, size in zip(MOMENTS, totals, strict=True) if name != "optimizer"]
    return np.max(before, axis=0) + optimizer_temporaries(stages)


def _parts(alive: Alive) -> dict[str, Float]:
    return {field.name: getattr(alive, field.name) for field in fields(alive)}


def _context_bytes(stages: Stages) -> Float:
    """Driver context, and the buffers of a rank's communicators."""
    device = stages.question.machine.device
    return (
        device.context_bytes.value + communicators(stages.layouts) * device.communicator_bytes.value
    )


def communicators(layouts: Layouts) -> Float:
    """Communicators with buffers of their own that a rank is in [1].

    Counted: the group of every axis in use; a pair with each neighbour in the pipeline, as torch
    makes one for every two ranks that send (pytorch issue 129140); one over several axes, for the
    norm of gradients. Left out: that the ends of a pipeline have one neighbour, unless tied tables
    pair them; groups that share buffers (ncclCommSplit, splitShare). method.md#memory-per-device.

    >>> from planner import Layout
    >>> float(communicators(Layouts.of(Layout(dp=4))))
    1.0
    >>> float(communicators(Layouts.of(Layout(dp=4, tp=4, pp=12))))   # 2 axes, 2 pairs, all ranks
    5.0
    """
    inside = np.sum([axis > 1 for axis in (layouts.dp, layouts.tp, layouts.cp)], axis=0)
    # experts are spread over ranks of other axes
    several = inside + layouts.piped > 1
    pairs = np.minimum(layouts.pp - 1, 2)
    return np.asarray(inside + (layouts.ep > 1) + pairs + several, dtype=np.float64)
