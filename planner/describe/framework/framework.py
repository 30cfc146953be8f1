"""Framework: a training framework, described by one TOML file; no code depends on its name."""

from __future__ import annotations

import functools
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from planner.describe.base import Description, Factor, Share, ZeroStage
from planner.describe.framework import traits
from planner.describe.framework.kernel_releases import Month
from planner.describe.framework.support import Axis, EmitSupport
from planner.describe.framework.switches import (
    Switch,
    apply_switches,
    check_path,
    merge_tables,
    strip_switches,
)
from planner.describe.layout import RECOMPUTE, Context, Module, Recompute, Schedule
from planner.describe.machine import Machine, Requirements, Runtime
from planner.describe.model.model import Model
from planner.describe.workload import PRECISIONS, TrainingPrecision, Workload
from planner.errors import UnknownNameError, shorten

_SAME_CORES = Share(
    value=1, kind="assumed", source="a CPU's collectives run on the cores that compute"
)


class Stall(Description):
    """A class of layouts with which some measured runs stalled, for an unknown cause."""

    zero_stages: tuple[ZeroStage, ...] = (0, 1, 2, 3)
    """ZeRO stages of these layouts."""
    piped: bool
    """Whether they have a pipeline."""
    min_nodes: int = Field(ge=1, le=100_000)
    """Smallest number of nodes."""
    share: Share
    """Share of measured runs slower than 1.67 x their estimate."""
    slowdown: Factor
    """Median of measured over estimated time of these runs."""


