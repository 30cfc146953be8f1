"""Footprint: device, host and disk bytes of layouts, and whether they fit."""

import functools
from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float, Int, Mask, broadcast_to, map_in_batches
from planner.cost.memory.host_memory import disk_bytes, host_memory
from planner.cost.memory.peak import Peak, device_memory
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.uncertainty import memory_outlook
from planner.describe.layout import Layout
from planner.errors import DescriptionError


@dataclass(frozen=True)
class Footprints(Arrays):
    """Memory of many layouts by part, and whether they fit."""

    layouts: Layouts
    memory_parts_bytes: dict[str, Float]
    """Parts of device memory at the worst stage."""
    worst_stage: Int
    peak_moment: Int
    host_parts_bytes: dict[str, Float]
    """Parts of host memory per node."""
    disk_bytes: Float
    """Bytes on the local disk per node."""
    device_limit_bytes: float
    host_limit_bytes: float
    disk_limit_bytes: float

    @functools.cached_property
    def memory_bytes(self) -> Float:
        """Sum of the device parts at the worst stage [B]."""
        return np.asarray(sum(self.memory_parts_bytes.values()))

    @functools.cached_property
    def host_memory_bytes(self) -> Float:
        """Sum of the host parts per node [B]."""
        return np.asarray(sum(self.host_parts_bytes.values()))

    @functools.cached_property
    def fits_device(self) -> Mask:
        """True if the worst stage fits in device memory."""
        return self.memory_bytes <= self.device_limit_bytes

    @functools.cached_property
    def fits_host(self) -> Mask:
        """True if host parts fit in node memory and on its local disk."""
        on_disk = self.disk_bytes <= self.disk_limit_bytes
        return (self.host_memory_bytes <= self.host_limit_bytes) & on_disk

    @functools.cached_property
    def fits(self) -> Mask:
        """True if device, host and disk all suffice."""
        return self.fits_device & self.fits_host

    @functools.cached_property
    def excess(self) -> Float:
        """Sum of relative excess over device, host and disk capacity [1]."""
        pairs = (
            (self.memory_bytes, self.device_limit_bytes),
            (self.host_memory_bytes, self.host_limit_bytes),
            (self.disk_bytes, self.disk_limit_bytes),
        )
        over = (np.maximum(used / max(room, 1.0) - 1, 0.0) for used, room in pairs)
        return np.asarray(sum(over))

    def __len__(self) -> int:
        return len(self.layouts)


def footprints(scenario: Scenario, layouts: Layouts) -> Footprints:
    """Device, host and disk memory of every layout, without step times.

    Counted: DEVICE_PARTS and HOST_PARTS. Left out: the page cache. memory.md#memory-per-device.
    """
    return map_in_batches(
        lambda batch: footprints_of(Stages.candidates(scenario, batch)), layouts, len(layouts)
    )


def footprints_of(stages: Stages) -> Footprints:
    """Memory of layouts at the worst of their candidate stages (L, S).

    Counted: as `footprints`. Left out: the step time. memory.md#memory-per-device.
    """
    scenario, layouts = stages.scenario, stages.requested
    memory, worst, moment = _worst_stage(stages)
    memory = _as_measured(scenario, layouts, memory)
    first = stages.at(np.zeros((*np.shape(layouts.dp), 1), dtype=np.int64))
    node, shared = scenario.machine.node, scenario.machine.device.uses_host_memory
    on_device = np.asarray(sum(memory.values())) if shared else np.zeros(np.shape(worst))
    shape = layouts.dp.shape
    result = Footprints(
        layouts=layouts,
        memory_parts_bytes=memory,
        worst_stage=worst,
        peak_moment=moment,
        host_parts_bytes={
            name: broadcast_to(part, shape) for name, part in host_memory(first, on_device).items()
        },
        disk_bytes=broadcast_to(disk_bytes(first), shape),
        device_limit_bytes=scenario.machine.device.memory_bytes.value,
        host_limit_bytes=node.host_memory_bytes.value,
        disk_limit_bytes=node.local_disk.capacity_bytes.value if node.local_disk else 0.0,
    )
    check_figures(scenario, result.memory_bytes, result.host_memory_bytes)
    return result


def _as_measured(
    scenario: Scenario, layouts: Layouts, parts_bytes: dict[str, Float]
) -> dict[str, Float]:
    """Parts of device memory (L, ...), corrected by measured runs [B]."""
    if scenario.experience.memory is None:
        return parts_bytes
    factor = memory_outlook(scenario, layouts).expected.reshape(np.shape(layouts.dp))
    return {name: part * factor for name, part in parts_bytes.items()}


def check_figures(scenario: Scenario, *totals: Float) -> None:
    """Raise DescriptionError if a total is infinite, NaN or negative."""
    for total in totals:
        if not np.all(np.isfinite(total) & (total >= 0)):
            raise DescriptionError(
                f"{scenario.model.name} on {scenario.machine.name} with "
                f"{scenario.framework.name} gives an infinite, undefined or negative memory "
                "size or step time; check the model's sizes and the machine's units"
            )


def _worst_stage(stages: Stages) -> tuple[dict[str, Float], Int, Int]:
    """Parts at the worst stage, the stage's index, and its peak moment."""
    peak = Peak.of(stages)
    worst = np.argmax(peak.total, axis=-1)
    places = (*np.indices(worst.shape, sparse=True), worst)
    stage = broadcast_to(stages.stage, peak.total.shape)
    return peak.parts(*places), stage[places], peak.moment[places]


def stage_memory(scenario: Scenario, layout: Layout) -> list[dict[str, float]]:
    """Device parts of every pipeline stage of one layout [B].

    Counted: everything in DEVICE_PARTS. Left out: host memory. memory.md#memory-per-device.
    """
    parts, _ = device_memory(Stages.of_pipeline(scenario, layout))
    parts = _as_measured(scenario, Layouts.stack([layout]), parts)
    return [{name: float(part[i]) for name, part in parts.items()} for i in range(layout.pp)]
