"""Emit support: the models that a framework's code builds, and the settings that its files have."""

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
    """Support of the framework's own code and files, if less than can be estimated."""

    models: tuple[SupportedModels, ...] = ()
    """Models that its own code builds; empty: it runs the user's model code."""
    other_models: Literal["none", "data-parallel"] = "none"
    """Support of other models: none, or data parallelism around their own code."""
    precisions: tuple[TrainingPrecision, ...] = PRECISIONS
    """Precisions that its files can set."""
    optimizers: tuple[OptimizerName, ...] = OPTIMIZERS
    """Optimizers that its files can set."""
    drops_tokens: bool = False
    """Whether its files can limit the tokens of an expert."""
    pads_experts: bool = True
    """Whether it can pad experts to their capacity."""
    masks_documents: bool = False
    """Whether its code masks documents that share a sequence, in a kernel that skips the masked
    part."""
    zero_stages: tuple[ZeroStage, ...] = ()
    """ZeRO stages that its files can set; empty: all it offers."""
    schedules: tuple[Schedule, ...] = ()
    """Pipeline schedules that its files can set; empty: all it offers."""
    recompute_by: tuple[Literal["layers", "every", "span"], ...] | None = None
    """As `Framework.recompute_by`, for its files; None: all it offers."""
    reshards_whole: bool = False
    """Whether its files either reshard weights over all their ranks after forward or not at all,
    for models of its code."""
    axes_need_sharding: tuple[Axis, ...] = ()
    """As `Framework.axes_need_sharding`, for its files."""

    def lacks(self, model: Model, workload: Workload) -> str:
        """Why no file can be written for a job; empty if one can."""
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
        """Setting of a workload that its files lack; empty if there is none."""
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
        """Why its code would mix documents that are estimated apart; empty if it does not."""
        if workload.document_lengths and workload.packing == "padded":
            return "its own data fills sequences up with the next document (packing = padded)"
        if workload.document_lengths and not (
            self.masks_documents and workload.attention == "flash"
        ):
            fused = f" with attention {workload.attention}" if self.masks_documents else ""
            return f"documents of one sequence (document_lengths) attend to each other there{fused}"
        return ""

    def unsupported_model(self, model: Model, sequence_length: int) -> str:
        """Difference of a model from all models that its code builds; empty if there is none."""
        reasons = [decoders.lacks(model, sequence_length) for decoders in self.models]
        return "" if not reasons or "" in reasons else f"its code builds no model that {reasons[0]}"

    def builds(self, model: Model, workload: Workload) -> SupportedModels | None:
        """The supported models that include a job's model; None if the user's model code runs."""
        if workload.adapted or self._mixes(workload):
            return None
        for decoders in self.models:
            precise = workload.precision in decoders.precisions
            trains = precise and workload.optimizer in decoders.optimizers
            if trains and not decoders.lacks(model, workload.sequence_length):
                return decoders
        return None