class Framework(Description):
    """A training framework."""

    name: str
    """Name on the command line."""
    title: str
    """Full name and version described."""
    like: str = ""
    """Catalogue framework whose traits apply unless stated here; not its title, source, notes."""
    source: str
    """Where the behaviour was read."""
    notes: tuple[str, ...] = ()
    """Limits and doubts of this description."""
    configuration: str = "none"
    """Recipe in `planner.emitters.recipes` that writes its files; none: for comparison only."""
    effort: float = Field(default=0, ge=0, le=10)
    """Extra effort of adopting it over DDP, on the scale of the preferences [1]."""
    searched: bool = False
    """Whether a search includes it by default."""
    stands_in_for: str = ""
    """Framework that it replaces in a search if that one does not run."""
    instead_of: str = ""
    """Framework that is searched only if this one is not, or has no layout that fits."""
    requires: Requirements = Requirements()
    """Requirements on a machine to be searched there by default."""
    runtimes: tuple[Runtime, ...] = get_args(Runtime)
    """Device runtimes that it runs on."""
    devices: tuple[str, ...] = ()
    """Substrings of supported device names; empty: all devices of its runtimes."""
    axes: tuple[Axis, ...]
    """Parallel axes besides data."""
    zero_stages: tuple[ZeroStage, ...] = Field(min_length=1)
    """ZeRO stages it offers (FSDP full shard is 3, grad-op is 2)."""
    zero_stages_with_pipeline: tuple[ZeroStage, ...] = (0, 1)
    """ZeRO stages it offers with pp > 1."""
    unsharded_precisions: tuple[TrainingPrecision, ...] = PRECISIONS
    """Precisions it offers without sharding (ZeRO-0)."""
    axes_need_sharding: tuple[Axis, ...] = ()
    """Axes that need sharded states (ep: over ep ranks or a multiple of them)."""
    hybrid_stages: tuple[ZeroStage, ...] = ()
    """ZeRO stages with hybrid sharding: groups of ranks shard and replicate across groups."""
    second_shards: bool = False
    """Whether ZeRO-3 can reshard weights over fewer ranks between forward and backward."""
    context: tuple[Context, ...] = ("ring",)
    """Kinds of context parallelism; the first is the default."""
    context_alone: bool = False
    """Whether context parallelism excludes tensor and pipeline parallelism."""
    schedules: tuple[Schedule, ...] = ("none",)
    """Pipeline schedules."""
    recompute: tuple[Recompute, ...] = ("none", "full")
    """Activation recompute modes."""
    recompute_by: tuple[Literal["layers", "every", "span"], ...] = ()
    """Layers of full recompute: the first of a stage, every n-th, or a span per checkpoint."""
    recompute_modules: tuple[Module, ...] = ()
    """Modules that users can choose for selective recompute instead of its policy."""
    recompute_modules_not_fp8: tuple[Module, ...] = ()
    """Modules that cannot be repeated in FP8 training."""
    deferred_recompute: tuple[Recompute, ...] = RECOMPUTE
    """Recompute modes for schedules with separate weight-gradient passes."""
    deferred_zero_stages: tuple[ZeroStage, ...] = (0, 1, 2, 3)
    """ZeRO stages for schedules with separate weight-gradient passes."""
    selective_policy: Literal["attention-core", "matmul-outputs", "alternate-matmuls"] = (
        "attention-core"
    )
    """Selective recompute: repeat the attention core, or keep outputs of all or half the GEMMs."""
    sequence_parallel: Literal["never", "by-default", "optional"] = "never"
    """Norms and dropout are split inside the tp group; by-default: the search has it alone."""
    offload_optimizer: tuple[Literal["cpu", "nvme"], ...] = ()
    """Places for offloaded optimizer states."""
    offload_parameters: tuple[Literal["cpu", "nvme"], ...] = ()
    """Places for offloaded parameters (ZeRO-3)."""
    offload_stages: tuple[ZeroStage, ...] = (1, 2, 3)
    """ZeRO stages with optimizer offloading."""
    offload_activations: tuple[Recompute, ...] = ()
    """Recompute modes with activation offloading to the host."""
    tiling: bool = False
    """Whether the largest layer can be split into tiles (memory-centric tiling)."""
    uneven_stages: bool = False
    """Whether pipeline stages may differ in their number of layers."""
    balance: Literal["layers", "ends-as-layers", "cost"] = "layers"
    """Balance of stages: equal layers; ends as one layer each; by cost, head by parameters."""
    custom_pipeline_split: bool = False
    """Whether users can place layers on stages, or set what embedding and head count as."""
    shards_rows: bool = False
    """Whether tensors are sharded by rows, ceil(rows / ranks) (FSDP2); else as one flat array."""
    replicates_kv_heads: bool = False
    """Whether tp may exceed the number of key-value heads."""
    expert_tensor_parallel: tuple[Literal["tp", "one", "any"], ...] = ("tp",)
    """Ranks that split an expert with ep > 1: tp ranks, one, any; the first is the default."""
    loads_full_checkpoint: bool = True
    """Whether every rank reads the whole checkpoint into host memory."""
    mixed: traits.States
    """Bytes per parameter in 16-bit and 8-bit training."""
    bf16: traits.States | None = None
    """Bytes per parameter in bf16 and FP8 training; default: as in `mixed`."""
    full: traits.States
    """Bytes per parameter in fp32 and tf32 training."""
    software_date: Month = ""
    """Year and month of its libraries, such as 2024-03, for kernel rates; empty: the newest."""
    kernels: traits.Kernels
    """Kernels and saved tensors."""
    other_kernels: tuple[traits.OtherKernels, ...] = ()
    """Kernels that are missing on some runtimes."""
    host: traits.HostTime
    """Host time per layer."""
    stalls: tuple[Stall, ...] = ()
    """Layouts that sometimes stall: reported and avoided, not part of step times."""
    buffers: traits.Buffers
    """Fixed buffers."""
    communication: traits.Communication
    """Overlap and kind of collectives."""
    reduction: traits.Reduction = traits.Reduction()
    """Data-parallel reduction of unsharded gradients."""
    offloading: traits.Offloading = traits.Offloading()
    """Transfers and host memory of offloading."""
    code: EmitSupport = EmitSupport()
    """Models and settings that its code and files support."""
    switches: dict[str, Switch] = Field(default_factory=dict)
    """Options that users can turn on, by name: `--framework NAME+SWITCH`."""
    switched: tuple[str, ...] = ()
    """Switches that are on, as the user wrote them."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        mixed, bf16 = fields.get("mixed"), fields.get("bf16")
        if isinstance(mixed, dict) and isinstance(bf16, dict):
            return {**fields, "bf16": {**mixed, **bf16}}
        return fields

    def __hash__(self) -> int:
        return hash((self.name, self.software_date, self.kernels))

    @property
    def family(self) -> str:
        """Name without switches."""
        return strip_switches(self.name)

    def with_switches(self, *words: str) -> Framework:
        """Turn on more switches; raises UnknownNameError or DescriptionError."""
        suffix = "".join(f"+{word}" for word in self.switched)
        plain = {**self.model_dump(), "name": self.name.removesuffix(suffix)}
        changed = apply_switches(plain, (*self.switched, *words))
        return type(self).described(changed, where=shorten(changed["name"]))

    def with_checked_switches(self) -> Framework:
        """Check that switches change existing traits; raises DescriptionError, UnknownNameError."""
        plain = self.model_dump()
        for name, switch in self.switches.items():
            where = f"switches.{name}"
            for partner in (*switch.needs, *switch.excludes):
                if partner not in self.switches:
                    raise UnknownNameError("switch", partner, self.switches, f"of {where}")
            for path in switch.takes:
                check_path(plain, path, where)
            type(self).described(merge_tables(plain, switch.changes), where=f"{where}.changes")
        return self

    def refuses(
        self, machine: Machine, workload: Workload | None = None, model: Model | None = None
    ) -> str:
        """Reason why a machine, workload or model is not supported; empty if it is."""
        runtime, where = machine.device.runtime, f"({machine.name})"
        if runtime not in self.runtimes:
            return f"{self.name} does not run on {runtime} devices {where}; use another framework"
        if not machine.device.is_of(self.devices):
            return (
                f"{self.name} does not run on {machine.device.name} {where}; it is for "
                f"{', '.join(self.devices)}: use another framework"
            )
        for word, switch in self.active_switches.items():
            if why := switch.refuses(machine.device):
                return f"switch {word} of {self.family} {why} {where}; leave it out"
            if workload is not None and (why := switch.refuses_workload(workload, model)):
                return f"switch {word} of {self.family} {why}; leave it out"
        if model is not None and model.kind in self.code.unsharded_kinds:
            return (
                f"{self.name} cannot shard {model.name}: a tied tensor of this {model.kind} is in "
                "two of its groups; use ddp or deepspeed"
            )
        if workload is not None and workload.pad_experts and not self.code.pads_experts:
            return (
                f"pad_experts with expert_capacity = {workload.expert_capacity:g}: the token "
                f"dispatcher of {self.name} does not pad experts; leave pad_experts out or use "
                "another framework"
            )
        return ""

    def trait(self, path: str) -> Any:
        """Get a trait by its dotted name."""
        return functools.reduce(getattr, path.split("."), self)

    @property
    def active_switches(self) -> dict[str, Switch]:
        """Switches that are on, by the user's words (NAME or NAME=VALUE)."""
        return {word: self.switches[word.partition("=")[0]] for word in self.switched}

    @property
    def switch_arguments(self) -> tuple[str, ...]:
        """Arguments for the framework's files from the switches that are on."""
        active = self.active_switches.items()
        return tuple(line for word, switch in active for line in switch.fill_arguments(word))

    @property
    def unwritable(self) -> tuple[str, ...]:
        """Switches that are on and have no argument in the framework's files."""
        active = self.active_switches.items()
        return tuple(word for word, switch in active if switch.arguments is None)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the switches that are on."""
        active = self.active_switches.values()
        return {name: value for switch in active for name, value in switch.environment.items()}

    def on(self, runtime: Runtime) -> Framework:
        """Copy for a device runtime: without the kernels that are missing there."""
        changes: dict[str, Any] = {}
        if lacking := [row for row in self.other_kernels if runtime in row.runtimes]:
            kernels = lacking[0].model_dump(exclude={"runtimes"}, exclude_none=True)
            changes["kernels"] = self.kernels.replaced(**kernels)
        if runtime == "cpu":
            changes["communication"] = self.communication.replaced(
                contention=_SAME_CORES.model_dump()
            )
        return self.model_copy(update=changes) if changes else self

    def around(self, model: Model, workload: Workload) -> Framework:
        """Copy for a model that its own code does not build: with the kernels of the user's."""
        if model.traced is not None:
            changes: dict[str, object] = {
                "axes": self.code.own_module_axes,
                "schedules": self.code.own_module_schedules,
                "sequence_parallel": "never",
                "balance": "layers",
            }
            return self.model_copy(update=changes)._with_other_blocks()
        built = self.code.builds(model, workload)
        return self if built is not None else self._with_other_blocks()

    def _with_other_blocks(self) -> Framework:
        if not self.code.other_blocks:
            return self
        kernels = {**self.code.other_blocks, "fused_optimizer": self.kernels.fused_optimizer}
        for switch in self.active_switches.values():
            names = [path.split(".") for path in switch.takes if path.startswith("kernels.")]
            kernels |= {name: getattr(self.kernels, name) for _, name in names}
            kernels |= switch.changes.get("kernels", {})
        return self.model_copy(update={"kernels": traits.Kernels(**kernels)})

    def knows_blocks(self, model: Model) -> bool:
        """Whether a model's blocks were compared with the code that computes them."""
        families = self.kernels.families
        return model.counts_samples or not families or model.family in families

    def with_own_blocks(self) -> Framework:
        """Copy whose own blocks every model has, such as the modules that are traced."""
        code = self.code.model_copy(update={"models": (), "other_blocks": {}})
        return self.model_copy(update={"code": code})

    def with_attention(self, workload: Workload, model: Model) -> Workload:
        """Copy of a workload with the attention that the library runs, if it states none."""
        eager = self.kernels.transformers_release < model.written.fused_since
        kind = {"attention": "eager" if eager else "flash"}
        return workload.model_copy(update=kind) if workload.attention == "default" else workload

    def modules_for(self, precision: str) -> tuple[Module, ...]:
        """Modules that selective recompute can repeat in a training precision."""
        refused = self.recompute_modules_not_fp8 if precision == "fp8" else ()
        return tuple(name for name in self.recompute_modules if name not in refused)

    def zero_stages_for(self, precision: str) -> tuple[int, ...]:
        """ZeRO stages for a training precision and the switches that are on."""
        plain = precision in self.unsharded_precisions
        on = [switch.zero_stages for switch in self.active_switches.values()]
        return tuple(
            stage
            for stage in self.zero_stages
            if (stage or plain) and all(stage in stages for stages in on)
        )

    def limit_to_files(self, model: Model, workload: Workload) -> Framework:
        """Copy whose layouts are limited to those that its files can state for a job."""
        code = self.code
        changes: dict[str, object] = {
            "zero_stages": code.zero_stages or self.zero_stages,
            "schedules": code.schedules or self.schedules,
            "axes_need_sharding": code.axes_need_sharding or self.axes_need_sharding,
        }
        built = code.builds(model, workload)
        if built is not None and code.reshards_whole:
            changes["second_shards"] = False
        if built is not None and built.axes is not None:
            changes["axes"] = tuple(axis for axis in self.axes if axis in built.axes)
        if code.recompute_by is not None:
            changes["recompute_by"] = code.recompute_by
        if code.models and built is None:
            plain = tuple(mode for mode in self.recompute if mode != "selective")
            axes = code.own_module_axes if model.traced is not None else ()
            changes |= {"axes": axes, "recompute": plain}
        return self.model_copy(update=changes)

    def states_of(self, precision: str) -> Literal["full", "mixed", "bf16"]:
        """Name of the table of bytes per parameter for a training precision."""
        if precision in ("fp32", "tf32"):
            return "full"
        return "mixed" if precision == "fp16" or self.bf16 is None else "bf16"

    def states(self, precision: str) -> traits.States:
        """Bytes per parameter for a training precision."""
        table: traits.States = getattr(self, self.states_of(precision))
        if precision == "fp8" and table.whole_in_fp8:
            return table.replaced(master_bytes=4, copies_narrow_gradients=True)
        return table
