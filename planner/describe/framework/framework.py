"""Framework: a training framework, as one TOML file; no code asks for one by name."""

from __future__ import annotations

import functools
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from planner.describe.base import Description, ZeroStage
from planner.describe.framework.communication_traits import Communication, Reduction
from planner.describe.framework.emit_support import EmitSupport
from planner.describe.framework.kernel_traits import HostTime, Kernels, OtherKernels, Stall
from planner.describe.framework.memory_traits import Buffers, Offloading, States
from planner.describe.framework.supported_models import Axis
from planner.describe.framework.switches import (
    Switch,
    check_path,
    family,
    merged,
    switched,
)
from planner.describe.layout import RECOMPUTE, Context, Module, Recompute, Schedule
from planner.describe.machine import Machine, Requirements, Runtime
from planner.describe.model.model import Model
from planner.describe.workload import PRECISIONS, TrainingPrecision, Workload
from planner.errors import UnknownNameError, shorten

__all__ = ["Framework"]


class Framework(Description):
    """A training framework."""

    name: str
    """Name on the command line."""
    title: str
    """Full name and version described."""
    like: str = ""
    """The framework of the catalogue whose traits hold where this description states none; what
    is said of it by name (title, labels, source, notes, configuration, searched) is its own."""
    labels: tuple[str, ...] = ()
    """Words by which tables of runs call it besides its name, in lower case with single blanks."""
    source: str
    """Where its behaviour was read."""
    notes: tuple[str, ...] = ()
    """Limits and doubts of this description."""
    configuration: str = "none"
    """The recipe that writes its files (`planner emit`): the name of a module of
    `planner.emitters.recipes`; none: it is described for comparison only."""
    effort: float = Field(default=0, ge=0, le=10)
    """What it costs people to take up, beyond DDP around their own model: an order of preference on
    the scale of `planner.choose.recommendation` [1]."""
    searched: bool = False
    """Whether it is searched where no framework is named."""
    stands_in_for: str = ""
    """The framework in whose place it is searched, only where that one does not run."""
    instead_of: str = ""
    """The framework that is searched only where this one is not, or has nothing that fits."""
    requires: Requirements = Requirements()
    """What a machine must have for it to be searched there without being named."""
    runtimes: tuple[Runtime, ...] = get_args(Runtime)
    """Device runtimes it runs on."""
    devices: tuple[str, ...] = ()
    """Parts of the names of the devices that it runs on; none: all of these runtimes."""
    axes: tuple[Axis, ...]
    """Parallel axes besides data."""
    zero_stages: tuple[ZeroStage, ...] = Field(min_length=1)
    """ZeRO stages it offers (FSDP full shard is 3, grad-op is 2)."""
    zero_stages_with_pipeline: tuple[ZeroStage, ...] = (0, 1)
    """Stages it offers together with pp > 1."""
    unsharded_precisions: tuple[TrainingPrecision, ...] = PRECISIONS
    """Precisions in which it trains without sharding anything (ZeRO-0)."""
    axes_need_sharding: tuple[Axis, ...] = ()
    """Axes that go only with states that ranks share (ep: that many of them or a multiple)."""
    hybrid_stages: tuple[ZeroStage, ...] = ()
    """ZeRO stages whose sharding can stop at a group of ranks and replicate across groups."""
    second_shards: bool = False
    """Whether ZeRO-3 can keep weights sharded over fewer ranks from forward to backward."""
    context: tuple[Context, ...] = ("ring",)
    """How its context ranks attend to each other's tokens; the first where none is named."""
    context_alone: bool = False
    """Whether context parallelism excludes tensor and pipeline parallelism."""
    schedules: tuple[Schedule, ...] = ("none",)
    """Pipeline schedules."""
    recompute: tuple[Recompute, ...] = ("none", "full")
    """Activation recompute modes."""
    recompute_by: tuple[Literal["layers", "every", "span"], ...] = ()
    """What full recompute can be told of layers: the first ones of a stage, every n-th, or how many
    are repeated from one checkpoint."""
    recompute_modules: tuple[Module, ...] = ()
    """What selective recompute can be told to repeat instead of its policy's choice."""
    recompute_modules_not_fp8: tuple[Module, ...] = ()
    """Those of them that it cannot repeat in 8-bit training."""
    deferred_recompute: tuple[Recompute, ...] = RECOMPUTE
    """Those that go with schedules whose weight gradients are passes of their own."""
    deferred_zero_stages: tuple[ZeroStage, ...] = (0, 1, 2, 3)
    """ZeRO stages that go with such schedules."""
    selective_policy: Literal["attention-core", "matmul-outputs", "alternate-matmuls"] = (
        "attention-core"
    )
    """What selective recompute means: recompute the attention core (Korthikanti), or keep
    matrix products' outputs (all, or every second one)."""
    sequence_parallel: Literal["never", "with-tp", "optional"] = "never"
    """Whether norms and dropouts are split along the sequence inside the tp group."""
    offload_optimizer: tuple[Literal["cpu", "nvme"], ...] = ()
    """Where optimizer states can live."""
    offload_parameters: tuple[Literal["cpu", "nvme"], ...] = ()
    """Where parameters can live (ZeRO-3)."""
    offload_stages: tuple[ZeroStage, ...] = (1, 2, 3)
    """ZeRO stages at which the optimizer can be offloaded."""
    offload_activations: tuple[Recompute, ...] = ()
    """Recompute modes beside which activations can wait in host memory."""
    tiling: bool = False
    """Whether the largest layer can be split into tiles (memory-centric tiling)."""
    uneven_stages: bool = False
    """Whether pipeline stages may differ in their number of layers."""
    balance: Literal["layers", "ends-as-layers", "cost"] = "layers"
    """How layers are dealt to stages: equally; with embedding and head as one layer each; or
    by cost, with the head weighing as many layers as its parameters."""
    custom_pipeline_split: bool = False
    """Whether users may deal layers to stages themselves, or say for how many layers the ends
    count."""
    shards_rows: bool = False
    """Whether each tensor is sharded by whole rows, ceil(rows / ranks) (FSDP2), or all
    tensors as one flat array."""
    replicates_kv_heads: bool = False
    """Whether tp may exceed the number of key-value heads."""
    expert_tensor_parallel: tuple[Literal["tp", "one", "any"], ...] = ("tp",)
    """Ranks that can split each expert where ep > 1: those of tp, one, any number; the first is
    what it does unasked."""
    loads_full_checkpoint: bool = True
    """Whether every rank reads the whole checkpoint into host memory."""
    mixed: States
    """Bytes per parameter in 16-bit and 8-bit training."""
    bf16: States | None = None
    """Bytes per parameter in bf16 and fp8 training; what is not stated is as in `mixed`."""
    full: States
    """Bytes per parameter in fp32 and tf32 training."""
    kernels: Kernels
    """Kernels and saved tensors."""
    other_kernels: tuple[OtherKernels, ...] = ()
    """Which of them some runtimes lack."""
    host: HostTime
    """How long the host takes to issue a layer."""
    stalls: tuple[Stall, ...] = ()
    """Where runs stall now and then; said and avoided, not part of any step time."""
    buffers: Buffers
    """Fixed buffers."""
    communication: Communication
    """Overlap and synchronisation."""
    reduction: Reduction = Reduction()
    """How and when replicas sum up whole gradients."""
    offloading: Offloading = Offloading()
    """What offloading moves and holds."""
    code: EmitSupport = EmitSupport()
    """What its code and files can be told."""
    switches: dict[str, Switch] = Field(default_factory=dict)
    """What its users turn on, by name: `--framework NAME+SWITCH`."""
    switched: tuple[str, ...] = ()
    """Those of them that are on, as they were named."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, fields: Any) -> Any:
        """Fields with all of bf16, of which descriptions and switches state what differs."""
        if not isinstance(fields, dict):
            return fields
        mixed, bf16 = fields.get("mixed"), fields.get("bf16")
        if isinstance(mixed, dict) and isinstance(bf16, dict):
            return {**fields, "bf16": {**mixed, **bf16}}
        return fields

    def __hash__(self) -> int:
        return hash((self.name, self.kernels))

    @property
    def family(self) -> str:
        """Its name without switches."""
        return family(self.name)

    def with_switches(self, *words: str) -> Framework:
        """It with some of its switches on, besides those that are.

        Raises UnknownNameError where it has no such switch, DescriptionError where they do not go
        together.

        >>> from planner.describe.catalogue import load_framework
        >>> compiled = load_framework("fsdp2").with_switches("compile")
        >>> compiled.name, compiled.kernels.fused_norm
        ('fsdp2+compile', True)
        """
        plain = {**self.model_dump(), "name": self.name.removesuffix(self._switch_suffix)}
        changed = switched(plain, (*self.switched, *words))
        return type(self).described(changed, where=shorten(changed["name"]))

    def with_checked_switches(self) -> Framework:
        """It, where its switches change traits that there are.

        Raises DescriptionError, UnknownNameError for the first that does not.
        """
        plain = self.model_dump()
        for name, switch in self.switches.items():
            where = f"switches.{name}"
            for partner in (*switch.needs, *switch.excludes):
                if partner not in self.switches:
                    raise UnknownNameError("switch", partner, self.switches, f"of {where}")
            for path in switch.takes:
                check_path(plain, path, where)
            type(self).described(merged(plain, switch.changes), where=f"{where}.changes")
        return self

    def refuses(
        self, machine: Machine, workload: Workload | None = None, model: Model | None = None
    ) -> str:
        """Why it does not run on a machine's devices, or not a workload or its model there, as it
        is switched; empty where it does."""
        runtime, where = machine.device.runtime, f"({machine.name})"
        if runtime not in self.runtimes:
            return (
                f"{self.name} does not run on {runtime} devices {where}; use a framework for "
                f"{runtime}"
            )
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
        if workload is not None and workload.pad_experts and not self.code.pads_experts:
            return (
                f"pad_experts with expert_capacity = {workload.expert_capacity:g}: as it sends "
                f"tokens, {self.name} pads no experts; leave pad_experts out, or use a framework "
                "that sends them otherwise"
            )
        return ""

    def trait(self, path: str) -> Any:
        """The trait of a dotted name.

        >>> from planner.describe.catalogue import load_framework
        >>> load_framework("deepspeed").trait("buffers.num_reduce_buckets")
        2
        """
        return functools.reduce(getattr, path.split("."), self)

    @property
    def active_switches(self) -> dict[str, Switch]:
        """Its switches that are on, by how they were named."""
        return {word: self.switches[word.partition("=")[0]] for word in self.switched}

    @property
    def switch_arguments(self) -> tuple[str, ...]:
        """What its files are told for the switches that are on, in the recipe's own words."""
        active = self.active_switches.items()
        return tuple(line for word, switch in active for line in switch.fill_arguments(word))

    @property
    def unwritable(self) -> tuple[str, ...]:
        """Switches that are on and that its files cannot be told."""
        active = self.active_switches.items()
        return tuple(word for word, switch in active if switch.arguments is None)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the job's environment for the switches that are on."""
        active = self.active_switches.values()
        return {name: value for switch in active for name, value in switch.environment.items()}

    @property
    def _switch_suffix(self) -> str:
        return "".join(f"+{word}" for word in self.switched)

    def on(self, runtime: Runtime) -> Framework:
        """It as it runs on a device runtime: without kernels that do not exist there.

        >>> from planner.describe.catalogue import load_framework
        >>> megatron = load_framework("megatron-deepspeed")
        >>> [megatron.on(runtime).kernels.fused_rope for runtime in ("cuda", "rocm", "xpu")]
        [True, True, False]
        """
        lacking = [row for row in self.other_kernels if runtime in row.runtimes]
        if not lacking:
            return self
        changes = lacking[0].model_dump(exclude={"runtimes"}, exclude_none=True)
        return self.model_copy(update={"kernels": self.kernels.replaced(**changes)})

    def modules_for(self, precision: str) -> tuple[Module, ...]:
        """Modules that selective recompute can be told to repeat in a training precision.

        >>> from planner.describe.catalogue import load_framework
        >>> megatron = load_framework("megatron-lm")
        >>> sorted(set(megatron.modules_for("bf16")) - set(megatron.modules_for("fp8")))
        ['layernorm', 'moe_act']
        """
        refused = self.recompute_modules_not_fp8 if precision == "fp8" else ()
        return tuple(name for name in self.recompute_modules if name not in refused)

    def zero_stages_for(self, precision: str) -> tuple[int, ...]:
        """ZeRO stages that it offers in a training precision, with the switches that are on.

        >>> from planner.describe.catalogue import load_framework
        >>> [load_framework(name).zero_stages_for("bf16") for name in ("megatron-lm",
        ...                                                   "megatron-lm+precision-aware")]
        [(0, 1), (1,)]
        """
        plain = precision in self.unsharded_precisions
        on = [switch.zero_stages for switch in self.active_switches.values()]
        return tuple(
            stage
            for stage in self.zero_stages
            if (stage or plain) and all(stage in stages for stages in on)
        )

    def limit_to_files(self, model: Model, workload: Workload) -> Framework:
        """The part of it whose layouts can be written for a job.

        >>> from planner.describe.catalogue import load_framework, load_model
        >>> fsdp2 = load_framework("fsdp2")
        >>> models = [load_model(name) for name in ("llama-3-8b", "gpt2")]
        >>> [fsdp2.limit_to_files(model, Workload()).axes for model in models]
        [('tp', 'pp', 'cp'), ()]
        """
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
            changes |= {"axes": (), "recompute": plain}
        return self.model_copy(update=changes)

    def states_of(self, precision: str) -> Literal["full", "mixed", "bf16"]:
        """The table that states bytes per parameter for a training precision."""
        if precision in ("fp32", "tf32"):
            return "full"
        return "mixed" if precision == "fp16" or self.bf16 is None else "bf16"

    def states(self, precision: str) -> States:
        """Bytes per parameter for a training precision.

        >>> from planner.describe.catalogue import load_framework
        >>> blockwise = load_framework("megatron-lm+precision-aware+fp8-blockwise")
        >>> [blockwise.states(precision).master_bytes for precision in ("bf16", "fp8")]
        [2.0, 4.0]
        """
        table: States = getattr(self, self.states_of(precision))
        if precision == "fp8" and table.whole_in_fp8:
            return table.replaced(master_bytes=4, copies_narrow_gradients=True)
        return table
