"""Trainer: spread a task over real ranks with torch's own tools, and train it.

Each strategy is a layout: DDP, ZeRO-1 (ZeroRedundancyOptimizer), ZeRO-2 and ZeRO-3 (FSDP2),
tensor and sequence parallel (DTensor), pipelines (torch.distributed.pipelining), and all three
axes together. Nothing is simulated: the collectives run.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from planner.errors import LayoutError
from planner.validate.ranks.rank import Rank
from planner.validate.sharding.models import Stage
from planner.validate.sharding.shard import optimizer_groups, tensor_parallel
from planner.validate.train.strategies import Spread
from planner.validate.train.tasks import Task, Tensors, initial_state

__all__ = ["Trainer", "split_over_tp"]

_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}
_LEARNING_RATE, _EPS = 1e-3, 1e-5
# a larger eps than torch's keeps Adam from turning rounding noise of vanishing gradients into
# whole steps, which would hide that the strategies agree


class Trainer:
    """One rank's part of a task under a strategy."""

    def __init__(self, task: Task, spread: Spread, rank: Rank) -> None:
        self.task, self.spread = task, spread
        self.device = torch.device(rank.device)
        self._mesh: DeviceMesh | None = None
        if spread.world > 1:
            self._mesh = init_device_mesh(
                self.device.type,
                (spread.pp, spread.dp, spread.tp),
                mesh_dim_names=("pp", "dp", "tp"),
            )
        self.dp_rank, self.pp_rank = self._place("dp"), self._place("pp")
        state = initial_state(task)
        self.chunks = [self._chunk(index, state) for index in self._chunk_indices()]
        self.module: nn.Module | None = None
        if not spread.schedule:
            self.module = self._replicated(self.chunks[0])
        self.optimizer = self._optimizer()
        self.schedule = self._schedule() if spread.schedule else None

    def _place(self, axis: str) -> int:
        return int(self._mesh.get_local_rank(axis)) if self._mesh is not None else 0

    def _axis(self, axis: str) -> DeviceMesh:
        assert self._mesh is not None
        return self._mesh[axis]

    # --- build -------------------------------------------------------------------------------

    def _chunk_indices(self) -> list[int]:
        return [self.pp_rank + k * self.spread.pp for k in range(self.spread.chunks)]

    def _chunk(self, index: int, state: Tensors) -> nn.Module:
        """One pipeline chunk (or the whole), split over tp and sharded over dp."""
        spread = self.spread
        per_chunk = self.task.depth // (spread.pp * spread.chunks)
        layers = range(index * per_chunk, (index + 1) * per_chunk)
        chunk = self.task.module(layers)
        full_state = chunk.state_dict()
        chunk.load_state_dict({name: state[name] for name in full_state})
        chunk.to(self.device)
        if isinstance(chunk, Stage):
            rows = self.task.stream[0]
            chunk.default_rope = chunk.tables(rows, self.device, torch.float32)
        if spread.tp > 1:
            split_over_tp(chunk, self.task, self._axis("tp"), sequence=spread.sequence_parallel)
        if spread.shards_gradients and spread.dp > 1:
            reshards = spread.shards_weights
            mesh = self._axis("dp")
            for layer in chunk.layers.values():  # type: ignore[operator]
                fully_shard(layer, mesh=mesh, reshard_after_forward=reshards)
            fully_shard(chunk, mesh=mesh, reshard_after_forward=reshards)
        return chunk

    def _replicated(self, chunk: nn.Module) -> nn.Module:
        if self.spread.dp > 1 and not self.spread.shards_gradients:
            group = self._axis("dp").get_group()
            return DistributedDataParallel(chunk, process_group=group, gradient_as_bucket_view=True)
        return chunk

    def _optimizer(self) -> torch.optim.Optimizer:
        settings: dict[str, Any] = {"lr": _LEARNING_RATE, "eps": _EPS, "foreach": True}
        if self.spread.zero_stage == 1:
            return ZeroRedundancyOptimizer(
                self.chunks[0].parameters(),
                optimizer_class=torch.optim.AdamW,
                process_group=self._axis("dp").get_group(),
                **settings,
            )
        groups = [group for chunk in self.chunks for group in optimizer_groups(chunk)]
        return torch.optim.AdamW(groups, **settings)

    def _schedule(self) -> Any:
        spread = self.spread
        stages = [
            PipelineStage(
                chunk,
                index,
                spread.pp * spread.chunks,
                self.device,
                group=self._axis("pp").get_group(),
            )
            for chunk, index in zip(self.chunks, self._chunk_indices(), strict=True)
        ]
        kind = _SCHEDULES[spread.schedule]
        single = stages if spread.chunks > 1 else stages[0]
        return kind(single, spread.micro_batches, loss_fn=self.task.loss)

    # --- train -------------------------------------------------------------------------------

    def step(self, number: int) -> float:
        """Forward, backward and update on this rank's share; its loss, NaN where it has none."""
        x, y = self._share(number)
        if self.schedule is not None:
            loss = self._pipelined(x, y)
        else:
            assert self.module is not None
            value = self.task.loss(self.module(x), y)
            value.backward()
            loss = value.detach()
        self._reduce_partial()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return math.nan if loss is None else float(loss)

    def _share(self, number: int) -> tuple[Tensor, Tensor]:
        x, y = self.task.batch_of(number)
        rows = self.task.batch // self.spread.dp
        rows_of_rank = slice(self.dp_rank * rows, (self.dp_rank + 1) * rows)
        return x[rows_of_rank].to(self.device), y[rows_of_rank].to(self.device)

    def _pipelined(self, x: Tensor, y: Tensor) -> Tensor | None:
        assert self.schedule is not None
        first, last = self.pp_rank == 0, self.pp_rank == self.spread.pp - 1
        losses: list[Tensor] = []
        inputs = (x,) if first else ()
        target = {"target": y, "losses": losses} if last else {}
        # outputs are dropped at once, as in torchtitan
        self.schedule.step(*inputs, **target, return_outputs=False)
        return torch.stack([loss.detach() for loss in losses]).mean() if last else None

    def _reduce_partial(self) -> None:
        """Sum gradients that tp ranks hold in part, once (AdamW would do it twice)."""
        for chunk in self.chunks:
            for param in chunk.parameters():
                grad = param.grad
                if isinstance(grad, DTensor) and any(
                    isinstance(p, Partial) for p in grad.placements
                ):
                    assert isinstance(param, DTensor)
                    param.grad = grad.redistribute(placements=param.placements)

    # --- read out ----------------------------------------------------------------------------

    def degree(self, axis: str) -> int:
        """Ranks of this rank's group along an axis; the world for anything else."""
        return int(getattr(self.spread, axis, self.spread.world))

    def axis_of(self, ranks: tuple[int, ...]) -> str:
        """The axis whose group has these ranks."""
        for axis in ("tp", "dp", "pp"):
            if self.degree(axis) > 1:
                group = self._axis(axis).get_group()
                if tuple(torch.distributed.get_process_group_ranks(group)) == ranks:
                    return axis
        return "world"

    def parameters(self) -> Tensors:
        """Unsharded parameters of this rank's layers, all-gathered from all that hold a shard."""
        unsharded = {}
        for chunk in self.chunks:
            for name, param in chunk.named_parameters():
                value = param.full_tensor() if isinstance(param, DTensor) else param
                unsharded[name] = value.detach().cpu()
        return unsharded

    def resident_tensors(self) -> list[Any]:
        """Tensors that stay between steps: parameters, then optimizer states."""
        inner = getattr(self.optimizer, "optim", self.optimizer)
        return [p for chunk in self.chunks for p in chunk.parameters()] + [
            value
            for state in inner.state.values()
            for value in state.values()
            if isinstance(value, Tensor) and value.dim() > 0
        ]

    def state_bytes(self) -> dict[str, int]:
        """Bytes that stay between steps on this rank: parameters and optimizer states."""
        parameters = sum(1 for chunk in self.chunks for _ in chunk.parameters())
        tensors = self.resident_tensors()
        return {
            "parameters": _bytes(tensors[:parameters]),
            "optimizer_states": _bytes(tensors[parameters:]),
        }


def _bytes(tensors: list[Any]) -> int:
    local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    return sum(t.numel() * t.element_size() for t in local)


def split_over_tp(chunk: nn.Module, task: Task, mesh: DeviceMesh, *, sequence: bool) -> None:
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
