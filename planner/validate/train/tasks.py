"""Tasks: the two small trainings that every strategy runs, the same on any number of ranks.

Weights and batches come from fixed seeds on the CPU, so every rank can make any part of them and
the single process makes the same whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.describe.model.model import Model
from planner.errors import DescriptionError, LayoutError
from planner.validate.sharding.models import Stage, build_stage, cross_entropy
from planner.validate.train.strategies import TASKS, Spread

__all__ = ["GptTask", "MlpTask", "Task", "Tensors", "initial_state", "make_task", "suited"]

Tensors = dict[str, Tensor]
_MOST_ELEMENTS = 500_000_000


class _Block(nn.Module):
    """One layer of the perceptron: product, bias, GELU (no GELU after the last)."""

    def __init__(self, width: int, active: bool) -> None:
        super().__init__()
        self.linear, self.active = nn.Linear(width, width), active

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return F.gelu(x) if self.active else x


class Mlp(nn.Module):
    """Consecutive layers of the perceptron, named by their place in the whole."""

    def __init__(self, width: int, layers: range, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(i): _Block(width, i < depth - 1) for i in layers})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x


@dataclass(frozen=True, slots=True)
class MlpTask:
    """Multilayer perceptron: regression on a fixed random map."""

    batch: int = 128
    width: int = 1024
    depth: int = 4

    name = "mlp"

    @property
    def num_params(self) -> int:
        """Weights and biases."""
        return self.depth * (self.width + 1) * self.width

    @property
    def stream(self) -> tuple[int, ...]:
        """Shape of what one sample passes from layer to layer."""
        return (self.width,)

    def module(self, layers: range | None = None) -> nn.Module:
        """Some layers, or all."""
        return Mlp(self.width, range(self.depth) if layers is None else layers, self.depth)

    def batch_of(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the whole batch of a step."""
        made = torch.Generator().manual_seed(1000 + step)
        x = torch.randn(self.batch, self.width, generator=made)
        return x, torch.sin(3 * x.roll(1, dims=1))

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean squared error."""
        return F.mse_loss(output, target)


@dataclass(frozen=True, slots=True)
class GptTask:
    """Small GPT on fixed random tokens."""

    batch: int = 8
    sequence: int = 128
    width: int = 256
    depth: int = 4
    heads: int = 4
    vocabulary: int = 512

    name = "gpt"

    @property
    def model(self) -> Model:
        """Its description, as the planner knows models."""
        return Model(
            name="small-gpt",
            family="gpt",
            num_layers=self.depth,
            hidden_size=self.width,
            num_heads=self.heads,
            num_kv_heads=self.heads,
            head_dim=self.width // self.heads,
            ffn_size=4 * self.width,
            vocab_size=self.vocabulary,
            norm="layernorm",
            gated_mlp=False,
            activation="gelu",
            position="learned",
            mlp_bias=True,
            num_position_rows=self.sequence,
            max_sequence_length=self.sequence,
        )

    @property
    def num_params(self) -> int:
        """Weights, norms and biases."""
        return self.model.num_params

    @property
    def stream(self) -> tuple[int, ...]:
        """Shape of what one sample passes from layer to layer."""
        return (self.sequence, self.width)

    def module(self, layers: range | None = None) -> nn.Module:
        """Some layers with embedding and head where they belong, or all."""
        chosen = range(self.depth) if layers is None else layers
        return build_stage(
            self.model, chosen, first=chosen.start == 0, last=chosen.stop == self.depth
        )

    def batch_of(self, step: int) -> tuple[Tensor, Tensor]:
        """Tokens and next tokens of the whole batch of a step."""
        made = torch.Generator().manual_seed(2000 + step)
        tokens = torch.randint(self.vocabulary, (self.batch, self.sequence + 1), generator=made)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean next-token loss."""
        return cross_entropy(output, target)


Task = MlpTask | GptTask


def make_task(name: str, fields: Mapping[str, Any] | None = None) -> Task:
    """A task by name with some of its sizes changed.

    Raises DescriptionError where there is no such task or size, or it is too large to be small.
    """
    tasks = dict(zip(TASKS, (MlpTask, GptTask), strict=True))
    if name not in tasks:
        raise DescriptionError(f"unknown task {name!r}; use one of {', '.join(TASKS)}")
    for field, value in (fields or {}).items():
        if not isinstance(value, int) or value < 1:
            raise DescriptionError(f"{field} = {value!r} must be a whole number of at least 1")
    try:
        task = tasks[name](**dict(fields or {}))
    except TypeError:
        known = ", ".join(field.name for field in fields_of(tasks[name]))
        raise DescriptionError(f"{name} has the sizes {known}; use those") from None
    if isinstance(task, GptTask) and task.width % task.heads:
        raise DescriptionError(
            f"heads = {task.heads} must divide width = {task.width}; change one of them"
        )
    held = max(4 * task.num_params, task.batch * math.prod(task.stream) * task.depth)
    if held > _MOST_ELEMENTS:
        raise DescriptionError(
            f"{name} of {task.num_params:,} parameters and batch {task.batch} is no small shard; "
            f"stay below {_MOST_ELEMENTS:,} elements of state and of activations"
        )
    return task


def suited(task: Task, spread: Spread) -> Task:
    """The task with a multiple of as many layers as the pipeline has chunks.

    Raises LayoutError where its batch does not divide into micro-batches.
    """
    step = spread.pp * spread.chunks * (2 if spread.tp > 1 and spread.pp > 1 else 1)
    depth = step * math.ceil(task.depth / step)
    rows = spread.dp * spread.micro_batches
    if task.batch % rows:
        raise LayoutError(
            f"batch {task.batch} does not divide into dp * micro-batches = {rows}; "
            f"use a multiple of {rows}"
        )
    return task if depth == task.depth else replace(task, depth=depth)


def initial_state(task: Task) -> Tensors:
    """The weights that every strategy starts from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        module = task.module()
        if isinstance(module, Stage):
            module.tie()
        return {name: value.detach().clone() for name, value in module.state_dict().items()}
