"""Splitting: tensor- and sequence-parallel plans of the two small tasks."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from planner.errors import LayoutError
from planner.validate.sharding.models import Stage
from planner.validate.train.tasks import Task

__all__ = ["split_over_ranks"]


def split_over_ranks(chunk: nn.Module, task: Task, mesh: DeviceMesh, *, sequence: bool) -> None:
    """Megatron's split: columns then rows, one reduction per pair and direction.

    Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3. Raises LayoutError where the
    perceptron's sizes do not divide by the ranks.
    """
    if isinstance(chunk, Stage):
        _split_gpt(chunk, mesh, sequence)
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


def _split_gpt(stage: Stage, mesh: DeviceMesh, sequence: bool) -> None:
    stream = Shard(1) if sequence else Replicate()
    plan: dict[str, Any] = {}
    if stage.first:
        plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)
        if sequence and stage.position is not None:
            plan["position"] = SequenceParallel(sequence_dim=0, use_local_output=True)
            stage.num_row_shards, stage.row_shard = mesh.size(), mesh.get_local_rank()
    if stage.last:
        plan["head"] = ColwiseParallel(input_layouts=stream, output_layouts=Replicate())
        if sequence:
            plan["norm"] = SequenceParallel(use_local_output=True)
    parallelize_module(stage, mesh, plan)
    for layer in stage.layers.values():
        parallelize_module(layer, mesh, _layer(stream, sequence))


def _layer(stream: Any, sequence: bool) -> dict[str, Any]:
    plan: dict[str, Any] = {
        "attention": PrepareModuleInput(
            input_layouts=(stream, None), desired_input_layouts=(Replicate(), None)
        ),
        "ffn": PrepareModuleInput(input_layouts=stream, desired_input_layouts=Replicate()),
        "attention.wo": RowwiseParallel(output_layouts=stream),
        "ffn.down": RowwiseParallel(output_layouts=stream),
        "ffn.up": ColwiseParallel(),
    }
    for name in ("attention.wq", "attention.wk", "attention.wv"):
        plan[name] = ColwiseParallel()
    if sequence:
        plan["attention_norm"] = plan["ffn_norm"] = SequenceParallel()
    return plan
