"""EmitSupport: what a framework's own code builds and its files can be told."""

from __future__ import annotations

from typing import Literal

from planner.describe.base import Description, ZeroStage
from planner.describe.framework.supported_models import Axis, SupportedModels
from planner.describe.layout import Schedule
from planner.describe.model.model import Model
from planner.describe.workload import (
    OPTIMIZERS,
    PRECISIONS,
    OptimizerName,
    TrainingPrecision,
    Workload,
)
from planner.units import either

__all__ = ["EmitSupport"]


class EmitSupport(Description):
    """What its own code and files can be told, where that is less than what is estimated."""

    models: tuple[SupportedModels, ...] = ()
    """Models that its own code builds; none: it runs the model's own code, whatever that is."""
    other_models: Literal["none", "data-parallel"] = "none"
    """What it does for other models: nothing, or data parallelism around their own code."""
    precisions: tuple[TrainingPrecision, ...] = PRECISIONS
    """Precisions that its files can ask for."""
    optimizers: tuple[OptimizerName, ...] = OPTIMIZERS
    """Optimizers that its files can ask for."""
    drops_tokens: bool = False
    """Whether its files can limit what an expert takes."""
    pads_experts: bool = True
    """Whether it can pad experts to what they take at most."""
    masks_documents: bool = False
    """Whether its own code keeps documents that share a sequence apart, in a kernel that skips the
    rest."""
    zero_stages: tuple[ZeroStage, ...] = ()
    """ZeRO stages that its files can ask for; none stated: all that it offers."""
    schedules: tuple[Schedule, ...] = ()
    """Pipeline schedules that its files can ask for; none stated: all that it offers."""
    recompute_by: tuple[Literal["layers", "every", "span"], ...] | None = None
    """As `Framework.recompute_by`, of its files; none stated: all that it offers."""
    reshards_whole: bool = False
    """Whether its files shard the weights of models that its code builds over all their ranks
    again after a forward pass, or not at all."""
    axes_need_sharding: tuple[Axis, ...] = ()
    """As `Framework.axes_need_sharding`, of its files."""

    def lacks(self, model: Model, workload: Workload) -> str:
        """Why a job cannot be written at all; empty where it can."""
        if unsaid := self.unsupported_setting(workload):
            return unsaid
        if self.other_models != "none" or not self.models:
            return ""
        if workload.adapted:
            return "its code trains no adapters and freezes no parts"
        if mixes := self._mixes(workload):
            return mixes
        return self.unsupported_model(model, workload.sequence_length)

    def unsupported_setting(self, workload: Workload) -> str:
        """What of a workload its files cannot ask for; empty where they can all."""
        if workload.precision not in self.precisions:
            return f"precision {workload.precision} is not written; use {either(self.precisions)}"
        if workload.optimizer not in self.optimizers:
            return f"optimizer {workload.optimizer} is not written; use {either(self.optimizers)}"
        if workload.expert_capacity and not self.drops_tokens:
            return f"expert_capacity {workload.expert_capacity:g} is not written; use 0"
        if workload.pad_experts and not self.pads_experts:
            return "pad_experts is not written; leave it out"
        return ""

    def _mixes(self, workload: Workload) -> str:
        """Why documents would not attend as they are estimated in its own code."""
        if workload.document_lengths and workload.packing == "padded":
            return "its own data fills sequences up with the next document (packing = padded)"
        if workload.document_lengths and not (
            self.masks_documents and workload.attention == "flash"
        ):
            fused = f" with attention {workload.attention}" if self.masks_documents else ""
            return f"documents of one sequence (document_lengths) attend to each other there{fused}"
        return ""

    def unsupported_model(self, model: Model, sequence_length: int) -> str:
        """What sets a model apart from all that its code builds; empty where nothing does."""
        reasons = [decoders.lacks(model, sequence_length) for decoders in self.models]
        return "" if not reasons or "" in reasons else f"its code builds no model that {reasons[0]}"

    def builds(self, model: Model, workload: Workload) -> SupportedModels | None:
        """The code that builds a job's model; None where the model's own runs, adapted or not."""
        if workload.adapted or self._mixes(workload):
            return None
        for decoders in self.models:
            precise = workload.precision in decoders.precisions
            trains = precise and workload.optimizer in decoders.optimizers
            if trains and not decoders.lacks(model, workload.sequence_length):
                return decoders
        return None
