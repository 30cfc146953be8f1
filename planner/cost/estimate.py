"""Estimate: memory and step time of layouts as named parts, from one implementation.

The same arrays serve one layout (0-d) and a million (1-d). Stages are represented by the few
that can be the worst; `stage_memory` gives every stage of one layout.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.cost.arrays import Float, Int, Mask
from planner.cost.intervals import (
    class_name,
    interval_factors,
    memory_class,
    memory_factors,
)
from planner.cost.memory.host import disk_bytes, host_memory
from planner.cost.memory.moments import MOMENTS
from planner.cost.memory.peak import device_memory
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.compute import model_flop
from planner.cost.step.step import time_parts
from planner.describe.layout import Layout
from planner.describe.question import Question
from planner.errors import DescriptionError

__all__ = ["Estimate", "Estimates", "estimate_layouts", "stage_memory"]

_TOGETHER = 16_384
"""Layouts that are worked out at once: more take more memory and longer, because numpy gives arrays
beyond a few MiB back to the system after every operation."""
_NUM_THREADS = min(os.cpu_count() or 1, 8)


@dataclass(frozen=True, slots=True)
class Estimate:
    """One layout's estimate, in plain numbers."""

    layout: Layout
    framework: str
    fits: bool
    tight: bool
    """Fits by the estimate alone: what runs of this class have used beyond theirs would not."""
    step_time_s: float
    interval_step_time_s: tuple[float, float]
    """Between these 90 % of measured runs of this class lay."""
    step_time_parts_s: dict[str, float]
    tokens_per_s: float
    mfu: float
    memory_bytes: dict[str, float]
    """Parts at the worst stage, and `total`."""
    interval_memory_bytes: tuple[float, float]
    """Between these the memory of 90 % of measured runs of this class lay."""
    worst_stage: int
    peak_moment: str
    """When in the step the peak falls: one of MOMENTS."""
    host_memory_bytes: dict[str, float]
    """Parts per node, and `total`."""


@dataclass(frozen=True)
class Estimates:
    """Named parts over the axis of the layouts."""

    layouts: Layouts
    time_parts_s: dict[str, Float]
    memory_parts_bytes: dict[str, Float]
    worst_stage: Int
    peak_moment: Int
    disk_bytes: Float
    host_parts_bytes: dict[str, Float]
    tokens_per_step: int
    model_flop: float
    peak_flop_per_s: float
    device_limit_bytes: float
    host_limit_bytes: float
    disk_limit_bytes: float
    interval_factors: tuple[float, float]
    """Measured over estimated step time: 5 % and 95 % quantile for this class of run."""
    memory_factors: tuple[float, float]
    """The same of memory."""
    framework: str

    @functools.cached_property
    def step_time_s(self) -> Float:
        """Sum of the time parts [s]."""
        return np.asarray(sum(self.time_parts_s.values()))

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
        """Whether the worst stage stays within the device."""
        return self.memory_bytes <= self.device_limit_bytes

    @functools.cached_property
    def fits_host(self) -> Mask:
        """Whether the host memory and the local disk of a node suffice."""
        on_disk = self.disk_bytes <= self.disk_limit_bytes
        return (self.host_memory_bytes <= self.host_limit_bytes) & on_disk

    @functools.cached_property
    def fits(self) -> Mask:
        """Whether device and host both suffice."""
        return self.fits_device & self.fits_host

    @property
    def mfu(self) -> Float:
        """Model FLOPs utilisation: model operations over time, ranks and dense peak."""
        available = self.step_time_s * self.layouts.world * self.peak_flop_per_s
        return self.model_flop / available

    def take(self, index: Int) -> Estimates:
        """A selection of the layouts."""

        def some(parts: dict[str, Float]) -> dict[str, Float]:
            return {name: values[index] for name, values in parts.items()}

        return replace(
            self,
            layouts=self.layouts.take(index),
            time_parts_s=some(self.time_parts_s),
            memory_parts_bytes=some(self.memory_parts_bytes),
            worst_stage=self.worst_stage[index],
            peak_moment=self.peak_moment[index],
            disk_bytes=self.disk_bytes[index],
            host_parts_bytes=some(self.host_parts_bytes),
        )

    @classmethod
    def joined(cls, several: Sequence[Estimates]) -> Estimates:
        """Estimates of one question as one, in their order."""
        first = several[0]
        arrays: dict[str, Any] = {"layouts": first.layouts.joined([e.layouts for e in several])}
        for name in ("time_parts_s", "memory_parts_bytes", "host_parts_bytes"):
            parts = [getattr(found, name) for found in several]
            arrays[name] = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        for name in ("worst_stage", "peak_moment", "disk_bytes"):
            arrays[name] = np.concatenate([getattr(found, name) for found in several])
        return replace(first, **arrays)

    def __len__(self) -> int:
        return len(self.layouts)

    def __getitem__(self, index: int) -> Estimate:
        def one(parts: dict[str, Float]) -> dict[str, float]:
            return {name: float(np.ravel(values)[index]) for name, values in parts.items()}

        memory, host = one(self.memory_parts_bytes), one(self.host_parts_bytes)
        parts = one(self.time_parts_s)
        step, total = sum(parts.values()), sum(memory.values())
        layout, fits = self.layouts[index], bool(np.ravel(self.fits)[index])
        most = total * self.memory_factors[1]
        return Estimate(
            layout=layout,
            framework=self.framework,
            fits=fits,
            tight=fits and most > self.device_limit_bytes,
            step_time_s=step,
            interval_step_time_s=(step * self.interval_factors[0], step * self.interval_factors[1]),
            step_time_parts_s=parts,
            tokens_per_s=self.tokens_per_step / step,
            mfu=self.model_flop / (step * layout.world * self.peak_flop_per_s),
            memory_bytes={**memory, "total": total},
            interval_memory_bytes=(total * self.memory_factors[0], most),
            worst_stage=int(np.ravel(self.worst_stage)[index]),
            peak_moment=tuple(MOMENTS)[int(np.ravel(self.peak_moment)[index])],
            host_memory_bytes={**host, "total": sum(host.values())},
        )


