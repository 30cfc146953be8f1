"""Pipeline: run a rank's stages under torch's own schedules, its neighbours being fake."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from planner.describe.layout import Layout
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import LayoutError
from planner.validate.sharding import adapter
from planner.validate.sharding.models import Stage
from planner.validate.sharding.shard import Meshes

__all__ = ["SCHEDULES", "Pipeline", "stage_tensors"]

SCHEDULES: dict[str, Callable[..., Any]] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "none": Schedule1F1B,
    "interleaved-1f1b": ScheduleInterleaved1F1B,
    "zero-bubble-v": ScheduleZBVZeroBubble,
    "dualpipe-v": ScheduleDualPipeV,
}
"""torch's schedules by the planner's names."""


def stage_tensors(
    model: Model, layout: Layout, workload: Workload, index: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Example input and output of a stage: token numbers, residual streams or logits.

    Raises LayoutError where its pipeline cannot be run.
    """
    if model.vision is not None or model.pooler:
        raise LayoutError(
            f"pp = {layout.pp} is not traced with patches or a pooler; use pp = 1 for {model.name}"
        )
    rows = workload.sequence_length // layout.cp
    local = rows // layout.tp if layout.sequence_parallel else rows
    stream = torch.empty(
        layout.micro_batch, local, model.hidden_size, dtype=dtype, requires_grad=True
    )
    tokens = torch.zeros((layout.micro_batch, rows), dtype=torch.long)
    logits = torch.empty(layout.micro_batch, rows, model.vocab_size // layout.tp, dtype=dtype)
    return (
        tokens if index == 0 else stream,
        logits if index == layout.pp * layout.vpp - 1 else stream,
    )


class Pipeline:
    """Stages of one rank (one per chunk) under their schedule."""

    def __init__(
        self,
        stages: dict[int, Stage],
        layout: Layout,
        meshes: Meshes,
        loss: Callable[[Tensor, Tensor], Tensor],
        examples: dict[int, tuple[Tensor, Tensor]],
    ) -> None:
        names = ", ".join(name for name in SCHEDULES if name != "none")
        if layout.schedule not in SCHEDULES:
            raise LayoutError(f"schedule {layout.schedule} is not traced; use one of {names}")
        assert meshes.pipeline is not None
        total = layout.pp * layout.vpp
        self.first, self.last = 0 in stages, total - 1 in stages
        self._stages = [
            PipelineStage(
                stage,
                index,
                total,
                torch.device("cpu"),
                input_args=examples[index][0],
                output_args=examples[index][1],
                group=meshes.pipeline.get_group(),
            )
            for index, stage in stages.items()
        ]
        self._schedule = SCHEDULES[layout.schedule](
            self._stages if layout.vpp > 1 else self._stages[0],
            layout.grad_accumulation,
            loss_fn=loss,
        )

    def receive_buffers(self) -> list[Tensor]:
        """Receive buffers: one activation and one gradient per micro-batch."""
        return [buffer for stage in self._stages for buffer in adapter.receive_buffers(stage)]

    def step(
        self,
        batches: list[tuple[Tensor, Tensor]],
        context: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Run all micro-batches forward and backward."""
        inputs = (torch.cat([tokens for tokens, _ in batches]),) if self.first else ()
        target: dict[str, Any] = {}
        if self.last:
            target = {"target": torch.cat([labels for _, labels in batches]), "losses": []}
        with context():
            # outputs are dropped at once, as in torchtitan
            self._schedule.step(*inputs, **target, return_outputs=False)
