"""Splitting: tensor- and sequence-parallel plans of the two small tasks."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from planner.errors import LayoutError
from planner.validate.sharding.models import Stage
from planner.validate.sharding.shard import tensor_parallel
from planner.validate.train.tasks import Task

__all__ = ["split_over_ranks"]


def split_over_ranks(chunk: nn.Module, task: Task, mesh: DeviceMesh, *, sequence: bool) -> None:
    """Megatron's split: columns then rows, one reduction per pair and direction.

    Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3. Raises LayoutError where the
    perceptron's sizes do not divide by the ranks.
    """
    if isinstance(chunk, Stage):
        tensor_parallel(chunk, mesh, sequence, whole_logits=True)
        return
    if task.depth % 2 or task.width % mesh.size() or (sequence and task.batch % mesh.size()):
        raise LayoutError(
            f"depth {task.depth} must be even, and width {task.width} and batch {task.batch} "
            f"divide by tp = {mesh.size()}; change one of them"
        )
    plan: dict[str, Any] = {}
    names = list(chunk.layers)  # type: ignore[arg-type]
    for place, name in enumerate(names):
        # the stream is whole at both ends: the data is, and the loss wants it
        start = Shard(0) if sequence and place else Replicate()
        stop = Shard(0) if sequence and place < len(names) - 1 else Replicate()
        plan[f"layers.{name}.linear"] = (
            RowwiseParallel(output_layouts=stop)
            if place % 2
            else ColwiseParallel(input_layouts=start)
        )
    parallelize_module(chunk, mesh, plan)