def estimate_layouts(question: Question, layouts: Layouts) -> Estimates:
    """Memory and step time of every layout.

    Counted: see DEVICE_PARTS, HOST_PARTS and TIME_PARTS. Left out: evaluation, checkpoints,
    data loading, stragglers. method.md#method.

    >>> from planner import Workload, load_framework, load_machine, load_model
    >>> model, job = load_model("gpt2-xl"), Workload(global_batch=64)
    >>> question = Question(model, load_machine("polaris"), job, load_framework("megatron-lm"))
    >>> found = estimate_layouts(question, Layouts.of(Layout(dp=8, grad_accumulation=8)))[0]
    >>> found.memory_bytes["optimizer_states"] / model.num_params       # fp32 copy and moments
    12.0
    >>> round(sum(found.step_time_parts_s.values()) / found.step_time_s, 6)
    1.0
    """
    if np.ndim(layouts.dp) != 1 or len(layouts) <= _TOGETHER:
        return _together(question, layouts)
    begins = range(0, len(layouts), _TOGETHER)
    some = [layouts.take(slice(begin, begin + _TOGETHER)) for begin in begins]
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        return Estimates.joined(list(threads.map(functools.partial(_together, question), some)))


def _together(question: Question, layouts: Layouts) -> Estimates:
    machine, workload, framework = question.machine, question.workload, question.framework
    stages = Stages.candidates(question, layouts)
    memory, worst, moment = _worst_stage(stages)
    first = stages.at(np.zeros((*np.shape(layouts.dp), 1), dtype=np.int64))
    disk = machine.node.local_disk
    peak = machine.peak(workload.base_precision)

    def spread(parts: dict[str, Float]) -> dict[str, Float]:
        shape = np.shape(layouts.dp)
        return {name: np.broadcast_to(values, shape) for name, values in parts.items()}

    found = Estimates(
        layouts=layouts,
        time_parts_s=spread(time_parts(stages)),
        memory_parts_bytes=memory,
        worst_stage=worst,
        peak_moment=moment,
        disk_bytes=spread({"disk": disk_bytes(first)})["disk"],
        host_parts_bytes=spread(host_memory(first)),
        tokens_per_step=workload.tokens_per_step,
        model_flop=model_flop(stages.blocks, workload),
        peak_flop_per_s=peak,
        device_limit_bytes=machine.device.memory_bytes.value,
        host_limit_bytes=machine.node.host_memory_bytes.value,
        disk_limit_bytes=disk.capacity_bytes.value if disk else 0.0,
        interval_factors=interval_factors(class_name(question.model, machine, framework)),
        memory_factors=memory_factors(memory_class(framework)),
        framework=framework.name,
    )
    _refuse_absurd(question, found)
    return found


def _refuse_absurd(question: Question, found: Estimates) -> None:
    """Raise DescriptionError where a total is not finite, or less than nothing.

    Every figure has bounds of its own; only many at their limits come here.
    """
    for total in (found.step_time_s, found.memory_bytes, found.host_memory_bytes):
        if not np.all(np.isfinite(total) & (total >= 0)):
            raise DescriptionError(
                f"{question.model.name} on {question.machine.name} with "
                f"{question.framework.name} gives figures beyond any number; check the sizes of "
                "its model and the units of its machine"
            )


def _worst_stage(stages: Stages) -> tuple[dict[str, Float], Int, Int]:
    """Parts at the worst stage, which one it is, and at which moment."""
    parts, moment = device_memory(stages)
    total = np.asarray(sum(parts.values()))
    worst = np.argmax(total, axis=-1)[..., None]

    def chosen(values: Any) -> Any:
        return np.take_along_axis(np.broadcast_to(values, total.shape), worst, axis=-1)[..., 0]

    found = {name: chosen(values) for name, values in parts.items()}
    return found, chosen(stages.stage), chosen(moment)


def stage_memory(question: Question, layout: Layout) -> list[dict[str, float]]:
    """Device parts of every pipeline stage of one layout [B].

    Counted: everything in DEVICE_PARTS. Left out: host memory. method.md#memory-per-device.

    >>> from planner import Workload, load_framework, load_machine, load_model
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> job = Question(model, machine, Workload(), load_framework("megatron-lm"))
    >>> stages = stage_memory(job, Layout(pp=4))
    >>> [round(parts["weights"] / 1e9, 2) for parts in stages]      # 8 layers of 0.436 GB; the ends
    [4.54, 3.49, 3.49, 4.54]
    """
    parts, _ = device_memory(Stages.every(question, layout))
    rows = range(layout.pp)
    return [{name: float(values[i]) for name, values in parts.items()} for i in rows]
