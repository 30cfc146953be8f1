"""Peak: bytes per rank by part, at every pipeline stage, at the worst moment of a step.

The parts reported are those alive at the worst of `MOMENTS`, so they add up to the total.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from planner.cost.arrays import Float, Int
from planner.cost.memory.phases import MOMENTS, LiveTensors, PeakInputs
from planner.cost.parts import DEVICE_PARTS, recorded
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages

__all__ = ["Peak", "communicators", "device_memory"]


def device_memory(stages: Stages) -> tuple[dict[str, Float], Int]:
    """Bytes per rank of pipeline stages, by part, at the peak, and which of MOMENTS that is [B].

    Counted: everything in DEVICE_PARTS. Left out: memory of other jobs on the device.
    method.md#memory-per-device.

    >>> scenario = make_scenario("gpt2-xl")
    >>> parts, moment = device_memory(Stages.every(scenario, Layout()))
    >>> parts["optimizer_states"].item() / scenario.model.num_params, tuple(MOMENTS)[moment.item()]
    (12.0, 'loss')
    """
    peak = Peak.of(stages)
    return peak.parts(*np.indices(stages.shape, sparse=True)), peak.moment


@dataclass(frozen=True, slots=True)
class Peak:
    """The peaks of stages, in figures that name their parts when they are asked [B]."""

    sheet: PeakInputs
    alive: tuple[dict[str, Float], ...]
    """What comes and goes, at each of MOMENTS."""
    moment: Int
    """Which of them is the worst."""
    total: Float
    """All parts at that moment, the allocator's reserve and the device's context among them."""
    apart: Float
    """What is alive before the optimizer's step, and the temporaries of that beside it.

    What activations leave behind is too small for them: the allocator takes more while there is
    room, and gives the small pieces back when there is none.
    """
    context: Float

    @classmethod
    def of(cls, stages: Stages) -> Peak:
        """The peaks of stages."""
        sheet, shape = PeakInputs.of(stages), stages.shape
        alive = tuple(_parts(moment(sheet)) for moment in MOMENTS.values())
        most, moment = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        before = most
        for number, (name, parts) in enumerate(zip(MOMENTS, alive, strict=True)):
            # the optimizer's step is the last of them
            before = most.copy() if name == "optimizer" else before
            # of what nothing is there, nothing is added up
            total = np.asarray(sum(part for part in parts.values() if part.ndim or part))
            np.copyto(moment, number, where=total > most)
            np.maximum(most, total, out=most)
        apart, context = before + sheet.temporaries, _context_bytes(stages)
        states = sheet.resident.optimizer_states
        found = states + most
        total = found + context + _reserved(stages, found, states + apart, context)
        return cls(sheet, alive, moment, total, apart, context)

    def parts(self, *places: Int) -> dict[str, Float]:
        """The parts of the stages at some places, by DEVICE_PARTS."""
        stages, moment = self.sheet.stages, np.asarray(self.moment[places])

        def there(values: Float) -> Float:
            return np.broadcast_to(values, self.moment.shape)[places]

        found = {"optimizer_states": there(self.sheet.resident.optimizer_states)}
        found |= {name: np.zeros(moment.shape) for name in self.alive[0]}
        flat = [np.broadcast_to(place, moment.shape).ravel() for place in places]
        for number, parts in enumerate(self.alive):
            here = np.flatnonzero(moment == number)
            some = tuple(place[here] for place in flat)
            for name, values in parts.items() if len(here) else ():
                if values.ndim or values:
                    found[name].reshape(-1)[here] = np.broadcast_to(values, self.moment.shape)[some]
        allocated = np.asarray(sum(found.values()))
        apart, context = found["optimizer_states"] + there(self.apart), there(self.context)
        found["runtime_context"] = context
        found["allocator_reserve"] = _reserved(stages, allocated, apart, context)
        return recorded(found, DEVICE_PARTS)


def _reserved(stages: Stages, allocated: Float, apart: Float, context: Float) -> Float:
    """What the allocator holds beyond what is `allocated`, of which most lies `apart` [B]."""
    machine, buffers = stages.scenario.machine, stages.scenario.framework.buffers
    reserve = buffers.allocator_fraction.value * allocated
    if not buffers.keeps_temporaries:
        return reserve
    room = machine.device.memory_bytes.value - (allocated + context + reserve)
    return reserve + np.clip(apart - allocated, 0.0, np.maximum(room, 0.0))


_NAMES = tuple(field.name for field in fields(LiveTensors))


def _parts(alive: LiveTensors) -> dict[str, Float]:
    return {name: getattr(alive, name) for name in _NAMES}


def _context_bytes(stages: Stages) -> Float:
    """Driver context, and the buffers of a rank's communicators."""
    device = stages.scenario.machine.device
    return (
        device.context_bytes.value + communicators(stages.layouts) * device.communicator_bytes.value
    )


def communicators(layouts: Layouts) -> Float:
    """Communicators with buffers of their own that a rank is in [1].

    Counted: the group of every axis in use; a pair with each neighbour in the pipeline, as torch
    makes one for every two ranks that send (pytorch issue 129140); one over several axes, for the
    norm of gradients. Left out: that the ends of a pipeline have one neighbour, unless tied tables
    pair them; groups that share buffers (ncclCommSplit, splitShare). method.md#memory-per-device.

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
