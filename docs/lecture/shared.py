"""Shared: what the four strategies have in common, and all that happens without communication.

A network of four matrices with a ReLU between them learns random targets, on four ranks:
`torchrun --nproc-per-node 4 ddp.py`, or another of the files beside this one.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

RANKS, LAYERS, BATCH = 4, 4, 32
WIDTH, HIDDEN = 64, 256
SHAPES = ((WIDTH, HIDDEN), (HIDDEN, WIDTH)) * (LAYERS // 2)
"""Input and output width of every layer."""
ROWS = BATCH // RANKS
"""Samples per rank, and samples per micro-batch."""


class RankState:
    """Tensors of one rank: weights, gradients, Adam's two states, activations; by layer."""

    def __init__(self, rank: int) -> None:
        self.rank, self.count = rank, 0
        self.weights: dict[int, Tensor] = {}
        self.gathered: dict[int, Tensor] = {}
        self.gradients: dict[int, Tensor] = {}
        self.moments: dict[int, tuple[Tensor, Tensor]] = {}
        self.activations: dict[Any, Tensor] = {}

    def load(self, step: int) -> None:
        """Every rank reads its own quarter of the batch."""
        mine = slice(self.rank * ROWS, (self.rank + 1) * ROWS)
        x, target = samples(step)
        self.activations[0] = x[mine].clone()
        self.target = target[mine]

    def hold(self, layer: int, weight: Tensor) -> None:
        """Keep a weight, or a part of it, and two optimizer states of its shape."""
        self.weights[layer] = weight.clone()
        self.moments[layer] = torch.zeros_like(weight), torch.zeros_like(weight)

    def update(self) -> None:
        """Every rank updates the weights that it holds with Adam. Nothing is sent."""
        self.count += 1
        for layer, weight in self.weights.items():
            gradient, (m, v) = self.gradients.pop(layer), self.moments[layer]
            m.mul_(0.9).add_(gradient, alpha=0.1)
            v.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            m_hat, v_hat = m / (1 - 0.9**self.count), v / (1 - 0.999**self.count)
            weight -= 1e-3 * m_hat / (v_hat.sqrt() + 1e-5)


def product(layer: int, x: Tensor, weight: Tensor) -> Tensor:
    """Multiply by the weight; a ReLU follows every layer but the last."""
    y = x @ weight
    return y.relu() if layer < LAYERS - 1 else y


def output_gradient(y: Tensor, target: Tensor) -> Tensor:
    """Gradient of the mean squared error over the whole batch."""
    return 2 * (y - target) / (BATCH * WIDTH)


def input_gradient(x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
    """Gradient of a layer's input; ReLU, which made the input, passes it where x > 0."""
    return (dy @ weight.T) * (x > 0)


def initial_weights() -> list[Tensor]:
    """Make the same weights on every rank."""
    seeded = torch.Generator().manual_seed(7)
    return [torch.randn(*shape, generator=seeded) / shape[0] ** 0.5 for shape in SHAPES]


def samples(step: int) -> tuple[Tensor, Tensor]:
    """Make the inputs and targets of a step's whole batch."""
    seeded = torch.Generator().manual_seed(step)
    x, target = torch.randn(2, BATCH, WIDTH, generator=seeded)
    return x, target


def run(strategy: type[Any], steps: int = 3) -> None:
    """Train on the ranks that torchrun started, and print what every rank holds between steps."""
    dist.init_process_group("gloo")
    state = strategy(dist.get_rank())
    state.start()
    for step in range(steps):
        state.step(step)
    tensors = [*state.weights.values(), *(each for pair in state.moments.values() for each in pair)]
    size = sum(tensor.nbytes for tensor in tensors)
    print(f"rank {state.rank}: {size:,} bytes of weights and optimizer states", flush=True)
    dist.destroy_process_group()
