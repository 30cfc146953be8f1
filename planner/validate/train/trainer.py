"""Trainer: spread a task over real ranks with torch's own tools, and train it."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial
from torch.nn.parallel import DistributedDataParallel

from planner.cost.shards.layers_per_stage import layers_on_stage
from planner.validate.ranks.rank import Rank
from planner.validate.sharding.passes import Pipeline, optimizer_groups
from planner.validate.sharding.shard import make_mesh
from planner.validate.train.strategies import SCHEDULES, Spread
from planner.validate.train.tasks import Task, Tensors, initial_state

_LEARNING_RATE, _EPS = 1e-3, 1e-5
# a larger eps than torch's: otherwise Adam turns rounding noise of tiny gradients into full steps,
# and strategies that agree seem to differ


class Trainer:
    """One rank's part of a task under a strategy."""

    def __init__(self, task: Task, spread: Spread, rank: Rank) -> None:
        self.task, self.spread = task, spread
        self.device = torch.device(rank.device)
        self._mesh: DeviceMesh | None = None
        if spread.world > 1:
            self._mesh = make_mesh(self.device.type, pp=spread.pp, dp=spread.dp, tp=spread.tp)
        self.dp_rank, self.pp_rank = (
            int(self._mesh.get_local_rank(axis)) if self._mesh is not None else 0
            for axis in ("dp", "pp")
        )
        state, total = initial_state(task), spread.pp * spread.chunks
        chunks = {
            index: self._chunk(index, state) for index in range(self.pp_rank, total, spread.pp)
        }
        self.chunks = list(chunks.values())
        self.module, self.pipeline = self.chunks[0], None
        if spread.schedule:
            layout = (SCHEDULES[spread.schedule], total, spread.micro_batches)
            self.pipeline = Pipeline(chunks, layout, task.loss, self._axis("pp"), self.device)
        elif spread.dp > 1 and not spread.shards_gradients:
            group = self._axis("dp").get_group()
            self.module = DistributedDataParallel(
                self.module, process_group=group, gradient_as_bucket_view=True
            )
        self.optimizer = self._optimizer()

    def _axis(self, axis: str) -> DeviceMesh:
        assert self._mesh is not None
        return self._mesh[axis]

    def _chunk(self, index: int, state: Tensors) -> nn.Module:
        spread = self.spread
        start, count = layers_on_stage(self.task.depth, spread.pp * spread.chunks, index)
        chunk = self.task.module(range(int(start), int(start + count)))
        chunk.load_state_dict({name: state[name] for name in chunk.state_dict()})
        chunk.to(self.device)
        self.task.prepare(chunk)
        if spread.tp > 1:
            self.task.split(chunk, self._axis("tp"), spread)
        if spread.shards_gradients and spread.dp > 1:
            for part in (*self.task.layers(chunk), chunk):
                fully_shard(
                    part, mesh=self._axis("dp"), reshard_after_forward=spread.shards_weights
                )
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

    def step(self, number: int) -> float:
        """Run one step on this rank's share of the batch. Returns its loss; NaN if it has none."""
        rows = self.task.batch // self.spread.dp
        share = slice(self.dp_rank * rows, (self.dp_rank + 1) * rows)
        x, y = (tensor[share].to(self.device) for tensor in self.task.batch_of(number))
        if self.pipeline is not None:
            losses = [loss.detach() for loss in self.pipeline.step(x, y)]
        else:
            loss = self.task.loss(self.module(x), y)
            loss.backward()
            losses = [loss.detach()]
        self._reduce_partial()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(torch.stack(losses).mean()) if losses else math.nan

    def _reduce_partial(self) -> None:
        """Reduce partial gradients over tp ranks once (AdamW would do it twice)."""
        for param in self._parameters():
            grad = param.grad
            if isinstance(grad, DTensor) and any(isinstance(p, Partial) for p in grad.placements):
                assert isinstance(param, DTensor)
                param.grad = grad.redistribute(placements=param.placements)

    def _parameters(self) -> list[nn.Parameter]:
        return [param for chunk in self.chunks for param in chunk.parameters()]

    def degree(self, axis: str) -> int:
        """Size of this rank's group along an axis; the world size for any other name."""
        return int(getattr(self.spread, axis, self.spread.world))

    def axis_of(self, ranks: tuple[int, ...]) -> str:
        """Name of the axis whose group has these ranks; "world" if none has."""
        for axis in ("tp", "dp", "pp"):
            if self.degree(axis) > 1:
                group = self._axis(axis).get_group()
                if tuple(torch.distributed.get_process_group_ranks(group)) == ranks:
                    return axis
        return "world"

    def parameters(self) -> Tensors:
        """All-gather the unsharded parameters of this rank's layers."""
        unsharded = {}
        for chunk in self.chunks:
            for name, param in chunk.named_parameters():
                value = param.full_tensor() if isinstance(param, DTensor) else param
                unsharded[name] = value.detach().cpu()
        return unsharded

    def resident_tensors(self) -> dict[str, list[Any]]:
        """Tensors that stay between steps: parameters and optimizer states."""
        inner = getattr(self.optimizer, "optim", self.optimizer)
        states = [
            value
            for state in inner.state.values()
            for value in state.values()
            if isinstance(value, Tensor) and value.dim() > 0
        ]
        return {"parameters": self._parameters(), "optimizer_states": states}

    def state_bytes(self) -> dict[str, int]:
        """Bytes that stay between steps on this rank: parameters and optimizer states."""
        return {
            name: sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in tensors)
            for name, tensors in self.resident_tensors().items()
        }
