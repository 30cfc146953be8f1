"""Limits: settings that a framework's configuration files cannot express."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from planner.choose.legality import check
from planner.cost.scenario import Scenario
from planner.describe.files import read_toml
from planner.describe.framework.support import SupportedModels
from planner.describe.layout import STAGE_FIELDS, Layout
from planner.emitters.batch_job import BatchJob
from planner.errors import EmitError, LayoutError, shorten

T = TypeVar("T")

TORCH_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}
"""torch dtype of tensors by precision: fp32 under TF32; none for FP8, which carries scales."""


def not_expressible(setting: str, framework: str, use: str) -> EmitError:
    """Make the error for a setting that a framework's files cannot express."""
    return EmitError(f"the files of {framework} cannot express {setting}; use {use}")


@dataclass(frozen=True, slots=True)
class FrameworkNames(Generic[T]):
    """A framework's names for the planner's precisions, optimizers or schedules."""

    kind: str
    """Kind of the names: precision, optimizer, schedule."""
    framework: str
    words: Mapping[str, T]
    """The framework's name by the planner's name."""

    def __getitem__(self, name: str) -> T:
        if name not in self.words:
            *first, last = self.words
            choices = f"{', '.join(first)} or {last}" if first else last
            raise not_expressible(f"{self.kind} {name}", self.framework, choices)
        return self.words[name]


WORDS = read_toml(Path(__file__).parent / "recipes" / "words.toml")
"""Words of frameworks by kind."""


def framework_names(kind: str, framework: str) -> FrameworkNames[Any]:
    """A framework's names for precisions, optimizers or schedules, from `recipes/words.toml`."""
    return FrameworkNames(kind, framework, WORDS[framework][kind])


@dataclass(frozen=True, slots=True)
class ExpressibleLayouts:
    """Layout features that a recipe can write, apart from data parallelism and ZeRO stages."""

    axes: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ("none", "full")
    offload: tuple[str, ...] = ("none",)
    recompute_by: tuple[str, ...] = ()
    """Options of full recompute: layers (the first ones), every (n-th one), span (a checkpoint)."""
    modules: bool = False
    """Whether selective recompute can name modules."""
    activations: bool = False
    """Whether activations can be offloaded."""
    hybrid: bool = False
    """Whether states can be sharded over part of the data-parallel ranks."""
    reshard: bool = False
    """Whether weights can stay sharded over fewer ranks between forward and backward."""
    ulysses: bool = False
    """Whether context-parallel ranks can exchange tokens for heads (Ulysses)."""
    tiles: bool = False
    """Whether the weights of a layer can be tiled."""
    stages: bool = False
    """Whether layers can be placed on pipeline stages in other than the default way."""
    ramp: bool = False
    """Whether the global batch can ramp up."""

    def check(self, layout: Layout, framework: str) -> None:
        """Raise EmitError for a layout setting that the files cannot state."""
        for is_lost, setting, use in self._settings(layout):
            if is_lost:
                raise not_expressible(setting, framework, use)

    def _settings(self, layout: Layout) -> Iterator[tuple[bool, str, str]]:
        """Yield a layout's settings: whether the files would lose it, its text, and what to use."""
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


def check_job(job: BatchJob, expressible: ExpressibleLayouts) -> None:
    """Raise EmitError if the layout, model or workload cannot be written."""
    framework, name = job.framework, shorten(job.framework.name)
    if unsupported := framework.code.unsupported_setting(job.workload):
        raise EmitError(f"{name}: {unsupported}")
    if lacks := framework.code.lacks(job.model, job.workload):
        raise EmitError(
            f"the files of {name} cannot express model {job.model.name[:60]!r}: {lacks}; use a "
            "framework that can, such as deepspeed or accelerate, which run the model's own code"
        )
    if framework.unwritable:
        raise not_expressible(f"switch {framework.unwritable[0]}", name, "the framework without it")
    expressible.check(job.layout, name)
    if job.workload.ramp and not expressible.ramp:
        raise not_expressible(f"ramp = {shorten(job.workload.ramp)}", name, "none")
    part = framework.limit_to_files(job.model, job.workload)
    if job.layout.world == 1:
        # one rank shards nothing, whatever its ZeRO stage
        part = part.model_copy(update={"zero_stages": framework.zero_stages})
    try:
        check(Scenario(job.model, job.machine, job.workload, part), job.layout)
    except LayoutError as error:
        reason = framework.code.unsupported_model(job.model, job.workload.sequence_length)
        why = f" ({reason})" if reason and reason not in str(error) else ""
        remedy = ", such as deepspeed or accelerate, which run the model's own code" * bool(reason)
        message = f"the files of {name} cannot express {job.layout}{why}: {error}{remedy}"
        raise EmitError(message) from None


def built(job: BatchJob) -> SupportedModels:
    """The framework's supported models that include the job's; raises EmitError if none do."""
    family = job.framework.code.builds(job.model, job.workload)
    if family is None:
        raise EmitError(
            f"{shorten(job.framework.name)} does not state which models its own code builds; add "
            "[[code.models]] to its description"
        )
    return family
