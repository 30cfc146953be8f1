"""Peak: bytes per rank by part, at every pipeline stage, at the worst moment of a step."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from planner.cost.arrays import Float, Int, broadcast_to
from planner.cost.memory.phases import MOMENTS, LiveTensors, PeakInputs
from planner.cost.parts import DEVICE_PARTS, order_parts
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages

_NAMES = tuple(field.name for field in fields(LiveTensors))


def device_memory(stages: Stages) -> tuple[dict[str, Float], Int]:
    """Peak memory per rank of each stage, by part, and the index of its moment in MOMENTS [B].

    Counted: DEVICE_PARTS. Left out: other jobs on the device. memory.md#memory-per-device.
    """
    peak = Peak.of(stages)
    return peak.parts(*np.indices(stages.shape, sparse=True)), peak.moment


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak memory of stages; `parts` splits it for selected stages [B]."""

    inputs: PeakInputs
    live_tensors: tuple[dict[str, Float], ...]
    """Live tensors at each of MOMENTS."""
    moment: Int
    """Index of the worst phase in MOMENTS."""
    total: Float
    """All parts at that moment, including the allocator's reserve and the device context."""
    before_update: Float
    """Peak before the optimizer step, plus the step's temporaries. Blocks freed by activations are
    too small for these, so the allocator reserves new memory while the device has room."""
    context: Float

    @classmethod
    def of(cls, stages: Stages) -> Peak:
        """Compute the peak of every stage."""
        inputs, shape = PeakInputs.of(stages), stages.shape
        alive = (moment(inputs) for moment in MOMENTS.values())
        live_tensors = tuple({name: getattr(each, name) for name in _NAMES} for each in alive)
        peak_bytes, moment = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        before = peak_bytes
        for number, (name, parts) in enumerate(zip(MOMENTS, live_tensors, strict=True)):
            # the optimizer step is the last moment
            before = peak_bytes.copy() if name == "optimizer" else before
            # skip scalar parts that are zero
            total = np.asarray(sum(part for part in parts.values() if part.ndim or part))
            np.copyto(moment, number, where=total > peak_bytes)
            np.maximum(peak_bytes, total, out=peak_bytes)
        before_update, context = before + inputs.temporaries, _context_bytes(stages)
        states = inputs.resident.optimizer_states
        allocated = states + peak_bytes
        total = allocated + context + _reserved(stages, allocated, states + before_update, context)
        return cls(inputs, live_tensors, moment, total, before_update, context)

    def parts(self, *places: Int) -> dict[str, Float]:
        """Split the peak of the stages at `places` (array indices) into DEVICE_PARTS [B]."""
        stages, moment = self.inputs.stages, np.asarray(self.moment[places])

        def at_places(values: Float) -> Float:
            return broadcast_to(values, self.moment.shape)[places]

        part_bytes = {"optimizer_states": at_places(self.inputs.resident.optimizer_states)}
        part_bytes |= {name: np.zeros(moment.shape) for name in self.live_tensors[0]}
        flat = [broadcast_to(place, moment.shape).ravel() for place in places]
        for number, parts in enumerate(self.live_tensors):
            rows = np.flatnonzero(moment == number)
            row_places = tuple(place[rows] for place in flat)
            for name, values in parts.items() if len(rows) else ():
                if values.ndim or values:
                    all_values = broadcast_to(values, self.moment.shape)
                    part_bytes[name].reshape(-1)[rows] = all_values[row_places]
        # of the weights, what exceeds the shards is gathered copies that are left at this moment
        tensors = self.inputs.resident
        beyond = part_bytes["weights"] - at_places(tensors.weights - tensors.copies)
        copies = np.clip(beyond, 0.0, at_places(tensors.copies))
        part_bytes["weights"] = part_bytes["weights"] - copies
        part_bytes["gathered_parameters"] = part_bytes["gathered_parameters"] + copies
        allocated, context = np.asarray(sum(part_bytes.values())), at_places(self.context)
        before_update = part_bytes["optimizer_states"] + at_places(self.before_update)
        part_bytes["runtime_context"] = context
        part_bytes["allocator_reserve"] = _reserved(stages, allocated, before_update, context)
        return order_parts(part_bytes, DEVICE_PARTS)


def _reserved(stages: Stages, allocated: Float, before_update: Float, context: Float) -> Float:
    """Allocator's reserve beyond `allocated`; up to `before_update` if it keeps temporaries [B]."""
    machine, buffers = stages.scenario.machine, stages.scenario.framework.buffers
    reserve = buffers.allocator_fraction.value * allocated
    if not buffers.keeps_temporaries:
        return reserve
    room = machine.device.memory_bytes.value - (allocated + context + reserve)
    return reserve + np.clip(before_update - allocated, 0.0, np.maximum(room, 0.0))


def _context_bytes(stages: Stages) -> Float:
    """Driver context plus the buffers of a rank's communicators [B]."""
    device = stages.scenario.machine.device
    return (
        device.context_bytes.value + communicators(stages.layouts) * device.communicator_bytes.value
    )


def communicators(layouts: Layouts) -> Float:
    """Communicators per rank that have their own buffers [1].

    Counted: one per axis in use, one with each pipeline neighbour as torch makes them (pytorch
    issue 129140), one across axes for the gradient norm. Left out: that first and last stage have
    one neighbour; groups that share buffers (ncclCommSplit). memory.md#memory-per-device.
    """
    inside = np.sum([axis > 1 for axis in (layouts.dp, layouts.tp, layouts.cp)], axis=0)
    # ep uses ranks of the other axes
    several = inside + layouts.piped > 1
    pairs = np.minimum(layouts.pp - 1, 2)
    return np.asarray(inside + (layouts.ep > 1) + pairs + several, dtype=np.float64)
