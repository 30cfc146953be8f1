"""Limits of configuration files: what a framework's files cannot express."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from planner.choose.legality import check
from planner.cost.scenario import Scenario
from planner.describe.framework.support import SupportedModels
from planner.describe.layout import STAGE_FIELDS, Layout
from planner.emitters.batch_job import BatchJob
from planner.errors import EmitError, LayoutError, shorten

T = TypeVar("T")

TORCH_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}
"""torch's type of the tensors that a training precision computes with: TF32 rounds fp32 inside a
matrix product only. FP8 has none, because its tensors carry scales."""


def not_expressible(setting: str, framework: str, use: str) -> EmitError:
    """The refusal of a setting that a framework's files cannot express, with the remedy.

    >>> print(not_expressible("optimizer muon", "nanotron", "adamw"))
    optimizer muon is not written for nanotron; use adamw
    """
    return EmitError(f"{setting} is not written for {framework}; use {use}")


@dataclass(frozen=True, slots=True)
class FrameworkNames(Generic[T]):
    """A framework's own names of the planner's precisions, optimizers or schedules.

    >>> FrameworkNames("schedule", "nanotron", {"gpipe": "afab"})["gpipe"]
    'afab'
    """

    kind: str
    """Kind of the names: precision, optimizer, schedule."""
    framework: str
    """The framework."""
    words: Mapping[str, T]
    """The planner's name to the framework's word."""

    def __getitem__(self, name: str) -> T:
        """The word; raises EmitError where the framework has none."""
        if name not in self.words:
            *first, last = self.words
            choices = f"{', '.join(first)} or {last}" if first else last
            raise not_expressible(f"{self.kind} {name}", self.framework, choices)
        return self.words[name]


@dataclass(frozen=True, slots=True)
class ExpressibleLayouts:
    """Layouts that a recipe can write, besides data parallelism and ZeRO stages."""

    axes: tuple[str, ...] = ()
    """Parallel axes."""
    recompute: tuple[str, ...] = ("none", "full")
    """Recompute modes."""
    offload: tuple[str, ...] = ("none",)
    """What may live off the device."""
    recompute_by: tuple[str, ...] = ()
    """What of layers full recompute is told: the first ones, every n-th, or layers a checkpoint."""
    modules: bool = False
    """Whether selective recompute is told modules."""
    activations: bool = False
    """Whether activations may live off the device."""
    hybrid: bool = False
    """Whether sharding may stop at a group of ranks."""
    reshard: bool = False
    """Whether weights may stay sharded over fewer ranks from forward to backward."""
    ulysses: bool = False
    """Whether context ranks may exchange tokens for heads."""
    tiles: bool = False
    """Whether a layer may be tiled."""
    stages: bool = False
    """Whether layers may be dealt to stages otherwise than usual."""
    ramp: bool = False
    """Whether batches may be smaller at first."""

    def check(self, layout: Layout, framework: str) -> None:
        """Raise EmitError for what would be lost in the files."""
        for is_lost, setting, use in self._settings(layout):
            if is_lost:
                raise not_expressible(setting, framework, use)

    def _settings(self, layout: Layout) -> Iterator[tuple[bool, str, str]]:
        """Settings of a layout: whether they would be lost, their words, and what to use."""
        for axis in ("tp", "pp", "cp", "ep", "etp"):
            degree = getattr(layout, axis)
            yield degree > 1 and axis not in self.axes, f"{axis} = {degree}", f"{axis} = 1"
        mode, place = layout.recompute, layout.offload
        yield mode not in self.recompute, f"recompute {mode}", " or ".join(self.recompute)
        for part, usual in (("layers", 0), ("every", 1), ("span", 1)):
            name = f"recompute_{part}"
            is_lost = getattr(layout, name) != usual and part not in self.recompute_by
            yield is_lost, f"{name} = {getattr(layout, name)}", f"{name} = {usual}"
        modules = layout.recompute_modules
        is_lost = bool(modules) and not self.modules
        yield is_lost, f"recompute_modules = {'+'.join(modules)}", "none of them"
        is_lost = layout.offload_activations and not self.activations
        yield is_lost, "offload_activations", "activations on the device"
        yield place not in self.offload, f"offload {place}", " or ".join(self.offload)
        is_lost = layout.dp_shard not in (0, layout.dp) and not self.hybrid
        yield is_lost, f"dp_shard = {layout.dp_shard}", f"{layout.dp}"
        for name, usual in (("reshard", 0), ("ulysses", 1), ("tiles", 1)):
            is_lost = getattr(layout, name) > usual and not getattr(self, name)
            yield is_lost, f"{name} = {getattr(layout, name)}", f"{name} = {usual}"
        fields = layout.model_dump(include=set(STAGE_FIELDS), exclude_defaults=True)
        for name, value in fields.items():
            yield not self.stages, f"{name} = {shorten(str(value))}", "none"


def check_job(job: BatchJob, says: ExpressibleLayouts) -> None:
    """Raise EmitError where a layout, its model or its workload cannot be written."""
    framework, name = job.framework, shorten(job.framework.name)
    unsaid = framework.code.unsupported_setting(job.workload)
    if unsaid:
        raise EmitError(f"{name}: {unsaid}")
    lacks = framework.code.lacks(job.model, job.workload)
    if lacks:
        raise EmitError(
            f"model {job.model.name[:60]!r} is not written for {name}: {lacks}; use a framework "
            "that can, such as deepspeed or accelerate, which run the model's own code"
        )
    if framework.unwritable:
        raise not_expressible(f"switch {framework.unwritable[0]}", name, "the framework without it")
    says.check(job.layout, name)
    if job.workload.ramp and not says.ramp:
        raise not_expressible(f"ramp = {shorten(job.workload.ramp)}", name, "none")
    part = framework.limit_to_files(job.model, job.workload)
    if job.layout.world == 1:
        # one rank shards nothing, whatever its stage is called
        part = part.model_copy(update={"zero_stages": framework.zero_stages})
    try:
        check(Scenario(job.model, job.machine, job.workload, part), job.layout)
    except LayoutError as error:
        odd = framework.code.unsupported_model(job.model, job.workload.sequence_length)
        why = f" ({odd})" if odd and odd not in str(error) else ""
        raise EmitError(f"{job.layout} is not written for {name}{why}: {error}") from None


def built(job: BatchJob) -> SupportedModels:
    """The code of the framework that builds the job's model."""
    family = job.framework.code.builds(job.model, job.workload)
    if family is None:
        raise EmitError(
            f"{shorten(job.framework.name)} does not state which models its own code builds; add "
            "[[code.models]] to its description"
        )
    return family
